"""`live --jsonl` of recordings with several processes: each, all together, and what is left when they end."""

import json
import os
import sys
from pathlib import Path

from conftest import PATIENCE, until
from test_live_windows import pid_of, start, watched, windows_of

#: They wait for the test, and not for ever where it failed.
WAITS = f"""
import os, sys, time
limit = time.monotonic() + {PATIENCE}
def awaited(path):
    return os.path.exists(path) or time.monotonic() > limit
def wait_for(path):
    while not awaited(path):
        time.sleep(0.02)
"""
LAST_CHILD = """
wait_for(sys.argv[1])
pid = os.fork()
if pid == 0:
    kept = [bytearray(3000 + number) for number in range(500)]
    os._exit(0)
os.waitpid(pid, 0)
"""
WAITING_CHILD = """
pid = os.fork()
if pid == 0:
    kept = [bytearray(3000 + number) for number in range(500)]
    wait_for(sys.argv[1])
    os._exit(0)
os.waitpid(pid, 0)
wait_for(sys.argv[2])
"""


def recorded(memtrack):
    """Captures below the test's directory that are written, with their processes."""
    known = [(str(one["capture"]), one["pid"]) for one in memtrack.processes()]
    return [(capture, pid) for capture, pid in known if capture.startswith(f"{memtrack.directory}/")]


def test_nothing_is_replayed_any_more_when_the_child_has_ended_that_was_watched(memtrack, seen):
    path, end = memtrack.directory / "waiting.bin", memtrack.directory / "end"
    process = start(memtrack, [sys.executable, "-c", WAITS + WAITING_CHILD, str(seen), str(end)], path, "--follow")
    try:
        nothing_is_replayed(memtrack, process, path, seen)
    finally:
        end.touch()
    assert process.wait(PATIENCE) == 0


def nothing_is_replayed(memtrack, process, path, seen):
    """Once the child that was watched has ended, although the program goes on."""
    others = lambda: [pid for capture, pid in recorded(memtrack) if "/waiting." in capture and capture != str(path)]
    (child,) = until("the child is recorded", others)
    windows, _ = windows_of(watched(memtrack, seen, child))
    assert windows and process.poll() is None

    def replays():
        return "memtrack-live\n" in [name_of(thread) for thread in os.listdir(f"/proc/{process.pid}/task")]

    def name_of(thread):
        try:
            return Path(f"/proc/{process.pid}/task/{thread}/comm").read_text()
        except OSError:  # It has ended.
            return ""

    # For a while the recording waits for those who come again.
    until("nothing is replayed", lambda: process.poll() is not None or not replays())
    assert process.poll() is None


def test_a_child_that_ends_with_the_program_is_in_the_sum_of_all(memtrack, seen):
    """The viewer is told of it too late to watch it, or not at all, and reads its capture."""
    path = memtrack.directory / "last.bin"
    process = start(memtrack, [sys.executable, "-c", WAITS + LAST_CHILD, str(seen)], path, "--follow")
    lines = watched(memtrack, seen, "--all", pid_of(memtrack, path))
    assert process.wait(PATIENCE) == 0
    windows, _ = windows_of(lines)
    captures = sorted(memtrack.directory.glob("last*.bin"))
    assert len(captures) == 2
    stats = json.loads(memtrack("stats", "--json", *captures).stdout)
    for what in ("bytes", "count"):
        assert sum(window["allocated"][what] for window, _ in windows) == stats["allocations"][what]


#: The workers grow for three seconds, and then hold what they have.
FAMILY = """
def hold(number):
    return [bytearray(1000 + at % 7) for at in range(number)]
workers = []
for number in range(2):
    pid = os.fork()
    if pid == 0:
        kept, end = [], time.monotonic() + 3
        while time.monotonic() < end or not awaited(sys.argv[1]):
            kept += hold(50)
            del kept[: 20 if time.monotonic() < end else 50]
            time.sleep(0.01)
        os._exit(0)
    workers.append(pid)
# Processes that nobody can have watched while they ran.
for number in range(8):
    pid = os.fork()
    if pid == 0:
        hold(10)
        os._exit(0)
    os.waitpid(pid, 0)
    time.sleep(0.1)
[os.waitpid(pid, 0) for pid in workers]
"""


CROWD = """
children = []
for number in range(40):
    pid = os.fork()
    if pid == 0:
        kept = [bytearray(3000 + number) for _ in range(20)]
        wait_for(sys.argv[1])
        os._exit(0)
    children.append(pid)
[os.waitpid(pid, 0) for pid in children]
"""


def test_more_processes_than_the_recording_serves_are_added_up(memtrack, seen):
    path = memtrack.directory / "crowd.bin"
    process = start(memtrack, [sys.executable, "-c", WAITS + CROWD, str(seen)], path, "--follow")
    enough = lambda windows: windows[-1]["processes"] == 41
    lines = watched(memtrack, seen, "--all", pid_of(memtrack, path), every="500ms", enough=enough)
    assert process.wait(PATIENCE) == 0
    windows, _ = windows_of(lines)
    assert max(window["processes"] for window, _ in windows) == 41
    assert windows[-1][0]["missing_processes"] == 0
    captures = sorted(memtrack.directory.glob("crowd*.bin"))
    stats = json.loads(memtrack("stats", "--json", *captures).stdout)
    for what in ("bytes", "count"):
        assert sum(window["allocated"][what] for window, _ in windows) == stats["allocations"][what]


def test_all_processes_of_a_recording_are_added_up(memtrack, seen):
    path = memtrack.directory / "family.bin"
    process = start(memtrack, [sys.executable, "-c", WAITS + FAMILY, str(seen)], path, "--follow")
    enough = lambda windows: windows[-1]["processes"] >= 3
    lines = watched(memtrack, seen, "--all", pid_of(memtrack, path), every="500ms", enough=enough)
    assert process.wait(PATIENCE) == 0
    windows, records = windows_of(lines)
    captures = sorted(memtrack.directory.glob("family*.bin"))
    assert len(captures) == 11
    stats = json.loads(memtrack("stats", "--json", *captures).stdout)
    sums = [sum(window[of][what] for window, _ in windows) for of in ("allocated", "freed") for what in ("bytes", "count")]
    assert [sums[0], sums[1]] == [stats["allocations"][what] for what in ("bytes", "count")]
    assert sums[3] == stats["deallocations"]["count"] and max(window["processes"] for window, _ in windows) >= 3
    last = windows[-1][0]
    assert last["live"] == {"bytes": 0, "count": 0} and last["processes"] == 0 and records[-1]["type"] == "end"
    assert all(one["t1_ms"] == other["t0_ms"] for (one, _), (other, _) in zip(windows, windows[1:]))
    # Of stacks, too: what two processes have live at one line is one sum.
    assert any("hold" in str(stack) and sums["live"][1] > 100 for _, stacks in windows for stack, sums in stacks.items())
    refused = memtrack("live", "--jsonl", "--all", path)
    assert refused.status == 1 and b"no recording writes" in refused.stderr


#: As setproctitle does: the workers of gunicorn, celery and nginx have titles.
WORKERS = """
import ctypes
def set_title(title):
    fields = open("/proc/self/stat").read().rsplit(")", 1)[1].split()
    begin, end = int(fields[45]), int(fields[46])
    ctypes.memmove(begin, title.ljust(end - begin, b"\\0"), end - begin)
def worker(title):
    pid = os.fork()
    if pid == 0:
        kept = [bytearray(3000 + number) for number in range(500)]
        if title:
            set_title(title)
            wait_for(sys.argv[1])
        os._exit(0)
    return pid
for number in range(7):
    os.waitpid(worker(None), 0)
worker(b"app: worker 3")
wait_for(sys.argv[1])
"""


def test_workers_are_listed_by_their_titles_and_those_that_have_ended_are_summed_up(memtrack):
    path, end = memtrack.directory / "titled.bin", memtrack.directory / "end"
    process = start(memtrack, [sys.executable, "-c", WAITS + WORKERS, str(end)], path, "--follow")
    try:
        own = lambda: [one for one in memtrack.processes() if str(one["capture"]).startswith(f"{memtrack.directory}/")]
        titled = lambda: [one for one in own() if one.get("title")]
        (worker,) = until("it has its title", titled)
        assert worker["title"] == "app: worker 3" and worker["command_line"][0] == sys.executable
        ended = lambda: [one for one in own() if one["state"] == "ended"]
        until("the others have ended", lambda: len(ended()) == 7)
        (first,) = [one["pid"] for one in own() if one["number"] == 0]
        text = memtrack("ps").stdout.decode().splitlines()
        rows = {int(line.split()[0]): line for line in text[1:] if line.split()[0].isdigit()}
        assert rows[worker["pid"]].endswith("  app: worker 3") and rows[first].endswith(str(end))
        assert not {one["pid"] for one in ended()} & set(rows)
        assert [line for line in text if f"process {first}: 7 recorded processes that it started have ended" in line]
    finally:
        end.touch()
    assert process.wait(PATIENCE) == 0
