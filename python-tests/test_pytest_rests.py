"""The plugin for pytest where one recording goes on for all tests with limits: it rests between them, and no test notices the others.

Each test runs pytest in a process of its own, as in test_pytest_plugin.py.
"""

import json
import re
import subprocess

from test_pytest_plugin import outcomes, tests  # noqa: F401

pytest_plugins = ["pytester"]

#: Writes the figures of all tests beside them.
FIGURES = """
import json
known = {}

def pytest_runtest_logreport(report):
    if report.when == "call":
        known[report.nodeid.split("::")[1]] = {name: value for name, value in report.user_properties if name.startswith("memtrack_")}

def pytest_sessionfinish():
    with open("known.json", "w") as file:
        json.dump(known, file)
"""
#: A test says whose recording it is in.
RECORDED = """
import memtrack
from memtrack import _tracker

def recording():
    return os.path.basename(_tracker._active.file_name) if _tracker._active else None
"""


def known(pytester):
    return json.loads((pytester.path / "known.json").read_text())


def rest_of(pytester):
    """The captures that are left in pytest's temporary directory."""
    return sorted(path.name for path in pytester.path.rglob("*.bin") if "by_a_test" not in path.name)


def test_figures_are_those_of_a_recording_of_its_own(tests, pytester):
    code = """
@pytest.mark.parametrize("blocks", [1, 7, 3, 0])
@pytest.mark.limit_memory("10 MB")
def test_held(blocks):
    kept = load(blocks)
    for _ in range(3):
        load(2)

@pytest.mark.limit_memory("8 MB")
def test_raises():
    kept = load(4)
    assert not kept

@pytest.mark.limit_memory("8 MB")
def test_skips():
    kept = load(5)
    pytest.skip("enough")

@pytest.mark.limit_leaks("10 kB", repeat=3)
def test_repeated():
    load(2)

@pytest.mark.limit_memory("2 MB")
def test_thread():
    thread = threading.Thread(target=load, args=(1,))
    thread.start()
    thread.join()
"""
    pytester.makeconftest(FIGURES)
    tests(code, "--memtrack-dir=captures")
    alone = known(pytester)
    result = tests(code)
    assert outcomes(result) == {"passed": 6, "failed": 1, "skipped": 1}, result.stdout.str()
    together = known(pytester)
    # What Python itself allocates for a call differs by some bytes.
    exact = {name: {key: value // 100_000 for key, value in each.items()} for name, each in together.items()}
    assert exact == {name: {key: value // 100_000 for key, value in each.items()} for name, each in alone.items()}
    assert together["test_held[7]"]["memtrack_peak_bytes"] // 1_000_000 == 9
    assert together["test_repeated"]["memtrack_peak_bytes"] // 1_000_000 == 2


def test_one_recording_goes_on_and_leaves_nothing(tests, pytester):
    result = tests(
        RECORDED
        + """
from memtrack import _rest

_rest._LARGE = 20_000

@pytest.mark.parametrize("number", range(5))
@pytest.mark.limit_memory("8 MB")
def test_within(number):
    assert recording() == "memtrack-limits.bin"

def test_without():
    assert recording() is None and not memtrack.is_recording()

@pytest.mark.limit_memory("80 MB")
def test_goes_on():
    assert recording() == "memtrack-limits.bin"
    kept = [bytes(number % 1000) for number in range(20_000)]

@pytest.mark.limit_memory("8 MB")
def test_after_much():
    assert recording() == "memtrack-limits-2.bin"
"""
    )
    assert outcomes(result) == {"passed": 8}, result.stdout.str()
    assert [name for name in rest_of(pytester)] == []


def test_a_failure_has_a_capture_of_its_own_test(tests, pytester, executable):
    result = tests(
        """
@pytest.mark.parametrize("blocks", [3, 9, 2])
@pytest.mark.limit_memory("8 MB")
def test_held(blocks):
    kept = load(blocks)
"""
    )
    assert outcomes(result) == {"passed": 2, "failed": 1}, result.stdout.str()
    result.stdout.fnmatch_lines(["limit_memory('8 MB'): the test held 9.0? MB *", "*called by test_held at test_shop.py:*"])
    capture = re.search(r"capture: (\S+)", result.stdout.str())[1]
    assert rest_of(pytester) == ["test_shop.py-test_held-9.bin"]
    stats = json.loads(subprocess.run([executable, "stats", "--json", capture], capture_output=True, check=True).stdout)
    assert stats["allocations"]["bytes"] // 1_000_000 == 9, stats


def test_what_happens_between_is_not_recorded_and_changes_nothing(tests, pytester):
    result = tests(
        RECORDED
        + """
import tracemalloc

@pytest.mark.limit_memory("1 MB")
def test_before():
    tracemalloc.start()

def test_tracker_of_a_test(tmp_path):
    with memtrack.Tracker(tmp_path / "by_a_test.bin", aggregate=True):
        kept = load(2)
    held = sum(each.bytes for each in memtrack.Capture(tmp_path / "by_a_test.bin").allocations())
    assert held // 1_000_000 == 2

def test_forks():
    pid = os.fork()
    if pid == 0:
        kept = load(5)
        os._exit(recording() is not None)
    assert os.waitpid(pid, 0)[1] == 0

@pytest.mark.limit_memory("1 MB")
def test_traced():
    tracemalloc.stop()

@pytest.fixture
def stops():
    tracemalloc.start()
    yield
    tracemalloc.stop()

@pytest.mark.limit_memory("1 MB")
def test_stopped_behind(stops):
    pass

@pytest.mark.limit_memory("1 MB")
def test_objects_count_still():
    kept = [float(number) for number in range(100_000)]

@pytest.mark.limit_memory("9 MB")
def test_child():
    pid = os.fork()
    if pid == 0:
        kept = load(20)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0

@pytest.mark.limit_memory("9 MB")
def test_tracker_within(tmp_path):
    with memtrack.Tracker(tmp_path / "by_a_test.bin"):
        kept = load(2)

@pytest.mark.limit_memory("9 MB")
def test_tracker_that_goes_on(tmp_path, request):
    tracker = memtrack.Tracker(tmp_path / "by_a_test.bin")
    tracker.start()
    request.addfinalizer(tracker.stop)
    kept = load(10)

@pytest.mark.limit_memory("9 MB")
def test_last():
    kept = load(8)
"""
    )
    assert outcomes(result) == {"passed": 7, "failed": 3}, result.stdout.str()
    failures = ["FAILED *test_objects_count_still*", "FAILED *test_child*", "FAILED *test_tracker_that_goes_on*"]
    result.stdout.fnmatch_lines(failures)
    result.stdout.fnmatch_lines(["*called by test_child at test_shop.py:*"])
    stems = [re.sub(r"\.\d+-\d+", ".CHILD", name) for name in rest_of(pytester)]
    assert stems == [
        "test_shop.py-test_child.CHILD.bin",
        "test_shop.py-test_child.bin",
        "test_shop.py-test_objects_count_still.bin",
        "test_shop.py-test_tracker_that_goes_on.bin",
    ]
