"""`live --jsonl`: windows of a program that runs, each of which has to the byte what reports of the capture have."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import pytest

from conftest import PATIENCE, REPOSITORY, Capture

PYTHON = """
import threading, time
cache = []
def load(number):
    cache.append(bytearray(2000 + number % 50))
def churn():
    return sum(len(str(number) * 40) for number in range(300))
def work():
    end = time.monotonic() + 2.2
    number = 0
    while time.monotonic() < end:
        churn()
        load(number)
        number += 1
        if number % 100 == 0:
            del cache[:50]
threads = [threading.Thread(target=work) for _ in range(3)]
[thread.start() for thread in threads]
time.sleep(1)
[thread.join() for thread in threads]
"""
C = r"""
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
static void *kept[1 << 20];
static int count;
static void *leak(size_t size) { return malloc(size); }
static void *work(void *argument) {
    unsigned state = (unsigned)(long)argument;
    void *slots[100] = {0};
    time_t end = time(0) + 3;
    while (time(0) < end) {
        for (int i = 0; i < 2000; i++) {
            state = state * 1103515245 + 12345;
            int slot = (state >> 16) % 100;
            free(slots[slot]);
            slots[slot] = (state >> 8) & 1 ? malloc((state >> 10) % 1000 + 1) : calloc(1, (state >> 10) % 300 + 1);
        }
        kept[__sync_fetch_and_add(&count, 1) & ((1 << 20) - 1)] = leak(1000);
        usleep(500);
    }
    return 0;
}
int main() {
    pthread_t threads[3];
    for (long i = 0; i < 3; i++) pthread_create(&threads[i], 0, work, (void *)(i + 1));
    for (int i = 0; i < 3; i++) pthread_join(threads[i], 0);
}
"""


@pytest.fixture(params=["python", "c"])
def program(request, tmp_path):
    if request.param == "python":
        return [sys.executable, "-c", PYTHON]
    (tmp_path / "threads.c").write_text(C)
    subprocess.run(["gcc", "-g", "-O1", "-pthread", "-o", tmp_path / "threads", tmp_path / "threads.c"], check=True)
    return [str(tmp_path / "threads")]


def start(memtrack, program, capture, *options):
    process = subprocess.Popen(memtrack.command("run", "-q", "-o", capture, *options, "--", *program), cwd=memtrack.directory)
    threading.Timer(PATIENCE, process.kill).start()
    while not (capture.exists() and capture.stat().st_size):
        assert process.poll() is None
        time.sleep(0.01)
    return process


def pid_of(memtrack, capture):
    """The process whose recording is in this file, as soon as `ps` knows it."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for one in json.loads(memtrack("ps", "--json").stdout)["processes"]:
            if one["capture"] == str(capture):
                return one["pid"]
        time.sleep(0.02)
    raise AssertionError(f"{capture} is no recording's")


def watched(memtrack, seen, *options):
    """The lines of a viewer, which makes the file `seen` when it has had a window."""
    command = memtrack.command("live", "--jsonl", "--every", "200ms", *options)
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=memtrack.directory) as viewer:
        for line in viewer.stdout:
            lines.append(line)
            if json.loads(line)["type"] == "window":
                seen.touch()
    assert viewer.returncode == 0
    return lines


def windows_of(lines):
    """The windows: [(totals, {stack: {"live": (bytes, count), …}}), …], and all records."""
    windows, strings, frames, stacks = [], {}, {}, {}
    records = [json.loads(line) for line in lines]
    for record in records:
        if record["type"] == "string_table":
            strings.update({entry["str_id"]: entry["value"] for entry in record["strings"]})
        elif record["type"] == "frame_table":
            for entry in record["frames"]:
                file = strings.get(entry.get("path_str_id"))
                frames[entry["frame_id"]] = strings[entry["func_str_id"]], file, entry["line"]
        elif record["type"] == "agg" and record["kind"] == "stack":
            for entry in record["entries"]:
                stack = tuple(frames[frame] for frame in entry["frame_ids"])
                # Calls of one line in several columns have frames of their own.
                sums = stacks.setdefault(stack, {})
                for name, value in entry.items():
                    if isinstance(value, dict):
                        size, count = sums.get(name, (0, 0))
                        sums[name] = size + value["self_bytes"], count + value["self_count"]
        elif record["type"] == "window":
            windows.append((record, stacks))
            strings, frames, stacks = {}, {}, {}
        elif record["type"] == "end" and stacks:
            windows.append((record, stacks))
    return windows, records


def allocated(stacks):
    return {stack: sums["allocated"] for stack, sums in stacks.items() if sums["allocated"] != (0, 0)}


def test_windows_have_what_reports_have_for_the_same_span(memtrack, program):
    path = memtrack.directory / "a.bin"
    process = start(memtrack, program, path)
    outcome = memtrack("live", "--jsonl", "--every", "700ms", path)
    assert process.wait(PATIENCE) == 0 and outcome.status == 0, outcome.stderr
    capture = Capture(memtrack, path)
    windows, records = windows_of(outcome.stdout.decode().splitlines())
    assert records[0]["type"] == "meta" and records[-1] == {**records[-1], "type": "end", "records": len(records) - 1}
    assert len(windows) >= 3 and sum(window["events"] for window, _ in windows) > 5000
    stats, live = capture.stats(), {}
    for number, (window, stacks) in enumerate(windows):
        assert window["t0_ms"] == (windows[number - 1][0]["t1_ms"] if number else 0) and window["skipped"] == 0
        span = ["--from", f"{window['t0_ms']}ms", "--to", f"{window['t1_ms']}ms"]
        assert capture.stats(*span)["allocations"] == window["allocated"]
        text = capture.reading("transform", "jsonl", "-o", "-", *span, path)
        found, _ = windows_of(text.splitlines())
        assert allocated(stacks) == (allocated(found[0][1]) if found else {})
        for stack, sums in stacks.items():
            before = live.get(stack, (0, 0))
            now = tuple(a + b - c for a, b, c in zip(before, sums["allocated"], sums["freed"]))
            assert now == sums["live"], stack
        live = {stack: sums["live"] for stack, sums in stacks.items()}
        assert [sum(column) for column in zip(*live.values())] == [window["live"]["bytes"], window["live"]["count"]]
    [(_, final)], _ = windows_of(capture.reading("transform", "jsonl", "--at-exit", "--leaks", "-o", "-", path).splitlines())
    assert {stack: sums["leaked"] for stack, sums in final.items() if sums["leaked"][1]} == {k: v for k, v in live.items() if v[1]}
    assert windows[-1][0]["peak_bytes"] == stats["peak"]["bytes"]
    # Of the capture that is complete, the same at each end of a window that both have: the recording made the first window
    # when the viewer came, and longer ones while it was behind.
    again, _ = windows_of(capture.reading("live", "--jsonl", "--every", "700ms", path).splitlines())
    live_at = lambda windows: {w["t1_ms"]: {k: s["live"] for k, s in stacks.items() if s["live"][1]} for w, stacks in windows}
    one, other = live_at(windows), live_at(again)
    assert len(one.keys() & other.keys()) >= 2 and all(one[end] == other[end] for end in one.keys() & other.keys())
    assert sum(w["events"] for w, _ in again) == sum(w["events"] for w, _ in windows)


SLOW = """
import threading, time
def work(kept):
    for number in range(30):
        kept.append(bytearray(2000 + number))
        bytes(300000)
        time.sleep(0.03)
threads = [threading.Thread(target=work, args=([],)) for _ in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


@pytest.mark.parametrize("options", [["--allocation-timestamps"], ["--sample=1"], []], ids=["exact", "sampled", "ticks"])
def test_a_program_that_mostly_waits_has_windows_of_the_same_length(memtrack, options):
    """The collector sleeps, too, and makes ticks seldom: a window closes before an event with a later time of its own."""
    path = memtrack.directory / "a.bin"
    memtrack("run", "-q", "-o", path, *options, "--", sys.executable, "-c", SLOW)
    windows, _ = windows_of(Capture(memtrack, path).reading("live", "--jsonl", "--every", "100ms", path).splitlines())
    spans = [(window["t0_ms"], window["t1_ms"]) for window, _ in windows]
    working = [(begin, end) for begin, end in spans if 200 <= begin and end <= spans[-1][0] - 100]
    assert len(working) >= 5 and all(end - begin == 100 for begin, end in working), spans
    for window, _ in windows:
        span = ["--from", f"{window['t0_ms']}ms", "--to", f"{window['t1_ms']}ms"]
        assert Capture(memtrack, path).stats(*span)["allocations"]["bytes"] == window["allocated"]["bytes"], span


def test_windows_of_an_aggregated_recording_are_the_times_between_its_sums(memtrack):
    path = memtrack.directory / "sums.bin"
    seen = memtrack.directory / "seen"
    # It runs until the viewer has seen a window.
    code = PYTHON.replace("import threading, time", f"import os, threading, time\ndef is_seen(): return os.path.exists({str(seen)!r})")
    code = code.replace("while time.monotonic() < end:", f"while not is_seen() and time.monotonic() < end + {PATIENCE}:")
    process = start(memtrack, [sys.executable, "-c", code], path, "--aggregate")
    lines = watched(memtrack, seen, path)
    assert process.wait(PATIENCE) == 0
    windows, _ = windows_of(lines)
    stats, live, ever = Capture(memtrack, path).stats(), {}, (0, 0)
    assert len(windows) >= 2
    for number, (window, stacks) in enumerate(windows):
        assert window["t0_ms"] == (windows[number - 1][0]["t1_ms"] if number else 0) < window["t1_ms"]
        for stack, sums in stacks.items():
            now = tuple(a + b - c for a, b, c in zip(live.get(stack, (0, 0)), sums["allocated"], sums["freed"]))
            assert now == sums["live"], stack
        live = {stack: sums["live"] for stack, sums in stacks.items()}
        assert [sum(column) for column in zip(*live.values())] == [window["live"]["bytes"], window["live"]["count"]]
        ever = ever[0] + window["allocated"]["bytes"], ever[1] + window["allocated"]["count"]
    assert ever == (stats["allocations"]["bytes"], stats["allocations"]["count"])
    assert windows[-1][0]["peak_bytes"] == stats["peak"]["bytes"]
    # Of the capture that is complete there is one window.
    [(whole, stacks)], _ = windows_of(memtrack("live", "--jsonl", path).stdout.decode().splitlines())
    assert whole["events"] == sum(window["events"] for window, _ in windows)
    assert {stack: sums["live"] for stack, sums in stacks.items() if sums["live"][1]} == {k: v for k, v in live.items() if v[1]}


def test_viewers_come_and_go_and_find_the_recording_by_its_pid(memtrack, program):
    path = memtrack.directory / "b.bin"
    process = start(memtrack, program, path)
    pipes = {"stdout": subprocess.PIPE, "cwd": memtrack.directory, "text": True}
    pid = pid_of(memtrack, path)
    viewers = [subprocess.Popen(memtrack.command("live", "--jsonl", "--every", "300ms", pid), **pipes) for _ in range(3)]
    for _ in range(20):
        assert viewers[0].stdout.readline()
    viewers[0].kill()
    viewers[0].wait()
    texts = [viewer.communicate(timeout=PATIENCE)[0] for viewer in viewers[1:]]
    assert process.wait(PATIENCE) == 0
    ends = [windows_of(text.splitlines())[0][-1] for text in texts]
    peak = Capture(memtrack, path).stats()["peak"]["bytes"]
    assert [window["peak_bytes"] for window, _ in ends] == [peak, peak]


def socket_of(pid):
    places = [os.environ.get("XDG_RUNTIME_DIR"), None]
    paths = [f"{place}/memtrack/{pid}.sock" if place else f"/tmp/memtrack-{os.getuid()}/{pid}.sock" for place in places]
    return next(path for path in paths if os.path.exists(path))


def test_a_viewer_that_stops_reading_is_told_what_it_has_lost_and_sees_everything_in_the_next_window(memtrack):
    code = """
import time
kept = [bytearray(1000 + i) for i in range(3000)]
for i in range(80):
    kept.append(bytearray(5000))
    time.sleep(0.1)
"""
    path = memtrack.directory / "d.bin"
    process = start(memtrack, [sys.executable, "-c", code], path)
    pid = pid_of(memtrack, path)
    slow, quick = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    for one in (slow, quick):
        one.settimeout(PATIENCE)
        one.connect(socket_of(pid))
        one.sendall(b'{"id":1,"command":"live","every_ms":100}\n')
    seen = [json.loads(line) for line in quick.makefile()]
    assert process.wait(PATIENCE) == 0
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((REPOSITORY / "docs/schemas/memtrack-control-1.schema.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    [validator.validate(line) for line in seen]
    windows = [line["window"] for line in seen if "window" in line]
    assert seen[0]["pid"] == pid and seen[1] == {"id": 1, "ok": {}} and len(windows) >= 20
    assert windows[0]["t0_ns"] == 0 and all(a["t1_ns"] == b["t0_ns"] for a, b in zip(windows, windows[1:]))
    stats = Capture(memtrack, path).stats()
    last = windows[-1]
    assert last["last"] and last["lag"]["bytes"] == 0 and last["peak_bytes"] == stats["peak"]["bytes"]
    assert last["total_allocated"] == stats["allocations"]
    for name in ("bytes", "count"):
        assert sum(window["allocated"][name] for window in windows) == stats["allocations"][name]
    # The slow one has what was sent before it was full, and then nothing more, or the newest with the number of the lost ones.
    rest = [json.loads(line) for line in slow.makefile() if line.endswith("\n")]
    assert rest[1] == {"id": 1, "ok": {}} and len(rest) < len(seen)


LAST_CHILD = """
import os, sys, time
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
pid = os.fork()
if pid == 0:
    kept = [bytearray(3000 + number) for number in range(500)]
    os._exit(0)
os.waitpid(pid, 0)
"""


WAITING_CHILD = """
import os, sys, time
def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.01)
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
    known = [(str(one["capture"]), one["pid"]) for one in json.loads(memtrack("ps", "--json").stdout)["processes"]]
    return [(capture, pid) for capture, pid in known if capture.startswith(f"{memtrack.directory}/")]


def test_nothing_is_replayed_any_more_when_the_child_has_ended_that_was_watched(memtrack):
    path, seen, end = (memtrack.directory / name for name in ("waiting.bin", "seen", "end"))
    process = start(memtrack, [sys.executable, "-c", WAITING_CHILD, str(seen), str(end)], path, "--follow")
    deadline = time.monotonic() + PATIENCE
    while not (children := [pid for capture, pid in recorded(memtrack) if "/waiting." in capture and capture != str(path)]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (child,) = children
    windows, _ = windows_of(watched(memtrack, seen, child))
    assert windows and process.poll() is None

    def replays():
        threads = os.listdir(f"/proc/{process.pid}/task")
        return any(open(f"/proc/{process.pid}/task/{thread}/comm").read() == "memtrack-live\n" for thread in threads)

    # For a while the recording waits for those who come again.
    while replays():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.1)
    end.touch()
    assert process.wait(PATIENCE) == 0


def test_a_child_that_ends_with_the_program_is_in_the_sum_of_all(memtrack):
    """The viewer is told of it too late to watch it, or not at all, and reads its capture."""
    path, seen = memtrack.directory / "last.bin", memtrack.directory / "seen"
    process = start(memtrack, [sys.executable, "-c", LAST_CHILD, str(seen)], path, "--follow")
    lines = watched(memtrack, seen, "--all", pid_of(memtrack, path))
    assert process.wait(PATIENCE) == 0
    windows, _ = windows_of(lines)
    captures = sorted(memtrack.directory.glob("last*.bin"))
    assert len(captures) == 2
    stats = json.loads(memtrack("stats", "--json", *captures).stdout)
    for what in ("bytes", "count"):
        assert sum(window["allocated"][what] for window, _ in windows) == stats["allocations"][what]


def test_a_capture_whose_recorder_was_killed_is_read_to_its_last_block(memtrack, program):
    path = memtrack.directory / "c.bin"
    process = start(memtrack, program, path)
    try:
        process.wait(1.5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    outcome = memtrack("live", "--jsonl", path)
    assert outcome.status == 0, outcome.stderr
    windows, records = windows_of(outcome.stdout.decode().splitlines())
    assert records[-1]["type"] == "end" and windows
    total = sum(window["allocated"]["bytes"] for window, _ in windows)
    stats = Capture(memtrack, path).stats()
    assert total == stats["allocations"]["bytes"] > 0
    # How the program ended is not known, nor that it did.
    assert stats["capture"]["complete"] is False and stats["leaked"]["moment"] == "recording-end"
    told = memtrack("stats", path).stdout
    assert b"at exit" not in told and b"when the recording ended" in told, told


def test_sums_of_which_nothing_was_written_lack_no_histogram(memtrack, python):
    path = memtrack.directory / "w.bin"
    command = memtrack.command("run", "-q", "--window", "1s", "-o", path, python, "-c", "import time; time.sleep(1.5)")
    with subprocess.Popen(command) as process:
        deadline = time.monotonic() + PATIENCE
        while not (path.exists() and path.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.kill()
    outcome = memtrack("stats", path)
    assert b"incomplete" in outcome.stderr and b"histogram" not in outcome.stderr, outcome.stderr
    # Where it is left out, that is said.
    whole = memtrack.directory / "whole.bin"
    assert memtrack("run", "-q", "--window", "1s", "-o", whole, python, "-c", "pass").status == 0
    assert b"histogram is omitted" in memtrack("stats", "--stdlib", whole).stderr


def test_what_cannot_be_watched_is_said(memtrack):
    outcome = memtrack("live", "--jsonl", 1)
    assert outcome.status == 1 and b"process 1 is not being recorded" in outcome.stderr
    outcome = memtrack("live", "--jsonl", "missing.bin")
    assert outcome.status == 1 and b"no such file" in outcome.stderr


def test_a_scraper_gets_the_figures(memtrack):
    capture = memtrack.record(sys.executable, "-c", "def hold():\n    return bytearray(5_000_000)\nkept = hold()\n")
    process = subprocess.Popen(
        memtrack.command("live", "--metrics", 0, capture.path), stderr=subprocess.PIPE, text=True, cwd=memtrack.directory
    )
    try:
        url = next(re.search(r"http://\S+/metrics", line)[0] for line in process.stderr if "http" in line)
        for _ in range(100):
            try:
                with urllib.request.urlopen(url, timeout=5) as answer:
                    text = answer.read().decode()
                break
            except urllib.error.HTTPError as error:
                assert error.code == 503
                time.sleep(0.1)
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(url.replace("/metrics", "/other"), timeout=5)
        address = "127.0.0.1", int(url.split(":")[2].split("/")[0])
        with socket.create_connection(address) as hostile:
            hostile.sendall(b"x" * 100_000)
        # Those that say nothing for as long as they may do not hold up others.
        silent = [socket.create_connection(address) for _ in range(4)]
        begun = time.monotonic()
        assert urllib.request.urlopen(url, timeout=5).read().decode() == text and time.monotonic() - begun < 1.5
        [one.close() for one in silent]
        assert urllib.request.urlopen(url, timeout=5).read().decode() == text
    finally:
        process.kill()
        process.wait()
    stats = capture.stats()
    figures = dict(re.findall(r'^memtrack_(\w+)\{pid="\d+"\} (\d+)$', text, re.M))
    assert int(figures["peak_bytes"]) == stats["peak"]["bytes"]
    assert int(figures["allocated_bytes_total"]) == stats["allocations"]["bytes"]
    assert int(figures["deallocations_total"]) == stats["deallocations"]["count"] and figures["recording"] == "0"


FAMILY = """
import os, sys, time
def hold(number):
    return [bytearray(1000 + at % 7) for at in range(number)]
workers = []
for number in range(2):
    pid = os.fork()
    if pid == 0:
        kept, end = [], time.monotonic() + 3
        while time.monotonic() < end:
            kept += hold(50)
            del kept[:20]
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
if sys.argv[1:]:
    sys.stdin.read()
[os.waitpid(pid, 0) for pid in workers]
"""


CROWD = """
import os, sys, time
children = []
for number in range(40):
    pid = os.fork()
    if pid == 0:
        kept = [bytearray(3000 + number) for _ in range(20)]
        while not os.path.exists(sys.argv[1]):
            time.sleep(0.02)
        os._exit(0)
    children.append(pid)
[os.waitpid(pid, 0) for pid in children]
"""


def test_more_processes_than_the_recording_serves_are_added_up(memtrack):
    path, seen = memtrack.directory / "crowd.bin", memtrack.directory / "seen"
    process = start(memtrack, [sys.executable, "-c", CROWD, str(seen)], path, "--follow")
    command = memtrack.command("live", "--jsonl", "--all", "--every", "500ms", pid_of(memtrack, path))
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=memtrack.directory) as viewer:
        threading.Timer(PATIENCE, viewer.kill).start()
        for line in viewer.stdout:
            lines.append(line)
            record = json.loads(line)
            if record["type"] == "window" and record["processes"] == 41:
                seen.touch()
    assert viewer.returncode == 0 and process.wait(PATIENCE) == 0
    windows, _ = windows_of(lines)
    assert max(window["processes"] for window, _ in windows) == 41
    assert windows[-1][0]["missing_processes"] == 0
    captures = sorted(memtrack.directory.glob("crowd*.bin"))
    stats = json.loads(memtrack("stats", "--json", *captures).stdout)
    for what in ("bytes", "count"):
        assert sum(window["allocated"][what] for window, _ in windows) == stats["allocations"][what]


def test_totals_of_windows_reach_as_far_as_what_no_sample_shows(memtrack):
    path = memtrack.directory / "few.bin"
    memtrack("run", "-q", "-o", path, "--sample=1g", "--", sys.executable, "-c", "pass")
    windows, records = windows_of(Capture(memtrack, path).reading("live", "--jsonl", path).splitlines())
    unseen = records[0]["unseen_bytes"]
    for window, _ in windows:
        for name in ("live", "allocated", "freed"):
            total = window[name]
            assert total["bytes_low"] <= total["bytes"] and total["bytes_high"] >= total["bytes"] + unseen > 0
            assert total["count_high"] >= total["count"] + 3


def test_all_processes_of_a_recording_are_added_up(memtrack):
    path = memtrack.directory / "family.bin"
    process = start(memtrack, [sys.executable, "-c", FAMILY], path, "--follow")
    pid = pid_of(memtrack, path)
    outcome = memtrack("live", "--jsonl", "--all", "--every", "500ms", pid)
    assert process.wait(PATIENCE) == 0 and outcome.status == 0, outcome.stderr
    windows, records = windows_of(outcome.stdout.decode().splitlines())
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
