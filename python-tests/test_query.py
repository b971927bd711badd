"""`memtrack query` and `stats --lifetimes`: what they find is what `memtrack parse` shows, allocation by allocation."""

import json
import sys

import pytest

from conftest import PROGRAMS


@pytest.fixture(scope="module")
def capture(module_memtrack):
    return module_memtrack.record(sys.executable, PROGRAMS / "handover.py", options=["--allocation-timestamps"])


@pytest.fixture(scope="module")
def aggregated(module_memtrack):
    return module_memtrack.record(sys.executable, PROGRAMS / "handover.py", options=["--aggregate"])


def query(capture, expression, *options):
    return json.loads(capture.reading("query", "--json", *options, expression, capture.path))


def tids(capture):
    return {thread["name"]: thread["tid"] for thread in capture.stats()["threads"]}


def test_allocations_are_found_with_what_became_of_them(capture):
    found = query(capture, "function = produce and bytes > 90kB")
    handed, (held,) = ([row for row in found["rows"] if row["bytes"] == size] for size in (100_001, 700_001))
    threads = tids(capture)
    assert len(handed) == 20 and found["matched"] == {"count": 21, "bytes": 20 * 100_001 + 700_001}
    assert {(row["thread"], row["freed_by"], row["fate"]) for row in handed} == {(threads["producer"], threads["consumer"], "freed")}
    assert held["leaked"] and not any(row["leaked"] or row["temporary"] for row in handed)
    assert {row["function"] for row in found["rows"]} == {"produce"} and held["line"] == 17
    stack = {entry["stack"]: entry["frames"] for entry in found["stacks"]}[held["stack"]]
    assert stack[0]["function"] == "produce" and "run" in stack[1]["function"]


@pytest.mark.parametrize(
    "expression, condition",
    [
        ("bytes >= 50kB", lambda record: record.size >= 50_000),
        ("allocator = calloc or allocator = mmap", lambda record: record.allocator in ("calloc", "mmap")),
        ("allocator ~ '^(c|re)alloc$' and not size > 1000", lambda record: record.allocator in ("calloc", "realloc") and record.size <= 1000),
        ("time < 5ms and bytes != 64", lambda record: record.time_ns < 5_000_000 and record.size != 64),
    ],
)
def test_what_is_found_is_what_was_recorded(capture, expression, condition):
    records = [record for record in capture.allocations() if record.map_class in ("", "heap") and condition(record)]
    found = query(capture, expression)
    assert found["matched"] == {"count": len(records), "bytes": sum(record.size for record in records)}
    assert sorted((row["time_ns"], row["bytes"], row["thread"]) for row in found["rows"]) == sorted(
        (record.time_ns, record.size, record.tid) for record in records
    )


def test_lifetimes_are_those_of_the_program(capture):
    (row,) = query(capture, "function ~ ^linger$ and lifetime > 250ms and bytes > 1MB".replace("^linger$", "'^linger$'"))["rows"]
    assert row["bytes"] == 3_000_001 and 300_000_000 <= row["lifetime_ns"]
    assert query(capture, "function = linger and lifetime < 250ms and bytes > 1MB")["rows"] == []


def test_flags_are_those_of_stats(capture):
    stats = capture.stats()
    sums = {flag: query(capture, flag)["matched"] for flag in ("leaked", "temporary", "freed", "live", "peak")}
    assert sums["leaked"]["count"] == stats["leaked"]["allocations"]
    assert sums["temporary"] == stats["temporary"]
    assert sums["freed"]["count"] == stats["deallocations"]["count"]
    assert sums["peak"]["count"] == stats["peak"]["allocations"]
    assert sums["live"]["count"] + sums["freed"]["count"] == stats["allocations"]["count"]
    assert query(capture, "cross_thread and thread = producer and freed_by = consumer")["matched"]["count"] >= 20


@pytest.mark.parametrize("by", ["function", "file", "module", "thread", "allocator", "size", "stack"])
def test_groups_hold_everything_once(capture, by):
    found = query(capture, "not bytes < 0", "--by", by)
    assert found["by"] == by and found["matched"] == found["of"] == capture.stats()["allocations"]
    for key in ("count", "bytes"):
        assert sum(row[key] for row in found["rows"]) == found["of"][key]
    for row in found["rows"]:
        lives = row["lifetimes"]
        assert sum(part["count"] for part in [*lives["freed"], lives["live"], lives["lost"]]) == row["count"]
    table = {"thread": ("threads", "tid"), "allocator": ("allocators", "allocator")}
    if by in table:
        name, key = table[by]
        expected = {(row[key], row["count"], row["bytes"]) for row in capture.stats()[name]}
        assert {(row[key], row["count"], row["bytes"]) for row in found["rows"]} == expected


def test_filters_narrow_the_expression_down(capture):
    both = query(capture, "bytes > 90kB", "--function", "produce", "--min-bytes", "200kB", "--from", "0%")
    assert [row["bytes"] for row in both["rows"]] == [700_001]


def test_errors_point_at_the_column(capture):
    outcome = capture.memtrack("query", "function = a and bytes > 1 apple", capture.path)
    assert outcome.status == 2 and b"column 26: unknown size unit apple" in outcome.stderr
    line, mark = outcome.stderr.decode().splitlines()[1:3]
    assert mark.index("^") == line.index("1 apple")


def test_text_shows_the_largest_first(capture):
    text = capture.reading("query", "-n", 2, "thread = producer", capture.path).splitlines()
    assert "700 kB" in text[2] and "produce" in text[2] and text[-1].endswith("more (-n 0 shows all)")
    text = capture.reading("query", "--by", "function", "--lifetimes", "bytes > 1MB and function = linger", capture.path)
    assert "linger" in text and "<100 ms" in text


def test_several_captures_are_one_answer(capture, tmp_path):
    merged, other = tmp_path / "merged.bin", tmp_path / "other.bin"
    capture.reading("run", "-q", "-o", other, sys.executable, PROGRAMS / "handover.py")
    capture.reading("merge", "-o", merged, capture.path, other)
    paths = [capture.path], [other], [merged], [capture.path] * 2
    answers = (json.loads(capture.reading("query", "--json", "--by", "module", "leaked", *of)) for of in paths)
    once, again, both, named_twice = answers
    assert both["matched"]["bytes"] == once["matched"]["bytes"] + again["matched"]["bytes"]
    assert len(both["rows"]) == len(once["rows"]) and named_twice["matched"] == once["matched"]


def test_aggregated_captures_know_groups_only(aggregated):
    found = query(aggregated, "function = produce", "--by", "function")
    assert found["rows"][0]["lifetimes"] is None and found["matched"]["count"] >= 51
    for words in (["function = produce"], ["--by", "size", "live"], ["--by", "function", "lifetime > 1s"], ["--json", "live"]):
        outcome = aggregated.memtrack("query", *words, aggregated.path)
        assert outcome.status == 1 and b"aggregated" in outcome.stderr
        # Not the begin of an object, which whatever reads that could not understand.
        assert outcome.stdout == b"", words


def test_stats_have_lifetimes_and_handovers(capture):
    stats = json.loads(capture.reading("stats", "--json", "--lifetimes", "-n", 999, capture.path))
    lives = stats["lifetimes"]
    produce = [row for row in lives["functions"] if row["function"] == "produce"]
    assert len(produce) == 1 and produce[0]["live"]["bytes"] <= 700_001
    assert produce[0]["cross_thread"]["bytes"] >= 2_000_000
    linger = next(row for row in lives["functions"] if row["function"] == "linger")
    assert linger["freed"][5]["bytes"] + linger["freed"][6]["bytes"] == 3_000_001 and linger["longest_ns"] >= 300_000_000
    pairs = {(row["allocated_by"]["name"], row["freed_by"]["name"]): row["bytes"] for row in lives["threads"]}
    assert pairs["producer", "consumer"] >= 2_000_000
    assert sum(row["count"] for row in lives["threads"]) == stats["deallocations"]["count"]
    text = capture.reading("stats", "--lifetimes", capture.path)
    assert "Freed by another thread" in text and "producer ->" in text
