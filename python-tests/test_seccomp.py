"""A program that forbids itself all system calls but those that it needs (seccomp) runs as without memtrack, and is recorded: memtrack
makes no call that the filter does not allow."""

import platform
import shutil
import subprocess

import pytest

from conftest import PROGRAMS, Capture, execute

# With several the C library's own locks may call futex, which the filter forbids.
THREADS = 1
# keep, and churn: before and after the filter, and in each thread.
ALLOCATIONS = 10 + 100_000 + 400_000 + THREADS * (1000 + 100_000)
LIVE = 10 + 100_000 + THREADS * 1000
LIVE_BYTES = 10 * 1000 + 100_000 * 200 + THREADS * 1000 * 400

MODES = {
    "plain": ["--no-native"],
    "timestamps": ["--no-native", "--allocation-timestamps"],
    "native": ["--native"],
}

ABORTS = r"""
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
int main(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigaction, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    free(malloc(1000));
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        return 2;
    abort();
}
"""

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


def test_a_program_that_aborts(memtrack, tmp_path):
    """It is not asked for its handler of the signal, which the filter forbids."""
    source, program = tmp_path / "aborts.c", tmp_path / "aborts"
    source.write_text(ABORTS)
    subprocess.run([shutil.which("cc") or pytest.skip("there is no C compiler"), "-o", program, source], check=True)
    assert execute([program]).status == 128 + 6
    ended = recorded(memtrack, tmp_path, ["--no-native"], program)
    assert ended.status == 128 + 6, ended


def test_children(memtrack, compiled, tmp_path):
    ended = recorded(memtrack, tmp_path, ["--follow"], "sh", "-c", f"'{compiled}' seccomp {THREADS}; exit $?")
    assert (ended.status, ended.stdout) == (8, b"done\n"), ended


def test_a_program_that_is_ended_by_its_own_call(memtrack, compiled, tmp_path):
    ended = recorded(memtrack, tmp_path, [], compiled, "forbidden", "0")
    assert ended.status == 128 + 31, ended
    assert b"forbidden system call" in ended.stderr and b"futex" in ended.stderr, ended
