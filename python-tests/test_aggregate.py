"""Aggregated captures: the sums of a plain capture in a file that does not grow with the events."""

import sys

import pytest

from conftest import PROGRAMS

SUMS = ("peak", "leaked", "temporary", "allocations", "deallocations")
VIEWS = {"high-water-mark": (), "leaks": ("--leaks",), "at exit": ("--leaks", "--at-exit"), "temporary": ("--temporary",), "allocated": ("--allocated",)}


REPEATABLE = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture(scope="module")
def plain_capture(module_memtrack):
    return module_memtrack.record(sys.executable, PROGRAMS / "views.py", env=REPEATABLE)


@pytest.fixture(scope="module")
def aggregated(module_memtrack):
    command = [sys.executable, PROGRAMS / "views.py"]
    return module_memtrack.record(*command, options=["--aggregate"], env=REPEATABLE)


def without_times(sums):
    return {name: value for name, value in sums.items() if not name.startswith("time")}


def test_sums_are_those_of_a_plain_capture(plain_capture, aggregated):
    plain_stats, stats = plain_capture.stats(), aggregated.stats()
    assert stats["capture"]["aggregated"] is True and plain_stats["capture"]["aggregated"] is False
    for name in SUMS:
        assert without_times(stats[name]) == without_times(plain_stats[name]), name
    for table in ("allocators", "size_histogram", "mappings"):
        assert stats[table] == plain_stats[table], table


@pytest.mark.parametrize("view", VIEWS)
def test_speedscope_has_the_same_samples_in_the_order_first_seen(plain_capture, aggregated, view):
    profile = aggregated.speedscope(*VIEWS[view])
    assert profile.file["memtrack"]["ordering"] == "capture-order"
    assert profile.samples() == plain_capture.speedscope(*VIEWS[view], "--order", "capture").samples()


def test_the_file_does_not_grow_with_the_events(module_memtrack):
    def size(count):
        code = f"for _ in range({count}): bytearray(2000)"
        return module_memtrack.record(sys.executable, "-c", code, options=["--aggregate"]).path.stat().st_size

    assert size(1_000_000) < size(1000) + 50_000


def test_single_records_are_refused(aggregated):
    outcome = aggregated.memtrack("parse", aggregated.path)
    assert (outcome.status, outcome.stdout) == (1, b"")
    assert outcome.stderr.startswith(b"error: ") and b"aggregate" in outcome.stderr


def test_exact_order_is_refused(aggregated):
    outcome = aggregated.memtrack("transform", "speedscope", aggregated.path, "--order", "exact", "-o", "-")
    assert (outcome.status, outcome.stdout) == (1, b"")
    assert outcome.stderr.startswith(b"error: ")


def test_exact_times_cannot_be_aggregated(memtrack):
    outcome, capture = memtrack.run("-c", "print('ran')", options=["--aggregate", "--allocation-timestamps"])
    assert (outcome.status, outcome.stdout) == (2, b"")
    assert b"--aggregate" in outcome.stderr and b"--allocation-timestamps" in outcome.stderr
    assert not capture.path.exists()


def test_a_killed_program_leaves_its_sums(memtrack):
    code = "import os; kept = [bytearray(99_999) for _ in range(300)]; os.kill(os.getpid(), 9)"
    outcome, capture = memtrack.run(sys.executable, "-c", code, options=["--aggregate"])
    assert outcome.status == 128 + 9
    assert capture.stats()["peak"]["bytes"] >= 300 * 100_000
