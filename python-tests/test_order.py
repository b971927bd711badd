"""Speedscope files: their samples stand in the order of time, whatever the capture knows of time."""

import bisect
import collections
import json
import re
import subprocess
import sys

import pytest

from conftest import PROGRAMS

IN_TIME = ["early", "mid", "late", "first_freed_then_kept"]
ORDERS = {"exact": "exact-timestamps", "snapshot": "memory-snapshots", "capture": "capture-order"}
VIEWS = {"high-water-mark": (), "leaks": ("--leaks",), "temporary": ("--temporary",), "allocated": ("--allocated",)}


@pytest.fixture(scope="module", params=[(), ("threads",)], ids=["one thread", "threads"])
def timed(request, module_memtrack):
    options = ["--allocation-timestamps", "--snapshot-interval", "5"]
    for _ in range(10):
        capture = module_memtrack.record(sys.executable, PROGRAMS / "phases.py", *request.param, options=options)
        # One is noted each time that the collector runs.
        if len(capture.records.snapshots) > 20:
            break
    return capture


@pytest.fixture(scope="module")
def untimed(module_memtrack):
    return module_memtrack.record(sys.executable, PROGRAMS / "phases.py")


@pytest.mark.parametrize("view", ["high-water-mark", "leaks"])
@pytest.mark.parametrize("order", ORDERS)
def test_samples_stand_in_time(timed, view, order):
    profile = timed.speedscope(*VIEWS[view], "--order", order)
    assert profile.leaves(*IN_TIME) == IN_TIME
    assert profile.file["memtrack"]["ordering"] == ORDERS[order]


def test_a_function_stands_where_its_first_survivor_stands(timed):
    """Its first allocation of all came before everybody's."""
    assert timed.speedscope("--leaks").leaves(*IN_TIME)[-1] == "first_freed_then_kept"
    assert timed.speedscope("--allocated").leaves(*IN_TIME)[0] == "first_freed_then_kept"


@pytest.mark.parametrize("view", VIEWS)
def test_all_orders_hold_the_same_samples(timed, view):
    ordered = {order: timed.speedscope(*VIEWS[view], "--order", order).samples() for order in ORDERS}
    sets = [sorted(samples, key=str) for samples in ordered.values()]
    assert sets[0] == sets[1] == sets[2]
    assert len({stack for stack, _, _ in sets[0]}) == len(sets[0])


@pytest.mark.parametrize("view", VIEWS)
def test_one_thread_has_one_order(module_memtrack, view):
    """Its events come in the capture as they came in time, so that no key can tell a different story."""
    options = ["--allocation-timestamps"]
    capture = module_memtrack.record(sys.executable, PROGRAMS / "phases.py", options=options)
    exact, snapshot, by_capture = (capture.speedscope(*VIEWS[view], "--order", order).samples() for order in ORDERS)
    assert exact == by_capture
    assert exact == snapshot


def survivors(records):
    """{stack: [number of the event, ...]} of what is live when Python begins to finalize, from the records alone."""
    live = {}
    for number, event in enumerate(records.events):
        if event.kind in ("ALLOC", "MAP"):
            live[event.address] = number, event
        elif event.kind in ("FREE", "UNMAP"):
            live.pop(event.address, None)
        elif event.kind == "FINALIZING":
            break
    stacks = collections.defaultdict(list)
    for number, event in live.values():
        stacks[tuple(records.stack(event.stack)) or NO_STACK].append(number)
    return stacks


NO_STACK = "<no stack>"


@pytest.mark.parametrize("order", ["exact", "snapshot"])
def test_the_order_of_leaks_follows_from_the_records(timed, order):
    """By the earliest survivor's time, or by the first snapshot that shows one; equal ones as they come."""
    records = timed.records
    keys = {
        "exact": lambda number: records.events[number].time_ns,
        "snapshot": lambda number: bisect.bisect_right(records.snapshots, number),
    }
    expected = {
        stack: min((keys[order](number), number) for number in numbers) for stack, numbers in survivors(records).items()
    }
    stacks = [stack for stack, _, _ in timed.speedscope("--leaks", "--order", order).samples()]
    stacks = [NO_STACK if stack[0].name == NO_STACK else stack for stack in stacks]
    assert stacks == sorted(expected, key=expected.get)
    assert len(records.snapshots) > 20


def test_without_timestamps_snapshots_give_the_order(untimed):
    profile = untimed.speedscope()
    assert profile.leaves(*IN_TIME) == IN_TIME
    assert profile.file["memtrack"]["ordering"] == "memory-snapshots"
    assert untimed.speedscope("--leaks").leaves(*IN_TIME) == IN_TIME


def test_with_timestamps_they_give_the_order(timed):
    assert timed.speedscope().file["memtrack"]["ordering"] == "exact-timestamps"


def test_exact_order_without_timestamps_is_refused(untimed):
    outcome = untimed.memtrack("transform", "speedscope", untimed.path, "--order", "exact", "-o", "-")
    assert (outcome.status, outcome.stdout) == (1, b"")
    assert outcome.stderr.startswith(b"error: ") and b"--allocation-timestamps" in outcome.stderr


@pytest.mark.parametrize("view", VIEWS)
def test_the_file_is_a_speedscope_file(untimed, view):
    file = untimed.speedscope(*VIEWS[view]).file
    assert file["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert re.fullmatch(r"memtrack@\d+\.\d+\.\d+", file["exporter"])
    assert "phases.py" in file["name"]
    assert file["memtrack"]["view"] == view
    frames = [(frame["name"], frame.get("file"), frame.get("line")) for frame in file["shared"]["frames"]]
    assert len(set(frames)) == len(frames)
    assert [profile["unit"] for profile in file["profiles"]] == ["bytes", "none"]
    for profile, total in zip(file["profiles"], ("total_bytes", "total_allocations")):
        assert (profile["type"], profile["startValue"]) == ("sampled", 0)
        assert len(profile["samples"]) == len(profile["weights"])
        assert profile["endValue"] == sum(profile["weights"]) == file["memtrack"][total]
        assert all(weight > 0 for weight in profile["weights"])
        assert all(0 <= index < len(frames) for sample in profile["samples"] for index in sample)
        assert all(sample for sample in profile["samples"])


def test_totals_are_whole(untimed):
    """What was allocated outside of any frame is there too: the interpreter's own start, for one."""
    allocated = untimed.speedscope("--allocated")
    assert allocated.leaf("<no stack>")[1] > 100
    assert allocated.file["memtrack"]["total_allocations"] == untimed.stats()["allocations"]["count"]
    assert {stack for stack, _, _ in allocated.samples() if "<no stack>" in {frame.name for frame in stack}} == {
        (frame,) for frame in allocated.frames if frame.name == "<no stack>"
    }


def test_name_of_the_file(module_memtrack, untimed):
    outcome = module_memtrack("transform", "speedscope", untimed.path)
    assert (outcome.status, outcome.stdout) == (0, b"")
    written = untimed.path.with_name(f"memtrack-speedscope-{untimed.path.stem}.speedscope.json")
    assert written.is_file() and str(written.name).encode() in outcome.stderr
    # A report of the same capture is made anew; whatever else stands there is not touched.
    assert module_memtrack("transform", "speedscope", untimed.path).status == 0
    written.write_text("notes")
    again = module_memtrack("transform", "speedscope", untimed.path)
    assert again.status == 1 and b"--force" in again.stderr and written.read_text() == "notes"
    assert module_memtrack("transform", "speedscope", untimed.path, "-f").status == 0


FAMILY = """
import os, time
def first(): return bytearray(1_000_000)
def second(): return bytearray(2_000_000)
def third(): return bytearray(3_000_000)
turns = [os.pipe() for _ in range(4)]
for number, make in ((2, third), (0, first), (1, second)):
    if os.fork() == 0:
        os.read(turns[number][0], 1)
        kept = make()
        time.sleep(0.1)  # some snapshots
        os.write(turns[number + 1][1], b"x")
        os.read(turns[3][0], 1)
        os.write(turns[3][1], b"x")
        os._exit(0)
os.write(turns[0][1], b"x")
for _ in range(3): os.wait()
"""


@pytest.mark.parametrize("merged", [False, True], ids=["files", "merged"])
def test_processes_stand_in_one_time(module_memtrack, executable, tmp_path, merged):
    script = tmp_path / "family.py"
    script.write_text(FAMILY)
    capture = module_memtrack.record(sys.executable, script, options=["--follow"])
    captures = [capture.path, *sorted(capture.path.parent.glob(f"{capture.path.stem}.*-*.bin"))]
    assert len(captures) == 4
    if merged:
        whole = tmp_path / "whole.bin"
        subprocess.run([executable, "merge", "-o", whole, *captures], check=True, capture_output=True)
        captures = [whole]
    for order in ("auto", "snapshot"):
        out = tmp_path / f"{order}.json"
        command = [executable, "transform", "speedscope", "--leaks", "--order", order, "-o", out, *captures]
        subprocess.run(command, check=True, capture_output=True)
        file = json.loads(out.read_text())
        assert file["memtrack"]["ordering"] == "memory-snapshots"
        names = [frame["name"] for frame in file["shared"]["frames"]]
        leaves = [names[stack[-1]] for stack in file["profiles"][0]["samples"]]
        assert [name for name in leaves if name in ("first", "second", "third")] == ["first", "second", "third"]
