"""Peak, leaks, temporary and all allocations of a program that knows them, to the byte."""

import json
import sys

import pytest

from conftest import PROGRAMS

ARENA = 1 << 20  # what pymalloc maps at a time, in the interpreter that runs the tests
LEAKED = (100 * 50_021, 100)
PEAK_PART = (10 * 4_000_000, 10)
CHURNED = (1000 * 20_001, 1000)


@pytest.fixture(scope="module")
def capture(module_memtrack):
    return module_memtrack.record(sys.executable, PROGRAMS / "views.py")


def blocks(profile, function):
    """(bytes, count) of a function's own blocks, without an arena that pymalloc may have mapped there."""
    size, count = profile.leaf(function)
    without_arena = size - ARENA, count - 1
    return without_arena if without_arena in KNOWN else (size, count)


KNOWN = {LEAKED, PEAK_PART, CHURNED, (0, 0)}


def test_what_a_global_holds_is_a_leak_though_python_frees_it_at_exit(capture):
    leaks = capture.speedscope("--leaks")
    assert blocks(leaks, "leaks") == LEAKED
    assert leaks.leaf("leaks_natively") == (777_777, 1)
    for function in ("peaks", "churns", "keeps_for_a_while", "grows", "fails_to_grow", "four_at_once", "reserves"):
        assert blocks(leaks, function) == (0, 0), function


def test_at_exit_only_what_nobody_freed_is_a_leak(capture):
    leaks = capture.speedscope("--leaks", "--at-exit")
    assert blocks(leaks, "leaks") == (0, 0)
    assert leaks.leaf("leaks_natively") == (777_777, 1)


def test_reports_of_figures_have_views_too(capture, memtrack):
    """Tables of stats, and what diff compares."""
    for options, native_leak in ((["--at-exit"], True), (["--leaks"], True), (["--temporary"], False), ([], True)):
        stats = json.loads(memtrack("stats", "--json", "-n", "0", *options, capture.path).stdout)
        found = [row for row in stats["top_by_size"] if row["function"] == "leaks_natively"]
        assert [(row["bytes"], row["count"]) for row in found] == [(777_777, 1)] * native_leak, options
    at_exit = capture.speedscope("--leaks", "--at-exit").file["memtrack"]["total_bytes"]
    assert json.loads(memtrack("stats", "--json", "--at-exit", capture.path).stdout)["leaked"]["bytes"] == at_exit
    diff = json.loads(memtrack("diff", "--json", "--at-exit", capture.path, capture.path).stdout)
    assert (diff["metric"], diff["base_total"]) == ("leaks", at_exit)


def test_the_peak_is_what_was_live_together(capture):
    peak = capture.speedscope()
    assert blocks(peak, "peaks.<locals>.<listcomp>") == PEAK_PART
    assert blocks(peak, "leaks") == LEAKED
    assert peak.leaf("leaks_natively") == (777_777, 1)
    for function in ("churns", "grows", "fails_to_grow", "four_at_once", "reserves"):
        assert blocks(peak, function) == (0, 0), function
    stats = capture.stats()["peak"]
    assert peak.file["memtrack"]["total_bytes"] == sum(peak.by_bytes["weights"]) == stats["bytes"]
    assert peak.file["memtrack"]["total_allocations"] == sum(peak.by_count["weights"]) == stats["allocations"]


def test_what_is_freed_at_once_is_temporary(capture):
    temporary = capture.speedscope("--temporary")
    assert blocks(temporary, "churns") == CHURNED
    assert temporary.leaf("fails_to_grow") == (123_456, 1)
    for function in ("leaks", "leaks_natively"):
        assert blocks(temporary, function) == (0, 0), function
    assert capture.stats()["temporary"] == {
        "bytes": temporary.file["memtrack"]["total_bytes"],
        "count": temporary.file["memtrack"]["total_allocations"],
    }


def test_everything_that_was_ever_allocated(capture):
    allocated = capture.speedscope("--allocated")
    assert blocks(allocated, "churns") == CHURNED
    assert blocks(allocated, "leaks") == LEAKED
    assert allocated.leaf("grows") == (15_000_000, 5)
    assert allocated.leaf("fails_to_grow") == (123_456, 1)
    assert allocated.leaf("reserves") == (0, 0)
    stats = capture.stats()
    assert allocated.file["memtrack"]["total_bytes"] == stats["allocations"]["bytes"]
    assert allocated.file["memtrack"]["total_allocations"] == stats["allocations"]["count"]
    assert stats["mappings"]["reserved_bytes"] >= 1 << 30


def test_four_allocators_on_one_line_stay_apart(capture):
    sizes = {40_001: "malloc", 40_004: "calloc", 40_064: "aligned_alloc", 40_960: "mmap"}
    found = [(record.allocator, record.size) for record in capture.allocations() if record.size in sizes]
    assert sorted(found) == sorted((name, size) for size, name in sizes.items())
    assert capture.speedscope("--allocated").leaf("four_at_once") == (sum(sizes), 4)
    rows = {row["allocator"]: row["count"] for row in capture.stats()["allocators"]}
    assert rows["aligned_alloc"] >= 1 and rows["realloc"] >= 5


def test_stats_agree_with_each_other(capture):
    stats = capture.stats()
    allocations = stats["allocations"]
    for table in ("size_histogram", "allocators", "threads"):
        assert sum(row["count"] for row in stats[table]) == allocations["count"], table
    assert sum(row["bytes"] for row in stats["allocators"]) == allocations["bytes"]
    assert stats["peak"]["bytes"] >= stats["leaked"]["bytes"] >= LEAKED[0] + 777_777
    assert stats["rss"]["peak_bytes"] >= stats["rss"]["last_bytes"] > 0
    top = {(row["function"], row["bytes"], row["count"]) for row in stats["top_by_size"]}
    assert ("peaks.<locals>.<listcomp>", *PEAK_PART) in top
    assert stats["capture"]["command_line"][-1].endswith("views.py")
    assert stats["capture"]["complete"] is True
    assert stats["capture"]["python_version"] == ".".join(map(str, sys.version_info[:3]))
    assert stats["capture"]["executable"]


class Heap:
    """A second opinion: the numbers of a capture whose mappings are never cut, counted from its records."""

    def __init__(self, events):
        self.live, self.bytes, self.peak, self.leaked = {}, 0, (0, 0), None
        self.made, self.temporary = {}, [0, 0]
        for event in events:
            self.take(event)
        self.leaked = self.leaked or (self.bytes, len(self.live))

    def take(self, event):
        if event.kind == "ALLOC" or (event.kind == "MAP" and event.map_class == "heap"):
            self.begin(event)
        elif event.kind in ("FREE", "UNMAP"):
            self.end(event)
        elif event.kind == "FREE_UNDO":
            self.undo(event)
        elif event.kind == "FINALIZING":
            self.leaked = (self.bytes, len(self.live))

    def begin(self, event):
        assert event.address not in self.live, f"{event} where {self.live[event.address]} is live"
        self.made[event.tid] = self.made.get(event.tid, 0) + 1
        self.live[event.address] = event, self.made[event.tid]
        self.bytes += event.size
        if self.bytes > self.peak[0]:
            self.peak = self.bytes, len(self.live)

    def end(self, event):
        block, number = self.live.pop(event.address, (None, 0))
        self.last = event.address, block, number
        if block:
            assert event.kind == "FREE" or event.size == block.size, "a mapping is cut: not for this simple count"
            self.bytes -= block.size
            self.count_temporary(event, block, number, 1)

    def count_temporary(self, event, block, number, sign):
        if block.tid == event.tid and self.made[event.tid] - number <= 1:
            self.temporary[0] += sign * block.size
            self.temporary[1] += sign

    def undo(self, event):
        address, block, number = self.last
        if block:
            self.live[address] = block, number
            self.bytes += block.size
            self.count_temporary(event, block, number, -1)


def test_numbers_are_those_that_follow_from_the_records(capture):
    stats, heap = capture.stats(), Heap(capture.records.events)
    assert (stats["peak"]["bytes"], stats["peak"]["allocations"]) == heap.peak
    assert (stats["leaked"]["bytes"], stats["leaked"]["allocations"]) == heap.leaked
    assert (stats["temporary"]["bytes"], stats["temporary"]["count"]) == tuple(heap.temporary)
