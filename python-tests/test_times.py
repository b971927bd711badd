"""The times of events without --allocation-timestamps, after pauses, too: held against the program's own clock.

A program says between which readings of its clock each of its blocks was made and freed. Where the capture's clock begins
is not known here, so what is compared is how far the two are apart, which may differ from event to event by as much as the
capture itself says.
"""

import json
import subprocess

import pytest
from conftest import REPOSITORY, in_one_of, interpreter_path

FIRST_SIZE = 3_000_000  # nothing else in the programs comes near
LONGEST_PAUSE = 700_000_000
ROUNDING = 2_000  # times of runs are recorded in microseconds


@pytest.fixture(params=["3.8", "3.11", "3.13", "C"])
def pausing(request, programs, tmp_path):
    """A program that pauses."""
    if request.param != "C":
        return interpreter_path(request.param), programs / "pauses.py"
    program = tmp_path / "pauses"
    subprocess.run(["cc", "-O1", "-pthread", "-o", program, programs / "pauses.c"], check=True)
    return (program,)


def moments(outcome):
    """By size, the clock before and after the block was made, and before and after it was freed."""
    lines = [tuple(map(int, line.split())) for line in outcome.stdout.decode().splitlines()]
    return {line[0]: line[1:] for line in lines}


def recorded(capture):
    """By size, when each block was made and freed."""
    made, sizes, freed = {}, {}, {}
    for event in capture.records.events:
        if event.kind == "ALLOC" and event.size >= FIRST_SIZE:
            made[event.size], sizes[event.address] = event.time_ns, event.size
        elif event.kind == "FREE" and event.address in sizes:
            freed[sizes.pop(event.address)] = event.time_ns
    return {size: (time, freed[size]) for size, time in made.items()}


def disagreement(expected, found):
    """By how much the recorded times are too early at least, if the earliest of them are right."""
    assert expected.keys() == found.keys() and len(expected) >= 5
    pairs = [
        (before - time, after - time)
        for size, (begun, made, freeing, freed) in expected.items()
        for (before, after), time in zip([(begun, made), (freeing, freed)], found[size])
    ]
    return max(before for before, _ in pairs) - min(after for _, after in pairs)


@pytest.mark.parametrize("threads", [0, 4])
@pytest.mark.parametrize("options", [(), ("--allocation-timestamps",)], ids=["", "exact"])
def test_events_after_pauses_have_the_time_at_which_they_happened(memtrack, pausing, threads, options):
    def attempt():
        outcome, capture = memtrack.run(*pausing, threads, options=options)
        assert outcome.status == 0, outcome.stderr
        uncertainty = capture.stats()["capture"]["time_uncertainty_ns"]
        assert (uncertainty == 0) == bool(options)
        assert f" time_uncertainty_ns={uncertainty} " in capture.text.splitlines()[0]
        apart = disagreement(moments(outcome), recorded(capture))
        assert apart <= uncertainty + (LONGEST_PAUSE / 1000 if options else ROUNDING)
        # A machine that does not let the collector run for long may make it more than a millisecond or two; a pause does not.
        return "" if uncertainty < LONGEST_PAUSE / 4 else f"{uncertainty} ns"

    in_one_of(8, attempt)


def test_reports_after_a_pause(memtrack, python):
    in_one_of(8, lambda: reports_after_a_pause(memtrack, python))


def reports_after_a_pause(memtrack, python):
    code = "import time; time.sleep(1.2); block = bytearray(50_000_000); time.sleep(1.1); block = None; time.sleep(0.5)"
    outcome, capture = memtrack.run("-c", code, options=("--python", python))
    assert outcome.status == 0, outcome.stderr
    found = json.loads(capture.reading("query", "--json", "bytes >= 50MB", capture.path))
    uncertainty = found["captures"][0]["time_uncertainty_ns"]
    [block] = found["rows"]
    assert block["time_ns"] >= 1_200_000_000 and block["lifetime_ns"] >= 1_100_000_000 - uncertainty
    assert capture.stats()["peak"]["time_ms"] >= 1200
    assert "50.0 MB" in capture.reading("table", "--from", "1.2s", "--allocated", capture.path)
    told = memtrack("query", "bytes >= 50MB", capture.path).stderr.decode()
    assert "times are accurate to" in told and "exact to a millisecond" not in told
    assert "accurate to" in memtrack("table", "--from", "1s", capture.path).stderr.decode()
    assert "accurate to" in capture.reading("stats", capture.path)
    return "" if uncertainty < 300_000_000 else f"{uncertainty} ns"


def test_sums_have_right_times_after_a_pause(memtrack, python):
    code = "import time; time.sleep(1.2); block = bytearray(50_000_000); block = None; time.sleep(0.5)"

    def attempt():
        outcome, capture = memtrack.run("-c", code, options=("--python", python, "--aggregate"))
        assert outcome.status == 0, outcome.stderr
        stats = capture.stats()
        uncertainty = stats["capture"]["time_uncertainty_ns"]
        assert stats["peak"]["time_ms"] >= 1200 and uncertainty > 0
        return "" if uncertainty < 300_000_000 else f"{uncertainty} ns"

    in_one_of(8, attempt)


def test_a_child_of_a_fork_that_waits(memtrack, python):
    code = (
        "import os, time\npid = os.fork()\nif pid == 0:\n"
        "    time.sleep(1.2); block = bytearray(50_000_000); block = None; os._exit(0)\nos.waitpid(pid, 0)"
    )
    outcome, capture = memtrack.run("-c", code, options=("--python", python, "--follow"))
    assert outcome.status == 0, outcome.stderr
    [child] = capture.path.parent.glob(f"{capture.path.stem}.*-1.bin")
    assert json.loads(memtrack("stats", "--json", child).stdout)["peak"]["time_ms"] >= 1200


def test_a_rewritten_capture_keeps_the_times(memtrack, python):
    code = "import time; time.sleep(1.2); block = bytearray(50_000_000); block = None; time.sleep(0.2)"
    outcome, capture = memtrack.run("-c", code, options=("--python", python))
    assert outcome.status == 0, outcome.stderr
    for command in ("anonymize",), ("strip", "--lived-less", "1us"):
        written = capture.path.with_name(f"{command[0]}.bin")
        assert memtrack(*command, "-o", written, capture.path).status == 0
        stats = json.loads(memtrack("stats", "--json", written).stdout)
        assert stats["peak"] == capture.stats()["peak"]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_older_captures_say_how_coarse_they_are(memtrack, version):
    fixture = REPOSITORY / "reader" / "tests" / "fixtures" / f"v{version}.bin"
    uncertainty = json.loads(memtrack("stats", "--json", fixture).stdout)["capture"]["time_uncertainty_ns"]
    # The first carries exact times; the others have one tick a long time before the end.
    assert (uncertainty == 0) == (version == 1)


@pytest.mark.parametrize("options", [(), ("--allocation-timestamps",)], ids=["", "exact"])
def test_what_is_live_at_the_end_has_lived_until_then(memtrack, python, options):
    """Memory is looked at seldom where nothing happens, and the recording ends after the last look."""
    code = (
        "import os, signal, time\n"
        "if os.fork() == 0:\n    block = bytearray(3_000_000); time.sleep(0.4); os._exit(0)\n"
        "block = bytearray(50_000_000); os.wait(); time.sleep(0.4); os.kill(os.getpid(), signal.SIGKILL)"
    )
    outcome, capture = memtrack.run("-c", code, options=("--python", python, "--follow", *options))
    assert outcome.status == 128 + 9, outcome.stderr
    [child] = capture.path.parent.glob(f"{capture.path.stem}.*-1.bin")
    for path, size in ((capture.path, 50_000_000), (child, 3_000_000)):
        stats = json.loads(capture.reading("stats", "--json", "--lifetimes", path))
        duration_us = 1000 * stats["capture"]["duration_ms"]
        [block] = json.loads(capture.reading("query", "--json", f"bytes >= {size} and live", path))["rows"]
        lived_us, made_us = block["lifetime_ns"] // 1000, block["time_ns"] // 1000
        # The duration is in whole milliseconds.
        assert abs(made_us + lived_us - duration_us) < 1000 and lived_us > 300_000
        assert stats["lifetimes"]["whole"]["longest_ns"] >= block["lifetime_ns"]
        dhat = json.loads(capture.reading("transform", "dhat", "-o", "-", path))
        [point] = [point for point in dhat["pps"] if point["tb"] == block["bytes"]]
        assert abs(point["tl"] - lived_us) <= 1 and abs(dhat["te"] - made_us - lived_us) <= 2
    [duration] = [line.split()[1:3] for line in capture.reading("stats", capture.path).splitlines() if line.startswith("Duration")]
    assert f"live after {' '.join(duration)}" in capture.reading("explain", capture.path)
