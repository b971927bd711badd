"""`run --live`: figures while the program runs, and a capture and a program that are as without them."""

import re
import subprocess
import sys
import threading

import pytest

from conftest import PATIENCE, Capture, execute

HELD = 50_000_000
# It holds what it has until a line comes.
PROGRAM = f"""
import sys
def hold():
    return bytearray({HELD})
kept = hold()
print("holds")
sys.stdin.readline()
del kept
print("ends")
sys.exit(3)
"""
LINE = re.compile(r"live (\d+) after [\d.]+ m?s: ([\d.]+) MB live in [\d,]+ allocations, peak [\d.]+ MB, resident [\d.]+ MB; most: (.*)")


@pytest.mark.parametrize("option", ["--quiet", "--aggregate", "--follow", "--native", "--trace-python-allocators"])
def test_figures_come_while_the_program_runs(memtrack, option):
    command = memtrack.command("run", "--live", option, "-o", "live.bin", sys.executable, "-c", PROGRAM)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, cwd=memtrack.directory, text=True, **pipes)
    watch = threading.Timer(PATIENCE, process.kill)
    watch.start()
    try:
        # The first may come before the program holds anything.
        told = next(line for line in process.stderr if "most: 50.0 MB" in line)
        output, _ = process.communicate("go on\n")
    finally:
        watch.cancel()
        process.kill()
    pid, live, most = LINE.fullmatch(told.rstrip("\n")).groups()
    assert 50 <= float(live) < 80 and most.startswith("50.0 MB by hold at <string>:4")
    assert (process.returncode, output) == (3, "holds\nends\n")
    stats = Capture(memtrack, memtrack.directory / "live.bin").stats()
    assert stats["capture"]["pid"] == int(pid) and stats["capture"]["complete"]
    assert stats["peak"]["bytes"] >= HELD > stats["leaked"]["bytes"]


def test_nothing_is_told_without_it(memtrack, executable):
    outcome = execute([executable, "run", "-q", "-o", "a.bin", sys.executable, "-c", PROGRAM], cwd=memtrack.directory)
    assert (outcome.status, outcome.stderr) == (3, b"")
