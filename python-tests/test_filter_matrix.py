"""Every filter in every report: the same allocations are left, whoever adds them up."""

import csv
import gzip
import io
import json
import re
import sys

import pytest

from conftest import PROGRAMS


@pytest.fixture(scope="module", params=[[], ["--native"]], ids=["plain", "native"])
def capture(module_memtrack, request):
    options = ["--allocation-timestamps", *request.param]
    capture = module_memtrack.record(sys.executable, PROGRAMS / "handover.py", options=options)
    return capture.symbolized() if "--native" in options else capture


FILTERS = {
    "thread": ["--thread", "producer"],
    "threads": ["--thread", "producer", "--thread", "consumer"],
    "function": ["--function", "produce"],
    "file": ["--file", "threading.py"],
    "module": ["--module", "handover"],
    "allocator": ["--allocator", "calloc", "--allocator", "realloc"],
    "min-bytes": ["--min-bytes", "2kB"],
    "from": ["--from", "5ms"],
    # Not a moment: on a busy machine the program may begin later.
    "to": ["--to", "75%"],
    "to-moment": ["--to", "3600s"],
    "from-to": ["--from", "1%", "--to", "50%"],
    "several": ["--function", "produce", "--min-bytes", "60kB", "--from", "1ms"],
    "nothing": ["--function", "no such function"],
}


def rows(key, count, size):
    def total(text):
        found = json.loads(text)[key]
        return sum(row[count] for row in found), sum(row[size] for row in found)

    return total


def tally(*path):
    def total(text):
        found = json.loads(text)
        for key in path:
            found = found[key]
        return found["count"], found["bytes"]

    return total


def trees(text):
    found = [tree["total"] for tree in json.loads(text)["trees"]]
    return sum(total["count"] for total in found), sum(total["bytes"] for total in found)


def speedscope(text):
    known = json.loads(text)["memtrack"]
    return known["total_allocations"], known["total_bytes"]


def memray(text):
    found = list(csv.DictReader(io.StringIO(text)))
    return sum(int(row["num_allocations"]) for row in found), sum(int(row["size"]) for row in found)


def jsonl(text):
    found = [json.loads(line) for line in text.splitlines()]
    # Where nothing is left, there are no sums to tell.
    whole = next((record["totals"]["allocated"] for record in found if record["type"] == "agg"), {"count": 0, "bytes": 0})
    return whole["count"], whole["bytes"]


def dhat(text):
    found = json.loads(text)["pps"]
    return sum(point["tbk"] for point in found), sum(point["tb"] for point in found)


def heaptrack(content):
    lines = gzip.decompress(content).decode().splitlines()
    sizes = [int(line.split()[1], 16) for line in lines if line.startswith("a ")]
    made = [sizes[int(line[2:], 16)] for line in lines if line.startswith("+ ")]
    return len(made), sum(made)


def printed(text):
    """The heap's allocations in the records that `parse` prints."""
    sizes = [int(re.search(r"size=(\d+)", line)[1]) for line in text.splitlines() if line.startswith("ALLOC ")]
    for line in text.splitlines():
        if line.startswith("MAP ") and "class=heap" in line:
            sizes.append(int(re.search(r"size=(\d+)", line)[1]))
    return len(sizes), sum(sizes)


REPORTS = {
    "stats": (["stats", "--json"], tally("allocations")),
    "lifetimes": (["stats", "--lifetimes", "--json"], tally("allocations")),
    "table": (["table", "--json", "--allocated"], rows("rows", "count", "bytes")),
    "summary": (["summary", "--json", "--allocated"], rows("rows", "own_count", "own_bytes")),
    "tree": (["tree", "--json", "--allocated"], tally("total")),
    "flamegraph": (["flamegraph", "--json", "--allocated", "-o", "-"], trees),
    "query": (["query", "--json", "bytes >= 0"], tally("matched")),
    "query-by": (["query", "--json", "--by", "size", "bytes >= 0"], tally("matched")),
    "parse": (["parse"], printed),
    "speedscope": (["transform", "speedscope", "--allocated", "-o", "-"], speedscope),
    "csv": (["transform", "csv", "--allocated", "-o", "-"], memray),
    "jsonl": (["transform", "jsonl", "-o", "-"], jsonl),
    "dhat": (["transform", "dhat", "-o", "-"], dhat),
    "heaptrack": (["transform", "heaptrack", "-o", "-"], heaptrack),
}


@pytest.mark.parametrize("name", FILTERS)
def test_every_report_has_the_same_totals(capture, name):
    filters = FILTERS[name]
    found = {}
    for report, (words, total) in REPORTS.items():
        outcome = capture.memtrack(*words, *filters, capture.path)
        assert outcome.status == 0, (report, outcome.stderr.decode())
        stdout = outcome.stdout if report == "heaptrack" else outcome.stdout.decode()
        found[report] = total(stdout)
        # One line says what was left out, in every report the same.
        (line,) = re.findall(r"filters: showing [\d,]+ of [\d,]+ allocations, .*", outcome.stderr.decode()) or [None]
        if not report.startswith("query"):
            assert line and line.startswith(f"filters: showing {found[report][0]:,} of "), (report, line)
    assert len(set(found.values())) == 1, found
    assert (found["stats"] == (0, 0)) == (name == "nothing")
