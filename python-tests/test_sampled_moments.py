"""Captures of a part of a sampled recording: Trackers and snapshots have the counted allocations of that part."""

import json
import os
import subprocess
import sys

import pytest

from conftest import PATIENCE, REPOSITORY

SPANS = """
import memtrack, os, subprocess, sys, threading
def keep(number):
    return [bytearray(10_000) for _ in range(number)]
others = [threading.Thread(target=keep, args=(300,)) for _ in range(2)]
for thread in others:
    thread.start()
    thread.join()
kept = [keep(700)]
for name in "abc":
    with memtrack.Tracker(name + ".bin"):
        kept.append(keep(1000))
        thread = threading.Thread(target=keep, args=(200,))
        thread.start()
        thread.join()
    kept.append(keep(500))
for wrong in (0, -1, "x"):
    try:
        with memtrack.Tracker("wrong.bin", sample=wrong):
            print("not refused")
    except memtrack.Error as error:
        print(str(error).startswith("sample=%s: " % wrong), "--sample" not in str(error))
"""

SNAPSHOTS = """
import os, subprocess
kept = []
for name in "abc":
    kept += [bytearray(10_000) for _ in range(1000)]
    snapshot = [os.environ["MEMTRACK"], "snapshot", "-o", name + ".bin", str(os.getpid())]
    subprocess.run(snapshot, check=True, capture_output=True)
"""


@pytest.fixture
def recorded(executable, tmp_path):
    """The counts that stats has of the captures a, b and c, and what the recorded program printed."""

    def run(code, *options):
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "python"), "MEMTRACK": str(executable), "MEMTRACK_CACHE": "none"}
        (tmp_path / "program.py").write_text(code)
        command = [executable, "run", "-q", "-f", "-o", "whole.bin", *options, sys.executable, "program.py"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        counts = []
        for name in "abc":
            stats = [executable, "stats", "--json", f"{name}.bin"]
            figures = json.loads(subprocess.run(stats, cwd=tmp_path, env=environment, capture_output=True, check=True).stdout)
            (tmp_path / f"{name}.bin").unlink()
            assert "count_low" not in figures["allocations"]
            counts.append((figures["allocations"], sum(thread["count"] for thread in figures["threads"])))
        return counts, done.stdout.splitlines()

    return run


def test_trackers_in_a_sampled_recording_have_what_was_counted_in_them(recorded):
    counts, said = recorded(SPANS, "--sample=32KiB")
    for allocations, of_threads in counts:
        # 1,000 blocks and their list, 200 in the thread, and what starting it takes.
        assert 1200 <= allocations["count"] <= 1400 and 12_000_000 <= allocations["bytes"] < 12_800_000, counts
        assert of_threads == allocations["count"]
    assert said == ["True True"] * 3


def test_snapshots_of_a_sampled_recording_have_everything_up_to_now(recorded):
    # The only thread waits meanwhile: a sampled recording counts the same as one of everything, but for the interpreter's own.
    exact, sampled = recorded(SNAPSHOTS)[0], recorded(SNAPSHOTS, "--sample=32KiB")[0]
    for (all_of_them, _), (counted, _) in zip(exact, sampled):
        assert abs(all_of_them["count"] - counted["count"]) <= 20, (exact, sampled)
