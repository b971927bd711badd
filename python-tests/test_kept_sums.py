"""Sums that are kept of large captures: reports from them are those from events, to the byte, and damage is never trusted."""

import os
import subprocess
import sys
import time

import pytest

from conftest import PATIENCE, PROGRAMS, REPOSITORY

# Enough for captures to have more than 2 MiB of records.
BLOCKS = 250_000
RECORDINGS = {
    "objects": (["--trace-python-allocators"], []),
    "threads": (["--trace-python-allocators"], ["3"]),
    "timed": (["--trace-python-allocators", "--allocation-timestamps"], []),
    "native": (["--trace-python-allocators", "--native"], ["2"]),
    "processes": (["--trace-python-allocators", "--follow"], ["1", "1"]),
    "samples": (["--sample=10"], []),
}
VIEWS = [(), ("--leaks",), ("--leaks", "--at-exit"), ("--temporary",), ("--allocated",)]
OF_VIEWS = [("table", "-n", "1000"), ("summary", "--json"), ("transform", "speedscope", "-o", "-")]
REPORTS = [
    ("tree", "--json", "--leaks"),
    ("flamegraph", "--json", "-o", "-"),
    ("table", "--csv", "--allocated"),
    ("summary", "--temporary"),
    ("transform", "speedscope", "-o", "-"),
    ("stats", "--recording"),
    ("stats", "--json"),
    ("table", "--temporary", "--temporary-threshold", "5"),
    ("table", "--all-frames", "--split-threads"),
    ("table", "--pinned"),
    ("tree", "--split-processes"),
    ("explain",),
    ("flamegraph", "-o", "-"),
    ("flamegraph", "--temporary", "--inverted", "-o", "-"),
    ("transform", "pprof", "-o", "-"),
    ("transform", "dhat", "-o", "-"),
    ("transform", "records", "--table", "allocations"),
    ("table", "--min-bytes", "500"),
    ("table", "--from", "20%", "--to", "60%"),
    ("table", "--function", "work"),
]
# What needs more than sums: single allocations, accounts of each thread's blocks, statistics of each group.
NOT_KEPT = {"--pinned", "explain", "dhat", "--min-bytes", "--from", "--function"}


@pytest.fixture(scope="module", params=RECORDINGS)
def capture(request, module_memtrack):
    options, arguments = RECORDINGS[request.param]
    target = (sys.executable, PROGRAMS / "many_sizes.py", BLOCKS, *arguments)
    capture = module_memtrack.record(*map(str, target), options=options)
    capture.kind = request.param
    return capture.symbolized() if request.param == "native" else capture


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The directory of kept sums, an empty one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("MEMTRACK_CACHE", raising=False)
    return tmp_path / "cache" / "memtrack" / "sums"


def report(capture, *words, kept=True, paths=None):
    """What a report prints, on both streams."""
    with pytest.MonkeyPatch.context() as patch:
        if not kept:
            patch.setenv("MEMTRACK_CACHE", "none")
        outcome = capture.memtrack(*words, *(paths or [capture.path]))
    return outcome.status, outcome.stdout, outcome.stderr


def files(cache):
    return sorted(cache.iterdir()) if cache.exists() else []


def test_reports_from_kept_sums_are_those_from_events(capture, cache):
    for words in REPORTS:
        for file in files(cache):
            file.unlink()
        from_events = report(capture, *words, kept=False)
        assert not files(cache)
        assert report(capture, *words) == from_events, words
        # Where stacks are native, resident memory needs events each time, and the sums are kept for other reports.
        needs_events = NOT_KEPT & set(words) or capture.kind == "samples"
        assert bool(files(cache)) != bool(needs_events), words
        assert report(capture, *words) == from_events, words


# Nothing is kept of samples, nor resident memory where stacks are native.
@pytest.mark.parametrize("capture", ["objects", "threads", "timed", "processes"], indirect=True)
def test_one_report_keeps_sums_for_all_others(capture, cache):
    from_events = {(*words, *view): report(capture, *words, *view, kept=False) for words in OF_VIEWS for view in VIEWS}
    report(capture, "flamegraph", "-o", "-")
    # The other one is of memory over time.
    assert len(files(cache)) == 2
    report(capture, "stats")
    found = files(cache)
    assert len(found) == 2
    for words, expected in from_events.items():
        assert report(capture, *words) == expected, words
    assert files(cache) == found
    assert 2 * sum(file.stat().st_size for file in found) < capture.path.stat().st_size


def test_what_run_ends_with_keeps_sums_for_reports_and_pages(memtrack, cache):
    """It has read the capture as a page does."""
    target = (sys.executable, PROGRAMS / "many_sizes.py", BLOCKS)
    outcome = memtrack("run", "-o", "a.bin", "--trace-python-allocators", "--", *map(str, target))
    assert outcome.status == 0 and b"peak" in outcome.stderr
    found = files(cache)
    assert len(found) == 2
    for words in (("table",), ("stats",), ("stats", "--json"), ("flamegraph", "-o", "-"), ("transform", "records", "--table", "allocations")):
        assert memtrack(*words, "a.bin").status == 0
    assert files(cache) == found


def test_what_run_ends_with_keeps_the_sums_of_native_stacks(memtrack, cache):
    """Of these without resident memory, which their names divide."""
    target = (sys.executable, PROGRAMS / "many_sizes.py", BLOCKS)
    outcome = memtrack("run", "-o", "a.bin", "--trace-python-allocators", "--native", "--", *map(str, target))
    assert outcome.status == 0 and b"peak" in outcome.stderr
    found = files(cache)
    assert len(found) == 1
    for words in (("table", "--json"), ("stats", "--json"), ("transform", "records", "--table", "allocations"), ("stats",)):
        assert memtrack(*words, "a.bin").status == 0
    assert files(cache) == found


def test_what_a_tracker_ends_with_keeps_sums(memtrack, executable, cache, tmp_path):
    """Beside the program, which goes on, and after it."""
    code = f"""
import memtrack, runpy, sys
sys.argv = ["many_sizes.py", "{BLOCKS}"]
with memtrack.Tracker("a.bin", trace_python_allocators=True):
    runpy.run_path({str(PROGRAMS / "many_sizes.py")!r}, run_name="__main__")
"""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "python"), "MEMTRACK": str(executable)}
    # Nobody who reads the program's output waits for what goes on.
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, check=True)
    deadline = time.monotonic() + PATIENCE
    while len(files(cache)) < 2 or any(".tmp" in file.name for file in files(cache)):
        assert time.monotonic() < deadline, files(cache)
        time.sleep(0.05)
    found = files(cache)
    for words in (("table",), ("stats",), ("flamegraph", "-o", "-"), ("transform", "records", "--table", "allocations")):
        from_kept = memtrack(*words, "a.bin")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MEMTRACK_CACHE", "none")
            from_events = memtrack(*words, "a.bin")
        assert (from_kept.status, from_kept.stdout) == (0, from_events.stdout), words
    assert files(cache) == found


@pytest.mark.parametrize("capture", ["processes"], indirect=True)
def test_processes_together_are_read_from_events(capture, cache):
    paths = sorted(capture.path.parent.glob(f"{capture.path.stem}*.bin"))
    assert len(paths) == 2
    expected = report(capture, "stats", kept=False, paths=paths)
    [report(capture, "stats", paths=[path]) for path in paths]
    assert len(files(cache)) == 2
    assert report(capture, "stats", paths=paths) == expected


@pytest.mark.parametrize("capture", ["threads"], indirect=True)
def test_what_is_damaged_or_of_another_capture_is_left_aside(capture, cache, tmp_path):
    expected = report(capture, "table", kept=False)
    report(capture, "table")
    (kept,) = files(cache)
    whole = kept.read_bytes()
    for damaged in (whole[:-1], whole[: len(whole) // 2], b"", bytes([whole[0] ^ 1]) + whole[1:], whole[:20] + b"x" + whole[21:]):
        kept.write_bytes(damaged)
        assert report(capture, "table") == expected
        assert kept.read_bytes() == whole, "it is written anew"
    other = tmp_path / "other.bin"
    events = capture.path.read_bytes()
    middle = len(events) // 2
    for changed in (events[:-40], events[:middle] + bytes([events[middle] ^ 1]) + events[middle + 1 :], events + b"more"):
        other.write_bytes(changed)
        outcomes = [report(capture, "stats", "--json", kept=kept, paths=[other]) for kept in (False, True, True)]
        assert outcomes[0] == outcomes[1] == outcomes[2]
    other.write_bytes(events)
    before = files(cache)
    report(capture, "table", paths=[other])
    assert files(cache) == before, "a copy has the sums of the original"


@pytest.mark.parametrize("capture", ["objects"], indirect=True)
def test_it_can_be_turned_off_and_need_not_be_there(capture, cache, monkeypatch):
    expected = report(capture, "table", kept=False)
    assert not cache.parent.exists()
    cache.parent.parent.mkdir()
    cache.parent.write_text("no directory")
    assert report(capture, "table") == expected
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert report(capture, "table") == expected
