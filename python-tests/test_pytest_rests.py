"""The plugin for pytest where one recording goes on for all tests with limits: it rests between them, and no test notices the others.

Each test runs pytest in a process of its own, as in test_pytest_plugin.py.
"""

import json
import platform
import re
import shutil
import subprocess
import sys

import pytest

from conftest import PATIENCE, execute, shows_calls
from test_pytest_plugin import PLUGIN, SHOP, outcomes, tests  # noqa: F401

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


def test_much_that_is_recorded_is_read_of_the_file(tests, pytester):
    """More than is kept at hand: figures and judgements are as exact, and the next test begins another recording."""
    code = RECORDED + """
def many(blocks):
    for _ in range(24):
        kept = [bytes(1_000) for _ in range(blocks)]

@pytest.mark.parametrize("blocks", [5, 30_000, 50, 30_000])
@pytest.mark.limit_memory("70 MB")
def test_many(blocks):
    many(blocks)

@pytest.mark.limit_memory("62 MB")
def test_over():
    many(30_000)

@pytest.mark.limit_memory("1 MB")
def test_after():
    assert recording() == "memtrack-limits-4.bin" or DIRECTORY
"""
    pytester.makeconftest(FIGURES)
    tests(code.replace("DIRECTORY", "True"), "--memtrack-dir=captures")
    alone = known(pytester)
    shutil.rmtree(pytester.path / "captures")
    result = tests(code.replace("DIRECTORY", "False"))
    assert outcomes(result) == {"passed": 5, "failed": 1}, result.stdout.str()
    together = known(pytester)
    assert together.keys() == alone.keys()
    for name, each in together.items():
        assert abs(each["memtrack_peak_bytes"] - alone[name]["memtrack_peak_bytes"]) < 50_000, name
    result.stdout.fnmatch_lines(["*the test held 62.? MB at its high-water mark*"])
    assert rest_of(pytester) == ["test_shop.py-test_over.bin"]


def test_a_resting_recording_leaves_pythons_allocators_alone(tests):
    result = tests(
        """
import ctypes

class Allocator(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("context", "malloc", "calloc", "realloc", "free")]

def allocators():
    found = [Allocator() for _ in range(3)]
    for domain, allocator in enumerate(found):
        ctypes.pythonapi.PyMem_GetAllocator(domain, ctypes.byref(allocator))
    return [(each.malloc, each.calloc, each.realloc, each.free) for each in found]

WITHOUT = allocators()

@pytest.fixture
def rests():
    assert allocators() == WITHOUT
    yield
    assert allocators() == WITHOUT

@pytest.mark.parametrize("number", range(3))
@pytest.mark.limit_memory("1 MB")
def test_held(rests, number):
    assert not any(with_ in WITHOUT for with_ in allocators())

@pytest.mark.limit_memory("1 MB")
def test_objects():
    kept = [float(number) for number in range(100_000)]
"""
    )
    assert outcomes(result) == {"passed": 3, "failed": 1}, result.stdout.str()


def test_what_is_built_in_may_be_replaced(tests):
    result = tests(
        """
@pytest.mark.limit_memory("8 MB")
def test_first(monkeypatch):
    monkeypatch.delattr("builtins.input")

@pytest.mark.limit_memory("8 MB")
def test_over(monkeypatch):
    kept = load(9)
    monkeypatch.setattr("builtins.sum", lambda numbers: 0)
    monkeypatch.setattr("builtins.max", lambda numbers, default=0: 0)

@pytest.mark.limit_memory("8 MB")
def test_after():
    kept = load(3)
"""
    )
    assert outcomes(result) == {"passed": 2, "failed": 1}, result.stdout.str()
    result.stdout.fnmatch_lines(["*limit_memory('8 MB'): the test held 9.* MB*"])


def test_one_recording_goes_on_and_leaves_nothing(tests, pytester):
    result = tests(
        RECORDED
        + """
from memtrack import _rest

_rest._LARGE = 40_000

@pytest.mark.parametrize("number", range(5))
@pytest.mark.limit_memory("8 MB")
def test_within(number):
    assert recording() == "memtrack-limits.bin"

@pytest.fixture
def rests():
    assert recording() is None and not memtrack.is_recording() and _tracker._end_resting is not None

@pytest.mark.limit_memory("80 MB")
def test_goes_on(rests):
    assert recording() == "memtrack-limits.bin"
    kept = [bytes(number % 1000) for number in range(20_000)]

@pytest.mark.limit_memory("8 MB")
def test_after_much():
    assert recording() == "memtrack-limits-2.bin"

def test_without():
    assert recording() is None and not memtrack.is_recording() and _tracker._end_resting is None

@pytest.mark.parametrize("number", range(2))
@pytest.mark.limit_memory("8 MB")
def test_after_one_without(number):
    assert recording() == "memtrack-limits-3.bin"

def test_without_again():
    pass

@pytest.mark.limit_memory("8 MB")
def test_alone():
    assert recording() == "test_shop.py-test_alone.bin"
"""
    )
    assert outcomes(result) == {"passed": 12}, result.stdout.str()
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


ATTACHED = """
import subprocess
import memtrack
kept = []

@pytest.mark.limit_memory("2 MB")
def test_before():
    pass

@pytest.fixture
def attached():
    needs = ["--allocation-timestamps", "--trace-python-allocators", "--follow"][:ALL]
    begin = ["memtrack", "attach", "--detached", "-f", "-o", "by_a_test.bin", str(os.getpid()), *needs]
    subprocess.run(begin, check=True, timeout=PATIENCE)
    yield
    assert memtrack.is_recording()
    kept.append(bytearray(5_000_000))
    subprocess.run(["memtrack", "detach", str(os.getpid())], check=True, timeout=PATIENCE)

@pytest.mark.limit_memory("2 MB")
def test_attached(attached):
    kept.extend(load(3))

@pytest.mark.limit_memory("2 MB")
def test_after():
    kept.extend(load(1))
"""


@pytest.mark.parametrize("needs", [0, 3])
def test_an_attach_between_tests_goes_on(tests, pytester, executable, needs):
    """It ends the recording that rests, and nothing of that ends the attach."""
    result = tests(ATTACHED.replace("ALL", str(needs)).replace("PATIENCE", str(PATIENCE)))
    assert outcomes(result) == {"passed": 2, "failed": 1}, result.stdout.str()
    expected = "*the test held 3.0? MB at its high-water mark*" if needs else "*cannot be checked: this process is being recorded already*"
    result.stdout.fnmatch_lines([expected])
    capture = next(pytester.path.rglob("by_a_test.bin"))
    stats = json.loads(subprocess.run([executable, "stats", "--json", capture], capture_output=True, check=True).stdout)
    # A test that cannot be checked is not called.
    assert stats["live_at_exit"]["bytes"] // 1_000_000 == (8 if needs else 5), stats
    assert rest_of(pytester) == (["test_shop.py-test_attached.bin"] if needs else [])


def test_wrappers_that_a_test_throws_out_are_put_in_again(tests):
    result = tests(
        """
import tracemalloc

@pytest.fixture
def traced():
    tracemalloc.start()

@pytest.mark.limit_memory("1 MB")
def test_stops_within(traced):
    tracemalloc.stop()

@pytest.fixture
def fragments():
    return [float(number) for number in range(400_000)][::20]

@pytest.mark.limit_memory("1 MB")
def test_objects(fragments):
    kept = [float(number) for number in range(100_000)]

@pytest.mark.limit_memory("9 MB")
def test_few():
    kept = load(8)
"""
    )
    assert outcomes(result) == {"passed": 2, "failed": 1}, result.stdout.str()
    result.stdout.fnmatch_lines(["*the test held 3.2? MB at its high-water mark*"])


def test_calls_amid_others_and_threads_and_signals(tests, pytester):
    result = tests(
        RECORDED
        + """
import pathlib

def library():
    return _tracker._active._library

@pytest.mark.limit_memory("2 MB")
def test_no_tracker_of_a_thread_begins_meanwhile(monkeypatch):
    known, rest = library(), library().rest
    taken = []

    def take():
        taken.append(_tracker._lock.acquire(blocking=False))
        if taken[0]:
            _tracker._lock.release()

    def resting():
        known.rest = rest
        thread = threading.Thread(target=take)
        thread.start()
        thread.join()
        assert taken == [False]
        return rest()

    known.rest = resting

@pytest.mark.limit_memory("2 MB")
def test_call_amid_this_one(request):
    name = recording()
    assert not request.config.pluginmanager.get_plugin("memtrack_tests").limited()._resting.go_on()
    assert recording() == name
    kept = load(3)

@pytest.mark.limit_memory("2 MB")
def test_signal_at_the_end():
    known, rest = library(), library().rest

    def resting():
        known.rest = rest
        rest()
        raise TimeoutError("of a handler")

    known.rest = resting

@pytest.fixture
def nothing_recorded():
    assert recording() is None and not memtrack.is_recording()

@pytest.mark.limit_memory("2 MB")
def test_after(nothing_recorded):
    kept = load(1)

@pytest.mark.limit_memory("2 MB")
def test_over(nothing_recorded):
    kept = load(4)
"""
    )
    assert outcomes(result) == {"passed": 2, "failed": 3}, result.stdout.str()
    result.stdout.fnmatch_lines(["*the test held 3.0? MB at*", "*TimeoutError: of a handler", "*the test held 4.0? MB at*"])
    assert rest_of(pytester) == ["test_shop.py-test_call_amid_this_one.bin", "test_shop.py-test_over.bin"]


def test_full_disk_is_told(tests, pytester):
    """Where this user may mount a small disk: the test says so, and the next that has room is checked."""
    code = """
@pytest.mark.limit_memory("50 MB")
def test_before():
    pass

@pytest.fixture
def full():
    with open("small/filler", "wb", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(4096))
        except OSError:
            pass
    yield
    os.unlink("small/filler")

def work():
    return [str(number) * (number % 7) for number in range(30_000)]

@pytest.mark.limit_memory("50 MB")
def test_full(full):
    kept = [work() for _ in range(3)]

@pytest.mark.limit_memory("50 MB")
def test_room():
    kept = work()

@pytest.mark.limit_memory("1 MB")
def test_over():
    kept = load(2)
"""
    pytester.mkdir("small")
    mounted = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=1m none small && exec "$0" "$@" || exit 77', sys.executable]
    if execute([*mounted, "-c", ""], cwd=pytester.path).status:
        pytest.skip("no mount name space")
    pytester.makepyfile(test_shop=SHOP + code)
    result = pytester.run(*mounted, "-m", "pytest", "--basetemp=small/tests", *PLUGIN, timeout=PATIENCE)
    assert outcomes(result) == {"passed": 2, "failed": 2}, result.stdout.str()
    lines = ["*the limits of this test cannot be checked: *memtrack-limits.bin: *No space left*", "*the test held 2.0? MB at*"]
    result.stdout.fnmatch_lines(lines)


CHURN = """
#include <stdlib.h>
volatile long rounds;
volatile int ended;
void churn(void) {
    for (unsigned n = 0; !ended; n++, rounds++) free(malloc(16 + n * 7919u % 4000));
}
"""
#: A test finds the process that records it.
RECORDER = """
def recorder():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\\0")
            if words[1:2] == [b"recorder"] and os.readlink(f"/proc/{pid}/cwd") == os.getcwd():
                return int(pid)
        except OSError:
            pass

"""
#: Stops the recorder, says when the thread waits for it, and lets it go on when the thread has not waited for some time. Nobody who
#: is recorded may do so: he might have to wait for it himself.
STANDS_STILL = """
import os, signal, sys
pid, tid, recorder = map(int, sys.argv[1:])

def waits():
    with open(f"/proc/{pid}/task/{tid}/syscall") as call:
        return call.read().startswith("202 ")

os.kill(recorder, signal.SIGSTOP)
try:
    while not waits():
        pass
    print("waits", flush=True)
    looks = 0
    while looks < 300:
        looks = 0 if waits() else looks + 1
finally:
    os.kill(recorder, signal.SIGCONT)
"""


@shows_calls
@pytest.mark.skipif(not shutil.which("cc") or platform.machine() != "x86_64", reason="no C compiler, or other numbers of calls")
def test_a_thread_that_waits_for_room_when_a_test_ends_goes_on(tests, pytester):
    """The recorder stands still at the end of the first test, and a thread waits for it: what it records next, nobody would read."""
    (pytester.path / "churn.c").write_text(CHURN)
    (pytester.path / "stand_still.py").write_text(STANDS_STILL)
    subprocess.run(["cc", "-O1", "-fno-builtin", "-shared", "-fPIC", "-o", "churn.so", "churn.c"], cwd=pytester.path, check=True)
    code = """
import ctypes, memtrack, os, signal, subprocess, sys, threading, time
CHURN = ctypes.CDLL(os.path.abspath("churn.so"))
ROUNDS = ctypes.c_long.in_dll(CHURN, "rounds")
ENDED = ctypes.c_int.in_dll(CHURN, "ended")
LIMIT = time.monotonic() + PATIENCE
thread = threading.Thread(target=CHURN.churn, daemon=True)
""" + RECORDER + """
@pytest.mark.limit_memory("100 MB")
def test_waits():
    thread.start()
    words = [sys.executable, "stand_still.py", *map(str, (os.getpid(), thread.native_id, recorder()))]
    other = subprocess.Popen(words, stdout=subprocess.PIPE)
    assert os.read(other.stdout.fileno(), 5) == b"waits"

@pytest.mark.limit_memory("100 MB")
def test_goes_on():
    begun = ROUNDS.value
    while ROUNDS.value < begun + 20_000_000:
        assert thread.is_alive() and time.monotonic() < LIMIT
    ENDED.value = 1
    thread.join()
    # It has not been given up, for a thread for which there is no room.
    assert memtrack.is_recording()
"""
    # It gives up before it is killed, so that the recorder goes on.
    assert outcomes(tests(code.replace("PATIENCE", str(PATIENCE // 2)))) == {"passed": 2}


#: Stops the recorder in a test, and lets it go on before the test's report is made.
STOPPED = """
import os, pytest, signal

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    yield
    for stopped in item.funcargs["stopped"]:
        os.kill(stopped, signal.SIGCONT)
"""


#: Has the recorder asked for all sums, also for those that the process knows by itself.
ASKED = """
def pytest_collection_finish():
    from memtrack._library import Library
    Library.rest_sums = lambda library: None
"""
#: The recorder stands still from before the call of a test until after its report.
STILL = """
import os, pytest, signal
from test_shop import recorder
stopped = []

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    # Before the first one there is none.
    stopped[:] = [pid for pid in [recorder()] if pid and "still" in item.fixturenames]
    [os.kill(pid, signal.SIGSTOP) for pid in stopped]
    yield

def pytest_runtest_teardown():
    while stopped:
        os.kill(stopped.pop(), signal.SIGCONT)
"""


def test_sums_that_the_process_knows_are_those_of_the_recorder(tests, pytester, monkeypatch, executable):
    """To the byte; where the process does not know them (a thread, many blocks) and in the file of a test that follows, too."""
    code = """
import gc, json

# Also between the tests: one of all generations empties the interpreter's free lists, and comes at another test where more was allocated
# before. The next test then allocates what the others find there.
gc.disable()

@pytest.mark.parametrize("number", range(80))
@pytest.mark.limit_memory("50 MB")
def test_objects(number):
    kept = [bytes(size * 7 % 900) for size in range(number % 37)]
    others = load(number % 4)
    del kept
    texts = {size: str(size) for size in range(number)}

@pytest.mark.parametrize("number", range(60))
@pytest.mark.limit_memory("50 MB")
def test_calls(number):
    json.loads(json.dumps(list(range(number * number))))

@pytest.mark.parametrize("number", range(3))
@pytest.mark.limit_memory("50 MB")
def test_thread(number):
    thread = threading.Thread(target=load, args=(number,))
    thread.start()
    thread.join()

@pytest.mark.parametrize("blocks", [1, 2, 12, 1, 3])
@pytest.mark.limit_memory("8 MB")
def test_held(blocks):
    kept = load(blocks)
"""
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    pytester.makeconftest(FIGURES + ASKED)
    tests(code)
    asked = known(pytester)
    pytester.makeconftest(FIGURES)
    result = tests(code)
    assert outcomes(result) == {"passed": 147, "failed": 1}, result.stdout.str()
    own = known(pytester)
    # Python's set of threads grows by chance of their addresses, by 256 bytes; the recorder says in both what these tests held.
    threads = [f"test_thread[{number}]" for number in range(3)]
    one, other = [[each.pop(name) for name in threads] for each in (own, asked)]
    assert own == asked
    assert all(abs(this[key] - that[key]) <= 512 for this, that in zip(one, other) for key in this), (one, other)
    capture = re.search(r"capture: (\S+)", result.stdout.str())[1]
    stats = json.loads(subprocess.run([executable, "stats", "--json", capture], capture_output=True, check=True).stdout)
    assert stats["allocations"]["bytes"] // 1_000_000 == 12, stats


def test_a_small_test_asks_the_recorder_for_nothing(tests, pytester):
    """Its report has the figures while the recorder stands still."""
    code = RECORDER + """
@pytest.fixture
def still():
    pass

@pytest.mark.limit_memory("50 MB")
def test_before():
    pass

@pytest.mark.parametrize("blocks", [1, 2, 0])
@pytest.mark.limit_memory("50 MB")
def test_small(still, blocks):
    kept = load(blocks)

@pytest.mark.limit_memory("3 MB")
def test_over():
    kept = load(4)
"""
    pytester.makeconftest(FIGURES + STILL)
    result = tests(code)
    assert outcomes(result) == {"passed": 4, "failed": 1}, result.stdout.str()
    figures = known(pytester)
    assert [figures[f"test_small[{blocks}]"]["memtrack_peak_bytes"] // 1_000_000 for blocks in range(3)] == [0, 1, 2]
    result.stdout.fnmatch_lines(["*limit_memory('3 MB'): the test held 4.0? MB *"])


def test_what_is_surely_within_is_not_waited_for(tests, pytester):
    """Where the process does not know what a small test held, the test is judged without the recorder, which stands still until the test's
    report is to be made; the report has the figures."""
    code = "import signal\n" + RECORDER + """
@pytest.fixture
def stopped():
    return []

@pytest.mark.parametrize("blocks", [1, 2, 0])
@pytest.mark.limit_memory("50 MB")
def test_small(stopped, blocks):
    kept = load(blocks)
    stopped.append(recorder())
    os.kill(stopped[0], signal.SIGSTOP)
"""
    pytester.makeconftest(FIGURES + STOPPED + ASKED)
    result = tests(code)
    assert outcomes(result) == {"passed": 3}, result.stdout.str()
    peaks = [each["memtrack_peak_bytes"] // 1_000_000 for _, each in sorted(known(pytester).items())]
    assert peaks == [0, 1, 2]


def test_what_is_not_surely_within_is_judged_by_what_it_held(tests, pytester):
    """What all blocks of a test together have is more than the limit, to which it holds exactly as much, or one byte more."""
    code = """
CHUNK = 3_000_000
import ctypes
malloc, free = ctypes.pythonapi.PyMem_RawMalloc, ctypes.pythonapi.PyMem_RawFree
malloc.argtypes, malloc.restype, free.argtypes, free.restype = [ctypes.c_size_t], ctypes.c_void_p, [ctypes.c_void_p], None

def hold(size):
    for _ in range(3):
        free(malloc(size))

@pytest.mark.parametrize("size", [CHUNK, CHUNK + 5_000])
@pytest.mark.limit_memory(CHUNK + 4_000)
def test_one_at_a_time(size):
    hold(size)
"""
    pytester.makeconftest(FIGURES)
    result = tests(code)
    assert outcomes(result) == {"passed": 1, "failed": 1}, result.stdout.str()
    assert [each["memtrack_peak_bytes"] // 1_000_000 for each in known(pytester).values()] == [3, 3]
    assert [each["memtrack_allocated_bytes"] // 1_000_000 for each in known(pytester).values()] == [9, 9]


def test_an_answer_that_is_owed_is_not_read_of_what_the_program_has_opened_since(tests, pytester):
    """A test's end closes the recorder's socket, and opens another one with the same number, to which somebody has written."""
    code = """
import socket, unittest
theirs = []

class Closing(unittest.TestCase):
    @pytest.mark.limit_memory("50 MB")
    def test_first(self):
        load(1)

    @pytest.mark.limit_memory("50 MB")
    def test_second(self):
        load(2)

    def tearDown(self):
        links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        sockets = [link for link in links if os.path.islink(link) and os.readlink(link).startswith("socket:")]
        known = {end.fileno() for pair in theirs for end in pair}
        closed = {int(os.path.basename(link)) for link in sockets} - known - {0, 1, 2}
        [os.close(number) for number in closed]
        theirs.extend(socket.socketpair() for _ in closed)
        [end.sendall(b"hello\\n") for pair in theirs for end in pair if end.fileno() not in known]

def test_what_was_written_is_there():
    assert theirs
    for one, other in theirs:
        assert one.recv(9) == other.recv(9) == b"hello\\n"
"""
    pytester.makeconftest(FIGURES + ASKED)
    result = tests(code)
    assert outcomes(result) == {"passed": 3}, result.stdout.str()

