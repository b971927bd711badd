"""`live --jsonl`: windows of a program that runs, each of which has to the byte what reports of the capture have."""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from conftest import PATIENCE, REPOSITORY, Capture, in_one_of, kill_in_time, until

#: Both end by themselves where nobody ever sees them.
PYTHON = f"""
import os, sys, threading, time
cache, end = [], time.monotonic() + {PATIENCE}
def load(number):
    cache.append(bytearray(2000 + number % 50))
def churn():
    return sum(len(str(number) * 40) for number in range(300))
def work():
    number = 0
    while number % 10 or not os.path.exists(sys.argv[1]) and time.monotonic() < end:
        churn()
        load(number)
        number += 1
        if number % 100 == 0:
            del cache[:50]
threads = [threading.Thread(target=work) for _ in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
C = r"""
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
static void *kept[1 << 20];
static int count;
static const char *seen;
static void *leak(size_t size) { return malloc(size); }
static void *work(void *argument) {
    unsigned state = (unsigned)(long)argument;
    void *slots[100] = {0};
    /* At first faster than windows are made, and then as long as it takes until these are seen. */
    for (int round = 0; access(seen, F_OK); round++) {
        for (int i = 0; i < 2000; i++) {
            state = state * 1103515245 + 12345;
            int slot = (state >> 16) % 100;
            free(slots[slot]);
            slots[slot] = (state >> 8) & 1 ? malloc((state >> 10) % 1000 + 1) : calloc(1, (state >> 10) % 300 + 1);
        }
        kept[__sync_fetch_and_add(&count, 1) & ((1 << 20) - 1)] = leak(1000);
        usleep(round < 1000 ? 500 : 20000);
    }
    return 0;
}
int main(int argc, char **argv) {
    pthread_t threads[3];
    alarm(PATIENCE);
    seen = argv[argc - 1];
    for (long i = 0; i < 3; i++) pthread_create(&threads[i], 0, work, (void *)(i + 1));
    for (int i = 0; i < 3; i++) pthread_join(threads[i], 0);
}
"""


@pytest.fixture(params=["python", "c"])
def program(request, tmp_path, seen):
    """It runs until there is the file `seen`."""
    if request.param == "python":
        return [sys.executable, "-c", PYTHON, str(seen)]
    (tmp_path / "threads.c").write_text(C)
    subprocess.run(["gcc", "-g", "-O1", "-pthread", f"-DPATIENCE={PATIENCE}", "-o", tmp_path / "threads", tmp_path / "threads.c"], check=True)
    return [str(tmp_path / "threads"), str(seen)]


def start(memtrack, program, capture, *options):
    process = subprocess.Popen(memtrack.command("run", "-q", "-o", capture, *options, "--", *program), cwd=memtrack.directory)
    kill_in_time(process)
    begun = lambda: capture.exists() and capture.stat().st_size
    until("the recording begins", lambda: begun() or process.poll() is not None)
    assert begun()
    return process


def pid_of(memtrack, capture):
    """The process whose recording is in this file, as soon as `ps` knows it."""
    return until(f"{capture} is recorded", lambda: [one["pid"] for one in memtrack.processes() if one["capture"] == str(capture)])[0]


def watched(memtrack, seen, *options, every="200ms", enough=len):
    """The lines of a viewer, which makes the file `seen` when it has had windows that are enough."""
    command = memtrack.command("live", "--jsonl", "--every", every, *options)
    lines, windows = [], []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=memtrack.directory) as viewer:
        kill_in_time(viewer)
        for line in viewer.stdout:
            lines.append(line)
            if (record := json.loads(line))["type"] == "window":
                windows.append(record)
                if enough(windows):
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


def test_windows_have_what_reports_have_for_the_same_span(memtrack, program, seen):
    path = memtrack.directory / "a.bin"
    process = start(memtrack, program, path)
    enough = lambda windows: len(windows) >= 4 and sum(window["events"] for window in windows) > 5000
    lines = watched(memtrack, seen, path, every="700ms", enough=enough)
    assert process.wait(PATIENCE) == 0
    capture = Capture(memtrack, path)
    windows, records = windows_of(lines)
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

    def attempt():
        capture = memtrack.record(sys.executable, "-c", SLOW, options=options)
        lines = capture.reading("live", "--jsonl", "--every", "100ms", capture.path).splitlines()
        windows, _ = windows_of(lines)
        is_like_the_capture(lines, capture)
        spans = [(window["t0_ms"], window["t1_ms"]) for window, _ in windows]
        for (begin, end), (window, _) in zip(spans, windows):
            allocations = capture.stats("--from", f"{begin}ms", "--to", f"{end}ms")["allocations"]
            assert allocations["bytes"] == window["allocated"]["bytes"], (begin, end)
        working = [(begin, end) for begin, end in spans if 200 <= begin and end <= spans[-1][0] - 100]
        # While the program or the collector has to wait for a processor, there is one window for a longer time.
        return "" if len(working) >= 5 and all(end - begin == 100 for begin, end in working) else str(spans)

    in_one_of(10, attempt)


def is_like_the_capture(lines, capture):
    """What windows say of the recording is what an export of the capture says."""
    told, whole = (json.loads(text[0]) for text in (lines, capture.reading("transform", "jsonl", "-o", "-", capture.path).splitlines()))
    assert told["type"] == whole["type"] == "meta"
    for name in ("aggregated", "has_allocation_timestamps"):
        assert told[name] == whole[name], name


def test_windows_of_an_aggregated_recording_are_the_times_between_its_sums(memtrack, seen):
    path = memtrack.directory / "sums.bin"
    process = start(memtrack, [sys.executable, "-c", PYTHON, str(seen)], path, "--aggregate")
    lines = watched(memtrack, seen, path)
    assert process.wait(PATIENCE) == 0
    windows, _ = windows_of(lines)
    is_like_the_capture(lines, Capture(memtrack, path))
    assert json.loads(lines[0])["aggregated"]
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


def test_viewers_come_and_go_and_find_the_recording_by_its_pid(memtrack, program, seen):
    path = memtrack.directory / "b.bin"
    process = start(memtrack, program, path)
    pipes = {"stdout": subprocess.PIPE, "cwd": memtrack.directory, "text": True}
    pid = pid_of(memtrack, path)
    viewers = [subprocess.Popen(memtrack.command("live", "--jsonl", "--every", "300ms", pid), **pipes) for _ in range(3)]
    for viewer in viewers:
        kill_in_time(viewer)
    begun = [viewer.stdout.readline() for viewer in viewers]
    for _ in range(19):
        assert viewers[0].stdout.readline()
    viewers[0].kill()
    viewers[0].wait()
    seen.touch()
    texts = [line + viewer.stdout.read() for line, viewer in zip(begun[1:], viewers[1:])]
    assert process.wait(PATIENCE) == 0
    ends = [windows_of(text.splitlines())[0][-1] for text in texts]
    peak = Capture(memtrack, path).stats()["peak"]["bytes"]
    assert [window["peak_bytes"] for window, _ in ends] == [peak, peak]


def socket_of(pid):
    places = [os.environ.get("XDG_RUNTIME_DIR"), None]
    paths = [f"{place}/memtrack/{pid}.sock" if place else f"/tmp/memtrack-{os.getuid()}/{pid}.sock" for place in places]
    return next(path for path in paths if os.path.exists(path))


def test_a_viewer_that_stops_reading_is_told_what_it_has_lost_and_sees_everything_in_the_next_window(memtrack):
    in_one_of(5, lambda: two_viewers(memtrack, memtrack.directory / "enough"))


def two_viewers(memtrack, enough):
    """Two of which one does not read. What the recording has had no time for at its end, or ""."""
    enough.unlink(missing_ok=True)
    code = f"""
import os, time
kept = [bytearray(1000 + i) for i in range(3000)]
end = time.monotonic() + {PATIENCE}
while not os.path.exists({str(enough)!r}) and time.monotonic() < end:
    kept.append(bytearray(5000))
    time.sleep(0.1)
"""
    path = memtrack.directory / "d.bin"
    process = start(memtrack, [sys.executable, "-c", code], path, "-f")
    pid = pid_of(memtrack, path)
    slow, quick = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    for one in (slow, quick):
        one.settimeout(PATIENCE)
        one.connect(socket_of(pid))
        one.sendall(b'{"id":1,"command":"live","every_ms":100}\n')
    # Of what is not read, as much is kept as the system has room for between the two.
    room = 2 * int(Path("/proc/sys/net/core/wmem_default").read_text())
    seen, length = [], 0
    for line in quick.makefile():
        seen.append(json.loads(line))
        length += len(line)
        if len(seen) > 25 and length > room:
            enough.touch()
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
    if not last["last"] or last["lag"]["bytes"]:
        return str(last)
    assert last["peak_bytes"] == stats["peak"]["bytes"]
    assert last["total_allocated"] == stats["allocations"]
    for name in ("bytes", "count"):
        assert sum(window["allocated"][name] for window in windows) == stats["allocations"][name]
    # The slow one has what was sent before it was full, and then nothing more, or the newest with the number of the lost ones.
    rest = [json.loads(line) for line in slow.makefile() if line.endswith("\n")]
    assert rest[1] == {"id": 1, "ok": {}} and len(rest) < len(seen)
    return ""


def test_a_capture_whose_recorder_was_killed_is_read_to_its_last_block(memtrack, program, seen):
    path = memtrack.directory / "c.bin"
    process = start(memtrack, program, path)
    until("something is written", lambda: Capture(memtrack, path).stats()["allocations"]["bytes"])
    process.kill()
    process.wait()
    seen.touch()
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
    command = memtrack.command("run", "-q", "--window", "1s", "-o", path, python, "-c", "input()")
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        until("the recording begins", lambda: path.exists() and path.stat().st_size)
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


def is_open(connection):
    """Whether the other side, which has sent nothing, has not closed it."""
    connection.setblocking(False)
    try:
        connection.recv(1)
    except BlockingIOError:
        return True
    except ConnectionError:
        pass
    return False


def test_a_scraper_gets_the_figures(memtrack):
    capture = memtrack.record(sys.executable, "-c", "def hold():\n    return bytearray(5_000_000)\nkept = hold()\n")
    process = subprocess.Popen(
        memtrack.command("live", "--metrics", 0, capture.path), stderr=subprocess.PIPE, text=True, cwd=memtrack.directory
    )
    try:
        url = next(re.search(r"http://\S+/metrics", line)[0] for line in process.stderr if "http" in line)

        def answer():
            try:
                with urllib.request.urlopen(url, timeout=PATIENCE) as found:
                    return found.read().decode()
            except urllib.error.HTTPError as error:
                assert error.code == 503
                return None

        text = until("there are figures", answer)
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(url.replace("/metrics", "/other"), timeout=PATIENCE)
        address = "127.0.0.1", int(url.split(":")[2].split("/")[0])
        # It may be refused before it has said everything.
        with socket.create_connection(address) as hostile, contextlib.suppress(ConnectionError):
            hostile.sendall(b"x" * 100_000)

        def attempt():
            silent = [socket.create_connection(address) for _ in range(4)]
            assert urllib.request.urlopen(url, timeout=PATIENCE).read().decode() == text
            still_open = [is_open(one) for one in silent]
            [one.close() for one in silent]
            return "" if all(still_open) else "the answer has waited until the silent ones were given up"

        # Those that say nothing for as long as they may do not hold up others.
        in_one_of(5, attempt)
        assert urllib.request.urlopen(url, timeout=PATIENCE).read().decode() == text
    finally:
        process.kill()
        process.wait()
    stats = capture.stats()
    figures = dict(re.findall(r'^memtrack_(\w+)\{pid="\d+"\} (\d+)$', text, re.M))
    assert int(figures["peak_bytes"]) == stats["peak"]["bytes"]
    assert int(figures["allocated_bytes_total"]) == stats["allocations"]["bytes"]
    assert int(figures["deallocations_total"]) == stats["deallocations"]["count"] and figures["recording"] == "0"


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
