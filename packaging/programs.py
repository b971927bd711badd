"""Compiles the program and its library so that they run on every glibc from 2.17 on.

Why two linkers: zig links the program against the symbols of glibc 2.17, which the system's linker cannot; the
library uses options that zig's linker does not have, and needs no newer symbol as it is. Invariant: what is handed
out was looked at: no symbol after 2.17, no other library than glibc's, no path of this machine.
"""

import os
import platform
import re
import sys
import zipfile
from functools import lru_cache
from pathlib import Path

from checkout import MACHINE, WORK, Failure, commit, empty, epoch, output, run, say, stage

GLIBC = (2, 17)
PLATFORM = f"manylinux_{GLIBC[0]}_{GLIBC[1]}"
TARGET = f"{MACHINE}-unknown-linux-gnu"
PROFILE = "dist"
LIBRARIES = re.compile(r"(libc|libm|libdl|libpthread|librt|ld-linux-(x86-64|aarch64))\.so\.[0-9]+")
# Up to those that were tried: a release of theirs changes nothing here by itself.
TOOLS = ["maturin>=1.9,<=1.16.0", "ziglang>=0.15,<=0.17.1", "wheel>=0.43,<=0.48.0"]


def tools():
    """What building needs and a system does not have."""
    return virtual_environment("tools", TOOLS)


def virtual_environment(name, requirements):
    """A virtual environment below WORK with packages of PyPI, made when it is not there, or is one of other requirements."""
    place, wanted = WORK / name, "\n".join(requirements)
    complete = place / "complete"
    if not complete.exists() or complete.read_text() != wanted:
        say(f"installs {', '.join(requirements)} in {place}")
        run(sys.executable, "-m", "venv", "--clear", place)
        patiently = ["--quiet", "--disable-pip-version-check", "--retries", "10", "--timeout", "60"]
        run(place / "bin/python", "-m", "pip", "install", *patiently, *requirements)
        complete.write_text(wanted)
    return place


@lru_cache(maxsize=None)
def source():
    """The staged files: once in a run, so that all is made of the same."""
    commit()
    return stage(WORK / "source")


def environment(**more):
    """That of every build: tools found, paths of this machine replaced, and no time but the commit's."""
    cargo_home = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo"))
    paths = [(WORK / "source", "/memtrack"), (WORK / "cargo", "/target"), (cargo_home, "/cargo")]
    flags = [f"--remap-path-prefix={path}={name}" for path, name in paths]
    c_flags = " ".join(f"-ffile-prefix-map={path}={name}" for path, name in paths)
    return {
        **os.environ,
        "PATH": f"{tools()}/bin:{os.environ['PATH']}",
        "CARGO_TARGET_DIR": str(WORK / "cargo"),
        "CARGO_ENCODED_RUSTFLAGS": "\x1f".join(flags),
        "CFLAGS": c_flags,
        "CARGO_INCREMENTAL": "0",
        "SOURCE_DATE_EPOCH": str(epoch()),
        "MEMTRACK_COMMIT": commit(),
        **more,
    }


@lru_cache(maxsize=None)
def library():
    """The library that is loaded into programs."""
    linker = {f"CARGO_TARGET_{TARGET.upper().replace('-', '_')}_LINKER": f"{MACHINE}-linux-gnu-gcc"}
    command = ["cargo", "build", "--locked", "--profile", "shim", "--package", "memtrack-shim", "--target", TARGET]
    run(*command, cwd=source(), env=environment(**({} if MACHINE == platform.machine() else linker)))
    return checked(WORK / "cargo" / TARGET / "shim" / "libmemtrack_shim.so")


def program_with_library_beside():
    """The program that looks for its library in the system's directories: out of a wheel, so that dependencies are
    compiled once for all packages."""
    return program_of(maturin_wheel(source(), "--features", "external-shim"), WORK / "external-shim")


def maturin_wheel(directory, *options, **variables):
    """What maturin makes of a staged source with zig as linker."""
    made = empty(WORK / "maturin")
    command = ["build", "--zig", "--compatibility", PLATFORM, "--auditwheel", "check", "--target", TARGET]
    command += ["--profile", PROFILE, "--out", made, *options]
    run(tools() / "bin/maturin", *command, cwd=directory, env=environment(**variables))
    return next(made.glob("*.whl"))


def program_of(wheel, directory):
    """The program in a wheel, unpacked and looked at."""
    with zipfile.ZipFile(wheel) as content:
        (name,) = (name for name in content.namelist() if name.endswith(".data/scripts/memtrack"))
        file = Path(content.extract(name, empty(directory)))
    file.chmod(0o755)
    return checked(file)


def glibc_needed(file):
    """The newest version of glibc whose symbols a file needs. Weak ones are not needed."""
    table = output("readelf", "--version-info", "--wide", file)
    found = re.findall(r"Name: GLIBC_([0-9.]+)  Flags: (\S+)", table)
    return max((tuple(map(int, name.split("."))) for name, flags in found if flags != "WEAK"), default=(0, 0))


def checked(file):
    """The same file, after a look at what it needs and names."""
    dynamic = output("readelf", "--dynamic", "--wide", file)
    strange = [name for name in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic) if not LIBRARIES.fullmatch(name)]
    if strange:
        raise Failure(f"{file} needs {', '.join(strange)}")
    newest = glibc_needed(file)
    if newest[:2] > GLIBC:
        raise Failure(f"{file} needs glibc {'.'.join(map(str, newest))}, not {'.'.join(map(str, GLIBC))}")
    content = Path(file).read_bytes()
    for path in [str(WORK), str(Path.home() / ".cargo")]:
        if path.encode() in content:
            raise Failure(f"{file} names {path}")
    return Path(file)
