"""`--snapshot-above` and `--stop-above` in percent, of what `ulimit -v` allows: address space runs out before resident memory does."""

import sys

from conftest import Capture, execute

PROGRAM = """
import time
blocks = []
try:
    while True:
        blocks.append(bytearray(1 << 20))
        time.sleep(0.002)
except MemoryError:
    print(len(blocks))
"""


def limited(memtrack, tmp_path, option):
    command = memtrack.command("run", "-o", tmp_path / "capture.bin", option, "90%", sys.executable, "-c", PROGRAM)
    return execute(["sh", "-c", 'ulimit -v 500000; exec "$@"', "sh", *command], cwd=tmp_path)


def peak(memtrack, path):
    return Capture(memtrack, path).stats()["peak"]["bytes"]


def test_a_snapshot_before_address_space_runs_out(memtrack, tmp_path):
    ended = limited(memtrack, tmp_path, "--snapshot-above")
    assert ended.status == 0, ended
    assert 300 << 20 < peak(memtrack, tmp_path / "capture.snapshot1.bin") < int(ended.stdout) << 20


def test_the_program_is_ended_before_address_space_runs_out(memtrack, tmp_path):
    ended = limited(memtrack, tmp_path, "--stop-above")
    assert (ended.status, ended.stdout) == (128 + 15, b""), ended
    assert b"its address space, " in ended.stderr, ended
    assert peak(memtrack, tmp_path / "capture.snapshot1.bin") > 300 << 20
