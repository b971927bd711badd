"""`memtrack objects PID` that is ended while it reads: nothing of it is left in the program, and the program's own children are."""

import pathlib
import signal
import subprocess
import sys
import time

import pytest

from conftest import PATIENCE, in_one_of, state_of, until, until_it_waits

# With a child that has ended, and that the program waits for last of all.
PROGRAM = """
import os, sys
KEPT = [[number] for number in range(400_000)]
child = os.fork()
if child == 0: os._exit(7)
os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
print(child, flush=True)
sys.stdin.readline()
print(os.WEXITSTATUS(os.waitpid(-1, 0)[1]), flush=True)
"""


@pytest.fixture
def program(tmp_path):
    script = tmp_path / "app.py"
    script.write_text(PROGRAM)
    with subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        own = process.stdout.readline().strip()
        until_it_waits(process.pid)
        yield process, own
        process.stdin.write("\n")
        process.stdin.close()
        # It goes on, and has its own child.
        assert process.stdout.readline() == "7\n"
        assert process.wait(PATIENCE) == 0


def children(process):
    return set(pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())


def is_traced(process):
    return "TracerPid:\t0\n" not in pathlib.Path(f"/proc/{process.pid}/status").read_text()


def end_while_it_reads(executable, process, own, number):
    """Sends the signal once there is a copy, and the program goes on; what memtrack ended with."""
    command = [str(executable), "objects", str(process.pid)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as reader:
        begun = time.monotonic()
        while (children(process) == {own} or is_traced(process)) and reader.poll() is None:
            assert time.monotonic() < begun + PATIENCE
        reader.send_signal(number)
        return reader.wait(PATIENCE)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_ends_the_copy_first(executable, program, number):
    process, own = program

    def attempt():
        status = end_while_it_reads(executable, process, own, number)
        assert children(process) == {own}
        return "" if status == -number else f"it was done before: {status}"

    in_one_of(5, attempt)


def test_a_copy_that_was_left_goes_with_the_next(executable, program):
    process, own = program

    def attempt():
        status = end_while_it_reads(executable, process, own, signal.SIGKILL)
        # It is waited for only once the system has taken down its memory.
        left = children(process) - {own}
        for child in left:
            until(f"process {child} has ended", lambda child=child: state_of(child) == "Z")
        return "" if left and status == -signal.SIGKILL else f"no copy is left: {status}"

    in_one_of(5, attempt)
    subprocess.run([str(executable), "objects", str(process.pid)], capture_output=True, check=True)
    assert children(process) == {own}
