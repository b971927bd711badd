"""A program that forbids itself all system calls but those that it needs (seccomp) runs as without memtrack, and is recorded: memtrack
makes no call that the filter does not allow."""

import platform
import shutil
import subprocess

import pytest

from conftest import PROGRAMS, Capture, execute

THREADS = 3
# keep, and churn: before and after the filter, and in each thread.
ALLOCATIONS = 10 + 100_000 + 400_000 + THREADS * (1000 + 100_000)
LIVE = 10 + 100_000 + THREADS * 1000
LIVE_BYTES = 10 * 1000 + 100_000 * 200 + THREADS * 1000 * 400

MODES = {
    "plain": ["--no-native"],
    "timestamps": ["--no-native", "--allocation-timestamps"],
    "native": ["--native"],
}

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the list of calls is that of x86-64")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    compiler = shutil.which("cc") or pytest.skip("there is no C compiler")
    program = tmp_path_factory.mktemp("seccomp") / "seccomp"
    subprocess.run([compiler, "-O1", "-g", "-pthread", "-o", program, PROGRAMS / "seccomp.c"], check=True)
    ended = execute([program, "prctl", str(THREADS)])
    if ended.status != 8:
        pytest.skip(f"this C library needs other calls, or filters are not to be had here: {ended}")
    return program


def recorded(memtrack, tmp_path, options, *command):
    return execute(memtrack.command("run", "-f", "-o", tmp_path / "capture.bin", *options, "--", *command), cwd=tmp_path)


@pytest.mark.parametrize("how", ["prctl", "seccomp", "syscall-prctl"])
@pytest.mark.parametrize("mode", MODES)
def test_nothing_that_is_forbidden_is_called(memtrack, compiled, tmp_path, mode, how):
    ended = recorded(memtrack, tmp_path, MODES[mode], compiled, how, str(THREADS))
    assert (ended.status, ended.stdout) == (8, b"done\n"), ended
    stats = Capture(memtrack, tmp_path / "capture.bin").stats()
    assert stats["allocations"]["count"] == ALLOCATIONS
    assert stats["live_at_exit"] == {"count": LIVE, "bytes": LIVE_BYTES}


def test_samples(memtrack, compiled, tmp_path):
    ended = recorded(memtrack, tmp_path, ["--sample=100000"], compiled, "prctl", str(THREADS))
    assert (ended.status, ended.stdout) == (8, b"done\n"), ended


def test_children(memtrack, compiled, tmp_path):
    ended = recorded(memtrack, tmp_path, ["--follow"], "sh", "-c", f"'{compiled}' seccomp {THREADS}; exit $?")
    assert (ended.status, ended.stdout) == (8, b"done\n"), ended


def test_a_program_that_is_ended_by_its_own_call(memtrack, compiled, tmp_path):
    ended = recorded(memtrack, tmp_path, [], compiled, "forbidden", "0")
    assert ended.status == 128 + 31, ended
    assert b"forbidden system call" in ended.stderr and b"futex" in ended.stderr, ended
