"""The hook path asks for nothing: no memory of memtrack's own, and no system call but what wakes or awaits the collector."""

import platform
import re
import shutil
import subprocess

import pytest

from conftest import PROGRAMS, interpreter_path

EVENTS = 1_000_000
# A million events fill some segments: each may wake the collector, or be waited for. What each event did would be a million.
MOST_FUTEXES = EVENTS // 200

# A round is one allocation and one free of the C library's.
PROGRAM = f"""
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
def one(): return bytes(600)
def other(): return bytearray(700)
def churn(rounds):
    for _ in range(rounds):
        one(); other()
churn({EVENTS // 20})
missing = library.hook_path_begin()
if missing: sys.exit(missing)
churn({EVENTS // 4})
library.hook_path_end()
"""

MODES = {
    "plain": [],
    "timestamps": ["--allocation-timestamps"],
    "native": ["--native"],
    "native, timestamps": ["--native", "--allocation-timestamps"],
    "every object": ["--trace-python-allocators"],
    "every object, native, timestamps": ["--trace-python-allocators", "--native", "--allocation-timestamps"],
}

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the counter reads registers of x86-64")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """The program in C, and the library for Python."""
    compiler = shutil.which("cc") or pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("hook_path")
    source = PROGRAMS / "hook_path.c"
    program, library = folder / "hook_path", folder / "hook_path.so"
    subprocess.run([compiler, "-O1", "-DPROGRAM", "-o", program, source, "-ldl"], check=True)
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return program, library


def counted(executable, tmp_path, options, target):
    capture = tmp_path / "capture.bin"
    command = [executable, "run", "-q", "-f", "-o", capture, *options, "--", *target]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"^arena (\d+) futexes (\d+) others (\d+) number (-?\d+)$", done.stdout, re.MULTILINE)
    if done.returncode == 4:
        pytest.skip("filters of system calls are not to be had here")
    assert found, f"status {done.returncode}: {done.stdout}{done.stderr}"
    return dict(zip(("arena", "futexes", "others", "number"), map(int, found.groups()), strict=True))


def judge(counts):
    assert counts["arena"] == 0, "the arena was asked for memory"
    assert counts["others"] == 0, f"a system call was made: {counts['number']}"
    assert counts["futexes"] < MOST_FUTEXES, "not only segments wake the collector"


@pytest.mark.parametrize("mode", [mode for mode in MODES if "object" not in mode])
def test_a_program_in_c(executable, compiled, tmp_path, mode):
    program, _ = compiled
    options = MODES[mode] if "native" in mode else ["--no-native", *MODES[mode]]  # native stacks are its default
    judge(counted(executable, tmp_path, options, [program, str(EVENTS // 2)]))


@pytest.mark.parametrize("version", ["3.8", "3.11", "3.13"])
@pytest.mark.parametrize("mode", MODES)
def test_a_program_in_python(executable, compiled, tmp_path, mode, version):
    _, library = compiled
    target = [interpreter_path(version), "-I", "-S", "-c", PROGRAM, library]
    judge(counted(executable, tmp_path, MODES[mode], target))
