"""The library in the program fits older C libraries than the one it was built with."""

import os
import platform
import re
import shutil

import pytest

from conftest import execute

LOADER = {"x86_64": "ld-linux-x86-64", "aarch64": "ld-linux-aarch64"}[platform.machine()]
OLDEST_GLIBC = (2, 17)  # what the README promises


@pytest.fixture(scope="module")
def library(executable, tmp_path_factory):
    """The library, as the program writes it for the loader."""
    folder = tmp_path_factory.mktemp("cache")
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder)}
    environment.pop("MEMTRACK_SHIM", None)
    done = execute([executable, "run", "-q", "-o", folder / "capture.bin", "--", "true"], env=environment)
    assert done.status == 0, done.stderr
    (path,) = folder.glob("memtrack/*/libmemtrack_shim.so")
    return path


def test_the_library_needs_no_later_c_library_than_promised(library):
    if not shutil.which("objdump"):
        pytest.skip("no objdump (binutils)")
    symbols = execute(["objdump", "-T", library])
    assert symbols.status == 0, symbols.stderr
    needed = re.findall(r"\(?GLIBC_([\d.]+)\)?\s+(\w+)$", symbols.stdout.decode(), re.MULTILINE)
    assert {"malloc", "dlsym"} <= {name for _, name in needed}
    too_new = [f"{name}@{version}" for version, name in needed if tuple(map(int, version.split("."))) > OLDEST_GLIBC]
    assert not too_new


def test_the_library_loads_no_other_than_the_c_library(library):
    """Each would be loaded into every process that is recorded."""
    if not shutil.which("objdump"):
        pytest.skip("no objdump (binutils)")
    headers = execute(["objdump", "-p", library])
    assert headers.status == 0, headers.stderr
    needed = re.findall(r"NEEDED\s+(\S+)", headers.stdout.decode())
    assert {re.sub(r"\.so.*", "", name) for name in needed} == {"libc", "libdl", LOADER}


def test_the_library_defines_nothing_that_the_program_could_take(library):
    """It has names of the C library in it, for itself alone."""
    if not shutil.which("objdump"):
        pytest.skip("no objdump (binutils)")
    symbols = execute(["objdump", "-T", library]).stdout.decode()
    lines = [line for line in symbols.splitlines() if re.match(r"[0-9a-f]{16} ", line)]
    defined = [line.split()[-1] for line in lines if "*UND*" not in line]
    assert defined and all(name.startswith("memtrack_") for name in defined)
