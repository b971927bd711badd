"""Filters: the same in every report, and a part and its complement make the whole."""

import json
import sys

import pytest

from conftest import PROGRAMS, Profile


@pytest.fixture(scope="module")
def capture(module_memtrack):
    return module_memtrack.record(sys.executable, PROGRAMS / "exports.py", options=["--allocation-timestamps"])


@pytest.fixture(scope="module")
def aggregated(module_memtrack):
    return module_memtrack.record(sys.executable, PROGRAMS / "exports.py", options=["--aggregate"])


def stats(capture, *filters):
    return json.loads(capture.reading("stats", "--json", *filters, capture.path))


def allocations(capture, *filters):
    return stats(capture, *filters)["allocations"]


def sums(*parts):
    return {key: sum(part[key] for part in parts) for key in parts[0]}


def selected(capture, condition):
    """The sum of the records that satisfy a condition, from `memtrack parse`."""
    taken = [record for record in capture.allocations() if record.map_class in ("", "heap") and condition(record)]
    return {"count": len(taken), "bytes": sum(record.size for record in taken)}


def test_threads_by_name_and_number_make_the_whole(capture):
    whole = stats(capture)
    threads = whole["threads"]
    assert len(threads) == 2
    parts = [allocations(capture, "--thread", thread["tid"]) for thread in threads]
    assert parts == [{key: thread[key] for key in ("count", "bytes")} for thread in threads]
    assert sums(*parts) == whole["allocations"]
    assert allocations(capture, "--thread", threads[0]["tid"], "--thread", threads[1]["tid"]) == whole["allocations"]


def test_sizes_and_times_are_those_of_single_records(capture):
    whole = stats(capture)["allocations"]
    assert allocations(capture, "--min-bytes", "2kB") == selected(capture, lambda record: record.size >= 2000)
    middle = sorted(record.time_ns for record in capture.allocations())[len(capture.allocations()) // 2]
    late = allocations(capture, "--from", f"{middle}ns")
    assert late == selected(capture, lambda record: record.time_ns >= middle)
    assert sums(late, allocations(capture, "--to", f"{middle}ns")) == whole
    assert sums(allocations(capture, "--from", "50%"), allocations(capture, "--to", "50%")) == whole
    assert allocations(capture, "--from", "0%", "--to", "100%") == whole


@pytest.mark.parametrize("view", [(), ("--leaks",), ("--leaks", "--at-exit"), ("--temporary",), ("--allocated",)])
def test_a_part_and_its_complement_make_every_view(capture, view):
    def totals(*filters):
        known = capture.speedscope(*view, *filters).file["memtrack"]
        return {key: known[key] for key in ("total_bytes", "total_allocations")}

    assert sums(totals("--from", "30ms"), totals("--to", "30ms")) == totals()
    tids = [thread["tid"] for thread in capture.stats()["threads"]]
    assert sums(*(totals("--thread", tid) for tid in tids)) == totals()


def test_deallocations_and_sizes_are_of_the_selected(capture):
    whole = stats(capture)
    parts = [stats(capture, "--thread", thread["tid"]) for thread in whole["threads"]]
    assert sum(part["deallocations"]["count"] for part in parts) == whole["deallocations"]["count"]
    for part in parts:
        assert sum(bin["count"] for bin in part["size_histogram"]) == part["allocations"]["count"]
        assert part["deallocations"]["count"] <= part["allocations"]["count"]


def test_functions_files_modules_and_allocators(capture):
    def samples(*filters):
        return capture.speedscope("--allocated", *filters).samples()

    everything = samples()
    by_function = [sample for sample in everything if any("churn" in frame.name for frame in sample[0])]
    assert by_function and samples("--function", "churn") == by_function
    by_file = [sample for sample in everything if any("quoted" in (frame.file or "") for frame in sample[0])]
    assert by_file and samples("--file", "quoted") == by_file
    rows = {row["module"]: row for row in json.loads(capture.reading("stats", "--json", "-n", 99, capture.path))["modules_by_size"]}
    assert allocations(capture, "--module", "exports") == {key: rows["exports"][key] for key in ("count", "bytes")}
    table = {row["allocator"]: row for row in stats(capture)["allocators"]}
    assert allocations(capture, "--allocator", "mmap") == {key: table["mmap"][key] for key in ("count", "bytes")}


def test_nothing_is_said_without_filters(capture):
    assert capture.memtrack("stats", capture.path).stderr == b""


def test_aggregated_captures_know_groups_but_no_single_allocations(aggregated):
    worker = [thread for thread in stats(aggregated)["threads"]][1]
    assert allocations(aggregated, "--thread", worker["tid"]) == {key: worker[key] for key in ("count", "bytes")}
    for filters in (["--from", "1ms"], ["--to", "50%"], ["--min-bytes", "1"]):
        outcome = aggregated.memtrack("stats", *filters, aggregated.path)
        assert outcome.status == 1 and outcome.stderr.startswith(b"error: ") and b"aggregated" in outcome.stderr


@pytest.mark.parametrize("words", [["--from", "soon"], ["--from", "5"], ["--to", "120%"], ["--min-bytes", "x"], ["--allocator", "free"]])
def test_wrong_values_are_wrong_usage(capture, words):
    outcome = capture.memtrack("stats", *words, capture.path)
    assert outcome.status == 2 and b"error: " in outcome.stderr


def test_several_captures_make_one_report(capture, module_memtrack):
    other = module_memtrack.record(sys.executable, PROGRAMS / "exports.py", options=["--allocation-timestamps"])
    single = [stats(capture), stats(other)]
    # Of two recordings, which reports take where they were merged.
    merged = other.path.with_name("merged.bin")
    capture.reading("merge", "-o", merged, capture.path, other.path)
    both = json.loads(capture.reading("stats", "--json", merged))
    for key in ("allocations", "leaked", "temporary"):
        figures = lambda value: {figure: value[key][figure] for figure in ("allocations" if key == "leaked" else "count", "bytes")}
        assert figures(both) == sums(*map(figures, single)), key
    # They ran one after the other: the largest sum at one moment is that of one of them.
    assert both["peak"]["sum_of_peaks"] == sum(one["peak"]["bytes"] for one in single)
    assert both["peak"]["bytes"] == max(one["peak"]["bytes"] for one in single)
    assert both["deallocations"]["count"] == sum(one["deallocations"]["count"] for one in single)
    assert len(both["threads"]) == 4
    text = capture.reading("transform", "speedscope", "--allocated", "-o", "-", merged)
    profile = Profile(json.loads(text))
    assert profile.file["memtrack"]["total_bytes"] == both["allocations"]["bytes"]
    assert profile.file["memtrack"]["ordering"] == "exact-timestamps"
    assert profile.leaf("leak") == tuple(map(sum, zip(*(one.speedscope("--allocated").leaf("leak") for one in (capture, other)))))


def test_parse_prints_kept_allocations_and_what_ends_them(capture):
    outcome = capture.memtrack("parse", "--function", "churn", capture.path)
    assert outcome.status == 0 and outcome.stderr.startswith(b"filters: showing ")
    lines = outcome.stdout.decode().splitlines()
    numbers = stats(capture, "--function", "churn")
    assert sum(line.startswith(("ALLOC ", "MAP ")) for line in lines) == numbers["allocations"]["count"]
    assert sum(line.startswith("FREE ") for line in lines) == numbers["deallocations"]["count"]
    assert any("function=churn" in line for line in lines if line.startswith("FRAME "))


def test_parse_prints_several_captures(capture):
    text = capture.reading("parse", capture.path, capture.path)
    assert text == 2 * capture.text and text.startswith("CAPTURE ")


def test_an_interval_that_ends_before_it_begins_is_refused(capture):
    outcome = capture.memtrack("table", "--from", "50%", "--to", "0ms", capture.path)
    assert outcome.status == 1 and b"later than --to" in outcome.stderr and outcome.stdout == b""
    assert capture.memtrack("table", "--from", "0ms", "--to", "0ms", capture.path).status == 0
