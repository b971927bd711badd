"""Every report of one capture and view tells the same totals, to the byte."""

import base64
import csv
import io
import json
import re
import sys
import zlib

import pytest

from conftest import PROGRAMS

VIEWS = {"peak": (), "leaked": ("--leaks",), "temporary": ("--temporary",), "allocations": ("--allocated",)}
PAGE_VIEWS = {"peak": 0, "leaked": 1, "temporary": 3, "allocations": 4}
RECORDINGS = {
    "views": ("views.py",),
    "threads": ("threads.py",),
    "phases": ("phases.py", "threads"),
    "documents": ("documents.py",),
    "mappings": ("mappings.py",),
    "every Python object": ("documents.py", "5"),
    "aggregated": ("views.py",),
    "aggregated threads": ("threads.py",),
    "native": ("threads.py",),
    "aggregated native": ("documents.py",),
}
OPTIONS = {
    "phases": ["--allocation-timestamps"],
    "every Python object": ["--trace-python-allocators"],
    "aggregated": ["--aggregate"],
    "aggregated threads": ["--aggregate", "--trace-python-allocators"],
    "native": ["--native"],
    "aggregated native": ["--aggregate", "--native"],
}


@pytest.fixture(scope="module", params=RECORDINGS)
def capture(request, module_memtrack):
    program, *arguments = RECORDINGS[request.param]
    options = OPTIONS.get(request.param, [])
    capture = module_memtrack.record(sys.executable, PROGRAMS / program, *arguments, options=options)
    return capture.symbolized() if "--native" in options else capture


def report(capture, *words):
    return capture.reading(*words, capture.path)


def stats_total(total):
    """Bytes and number as `stats --json` has them, under whichever name the view has its number."""
    return total["bytes"], total.get("count", total.get("allocations"))


def sums(rows, size, count):
    rows = list(rows)
    return sum(int(row[size]) for row in rows), sum(int(row[count]) for row in rows)


def sums_of_csv(text, size, count):
    names, *rows = csv.reader(io.StringIO(text))
    return sums(rows, names.index(size), names.index(count))


def calls_total(trees):
    """What all calls of some trees allocated themselves."""
    return sums((call["own"] for tree in trees for call in tree["calls"]), "bytes", "count")


def page_data(html):
    packed = re.search(r'id="data">\n(.*?)</script>', html, re.DOTALL)[1]
    return json.loads(zlib.decompress(base64.b64decode(packed), -15))


@pytest.mark.parametrize("view", VIEWS)
def test_all_reports_have_the_totals_of_stats(capture, view):
    expected = stats_total(json.loads(report(capture, "stats", "--json"))[view])
    options = VIEWS[view]
    totals = {}
    table = json.loads(report(capture, "table", "--json", *options))
    totals["table --json"] = sums(table["rows"], "bytes", "count")
    split = json.loads(report(capture, "table", "--json", "--split-threads", *options))
    totals["table --split-threads"] = sums(split["rows"], "bytes", "count")
    totals["table --csv"] = sums_of_csv(report(capture, "table", "--csv", *options), "bytes", "count")
    summary = json.loads(report(capture, "summary", "--json", *options))
    totals["summary --json"] = sums(summary["rows"], "own_bytes", "own_count")
    for form in ((), ("--inverted",)):
        tree = json.loads(report(capture, "tree", "--json", *form, *options))
        totals[f"tree --json {form}"] = calls_total([tree])
        assert tuple(tree["total"].values()) == expected
    trees = json.loads(report(capture, "flamegraph", "--json", "-o", "-", "--split-threads", *options))["trees"]
    totals["flamegraph --json --split-threads"] = calls_total(trees)
    data = page_data(report(capture, "flamegraph", "-o", "-", *options))
    number = PAGE_VIEWS[view]
    assert data["start"]["view"] == number
    totals["flamegraph"] = sum(data[f"newBytes{number}"]), sum(data[f"newCount{number}"])
    speedscope = json.loads(report(capture, "transform", "speedscope", "-o", "-", *options))
    totals["speedscope"] = tuple(profile["endValue"] for profile in speedscope["profiles"])
    totals["csv"] = sums_of_csv(report(capture, "transform", "csv", "-o", "-", *options), "size", "num_allocations")
    lines = report(capture, "transform", "collapsed", "-o", "-", *options).splitlines()
    totals["collapsed"] = sum(int(line.rsplit(" ", 1)[1]) for line in lines), expected[1]
    assert totals == dict.fromkeys(totals, expected)


@pytest.mark.parametrize("view", VIEWS)
def test_text_reports_begin_with_the_same_total(capture, view):
    firsts = {report(capture, command, *VIEWS[view]).splitlines()[0] for command in ("table", "summary", "tree")}
    assert len(firsts) == 1


def test_moments_of_the_page_add_up_to_their_heap(capture):
    data = page_data(report(capture, "flamegraph", "-o", "-"))
    if "liveBytes" not in data:
        pytest.skip("an aggregated capture keeps no times of single allocations")
    heap = [0] * len(data["heap"])
    for first, end, size in zip(data["liveFirst"], data["liveEnd"], data["liveBytes"]):
        for moment in range(first, end):
            heap[moment] += size
    assert heap == data["heap"]


def test_text_and_json_round_times_alike(capture):
    stats, text = json.loads(report(capture, "stats", "--json")), report(capture, "stats")
    duration, peak = stats["capture"]["duration_ms"], stats["peak"]["time_ms"]
    for told, milliseconds in re.findall(r"^(Duration|Peak) .*?(\d+) ms$", text, re.MULTILINE):
        assert int(milliseconds) == {"Duration": duration, "Peak": peak}[told], text
