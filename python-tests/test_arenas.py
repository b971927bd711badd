"""Mappings that Python's allocators cut objects from are an allocator of their own, and no others are."""

import collections
import json
import os
import re

import pytest

from test_python_allocators import ARENAS, TRACED

OWN = [256 << 10, 1 << 20]  # what the program itself maps


SMALLEST = 200_000 * 60  # tuples and numbers of at least 30 bytes each


def mapped_by(capture, allocator):
    return [event.size for event in capture.allocations() if event.kind == "MAP" and event.allocator == allocator]


def held(capture, *options):
    """By allocator, what is left at the end."""
    sums = collections.Counter()
    for row in json.loads(capture.reading("table", "--leaks", "--json", "-n", 0, capture.path, *options))["rows"]:
        sums[row["allocator"]] += row["bytes"]
    return sums


@pytest.mark.parametrize("setting", ["pymalloc", "pymalloc_debug"])
def test_each_arena_and_nothing_else(memtrack, interpreter, programs, setting):
    capture = memtrack.record(interpreter, programs / "arenas.py", env={**os.environ, "PYTHONMALLOC": setting})
    arenas = mapped_by(capture, "pymalloc_arena")
    assert len(set(arenas)) == 1 and arenas[0] in ARENAS
    assert sum(arenas) > SMALLEST
    # The chunks of the interpreter's stack come from the same function.
    assert sorted(size for size in mapped_by(capture, "mmap") if size >= min(OWN)) == OWN
    # What was unmapped before the end is gone, and only that.
    unmapped = [event for event in capture.records.events if event.kind == "UNMAP" and event.size == arenas[0]]
    left = held(capture)["pymalloc_arena"]
    assert left % arenas[0] == 0 and sum(arenas) - len(unmapped) * arenas[0] <= left <= sum(arenas)
    assert held(capture, "--allocator", "pymalloc_arena") == {"pymalloc_arena": left}
    rows = {row["allocator"]: row for row in capture.stats()["allocators"]}
    assert (rows["pymalloc_arena"]["count"], rows["pymalloc_arena"]["bytes"]) == (len(arenas), sum(arenas))


@pytest.mark.parametrize("options", [["--aggregate"], ["--native"], ["--allocation-timestamps"]])
def test_in_every_kind_of_capture(memtrack, python, programs, options):
    assert held(memtrack.record(python, programs / "arenas.py", options=options))["pymalloc_arena"] > SMALLEST / 2


@pytest.mark.parametrize("options, malloc", [([], "malloc"), (TRACED, "pymalloc")])
def test_none_where_blocks_are_seen(memtrack, interpreter, programs, options, malloc):
    environment = {**os.environ, "PYTHONMALLOC": malloc}
    capture = memtrack.record(interpreter, programs / "arenas.py", options=["--aggregate", *options], env=environment)
    sums = held(capture, "--function", "map_memory")
    assert sums["mmap"] == sum(OWN)
    assert not held(capture)["pymalloc_arena"]


def test_mimalloc_of_free_threaded_builds(memtrack, free_threaded, programs):
    capture = memtrack.record(free_threaded, programs / "arenas.py")
    assert sum(mapped_by(capture, "mimalloc_arena")) > SMALLEST
    assert not mapped_by(capture, "pymalloc_arena")
    assert sorted(size for size in mapped_by(capture, "mmap") if size >= min(OWN)) == OWN


def test_texts_of_leaks_have_arenas_apart(memtrack, python, programs):
    outcome = memtrack("run", "-o", "kept.bin", python, programs / "arenas.py")
    hint = "reserved by Python's allocator (used and unused); record with --trace-python-allocators to see objects"
    assert hint in outcome.stderr.decode()
    sums = collections.Counter()
    for row in json.loads(memtrack("table", "--leaks", "--json", "kept.bin").stdout)["rows"]:
        sums[row["allocator"] == "pymalloc_arena"] += row["bytes"]
    assert sums[True] > SMALLEST / 2 and sums[True] + sums[False] == json.loads(
        memtrack("stats", "--json", "kept.bin").stdout
    )["leaked"]["bytes"]
    for command in (["table", "--leaks"], ["summary", "--leaks"], ["tree", "--text", "--leaks"], ["stats"]):
        text = memtrack(*command, "--with-imports", "kept.bin").stdout.decode()
        assert f"{sums[True] / 1e6:.1f} MB in " in text and hint in text, text
        headline = re.search("^(?:Leaks:|  leaked) +([0-9.]+) MB in", text, re.MULTILINE)
        assert float(headline[1]) == pytest.approx(sums[False] / 1e6, abs=0.01), text
    # At the high-water mark they are a part of the whole, which is said.
    peak = sum(row["bytes"] for row in json.loads(memtrack("table", "--json", "kept.bin").stdout)["rows"] if row["allocator"] == "pymalloc_arena")
    for command in (["table"], ["summary"], ["tree", "--text"]):
        text = memtrack(*command, "kept.bin").stdout.decode()
        assert f"of the high-water mark {peak / 1e6:.1f} MB in " in text and hint in text, text
        assert hint not in memtrack(*command, "--allocated", "kept.bin").stdout.decode()
    assert hint in memtrack("flamegraph", "--leaks", "-o", "-", "kept.bin").stdout.decode()
    # Where nothing is in the way there is nothing to be said.
    traced = memtrack.record(python, programs / "arenas.py", options=TRACED)
    assert "reserved by Python's allocator" not in traced.reading("table", "--leaks", traced.path)
