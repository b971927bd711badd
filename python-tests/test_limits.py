"""`--snapshot-above` and `--stop-above` in percent, of what `ulimit -v` and `ulimit -d` allow: address space and data run out before
resident memory does. And of a tree of processes, which ends as a whole."""

import sys

import pytest

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


LIMITS = [("-v", 500_000, b"its address space, "), ("-d", 400_000, b"its data segment, ")]


def limited(memtrack, tmp_path, option, limit, kibibytes):
    command = memtrack.command("run", "-o", tmp_path / "capture.bin", option, "90%", sys.executable, "-c", PROGRAM)
    return execute(["sh", "-c", f'ulimit {limit} {kibibytes}; exec "$@"', "sh", *command], cwd=tmp_path)


def peak(memtrack, path):
    return Capture(memtrack, path).stats()["peak"]["bytes"]


@pytest.mark.parametrize(("limit", "kibibytes", "_"), LIMITS)
def test_a_snapshot_before_memory_runs_out(memtrack, tmp_path, limit, kibibytes, _):
    ended = limited(memtrack, tmp_path, "--snapshot-above", limit, kibibytes)
    assert ended.status == 0, ended
    assert 300 << 20 < peak(memtrack, tmp_path / "capture.snapshot1.bin") < int(ended.stdout) << 20
    assert b"  snapshots   capture.snapshot1.bin\n" in ended.stderr, ended


@pytest.mark.parametrize(("limit", "kibibytes", "name"), LIMITS)
def test_the_program_is_ended_before_memory_runs_out(memtrack, tmp_path, limit, kibibytes, name):
    ended = limited(memtrack, tmp_path, "--stop-above", limit, kibibytes)
    assert (ended.status, ended.stdout) == (128 + 15, b""), ended
    assert name in ended.stderr, ended
    assert peak(memtrack, tmp_path / "capture.snapshot1.bin") > 300 << 20


@pytest.mark.parametrize("option", ["--stop-above", "--snapshot-above"])
@pytest.mark.parametrize("limit", ["0", "0MB", "0%"])
def test_a_limit_of_nothing_is_wrong_usage(memtrack, tmp_path, option, limit):
    refused = execute(memtrack.command("run", option, limit, "true"), cwd=tmp_path)
    assert refused.status == 2 and b" above 0" in refused.stderr, refused


def test_all_recorded_processes_are_ended_by_the_limit_of_their_sum(memtrack, tmp_path):
    # A shell ends without telling its children, which would go on to allocate.
    (tmp_path / "worker.py").write_text("""
import signal, sys, time
import os
signal.signal(signal.SIGTERM, lambda *_: sys.exit(open(f"ended-{sys.argv[1]}", "w").close()))
open(f"ready-{sys.argv[1]}", "w").close()
while not (os.path.exists("ready-1") and os.path.exists("ready-2")):
    time.sleep(0.01)
blocks = []
while True:
    blocks.append(bytearray(1 << 20))
    time.sleep(0.002 if len(blocks) < 200 else 1)
""")
    workers = f"'{sys.executable}' worker.py 1 & '{sys.executable}' worker.py 2 & wait"
    command = memtrack.command("run", "--follow", "-q", "-o", tmp_path / "capture.bin", "--stop-above", "150MB", "sh", "-c", workers)
    ended = execute(command, cwd=tmp_path)
    assert ended.status == 128 + 15, ended
    assert b"the program and its 2 children were sent SIGTERM" in ended.stderr, ended
    assert sorted(path.name for path in tmp_path.glob("ended-*")) == ["ended-1", "ended-2"]


GROWN = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
kept = b"x" * (300 << 20)
while True:
    time.sleep(0.02)
"""


def test_a_limit_holds_however_seldom_resident_memory_is_recorded(memtrack, tmp_path):
    options = ["--stop-above", "200MB", "--snapshot-interval", "4294967295"]
    ended = execute(memtrack.command("run", "-o", tmp_path / "a.bin", *options, sys.executable, "-c", GROWN), cwd=tmp_path)
    assert ended.status == 9 and b"resident memory" in ended.stderr, ended
    assert peak(memtrack, tmp_path / "a.snapshot1.bin") > 300 << 20
