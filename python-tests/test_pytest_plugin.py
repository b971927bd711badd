"""The plugin for pytest: limits, figures of sessions, and the plugins beside which it works.

Each test runs pytest in a process of its own, with the plugin by its module, as the entry point of the wheel has it.
"""

import json
import os
import re
import sys
import xml.etree.ElementTree as Tree

import pytest

from conftest import PATIENCE, PROGRAMS, REPOSITORY, WHOLE, execute, interpreter_path

pytest_plugins = ["pytester"]
PLUGIN = ("-p", "memtrack._pytest_plugin", "-p", "no:cacheprovider", "-p", "no:django", "-p", "no:pytest-bdd")
SHOP = """
import os
import threading
import pytest

def load(blocks):
    return [bytearray(1_000_000) for _ in range(blocks)]
"""


@pytest.fixture
def tests(pytester, executable, monkeypatch):
    """Runs pytest on a file of tests; gives its result."""
    monkeypatch.setenv("PATH", f"{executable.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY / "python"))
    # These tests may be run by a worker of xdist themselves.
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID"):
        monkeypatch.delenv(name, raising=False)

    def run(code, *options):
        pytester.makepyfile(test_shop=SHOP + code)
        return pytester.runpytest_subprocess(*PLUGIN, *options, timeout=PATIENCE)

    return run


def outcomes(result):
    return {word: number for word, number in result.parseoutcomes().items() if word not in ("seconds", "warnings")}


# --- limits of memory -------------------------------------------------------------------------------------------------


def test_a_failure_names_the_holders_with_source_and_the_capture(tests):
    result = tests(
        """
@pytest.mark.limit_memory("24 MB")
def test_over():
    kept = load(40)
    more = bytes(3_000_000)
"""
    )
    assert outcomes(result) == {"failed": 1}
    result.stdout.fnmatch_lines(
        [
            "limit_memory('24 MB'): the test held 43.0 MB at its high-water mark, 19.0 MB more than its limit",
            "     Size     Part    Count  Allocator  Place",
            "*40.0 MB*load*test_shop.py:6",
            "*return [[]bytearray(1_000_000) for _ in range(blocks)[]]",
            "*called by test_over at test_shop.py:10",
            "*3.00 MB*test_over at test_shop.py:11",
            "*more = bytes(3_000_000)",
            "capture: *test_shop.py-test_over.bin",
        ]
    )
    text = result.stdout.str()
    assert "During handling" not in text and "_pytest" not in text.split("capture:")[0].split("limit_memory(")[1]
    capture = re.search(r"capture: (\S+)", text)[1]
    known = json.loads(execute(["memtrack", "stats", "--json", capture]).stdout)
    assert 43_000_000 < known["peak"]["bytes"] < 43_100_000


ENDED_CHILDREN = """
import multiprocessing
KEPT = []

def hold():
    KEPT.append(bytearray(2_000_000))

def child(end):
    number = os.fork()
    if not number:
        kept = bytearray(1_000_000)
        end()
    return number

@pytest.mark.limit_leaks("100 kB")
def test_exits():
    os.waitpid(child(lambda: os._exit(0)), 0)

@pytest.mark.limit_leaks("100 kB", repeat=1)
def test_is_killed():
    os.waitpid(child(lambda: os.kill(os.getpid(), 9)), 0)

@pytest.mark.limit_leaks("100 kB")
def test_pool():
    with multiprocessing.get_context("fork").Pool(1, hold) as pool:
        pool.map(abs, [1, 2])

READ, WRITE = os.pipe()

@pytest.mark.limit_leaks("100 kB")
def test_runs_on():
    begun, begins = os.pipe()
    def stay():
        os.close(WRITE)
        os.write(begins, b"x")
        os.read(READ, 1)
        os._exit(0)
    child(stay)
    os.read(begun, 1)
"""


def test_what_a_child_held_that_has_ended_is_no_leak(tests):
    """One that runs on holds it still."""
    result = tests(ENDED_CHILDREN)
    assert outcomes(result) == {"passed": 3, "failed": 1}, result.stdout.str()
    result.stdout.fnmatch_lines(["limit_leaks('100 kB'): what the test leaves grows by 1.00 MB *"])


@pytest.mark.parametrize("by_path", [False, True])
def test_a_test_may_clear_the_environment(tests, executable, monkeypatch, by_path):
    monkeypatch.setenv("MEMTRACK", str(executable))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    if by_path:
        monkeypatch.delenv("MEMTRACK")
        monkeypatch.setenv("PATH", f"{executable.parent}:/usr/bin:/bin")
    result = tests(
        """
@pytest.mark.limit_memory("3 MB")
def test_over(monkeypatch):
    for name in list(os.environ):
        monkeypatch.delenv(name)
    kept = load(4)
"""
    )
    assert outcomes(result) == {"failed": 1}
    result.stdout.fnmatch_lines(["limit_memory('3 MB'): the test held 4.0? MB *"])


def test_a_tracker_that_a_test_leaves_running_is_named(tests):
    result = tests(
        """
import memtrack

def test_leaves(tmp_path):
    memtrack.Tracker(tmp_path / "left.bin").start()

@pytest.mark.limit_memory("24 MB")
def test_within():
    kept = load(4)
"""
    )
    assert outcomes(result) == {"failed": 1, "passed": 1}
    result.stdout.fnmatch_lines(["memtrack: the limits of this test cannot be checked: *left.bin records it, and has not been stopped)"])
    assert "_tracker.py" not in result.stdout.str()


def test_what_lies_within_its_limit_passes_and_leaves_no_capture(tests, pytester):
    result = tests(
        """
@pytest.mark.limit_memory("24 MB")
def test_under():
    for _ in range(5):
        load(20)

@pytest.mark.limit_memory("1 kB")
def test_nothing():
    pass

@pytest.mark.limit_memory("1 kB")
def test_that_fails_by_itself():
    load(3)
    assert False, "its own reason"

@pytest.mark.xfail(strict=True)
@pytest.mark.limit_memory("1 MB")
def test_expected():
    load(3)
""",
        "--basetemp=kept",
    )
    assert outcomes(result) == {"passed": 2, "failed": 1, "xfailed": 1}
    assert "its own reason" in result.stdout.str() and "limit_memory('1 kB'): the test" not in result.stdout.str()
    left = {path.name for path in (pytester.path / "kept").rglob("*.bin")}
    assert left <= {"test_shop.py-test_that_fails_by_itself.bin", "test_shop.py-test_expected.bin"}


EVERYWHERE = """
import sys, time

def refuse(*arguments, **options):
    raise AssertionError("replaced")

def replace_everywhere(monkeypatch, replacements, packages=None):
    "As freezegun and pyfakefs do: in each module that has imported it, by whatever name."
    for place, module in list(sys.modules.items()):
        if packages and place.split(".")[0] not in packages:
            continue
        for name, value in list(getattr(module, "__dict__", {}).items()):
            for old, new in replacements:
                if value is old:
                    monkeypatch.setitem(module.__dict__, name, new)

@pytest.fixture
def frozen(monkeypatch):
    functions = [getattr(time, name) for name in dir(time) if name in (
        "time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")]
    replace_everywhere(monkeypatch, [(function, lambda: 1_000_000) for function in functions])

class NoFiles:
    def __getattr__(self, name):
        return refuse

@pytest.fixture
def no_files(monkeypatch):
    import glob, io, os, shutil, tempfile
    names = ("open", "close", "unlink", "stat", "lstat", "listdir", "scandir", "makedirs", "mkdir", "fspath", "memfd_create")
    functions = [(getattr(os, name), refuse) for name in names]
    modules = [(module, NoFiles()) for module in (os, os.path, io, glob, shutil, tempfile)]
    # Not in those that pytest needs to go on.
    places = ("memtrack", "glob", "shutil", "subprocess", "tempfile")
    yield lambda: (replace_everywhere(monkeypatch, functions + modules, places), monkeypatch.setitem(sys.modules, "os", NoFiles()))
    monkeypatch.undo()
"""


def test_a_clock_that_a_test_stops_hides_no_leak(tests):
    result = tests(
        EVERYWHERE
        + """
KEPT = []

@pytest.mark.limit_leaks("100 kB")
def test_leaks(frozen):
    KEPT.append(bytearray(1_000_000))

@pytest.mark.limit_leaks("100 kB")
def test_leaks_nothing(frozen):
    load(2)

def test_holds(frozen):
    kept = load(5)
""",
        "--memtrack",
    )
    assert outcomes(result) == {"failed": 1, "passed": 2}
    result.stdout.fnmatch_lines(["limit_leaks('100 kB'): what the test leaves grows by 1.00 MB *", "* 5.00 MB * 5.00 MB * test_shop.py::test_holds"])


def test_files_that_a_test_replaces_are_not_memtracks(tests):
    result = tests(
        EVERYWHERE
        + """
@pytest.fixture
def fake(no_files):
    no_files()

@pytest.mark.limit_memory("24 MB")
@pytest.mark.limit_leaks("100 kB")
def test_within(fake):
    kept = load(4)

@pytest.mark.limit_memory("24 MB")
def test_over(fake):
    kept = load(40)

@pytest.mark.limit_memory("24 MB")
def test_replaces(no_files):
    kept = load(40)
    no_files()

@pytest.mark.limit_memory("24 MB")
def test_sees_what_it_replaced(no_files):
    import os
    no_files()
    with pytest.raises(AssertionError, match="replaced"):
        sys.modules["os"].unlink("a")
    assert isinstance(sys.modules["os"], NoFiles) and not isinstance(os, NoFiles)
"""
    )
    assert outcomes(result) == {"failed": 2, "passed": 2}
    # In CI the summary has them, too.
    told = [line for line in result.outlines if line.startswith("limit_memory('24 MB'): the test held 40.0 MB")]
    assert len(told) == 2


def test_captures_are_kept_where_the_session_began(tests, pytester):
    result = tests(
        """
@pytest.mark.limit_memory("24 MB")
def test_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert os.listdir(".") == []
""",
        "--memtrack-dir=caps",
    )
    assert outcomes(result) == {"passed": 1}
    assert [path.name for path in (pytester.path / "caps").iterdir()] == ["test_shop.py-test_elsewhere.bin"]


def test_functions_that_a_test_replaces_change_nothing_for_it_or_for_later_ones(tests):
    """They are put back when the test is torn down, after its recording has ended."""
    result = tests(
        """
import json, select, subprocess, time

def refuse(*arguments, **options):
    raise AssertionError("replaced")

NAMES = ["os.unlink", "os.listdir", "json.loads", "select.select", "subprocess.Popen", "time.sleep", "time.monotonic_ns"]

@pytest.fixture
def replaced(request, monkeypatch):
    module, name = request.param.split(".")
    monkeypatch.setattr(globals()[module], name, refuse)

@pytest.mark.limit_memory("24 MB")
@pytest.mark.parametrize("replaced", [*NAMES, "os.getpid", "os.close"], indirect=True)
def test_under(replaced):
    load(5)

@pytest.mark.limit_memory("24 MB")
@pytest.mark.parametrize("replaced", NAMES, indirect=True)
def test_over(replaced):
    load(40)

@pytest.mark.limit_memory("24 MB")
def test_later():
    load(40)
"""
    )
    assert outcomes(result) == {"passed": 9, "failed": 8}
    assert result.stdout.str().count("the test held 40.0 MB at its high-water mark") >= 8


def test_the_peak_is_that_of_the_test_and_not_of_its_fixtures(tests):
    """While a fixture holds most of the call, the test holds little; it held more before, and less than all it allocated."""
    result = tests(
        """
@pytest.fixture
def lazy():
    return load(50)

@pytest.mark.limit_memory("5 MB")
def test_before(request):
    kept = load(20)
    del kept
    kept = request.getfixturevalue("lazy")

@pytest.mark.limit_memory("21 MB")
def test_within(request):
    for _ in range(3):
        kept = load(20)
        del kept
    kept = request.getfixturevalue("lazy")
"""
    )
    assert outcomes(result) == {"passed": 1, "failed": 1}
    result.stdout.fnmatch_lines(["limit_memory('5 MB'): the test held 20.0 MB at its high-water mark, 15.0 MB more than its limit"])
    result.stdout.fnmatch_lines(["*20.0 MB*load*test_shop.py*", "fixtures, not judged: *lazy (50.0 MB while the test ran)*"])


def test_fixtures_are_apart_and_named(tests):
    result = tests(
        """
@pytest.fixture
def stock():
    yield load(50)

@pytest.fixture
def lazy():
    return load(30)

@pytest.mark.limit_memory("5 MB")
def test_with_a_fixture(stock):
    load(4)

@pytest.mark.limit_memory("5 MB")
def test_that_asks_for_one(request):
    request.getfixturevalue("lazy")
    load(4)

@pytest.mark.limit_memory("5 MB")
def test_over(request, stock):
    lazy = request.getfixturevalue("lazy")
    kept = load(7)
"""
    )
    assert outcomes(result) == {"passed": 2, "failed": 1}
    result.stdout.fnmatch_lines(["*the test held 7.00 MB*", "fixtures, not judged: stock, lazy (30.0 MB while the test ran)"])


def test_threads_and_children_count(tests):
    result = tests(
        """
def in_thread(blocks):
    thread = threading.Thread(target=load, args=(blocks,))
    thread.start()
    thread.join()

def in_child(blocks):
    pid = os.fork()
    if not pid:
        kept = load(blocks)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0

@pytest.mark.limit_memory("5 MB")
def test_thread_over():
    in_thread(8)

@pytest.mark.limit_memory("5 MB", current_thread_only=True)
def test_thread_elsewhere():
    in_thread(8)

@pytest.mark.limit_memory("5 MB")
def test_child_over():
    in_child(8)

@pytest.mark.limit_memory("5 MB")
def test_child_under():
    in_child(3)
"""
    )
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(["FAILED *test_thread_over*", "FAILED *test_child_over*"])
    result.stdout.fnmatch_lines(["*called by in_child at test_shop.py:*"])


CHILDREN = """
import subprocess
import sys

def in_child(function):
    pid = os.fork()
    if not pid:
        function()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0

def execute():
    kept = load(3)
    os.execv(sys.executable, [sys.executable, "-c", "kept = bytearray(30_000_000)"])

@pytest.mark.limit_memory("5 MB")
def test_child_over():
    in_child(lambda: load(8))

@pytest.mark.limit_memory("5 MB")
def test_grandchild_over():
    in_child(lambda: in_child(lambda: load(9)))

@pytest.mark.limit_memory("5 MB")
def test_child_under():
    in_child(lambda: load(3))

@pytest.mark.limit_memory("5 MB")
def test_program_of_a_child():
    in_child(execute)

@pytest.mark.limit_memory("5 MB")
def test_program():
    subprocess.run([sys.executable, "-c", "kept = bytearray(30_000_000)"], check=True)

@pytest.mark.limit_memory("5 MB")
def test_nothing():
    pass
"""


@pytest.mark.parametrize("under_run", [False, True])
def test_forked_children_count_as_well_where_memtrack_run_records(tests, pytester, executable, under_run):
    pytester.makepyfile(test_shop=SHOP + CHILDREN)
    recorder = [executable, "run", "-q", "-o", "session.bin", "--allocation-timestamps", "--trace-python-allocators", "--follow"]
    pytest_itself = [sys.executable, "-m", "pytest", *PLUGIN, "--memtrack"]
    result = pytester.run(*(recorder if under_run else []), *pytest_itself, timeout=PATIENCE)
    result.assert_outcomes(passed=4, failed=2)
    result.stdout.fnmatch_lines(["FAILED *test_child_over*", "FAILED *test_grandchild_over*"])
    peaks = re.findall(r"^ *(\d+\.\d+) MB .* test_shop.py::(\w+)$", result.stdout.str(), re.MULTILINE)
    expected = {"test_grandchild_over": 9, "test_child_over": 8, "test_child_under": 3, "test_program_of_a_child": 3}
    assert {name: round(float(peak)) for peak, name in peaks} == expected


def test_every_kind_of_test(tests):
    result = tests(
        """
import asyncio
import unittest

@pytest.mark.parametrize("blocks", [2, 9])
@pytest.mark.limit_memory("5 MB")
def test_parameters(blocks):
    load(blocks)

@pytest.mark.limit_memory("5 MB")
class TestMethods:
    def test_under(self):
        load(2)

    def test_over(self):
        kept = load(9)

    @pytest.mark.limit_memory("15 MB")
    def test_closest(self):
        kept = load(9)

class Case(unittest.TestCase):
    def setUp(self):
        self.kept = load(9)

    @pytest.mark.limit_memory("5 MB")
    def test_under(self):
        load(2)

    @pytest.mark.limit_memory("5 MB")
    def test_over(self):
        kept = load(9)

class Loop(unittest.IsolatedAsyncioTestCase):
    @pytest.mark.limit_memory("5 MB")
    async def test_over(self):
        await asyncio.gather(self.work(), self.work())

    async def work(self):
        kept = load(4)
        await asyncio.sleep(0.01)
""",
        "-rA",
    )
    failed = set(re.findall(r"^FAILED test_shop.py::(\S+)", result.stdout.str(), re.MULTILINE))
    assert failed == {"test_parameters[9]", "TestMethods::test_over", "Case::test_over", "Loop::test_over"}
    assert outcomes(result) == {"passed": 4, "failed": 4}


@pytest.mark.parametrize("plugin, mark", [("pytest_asyncio", "asyncio"), ("anyio", "anyio")])
def test_async_plugins(tests, plugin, mark):
    pytest.importorskip(plugin)
    result = tests(
        f"""
import asyncio

@pytest.fixture
def anyio_backend():
    return "asyncio"

async def work(blocks):
    kept = load(blocks)
    await asyncio.sleep(0.01)

@pytest.mark.{mark}
@pytest.mark.limit_memory("5 MB")
async def test_under():
    await work(3)

@pytest.mark.{mark}
@pytest.mark.limit_memory("5 MB")
async def test_over():
    await asyncio.gather(work(3), work(3))

@pytest.mark.{mark}
@pytest.mark.limit_leaks("100 kB", repeat=4)
async def test_leak(kept=[]):
    kept.append(load(1))
    await work(1)
"""
    )
    assert outcomes(result) == {"passed": 1, "failed": 2}
    result.stdout.fnmatch_lines(["*the test held 6.0? MB*", "*what the test leaves grows by 1.00 MB with each of 4 runs*"])


def test_reruns(tests):
    pytest.importorskip("pytest_rerunfailures")
    result = tests(
        """
runs = []

@pytest.mark.limit_memory("5 MB")
def test_over_at_first():
    runs.append(1)
    load(9 if len(runs) < 3 else 1)
""",
        "--reruns=2",
        "-p",
        "no:flaky",
    )
    assert outcomes(result) == {"passed": 1, "rerun": 2}


def test_flaky(tests):
    pytest.importorskip("flaky")
    result = tests(
        """
import flaky
runs = []

@flaky.flaky(max_runs=3)
@pytest.mark.limit_memory("5 MB")
def test_over_at_first():
    runs.append(1)
    load(9 if len(runs) < 3 else 1)
    assert len(runs) <= 3
"""
    )
    assert outcomes(result) == {"passed": 1}


def test_a_limit_for_all_tests(tests, pytester):
    pytester.makefile(".ini", pytest="[pytest]\nmemtrack_limit = 5 MB\n")
    code = """
def test_over():
    kept = load(9)

def test_under():
    load(3)

@pytest.mark.limit_memory("20 MB")
def test_its_own():
    kept = load(9)
"""
    result = tests(code)
    assert outcomes(result) == {"passed": 2, "failed": 1}
    result.stdout.fnmatch_lines(["--memtrack-limit *('5 MB'): the test held 9.0? MB*"])
    assert outcomes(tests(code, "--memtrack-limit=1GB")) == {"passed": 3}


@pytest.mark.parametrize(
    "marker, said",
    [
        ('limit_memory("24 bananas")', "'24 bananas' is no size; expected one such as 24 MB"),
        (
            "limit_memory()",
            "test_it: limit_memory: missing 1 required positional argument: 'limit'; "
            "expected limit_memory(limit, *, current_thread_only=False)\n",
        ),
        ("limit_memory(None)", "None is no size; expected one such as 24 MB"),
        ('limit_leaks("1 MB", repeat=0)', "repeat is 0, expected a number from 1 on"),
        ('limit_leaks("1 MB", times=3)', "unexpected keyword argument 'times'"),
    ],
)
def test_wrong_markers_are_said_before_any_test_runs(tests, marker, said):
    result = tests(f"@pytest.mark.{marker}\ndef test_it():\n    open('ran', 'w')\n")
    assert result.ret == pytest.ExitCode.USAGE_ERROR and not os.path.exists("ran")
    assert said in result.stderr.str() and "test_shop.py::test_it" in result.stderr.str()


def test_a_wrong_marker_fails_its_test_in_workers_of_xdist(tests):
    pytest.importorskip("xdist")
    code = "@pytest.mark.limit_memory('24 bananas')\ndef test_it():\n    pass\ndef test_other():\n    pass\n"
    result = tests(code, "-n2")
    assert outcomes(result) == {"passed": 1, "failed": 1}
    result.stdout.fnmatch_lines(["*test_shop.py::test_it: '24 bananas' is no size; expected one such as 24 MB*"])


def test_wrong_options_are_said(tests):
    for options, said in [
        (["--memtrack-limit=much"], "'much' is no size"),
        (["--memtrack-fail-over=10%"], "needs --memtrack-compare FILE"),
        (["--memtrack-compare=x", "--memtrack-fail-over=ten"], "'ten': expected 10%, or a size such as 5MB"),
        (["--memtrack-python-allocators=maybe"], "expected yes or no"),
        (["--memtrack-top=x"], "--memtrack-top x: expected a number"),
        (["--memtrack", "--memtrack-dir=/proc/x"], "--memtrack-dir /proc/x: cannot be created: No such file or directory"),
        (["--memtrack-dir=test_shop.py"], "--memtrack-dir test_shop.py: cannot be created: File exists"),
        (["--memtrack-compare=no/f.json"], "--memtrack-compare no/f.json: cannot be written: No such file or directory"),
    ]:
        result = tests("def test_it():\n    open('ran', 'w')\n", *options)
        assert result.ret == pytest.ExitCode.USAGE_ERROR and said in result.stderr.str() and not os.path.exists("ran")


def test_a_directory_that_cannot_be_made_is_said_by_xdist(tests):
    pytest.importorskip("xdist")
    result = tests("@pytest.mark.limit_memory('1 MB')\ndef test_it(): pass\n", "--memtrack", "--memtrack-dir=/proc/x", "-n2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR and "--memtrack-dir /proc/x: cannot be created" in result.stderr.str()
    assert "INTERNALERROR" not in result.stdout.str()


# --- limits of leaks --------------------------------------------------------------------------------------------------

LEAKS = {
    "cache": "KEPT.append(bytes(SIZE))",
    "dict": "TABLE[object()] = bytes(SIZE)",
    "growing": "BUFFER.extend(bytes(SIZE))",
    "closure": "KEPT.append((lambda block: lambda: block)(bytes(SIZE)))",
    "cycle": "node = Node(); node.me = node; node.block = bytes(SIZE); KEPT.append(node)",
    "traceback": "try:\n        block = bytes(SIZE); 1 / 0\n    except ZeroDivisionError as error:\n        KEPT.append(error)",
    "buffer_of_c": "KEPT.append(zlib.compressobj())",
    "array": "import array; KEPT.append(array.array('b', bytes(SIZE)))",
    "thread": "t = threading.Thread(target=hold, args=(bytes(SIZE),), daemon=True); t.start(); time.sleep(0.01)",
    "generator": "g = generate(bytes(SIZE)); next(g); KEPT.append(g)",
    "task": "KEPT.append(LOOP.create_task(sleep(bytes(SIZE)))); LOOP.run_until_complete(asyncio.sleep(0))",
    "small": "KEPT.extend([object() for _ in range(SIZE // 16)])",
}
CACHES = {
    "re": "[re.compile('a' * n) for n in range(1, 60)]",
    "logging": "[logging.getLogger(f'shop.{n}').setLevel(10) for n in range(300)]",
    "linecache": "linecache.checkcache(); linecache.getlines(os.__file__)",
    "functools": "[cached(n) for n in range(50)]",
    "import": "import email.mime.text, xml.dom.minidom, sqlite3",
    "last": "TABLE['last'] = bytes(SIZE * 5)",
    "lru_full": "COUNT.append(1); [small_cached(n * len(COUNT)) for n in range(300)]",
    "temporary": "block = bytes(SIZE * 20); del block",
    "cycle_collected": "node = Node(); node.me = node; node.block = bytes(SIZE)",
    "reused": "BUFFER[:] = bytes(SIZE)",
    "interned": "[sys.intern(f'name_{n}') for n in range(3000)]",
    "struct": "[struct.pack(f'{n}s', b'') for n in range(50)]",
    "decimal": "sum(decimal.Decimal(n) for n in range(500))",
    "second_run": "COUNT.append(1); len(COUNT) == 2 and TABLE.update(late=bytes(SIZE))",
}
AROUND = """
import array, asyncio, decimal, functools, linecache, logging, re, struct, sys, time, zlib
SIZE = 200_000
KEPT, TABLE, BUFFER, COUNT = [], {{}}, bytearray(), []
LOOP = asyncio.new_event_loop()
class Node: pass
def hold(block):
    time.sleep(600)
def generate(block):
    yield
    return block
async def sleep(block):
    await asyncio.sleep(600)
    return block
@functools.lru_cache(maxsize=None)
def cached(n):
    return bytes(SIZE // 10)
@functools.lru_cache(maxsize=100)
def small_cached(n):
    return bytes(SIZE // 100)
"""


def leak_tests(bodies):
    code = AROUND.format()
    for name, body in bodies.items():
        code += f"\n@pytest.mark.limit_leaks('20 kB')\ndef test_{name}():\n    {body}\n"
    return code


def test_leaks_are_found(tests):
    result = tests(leak_tests(LEAKS), "-p", "no:threadexception")
    assert outcomes(result) == {"failed": len(LEAKS)}, result.stdout.str()
    text = result.stdout.str()
    for name in LEAKS:
        assert re.search(rf"(at|by) test_{name} at|test_{name} at", text), name


def test_caches_that_stop_growing_are_none(tests):
    result = tests(leak_tests(CACHES))
    assert outcomes(result) == {"passed": len(CACHES)}, result.stdout.str()


def test_leaks_of_one_run_and_filters(tests):
    result = tests(
        """
KEPT = []

@pytest.mark.limit_leaks("1 MB", repeat=1)
def test_once():
    KEPT.append(load(3))

def not_of_load(stack):
    return all(frame.function != "load" and frame.filename and frame.lineno >= 0 for frame in stack.frames)

@pytest.mark.limit_leaks("1 MB", filter_fn=not_of_load)
def test_filtered():
    KEPT.append(load(3))

@pytest.mark.limit_leaks("1 MB")
def test_not_repeatable():
    os.mkdir("directory")
"""
    )
    assert outcomes(result) == {"failed": 2, "passed": 1}
    result.stdout.fnmatch_lines(["*what the test leaves holds 3.00 MB after its only run, 2.00 MB more than its limit"])
    result.stdout.fnmatch_lines(["failed in run 2 of limit_leaks; with repeat=1 the test runs once"])


# --- all tests of a session --------------------------------------------------------------------------------------------

SESSION = """
import doctest

def test_small():
    load(1)

def test_large():
    load(20)

@pytest.fixture
def stock():
    return load(50)

def test_with_fixture(stock):
    load(3)

def test_fails():
    load(2)
    assert False

def documented():
    '''
    >>> len(load(4))
    4
    '''
"""


def figures(path):
    known = json.loads(path.read_text())
    assert (known["schema"], known["version"]) == ("memtrack-pytest", 1)
    return {name.split("::")[1]: each for name, each in known["tests"].items()}


def test_a_session_shows_who_holds_most(tests, pytester):
    result = tests(SESSION, "--memtrack", "--memtrack-top=3", "--memtrack-compare=figures.json", "--doctest-modules", "--junit-xml=report.xml")
    assert outcomes(result) == {"passed": 4, "failed": 1}
    result.stdout.fnmatch_lines(
        [
            "*memtrack: memory of 5 tests*",
            "*Peak*Allocated*Count  Test",
            "*20.? MB*20.? MB*test_shop.py::test_large",
            "*4.?? MB*4.?? MB*test_shop.py::test_shop.documented",
            "*3.?? MB*3.?? MB*test_shop.py::test_with_fixture",
            "and 2 more (--memtrack-top 0 shows all)",
            "figures.json: written; later runs are compared with it",
        ]
    )
    known = figures(pytester.path / "figures.json")
    for name, size in {"test_small": 1, "test_large": 20, "test_with_fixture": 3, "test_fails": 2}.items():
        assert size * 1_000_000 <= known[name]["peak_bytes"] < (size + 0.3) * 1_000_000, name
        assert known[name]["allocations"] >= size
    cases = {case.get("name"): case for case in Tree.parse(pytester.path / "report.xml").iter("testcase")}
    properties = {each.get("name"): each.get("value") for each in cases["test_large"].iter("property")}
    assert properties == {f"memtrack_{name}": str(value) for name, value in known["test_large"].items()}
    assert not list(pytester.path.rglob("*.bin"))


def test_a_test_that_grew_fails_the_comparison(tests, pytester):
    options = ["--memtrack-compare=figures.json", "--memtrack-fail-over=10%"]
    assert tests("def test_it(): kept = load(10)\ndef test_other(): load(1)\n", *options).ret == 0
    before = (pytester.path / "figures.json").read_text()
    slightly = tests("def test_it(): kept = load(10), bytes(500_000)\ndef test_other(): load(1)\n", *options)
    assert slightly.ret == 0
    slightly.stdout.fnmatch_lines(["*10.? MB*10.? MB*+500 kB*test_shop.py::test_it"])
    grown = tests("def test_it(): kept = load(12)\ndef test_other(): load(1)\ndef test_new(): load(9)\n", *options)
    assert grown.ret == pytest.ExitCode.TESTS_FAILED and outcomes(grown) == {"passed": 3}
    grown.stdout.fnmatch_lines(
        [
            "*10.? MB*12.? MB*+2.00 MB*test_shop.py::test_it  more than 10%",
            "1 test is not in figures.json; remove it to write it anew",
            "1 test holds more than allowed by --memtrack-fail-over",
        ]
    )
    assert (pytester.path / "figures.json").read_text() == before
    (pytester.path / "figures.json").write_text("[]")
    damaged = tests("def test_it(): pass\n", *options)
    assert damaged.ret == pytest.ExitCode.TESTS_FAILED
    damaged.stdout.fnmatch_lines(["memtrack: error: figures.json: expected figures of tests as --memtrack-compare writes them*"])


def test_workers_of_xdist(tests, pytester):
    pytest.importorskip("xdist")
    code = SESSION + """
@pytest.mark.limit_memory("5 MB")
def test_limited():
    kept = load(8)
"""
    result = tests(code, "-n2", "--memtrack-compare=figures.json", "--memtrack-dir=captures", "--junit-xml=report.xml")
    assert outcomes(result) == {"passed": 3, "failed": 2}
    known = figures(pytester.path / "figures.json")
    assert set(known) == {"test_small", "test_large", "test_with_fixture", "test_fails", "test_limited"}
    assert 20_000_000 <= known["test_large"]["peak_bytes"] < 20_300_000
    kept = {path.name for path in (pytester.path / "captures").iterdir()}
    assert {"memtrack-session-gw0.bin", "memtrack-session-gw1.bin"} <= kept
    assert any(name.startswith("test_shop.py-test_limited-gw") for name in kept)
    cases = {case.get("name"): case for case in Tree.parse(pytester.path / "report.xml").iter("testcase")}
    assert cases["test_large"].find("properties/property[@name='memtrack_peak_bytes']") is not None


def test_coverage_beside(tests):
    pytest.importorskip("pytest_cov")
    result = tests(SESSION + "@pytest.mark.limit_memory('5 MB')\ndef test_limited(): kept = load(8)\n", "--memtrack", "--cov=test_shop")
    assert outcomes(result) == {"passed": 3, "failed": 2}
    result.stdout.fnmatch_lines(["*test_shop.py*%*"])


def test_nothing_is_done_unasked(tests, pytester):
    """Neither a process is started nor more of the package imported."""
    result = tests(
        """
import sys

def test_it():
    assert not {name for name in sys.modules if name.startswith("memtrack.")} - {
        "memtrack._errors", "memtrack._program", "memtrack._pytest_plugin", "memtrack._sizes"}
""",
        "--strict-markers",
    )
    assert outcomes(result) == {"passed": 1}
    help_text = tests("", "--help").stdout.str()
    assert "--memtrack-compare=FILE" in help_text and "memtrack_limit (string)" in help_text
    assert "limit_leaks(limit, *, repeat=5" in tests("", "--markers").stdout.str()


# A stand-in that registers as the real one does.
MEMRAY = """
import pytest

class Manager:
    @pytest.hookimpl(hookwrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem):
        if pyfuncitem.get_closest_marker("limit_memory"):
            print("judged by the other")
        yield

def pytest_addoption(parser):
    parser.addoption("--memray", action="store_true")

def pytest_configure(config):
    config.pluginmanager.register(Manager(), "memray_manager")
    config.addinivalue_line("markers", "limit_memory(limit): theirs")
"""


def test_markers_are_left_to_pytest_memray_where_it_is(tests, pytester):
    """Without --memtrack that judges, with it memtrack does."""
    pytester.makepyfile(memray_plugin=MEMRAY)
    code = "@pytest.mark.limit_memory('1 MB')\ndef test_it():\n    kept = load(3)\n"
    left = tests(code, "-p", "memray_plugin", "-s")
    assert outcomes(left) == {"passed": 1} and "judged by the other" in left.stdout.str()
    taken = tests(code, "-p", "memray_plugin", "-s", "--memtrack")
    assert outcomes(taken) == {"failed": 1} and "judged by the other" not in taken.stdout.str()


@pytest.mark.skipif(not WHOLE, reason="takes a minute a Python: only with scripts/test --whole")
@pytest.mark.parametrize("version", ["3.8", "3.11", "3.13"])
def test_a_hundred_leaks_fail_and_a_hundred_caches_pass(executable, tmp_path, version):
    python = interpreter_path(version)
    if execute([python, "-c", "import pytest"]).status:
        environment = tmp_path / "environment"
        assert execute([python, "-m", "venv", environment]).status == 0
        python = environment / "bin" / "python"
        if execute([python, "-m", "pip", "install", "-q", "pytest"]).status:
            pytest.skip(f"pytest cannot be installed for Python {version}")
    program = tmp_path / "test_leaks_and_caches.py"
    program.write_text((PROGRAMS / "leaks_and_caches.py").read_text())
    environment = {**os.environ, "MEMTRACK": str(executable), "PYTHONPATH": str(REPOSITORY / "python")}
    done = execute([python, "-m", "pytest", "-q", *PLUGIN, program, "-rfp", "--tb=no"], cwd=tmp_path, env=environment)
    said = done.stdout.decode()
    count = lambda outcome, tests: len(re.findall(rf"^{outcome} \S+::{tests}\[", said, re.MULTILINE))
    assert (count("FAILED", "test_leaks"), count("PASSED", "test_caches")) == (100, 100), said[-4000:]


FORKS = """
import os
import pytest
from _pytest.runner import runtestprotocol

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
    if not item.get_closest_marker("forked"):
        return None
    process = os.fork()
    if process == 0:
        failed = [report.longreprtext for report in runtestprotocol(item, log=False) if report.failed]
        print(*failed, flush=True)
        os._exit(len(failed))
    status = os.waitpid(process, 0)[1]
    item.ihook.pytest_runtest_logreport(report=pytest.TestReport(
        item.nodeid, item.location, {}, "failed" if status else "passed", None, "call",
    ))
    return True
"""


@pytest.mark.parametrize("options", [[], ["--memtrack"]])
def test_limits_hold_in_processes_that_were_forked_for_their_tests(pytester, tests, options):
    """As pytest-forked does it."""
    pytester.makeconftest(FORKS)
    result = tests(
        """
import pytest

@pytest.mark.forked
@pytest.mark.limit_memory("5 MB")
def test_over():
    kept = bytearray(9_000_000)

@pytest.mark.forked
@pytest.mark.limit_memory("5 MB")
def test_within():
    kept = bytearray(1_000_000)

@pytest.mark.forked
def test_without():
    pass

@pytest.mark.limit_memory("5 MB")
def test_here():
    kept = bytearray(1_000_000)
""",
        "-s",
        *options,
    )
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["*limit_memory('5 MB'): the test held 9.0* MB at its high-water mark*"])


def test_a_file_is_read_once_more_only_where_that_tells_more(tests, pytester):
    """What the test held when it held most is found by two more passes over all events, which take longer than a busy test itself."""
    pytester.makeconftest("""
from memtrack import _test_limits

passes = []
known = _test_limits.at_their_peak

def counted(*arguments):
    passes.append(arguments)
    return known(*arguments)

def pytest_collection_modifyitems():
    # Later it would stand for something that a test has replaced.
    _test_limits.at_their_peak = counted

def pytest_runtest_logreport(report):
    if report.when == "teardown":
        print(report.nodeid.split("::")[1], "took", len(passes))
        passes.clear()
""")
    result = tests(
        """
@pytest.mark.limit_memory("24 MB")
def test_all_is_judged():
    kept = load(40)

@pytest.fixture
def much():
    return load(20)

@pytest.mark.limit_memory("8 MB")
def test_fixture_is_not(request):
    load(10)
    request.getfixturevalue("much")
    kept = load(9)

@pytest.mark.limit_memory("8 MB")
def test_within(request):
    request.getfixturevalue("much")
    kept = load(7)
""",
        "-s",
    )
    assert outcomes(result) == {"failed": 2, "passed": 1}
    result.stdout.fnmatch_lines(["*test_all_is_judged took 0", "*test_fixture_is_not took 1", "*test_within took 0"])
    result.stdout.fnmatch_lines(["*the test held 40.0 MB at*16.0 MB more*", "*the test held 10.0 MB at*2.0* MB more*"])
