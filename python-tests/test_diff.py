"""`diff` of real programs: what it calls new, grown, vanished or unchanged, what it warns of, and what it scales."""

import json
import re
import subprocess
import sys

import pytest

from test_views_agree import page_data

BASE = """
kept = []

def unchanged():
    kept.append(bytearray(1_000_000))

def grows():
    kept.append(bytearray(1_000_000))

def doubled():
    kept.append(bytearray(700_000))

def halved():
    kept.append(bytearray(4_000_000))

def moved():
    kept.append(bytearray(600_000))

def old_name():
    kept.append(bytearray(500_000))

def calls_renamed():
    old_name()

def only_in_base():
    kept.append(bytearray(300_000))

def main():
    for function in unchanged, grows, doubled, halved, moved, calls_renamed, only_in_base:
        function()

main()
"""
NEW = "\n" * 7 + (
    BASE.replace("def grows():\n    kept.append(bytearray(1_000_000))", "def grows():\n    kept.append(bytearray(9_000_000))")
    .replace("    kept.append(bytearray(700_000))", "    kept.append(bytearray(700_000))\n    kept.append(bytearray(700_000))")
    .replace("4_000_000", "2_000_000")
    .replace("def moved", "\n\n\ndef moved")
    .replace("old_name", "new_name")
    .replace("only_in_base", "only_in_new")
)
OWN = {
    "unchanged": "unchanged",
    "grows": "grown",
    "doubled": "grown",
    "halved": "shrunk",
    "moved": "unchanged",
    "old_name": "vanished",
    "new_name": "new",
    "calls_renamed": "unchanged",
    "only_in_base": "vanished",
    "only_in_new": "new",
}


@pytest.fixture(scope="module")
def record(module_memtrack):
    """Records a version of the program, always under the same name, with the same seed of its hashes."""
    program = module_memtrack.directory / "app.py"

    def record(text, *options):
        program.write_text(text)
        command = ["env", "PYTHONHASHSEED=0", sys.executable, "-S", program]
        return module_memtrack.record(*command, options=options)

    return record


@pytest.fixture(scope="module")
def pair(record):
    return record(BASE), record(NEW)


def diff(base, new, *options, status=0):
    done = base.memtrack("diff", *options, base.path, new.path)
    assert done.status == status, done.stderr.decode()
    return done


def compared(base, new, *options):
    return json.loads(diff(base, new, "--json", *options).stdout)


def rows(value):
    return {row["function"]: row for row in value["rows"]}


def page(base, new, *options):
    return page_data(diff(base, new, "--html", "-o", "-", *options).stdout.decode())


def test_each_function_is_what_became_of_it(pair):
    found = rows(compared(*pair))
    assert {name: found[name]["status"] for name in OWN} == OWN


def test_an_unchanged_function_has_its_bytes_though_others_grow(pair):
    row = rows(compared(*pair))["unchanged"]
    assert row["base"] == row["new"]
    assert 1_000_000 <= row["base"]["own_bytes"] < 1_000_100


def test_exactly_doubled_is_not_new(pair):
    row = rows(compared(*pair))["doubled"]
    assert row["new"]["own_bytes"] == 2 * row["base"]["own_bytes"] > 0
    assert row["status"] == "grown"


def test_the_caller_of_a_renamed_function_has_no_change(pair):
    row = rows(compared(*pair))["calls_renamed"]
    assert row["base"]["total_bytes"] == row["new"]["total_bytes"] > 500_000
    by_total = diff(*pair, "--by", "total", "-n", "0").stdout.decode()
    assert "calls_renamed" not in by_total


def test_totals_are_those_of_stats_and_of_the_rows(pair):
    value = compared(*pair)
    peaks = [capture.stats()["peak"]["bytes"] for capture in pair]
    assert [value["base_total"], value["new_total"]] == peaks
    assert [sum(row[side]["own_bytes"] for row in value["rows"]) for side in ("base", "new")] == peaks


def test_every_metric_is_that_of_stats(pair):
    totals = {
        "peak": lambda stats: stats["peak"]["bytes"],
        "leaks": lambda stats: stats["leaked"]["bytes"],
        "allocated": lambda stats: stats["allocations"]["bytes"],
        "count": lambda stats: stats["allocations"]["count"],
        "temporary": lambda stats: stats["temporary"]["bytes"],
    }
    stats = [capture.stats() for capture in pair]
    for metric, total in totals.items():
        value = compared(*pair, "--metric", metric)
        assert [value["base_total"], value["new_total"]] == [total(side) for side in stats], metric


def test_a_capture_does_not_differ_from_itself(pair):
    value = compared(pair[0], pair[0], "--metric", "count")
    assert {row["status"] for row in value["rows"]} == {"unchanged"}
    assert (value["new_stacks"], value["vanished_stacks"], value["notes"]) == (0, 0, [])
    text = diff(pair[0], pair[0]).stdout.decode()
    assert text.endswith("Call stacks: 0 new, 0 vanished\n")


def test_two_runs_of_one_program_are_grey(record, pair):
    """Within 15 percent, by own and by total figures, and nothing is new or has vanished."""
    value = compared(pair[0], record(BASE))
    for row in value["rows"]:
        assert row["status"] not in ("new", "vanished"), row
        for figure in ("own_bytes", "total_bytes"):
            assert abs(row["new"][figure] - row["base"][figure]) < 0.15 * max(1, row["base"][figure]), row


def test_against_another_program_all_is_new_or_has_vanished(pair, module_memtrack):
    other = module_memtrack.record("/bin/true")
    for base, new, status in ((other, pair[1], "new"), (pair[1], other, "vanished")):
        value = compared(base, new)
        named = [row for row in value["rows"] if row["function"] in OWN]
        assert len(named) == 8 and {row["status"] for row in named} == {status}
        assert value[f"{status}_stacks"] >= len(named) - 1


@pytest.mark.parametrize("limit, status", [("1MB", 1), ("10%", 1), ("100MB", 0), ("1000%", 0)])
def test_fail_over_decides_by_the_growth_of_the_whole(pair, limit, status):
    done = diff(*pair, "--fail-over", limit, status=status)
    assert (b"regression: peak grew by" in done.stderr) == bool(status)
    assert b"High-water mark:" in done.stdout
    diff(pair[0], pair[0], "--fail-over", "0")


# --- captures that do not compare -------------------------------------------------------------------------------------


def test_what_only_one_capture_traces_is_warned_of_by_name(record, pair):
    traced = record(BASE, "--trace-python-allocators")
    expected = "only the new capture traces Python's own allocators"
    done = diff(pair[0], traced)
    assert f"warning: {expected}" in done.stderr.decode()
    assert any(note.startswith(expected) for note in compared(pair[0], traced)["notes"])
    assert f"> {expected}" in diff(pair[0], traced, "--markdown").stdout.decode()
    assert any(note.startswith(expected) for note in page(pair[0], traced)["notes"])
    assert not diff(*pair).stderr


def test_snapshots_at_other_intervals_are_warned_of(record, pair):
    done = diff(pair[0], record(BASE, "--snapshot-interval", "50"))
    assert "snapshot intervals differ (base: 10 ms, new: 50 ms)" in done.stderr.decode()


def test_sums_compare_with_events(record, pair):
    """What was aggregated while the program ran differs in nothing, so there is nothing to warn of."""
    done = diff(pair[0], record(BASE, "--aggregate"), "--json")
    found = rows(json.loads(done.stdout))
    assert {name: found[name]["status"] for name in OWN if name in found} == {
        name: "unchanged" for name in OWN if name in found
    }
    assert not done.stderr


# --- scaling ----------------------------------------------------------------------------------------------------------


def test_nothing_is_scaled_unless_it_is_asked_for(pair):
    value = compared(*pair)
    assert "normalized" not in value
    assert page(*pair)["scale"] is None
    assert "caled" not in diff(*pair).stdout.decode()


def test_units_of_work_multiply_the_base(pair):
    plain, scaled = rows(compared(*pair)), compared(*pair, "--normalize", "100:200")
    assert scaled["normalized"] == {"to": "work", "factor": 2.0}
    for name in OWN:
        row = rows(scaled)[name]
        assert row["base"]["own_bytes"] == 2 * plain[name]["base"]["own_bytes"]
        assert row["new"] == plain[name]["new"]
    assert rows(scaled)["doubled"]["status"] == "unchanged"
    sentence = "base multiplied by 2.0000, for 100 and 200 units of work"
    assert sentence in diff(*pair, "--normalize", "100:200").stdout.decode()
    assert sentence in diff(*pair, "--normalize", "100:200", "--markdown").stdout.decode()
    assert page(*pair, "--normalize", "100:200")["scale"] == sentence


def test_totals_and_durations_can_be_made_equal(pair):
    value = compared(*pair, "--normalize", "total")
    assert abs(value["base_total"] - value["new_total"]) <= len(value["rows"]) * 10
    factor = compared(*pair, "--normalize", "duration")["normalized"]["factor"]
    milliseconds = [capture.stats()["capture"]["duration_ms"] for capture in pair]
    assert factor == pytest.approx(milliseconds[1] / milliseconds[0], rel=0.2)


def test_a_normalization_that_does_not_exist_is_wrong_usage(pair):
    done = diff(*pair, "--normalize", "weight", status=2)
    assert re.search(rb"expected total, duration, or units of work", done.stderr)


# --- what is news -----------------------------------------------------------------------------------------------------


def news(text):
    """The names of the functions that have a row, in their order."""
    return re.findall(r"^ +[+-].*  ->  +[\d.]+ k?M?B  (\S+)(?: at .*)?$", text, re.MULTILINE)


def test_two_runs_have_no_rows_and_a_small_leak_has_the_first(record, pair):
    for metric in "peak", "leaks", "allocated":
        assert not news(diff(pair[0], record(BASE), "--metric", metric).stdout.decode())
    leak = BASE.replace("def main():", "def leaks():\n    kept.append(bytearray(5_000))\n\ndef calls():\n    leaks()\n\ndef main():\n    calls()")
    for metric in "peak", "leaks", "allocated":
        text = diff(pair[0], record(leak), "--metric", metric).stdout.decode()
        assert news(text) == ["leaks", "calls"], text
        assert re.search(r"^New .*\n +\+5[.].. kB +new +0 B +-> +5[.].. kB +leaks at app.py", text, re.MULTILINE), text


def test_another_checkout_has_the_same_functions(module_memtrack):
    """Two copies of a package, one of which leaks: only the function that does is news, by the path from its directory."""
    captures = []
    for name, size in ("first", 10), ("second", 60_000):
        package = module_memtrack.directory / name / "shop"
        (package / "api").mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "api" / "views.py").write_text(
            f"kept = []\n\ndef same():\n    kept.append(bytearray(500_000))\n\ndef changed():\n    kept.append(bytearray(90_000 + {size}))\n"
        )
        (package / "__main__.py").write_text("from shop.api import views\n\nviews.same()\nviews.changed()\n")
        # The first run compiles the modules.
        for options in ["-c", "import shop.api.views"], ["-m", "shop"]:
            command = ["env", "-C", package.parent, "PYTHONHASHSEED=0", sys.executable, "-S", *options]
            capture = module_memtrack.record(*command)
        captures.append(capture)
    text = diff(*captures).stdout.decode()
    assert news(text) == ["changed"], text
    assert " changed at shop/api/views.py" in text
    found = rows(compared(*captures))
    assert (found["same"]["status"], found["changed"]["status"]) == ("unchanged", "grown")
    page_rows = page(*captures)
    assert page_rows["vanishedStacks"][0] == 0


# --- what cancels out -------------------------------------------------------------------------------------------------


MOVED = """
kept = []

def {name}():
    for _ in range({number}):
        kept.append(bytearray(10_000_000))

def unchanged():
    kept.append(bytearray(1_000_000))

{name}()
unchanged()
"""


def told(bytes):
    """A size as text has it."""
    for unit in "B", "kB", "MB":
        if bytes < 999.5 or unit == "MB":
            break
        bytes /= 1000
    return f"{bytes:.{0 if unit == 'B' or bytes >= 99.95 else 1 if bytes >= 9.995 else 2}f} {unit}"


def rows_of_markdown(text):
    """Function, base and new of each row."""
    return [(cells[5].strip(" `").split(" at ")[0], *(cell.strip() for cell in cells[3:5])) for cells in
            (line.split("|") for line in text.splitlines() if line.startswith("| +") or line.startswith("| -"))]  # fmt: skip


@pytest.fixture(scope="module")
def of_functions(record):
    """A recording of a function of this name that holds so many blocks."""
    known = {}

    def of(name, number):
        if (name, number) not in known:
            known[name, number] = record(MOVED.format(name=name, number=number))
        return known[name, number]

    return of


@pytest.mark.parametrize("options", [[], ["--by", "total"], ["--leaks"], ["--metric", "count"], ["--allocated"]])
@pytest.mark.parametrize("ends", [(("old", 1), ("other", 3)), (("other", 3), ("old", 1)), (("old", 2), ("other", 3)), (("same", 1), ("same", 4))])
def test_rows_have_the_figures_of_json(of_functions, ends, options):
    base, new = (of_functions(*end) for end in ends)
    value = compared(base, new, *options)
    figure = "count" if "count" in options else "bytes"
    found = rows_of_markdown(diff(base, new, "--markdown", "-n", "0", *options).stdout.decode())
    shown = {name for name, *_ in found}
    for name, *ends_told in found:
        pairs = [
            [row[side][f"{part}_{figure}"] for side in ("base", "new")]
            for row in value["rows"] for part in ("own", "total") if row["function"] == name
        ]  # fmt: skip
        amounts = [[f"{end:,}" if figure == "count" else told(end) for end in pair] for pair in pairs]
        assert ends_told in amounts, (name, ends_told, amounts)
    if figure == "bytes":
        # Where a function has a row, so have those that its blocks would have cancelled out with.
        assert {ends[0][0], ends[1][0]} <= shown, found
    text = diff(base, new, *options).stdout.decode()
    assert f"Call stacks: {value['new_stacks']} new, {value['vanished_stacks']} vanished\n" in text, text


def test_blocks_that_moved_as_they_are_have_no_row_and_are_told(of_functions):
    base, new = of_functions("old", 1), of_functions("other", 1)
    value = compared(base, new)
    changed = {row["function"] for row in value["rows"] if abs(row["new"]["own_bytes"] - row["base"]["own_bytes"]) > 9_000_000}
    assert changed == {"old", "other"} and value["new_stacks"] >= 1 <= value["vanished_stacks"]
    for options in [], ["--markdown"]:
        text = " ".join(diff(base, new, *options).stdout.decode().split())
        assert not {"old", "other"} & set(news(text)) and "| +" not in text, text
        assert f"Call stacks: {value['new_stacks']} new, {value['vanished_stacks']} vanished" in text, text
        sentence = "2 functions omitted, whose changes cancel out: 1 block is now of another function: 10.0 MB of old, now 10.0 MB of other"
        assert sentence in text, text
    assert page(base, new)["moved"][0] == sentence


def test_the_page_takes_nothing_from_functions_with_a_row(of_functions):
    data = page(of_functions("old", 1), of_functions("other", 3))
    assert not any(data[f"{side}SetOffBytes0"][at] > 9_000_000 for side in ("new", "base") for at in range(len(data["groupNode"])))
    assert "other" not in data["moved"][0]


def test_a_limit_that_is_exceeded_by_less_than_its_rounding_is_told_in_bytes(of_functions):
    base, new = of_functions("same", 1), of_functions("same", 4)
    grown = [compared(base, new)[f"{side}_total"] for side in ("base", "new")]
    growth = grown[1] - grown[0]
    done = diff(base, new, "--fail-over", f"{growth - 1}B", status=1)
    assert f"grew by {growth:,} B, and --fail-over allows {growth - 1:,} B" in done.stderr.decode(), done.stderr


CXX = """#include <cstdlib>
#include <string>
#include <vector>
std::vector<std::string> kept;
__attribute__((noinline)) void remember(long bytes) { kept.push_back(std::string(bytes, 'x')); }
int main(int, char **arguments) { remember(std::atol(arguments[1])); std::_Exit(0); }
"""


def test_rows_of_a_library_name_the_own_code_that_called_it(module_memtrack, tmp_path):
    (tmp_path / "shop.cpp").write_text(CXX)
    subprocess.run(["c++", "-g", "-O0", "-o", tmp_path / "shop", tmp_path / "shop.cpp"], check=True)
    base, new = (module_memtrack.record(tmp_path / "shop", size, options=("--native",)) for size in (1_000_000, 9_000_000))
    text = diff(base, new, "--leaks").stdout.decode()
    first = text.split("by self figures)\n")[1].splitlines()[0]
    assert re.search(r"\+8\.00 MB .*remember\(long\) at .*shop\.cpp, via std::", first), text
    row = max(compared(base, new, "--leaks")["rows"], key=lambda row: row["new"]["own_bytes"])
    assert row["function"].startswith("std::") and row["new"]["own_bytes"] >= 9_000_000, row
