"""The plugin for pytest where figures decide: none may be another test's, and a gate that measured nothing does not pass.

Each test runs pytest in a process of its own, as in test_pytest_plugin.py.
"""

import json
import xml.etree.ElementTree as Tree

import pytest

from test_pytest_plugin import MEMRAY, outcomes, tests  # noqa: F401

pytest_plugins = ["pytester"]

#: What pytest-forked does: a test has a process of its own, which sends its reports.
FORKS = """
import json
import os
import pytest
from _pytest.runner import runtestprotocol

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
    if not item.get_closest_marker("forked"):
        return None
    reading, writing = os.pipe()
    hooks = item.config.hook
    process = os.fork()
    if process == 0:
        reports = [hooks.pytest_report_to_serializable(config=item.config, report=each) for each in runtestprotocol(item, log=False)]
        with open(writing, "w") as file:
            json.dump(reports, file)
        os._exit(0)
    os.close(writing)
    with open(reading) as file:
        reports = json.load(file)
    assert os.waitpid(process, 0)[1] == 0
    for each in reports:
        item.ihook.pytest_runtest_logreport(report=hooks.pytest_report_from_serializable(config=item.config, data=each))
    return True
"""
#: One whose reports say nothing of what was measured.
RUNS_ELSEWHERE = """
import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
    if "elsewhere" not in item.name:
        return None
    item.ihook.pytest_runtest_logreport(report=pytest.TestReport(item.nodeid, item.location, {}, "passed", None, "call"))
    return True
"""
KILLS_THE_RECORDER = """
import signal

def recorders():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                is_one = file.read().split(bytes(1))[1:2] == [b"recorder"]
            with open(f"/proc/{pid}/environ", "rb") as file:
                if is_one and f"PYTEST_CURRENT_OWNER={os.getpid()}".encode() in file.read().split(bytes(1)):
                    yield int(pid)
        except OSError:
            pass

def test_it():
    kept = load(2)

def test_kills():
    for recorder in recorders():
        os.kill(recorder, signal.SIGKILL)
"""
#: So that the recorder of this process is known.
OWNER = "import os\nos.environ['PYTEST_CURRENT_OWNER'] = str(os.getpid())\n"


def figures(path):
    return {name.split("::")[1]: each["peak_bytes"] for name, each in json.loads(path.read_text())["tests"].items()}


def properties(path):
    """Those of each test in the report for JUnit."""
    cases = Tree.parse(path).iter("testcase")
    return {case.get("name"): [each.get("name") for each in case.iter("property")] for case in cases}


# --- whose captures these are -----------------------------------------------------------------------------------------


def test_captures_of_other_parameters_are_not_those_of_children(tests, pytester):  # noqa: F811
    code = """
@pytest.mark.parametrize("number", ["1.5-2", "1.5", "1"])
@pytest.mark.limit_memory("9 MB")
def test_it(number):
    kept = load(4)
"""
    result = tests(code, "--memtrack-dir=kept", "--memtrack-compare=figures.json")
    assert outcomes(result) == {"passed": 3}, result.stdout.str()
    assert all(4_000_000 <= peak < 4_300_000 for peak in figures(pytester.path / "figures.json").values())
    kept = {path.name for path in (pytester.path / "kept").iterdir() if "session" not in path.name}
    assert len(kept) == 3
    # A later session replaces what it records anew, and nothing else.
    assert outcomes(tests(code, "--memtrack-dir=kept", "test_shop.py::test_it[1]")) == {"passed": 1}
    assert kept <= {path.name for path in (pytester.path / "kept").iterdir()}


def test_each_call_has_a_capture_of_its_own(tests, pytester):  # noqa: F811
    """Also where the names of tests differ by what no file name has."""
    result = tests(
        """
@pytest.mark.parametrize("name", ["a", "a!", "a-2", "a!!"])
@pytest.mark.limit_memory("9 MB")
def test_it(name):
    kept = load(4)
""",
        "--memtrack-dir=kept",
    )
    assert outcomes(result) == {"passed": 4}, result.stdout.str()
    assert len(list((pytester.path / "kept").iterdir())) == 4


# --- gates ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [[], ["-n1"]])
def test_figures_that_were_lost_fail_the_session(tests, pytester, options):  # noqa: F811
    if options:
        pytest.importorskip("xdist")
    pytester.makeconftest(OWNER)
    result = tests(KILLS_THE_RECORDER, "--memtrack-compare=figures.json", "--memtrack-fail-over=10%", *options)
    assert outcomes(result) == {"passed": 2} and result.ret == pytest.ExitCode.TESTS_FAILED, result.stdout.str()
    worker = "worker gw0: " if options else ""
    result.stdout.fnmatch_lines([f"memtrack: error: {worker}the recorder has ended (was it killed[?]);*"])
    assert not (pytester.path / "figures.json").exists()


def test_a_worker_that_ends_without_figures_fails_the_session(tests, pytester):  # noqa: F811
    """Of a baseline that is written then, tests would be missing for ever."""
    pytest.importorskip("xdist")
    code = "def test_it(): pass\ndef test_dies(): os._exit(3)\ndef test_later(): pass\n"
    result = tests(code, "-n1", "--memtrack-compare=figures.json")
    result.stdout.fnmatch_lines(["figures.json: not written, since figures are missing", "memtrack: error: worker gw0: *"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED and not (pytester.path / "figures.json").exists()


def test_tests_with_processes_of_their_own_are_measured(tests, pytester):  # noqa: F811
    pytester.makeconftest(FORKS)
    result = tests(
        """
@pytest.mark.forked
def test_forked():
    kept = load(20)

@pytest.mark.forked
@pytest.mark.limit_memory("9 MB")
def test_limited():
    kept = load(6)

def test_here():
    kept = load(3)
""",
        "--memtrack-compare=figures.json",
        "--memtrack-fail-over=10%",
        "--junit-xml=report.xml",
    )
    assert outcomes(result) == {"passed": 3} and result.ret == 0, result.stdout.str()
    known = figures(pytester.path / "figures.json")
    assert {name: peak // 1_000_000 for name, peak in known.items()} == {"test_forked": 20, "test_limited": 6, "test_here": 3}
    names = ["memtrack_allocated_bytes", "memtrack_allocations", "memtrack_peak_bytes"]
    assert {name: sorted(each) for name, each in properties(pytester.path / "report.xml").items()} == dict.fromkeys(known, names)


def test_a_test_that_passed_without_being_measured_fails_the_gate(tests, pytester):  # noqa: F811
    pytester.makeconftest(RUNS_ELSEWHERE)
    code = "def test_elsewhere(): pass\ndef test_elsewhere_too(): pass\n"
    result = tests(code, "--memtrack-compare=figures.json", "--memtrack-fail-over=10%")
    assert outcomes(result) == {"passed": 2} and result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["memtrack: error: test_shop.py::test_elsewhere and 1 more: passed without being measured"])
    # Who only looks at figures is not stopped.
    assert tests(code, "--memtrack").ret == 0


def test_a_session_in_which_nothing_ran_says_that_nothing_was_compared(tests, pytester):  # noqa: F811
    result = tests("@pytest.mark.skip\ndef test_it(): pass\n", "--memtrack-compare=figures.json")
    assert outcomes(result) == {"skipped": 1} and result.ret == 0
    result.stdout.fnmatch_lines(["no test was measured, so that nothing is compared with figures.json"])


# --- the report for JUnit ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [["--junit-prefix=linux"], ["--junit-prefix=linux", "-n2"], ["-o", "junit_family=xunit1"]])
def test_whatever_a_test_is_called_in_the_report_it_has_its_figures(tests, pytester, options):  # noqa: F811
    if "-n2" in options:
        pytest.importorskip("xdist")
    result = tests(
        """
def test_it(record_xml_attribute):
    record_xml_attribute("classname", "another")

class TestCase:
    def test_method(self):
        pass
""",
        "--memtrack",
        "--junit-xml=report.xml",
        *options,
    )
    assert outcomes(result)["passed"] == 2, result.stdout.str()
    assert all(len(each) == 3 for each in properties(pytester.path / "report.xml").values())


# --- limits -----------------------------------------------------------------------------------------------------------


def test_a_limit_for_all_tests_is_judged_beside_pytest_memray(tests, pytester):  # noqa: F811
    """Its markers are left to it."""
    pytester.makepyfile(memray_plugin=MEMRAY)
    result = tests(
        """
def test_over():
    kept = load(9)

def test_under():
    kept = load(1)

@pytest.mark.limit_memory("5 MB")
def test_theirs():
    kept = load(9)
""",
        "-p",
        "memray_plugin",
        "-rA",
        "--memtrack-limit=5MB",
    )
    assert outcomes(result) == {"passed": 2, "failed": 1}
    result.stdout.fnmatch_lines(["--memtrack-limit *('5MB'): the test held 9.0? MB*", "judged by the other"])


@pytest.mark.parametrize("limit", ["float('inf')", "float('nan')", "'1' * 400 + ' GB'"])
def test_a_size_that_is_no_number_is_said_before_any_test_runs(tests, limit):  # noqa: F811
    result = tests(f"@pytest.mark.limit_memory({limit})\ndef test_it(): pass\n")
    assert result.ret == pytest.ExitCode.USAGE_ERROR and "INTERNALERROR" not in result.stdout.str()
    assert "is no size; expected one such as 24 MB" in result.stderr.str() and "test_shop.py::test_it" in result.stderr.str()
