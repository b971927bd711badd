"""Every report of one capture and view tells the same totals, to the byte; and `diff` what changed."""

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
}


@pytest.fixture(scope="module", params=[*RECORDINGS, "aggregated"])
def capture(request, module_memtrack):
    aggregated = request.param == "aggregated"
    program, *arguments = RECORDINGS.get(request.param, RECORDINGS["views"])
    options = ["--aggregate"] if aggregated else []
    return module_memtrack.record(sys.executable, PROGRAMS / program, *arguments, options=options)


def report(capture, *words):
    return capture.reading(*words, capture.path)


def stats_total(total):
    """Bytes and number as `stats --json` has them, under whichever name the view has its number."""
    return total["bytes"], total.get("count", total.get("allocations"))


def sums(rows, size, count):
    rows = list(rows)
    return sum(int(row[size]) for row in rows), sum(int(row[count]) for row in rows)


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
    totals["table --csv"] = sums(csv.DictReader(io.StringIO(report(capture, "table", "--csv", *options))), "bytes", "count")
    summary = json.loads(report(capture, "summary", "--json", *options))
    totals["summary --json"] = sums(summary["rows"], "own_bytes", "own_count")
    data = page_data(report(capture, "flamegraph", "-o", "-", *options))
    number = PAGE_VIEWS[view]
    assert data["start"]["view"] == number
    totals["flamegraph"] = sum(data[f"newBytes{number}"]), sum(data[f"newCount{number}"])
    speedscope = json.loads(report(capture, "transform", "speedscope", "-o", "-", *options))
    totals["speedscope"] = tuple(profile["endValue"] for profile in speedscope["profiles"])
    rows = csv.DictReader(io.StringIO(report(capture, "transform", "csv", "-o", "-", *options)))
    totals["csv"] = sums(rows, "size", "num_allocations")
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


# --- diff -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(module_memtrack):
    program = PROGRAMS.parent.parent / "tests" / "browser" / "program.py"
    return [module_memtrack.record(sys.executable, program, *more) for more in ((), ("more",))]


def diff(base, new, *options):
    return base.memtrack("diff", *options, base.path, new.path)


def test_diff_tells_what_became_of_each_function(pair):
    value = json.loads(diff(*pair, "--json").stdout)
    status = {row["function"]: row["status"] for row in value["rows"]}
    expected = {"stays": "unchanged", "grows": "grown", "only_in_new": "new", "only_in_base": "vanished"}
    assert {name: status[name] for name in expected} == expected
    totals = [json.loads(report(capture, "stats", "--json"))["peak"]["bytes"] for capture in pair]
    assert [value["base_total"], value["new_total"]] == totals
    sides = [sum(row[side]["own_bytes"] for row in value["rows"]) for side in ("base", "new")]
    assert sides == totals


@pytest.mark.parametrize("limit, status", [("1MB", 1), ("10%", 1), ("100MB", 0), ("1000%", 0)])
def test_fail_over_decides_by_the_growth_of_the_whole(pair, limit, status):
    done = diff(*pair, "--fail-over", limit)
    assert done.status == status
    assert (b"regression: peak grew by" in done.stderr) == bool(status)
    assert b"High-water mark:" in done.stdout
    assert diff(pair[0], pair[0], "--fail-over", "0").status == 0


def test_a_capture_does_not_differ_from_itself(pair):
    value = json.loads(diff(pair[0], pair[0], "--json", "--metric", "count").stdout)
    assert {row["status"] for row in value["rows"]} == {"unchanged"}
    assert (value["new_stacks"], value["vanished_stacks"]) == (0, 0)
