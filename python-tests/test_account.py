"""The recorder's own account: what `stats --recording` says, on programs with known numbers."""

import json
import re
import sys

import pytest

from conftest import REPOSITORY, in_one_of

REPEATED = 20_000
# One line over and over, then two functions in turn.
PROGRAM = f"""
import time
def one():
    return bytes(700)
def other():
    return bytes(800)
def main():
    for _ in range({REPEATED}):
        bytes(600)
    for _ in range({REPEATED}):
        one(); other()
main()
print(time.process_time_ns())
"""


@pytest.fixture(scope="module", params=["", "--allocation-timestamps", "--aggregate", "--native"], ids=lambda option: option or "plain")
def recorded(module_memtrack, request):
    """The Outcome of a run, its Capture, and what `stats` says of it; and what makes them once more."""

    def record():
        outcome, capture = module_memtrack.run(sys.executable, "-c", PROGRAM, options=request.param.split())
        assert outcome.status == 0, outcome
        return outcome, capture, capture.stats()

    return *record(), record


def test_events_and_bytes(recorded):
    _, capture, stats, _ = recorded
    account = stats["account"]
    if not stats["capture"]["aggregated"]:
        assert account["events"] == len(capture.records.events)
    assert account["events"] >= 6 * REPEATED
    assert account["file_bytes"] == capture.path.stat().st_size
    assert account["bytes_per_event"] == account["file_bytes"] / account["events"]
    # A record has a byte at the least, and no more than a few with the frames that change.
    assert account["events"] <= account["record_bytes"] < 30 * account["events"]


def test_stacks(recorded):
    account = recorded[2]["account"]
    stacks = account["python_stacks"]
    assert REPEATED <= stacks["glance"] < 2 * REPEATED
    assert 2 * REPEATED <= stacks["changed"] < 3 * REPEATED
    native = account["native_frames"]
    assert (native is not None) == recorded[2]["capture"]["has_native_traces"]
    if native is not None:
        # Both allocate by the same native frames, each time between other frames of Python.
        assert 0 < native["stacks_changed"] < REPEATED
        # What was written for them before is put back by a record each, in which no frame is written.
        assert 0 < native["written"] < REPEATED
        assert 0 < native["learned"] < REPEATED
    assert account["truncated_stacks"] == recorded[2]["capture"]["truncated_stacks"]


def test_nothing_is_lost(recorded):
    account = recorded[2]["account"]
    assert account["lost"] == {"blocks": 0, "bytes": 0, "events": 0}


def test_times_are_measured(recorded):
    outcome, capture, stats, record = recorded
    if wrong_times(outcome, capture, stats):
        in_one_of(9, lambda: wrong_times(*record()))


def wrong_times(outcome, _, stats):
    """An account whose times are too long, or ""."""
    account = stats["account"]
    # The program has looked at its own clock just before its end.
    assert account["cpu_ns"] >= int(outcome.stdout)
    assert 0 < account["start_ns"] and 0 < account["collector_cpu_ns"] < 10**10
    # Two functions in turn: each call is looked at closer, which takes from some nanoseconds to some microseconds.
    looks = account["python_stacks"]["whole"] + account["python_stacks"]["changed"]
    python, native = account["python_changes_ns"], account["native_changes_ns"]
    assert python > 5 * looks and (native is not None) == (account["native_frames"] is not None)
    assert native is None or native > 0
    # Some of the looks are timed, for all: one that had to wait for a processor counts many times.
    return "" if python < 20_000 * looks and (native is None or native < account["cpu_ns"]) else str(account)


def test_allocated_is_freed_and_live(recorded):
    """Also under a filter, and of a capture of sums."""
    _, capture, stats, _ = recorded
    for report in (stats, json.loads(capture.reading("stats", "--json", "--function", "one", capture.path))):
        for key in ("count", "bytes"):
            assert report["allocations"][key] == report["freed"][key] + report["live_at_exit"][key], key
        assert report["freed"]["count"] >= REPEATED
    unseen = stats["freed"]["count"] - stats["deallocations"]["count"]
    assert 0 <= unseen < 100, stats["capture"]
    text = capture.reading("stats", capture.path)
    assert f"\n  freed          {stats['freed']['count']:,}, " in text, text


def test_the_account_is_shown_on_request(recorded):
    _, capture, stats, _ = recorded
    assert "\nRecording\n" not in capture.reading("stats", capture.path)
    text = capture.reading("stats", "--recording", capture.path)
    rows = dict(re.findall(r"^  (\w[\w ]+?)  +(.+)$", text.split("\nRecording\n")[1], re.MULTILINE))
    assert rows["Events"].startswith(f"{stats['account']['events']:,}, ")
    assert re.fullmatch(r"[\d.]+ m?s CPU time", rows["Collector"]), rows
    assert ("of native stacks" in rows["In hooks"]) == (stats["account"]["native_frames"] is not None), rows


def test_one_warning_for_what_several_captures_have_in_common(memtrack, python):
    captures = [memtrack.record(python, "-c", "pass") for _ in range(3)]
    for capture in captures:
        capture.path.write_bytes(capture.path.read_bytes()[:-100])
    memtrack("merge", "-o", "all.bin", *(capture.path for capture in captures))
    outcome = memtrack("stats", "all.bin")
    warnings = [line for line in outcome.stderr.decode().splitlines() if "incomplete" in line]
    assert len(warnings) == 1 and warnings[0].startswith("warning: 3 of 3 captures: incomplete: "), warnings


def test_filters_leave_the_account_alone(recorded):
    _, capture, stats, _ = recorded
    filtered = json.loads(capture.reading("stats", "--json", "--function", "nothing", capture.path))
    assert filtered["account"] == stats["account"]
    assert filtered["allocations"]["count"] == 0


def test_the_closing_lines_have_the_answer_and_no_account(memtrack, python):
    program = memtrack.directory / "app.py"
    program.write_text("kept = [bytearray(100_000) for _ in range(100)]\n" + PROGRAM)
    outcome = memtrack("run", "-o", "capture.bin", "--", python, program)
    text = outcome.stderr.decode()
    assert "(estimate)" not in text and "resolved by the fast comparison" not in text, text
    held = text[text.index("  leaked "):].splitlines()[1]
    assert "10.0 MB" in held and "app.py:1" in held, text
    longest = max(text.splitlines(), key=len)
    assert len(longest) <= 160, longest


def test_a_tree_is_closed_as_one(memtrack, python, programs):
    """With --follow, the closing figures are of all processes."""
    outcome = memtrack("run", "--follow", "-o", "capture.bin", "--", python, programs / "tree.py", "forks")
    captures = sorted(memtrack.directory.glob("capture*.bin"))
    assert len(captures) == 6
    whole = json.loads(memtrack("stats", "--json", *captures).stdout)
    text = outcome.stderr.decode()
    assert f"in {whole['peak']['allocations']:,} allocations" in text, text
    each = [json.loads(memtrack("stats", "--json", path).stdout)["account"] for path in captures]
    for key in ("events", "file_bytes", "record_bytes"):
        assert whole["account"][key] == sum(account[key] for account in each)
    # A process that ends at once may not have been asked for its processor time: then the sum is not known.
    for key in ("cpu_ns", "collector_cpu_ns", "start_ns"):
        known = [account[key] for account in each]
        assert whole["account"][key] == (None if None in known else sum(known)), key


@pytest.mark.parametrize("version", [1, 2])
def test_what_an_older_capture_does_not_tell_is_not_available(memtrack, version):
    fixture = REPOSITORY / "reader" / "tests" / "fixtures" / f"v{version}.bin"
    account = json.loads(memtrack("stats", "--json", fixture).stdout)["account"]
    assert account["events"] > 0 and account["file_bytes"] == fixture.stat().st_size
    assert [account[key] for key in ("record_bytes", "cpu_ns")] == [None, None]
    text = memtrack("stats", "--recording", fixture).stdout.decode()
    assert re.search(r"^  Collector +not available$", text, re.MULTILINE), text
    assert "not available before compression" not in text
