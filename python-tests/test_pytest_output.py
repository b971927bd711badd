"""The plugin for pytest where pytest keeps what a test logs and prints: that is not the test's memory, and pytest reports it as ever.

Each test runs pytest in a process of its own, as in test_pytest_plugin.py.
"""

import json
import threading
import warnings

import pytest

from conftest import REPOSITORY
from test_pytest_plugin import outcomes, tests  # noqa: F401

pytest_plugins = ["pytester"]

LOGS = """
import logging, sys
log = logging.getLogger("shop")

def handle(order):
    log.warning("order %d: %s", order, "x" * (2000 + order))
"""


def test_what_a_test_logs_is_no_leak_and_not_held(tests):  # noqa: F811
    result = tests(
        LOGS
        + """
@pytest.mark.limit_leaks("20 kB")
def test_leaks():
    for order in range(30):
        handle(order)

@pytest.mark.limit_memory("7 MB")
def test_held():
    # The records, which caplog might be asked for, hold 5 MB of texts; pytest's two handlers had half as much each, and more while they grew.
    for order in range(1000):
        handle(order)

@pytest.mark.limit_leaks("20 kB")
def test_leaks_with_caplog(caplog):
    for order in range(30):
        handle(order)
    assert len(caplog.records) == 30 and caplog.text.count("order ") == 30

@pytest.mark.limit_memory("1 MB")
def test_over():
    handle(7)
    kept = load(3)
""",
    )
    assert outcomes(result) == {"passed": 3, "failed": 1}, result.stdout.str()
    result.stdout.fnmatch_lines(["limit_memory('1 MB'): the test held 3.0* MB *", "kept by pytest for its report, not judged: log (2.05 kB)", "kept by pytest and judged: 1 log record, with what its arguments hold; *"])
    # As ever.
    result.stdout.fnmatch_lines(["*Captured log call*", "WARNING *shop:test_shop.py:* order 7: xxxx*"])


def test_what_is_logged_does_not_count_in_a_session(tests, pytester):  # noqa: F811
    result = tests(LOGS + "def test_it():\n    for order in range(4000):\n        handle(order)\n", "--memtrack-compare=figures.json")
    assert outcomes(result) == {"passed": 1} and "memtrack: memory of 1 test =" in result.stdout.str()
    known = json.loads((pytester.path / "figures.json").read_text())
    assert known["tests"]["test_shop.py::test_it"]["peak_bytes"] < 40_000_000


def test_records_that_a_test_keeps_itself_are_its_own(tests):  # noqa: F811
    result = tests(
        LOGS
        + """
KEPT = []

class Keeps(logging.Handler):
    def emit(self, record):
        KEPT.append(record)

@pytest.fixture
def keeps():
    handler = Keeps()
    log.addHandler(handler)
    yield
    log.removeHandler(handler)

def work():
    for order in range(100):
        log.warning("order %s", bytearray(1000))

@pytest.mark.limit_leaks("100 kB")
def test_handler(keeps):
    work()

@pytest.mark.limit_memory("100 kB")
def test_handler_held(keeps):
    work()

@pytest.mark.limit_leaks("100 kB")
def test_caplog(caplog):
    work()
    KEPT.append(caplog.records)

@pytest.mark.limit_leaks("100 kB")
def test_neither(caplog):
    work()
""",
    )
    assert outcomes(result) == {"passed": 1, "failed": 3}, result.stdout.str()
    result.stdout.fnmatch_lines(["FAILED *::test_handler - *", "FAILED *::test_handler_held - *", "FAILED *::test_caplog - *"])


@pytest.mark.parametrize("options", [[], ["--memtrack-limit=50MB"], ["--memtrack"]])
def test_the_log_is_what_it_is_without_memtrack(tests, options):  # noqa: F811
    """Whoever asks for it, and whenever; also of a child, and in the report."""
    result = tests(
        LOGS
        + """
@pytest.fixture
def no_errors(caplog):
    yield
    assert not [record for record in caplog.get_records("call") if record.levelno >= logging.ERROR]

def test_fixture_finds_an_error(no_errors):
    log.error("broken")

def test_asks_late(request):
    handle(1)
    caplog = request.getfixturevalue("caplog")
    assert len(caplog.records) == 1 and "order 1" in caplog.text

@pytest.fixture
def asks(request):
    return request.getfixturevalue

def test_asks_by_a_fixture(asks):
    handle(1)
    assert len(asks("caplog").messages) == 1

def test_clears(caplog):
    log.warning("\\udc80")
    assert "\\udc80" in caplog.text
    handle(1)
    caplog.clear()
    handle(2)
    assert len(caplog.records) == 1 and "order 2" in caplog.text and "order 1" not in caplog.text

def test_child(caplog):
    handle(1)
    process = os.fork()
    if process == 0:
        handle(2)
        os._exit(caplog.text.count("order ") != 2)
    assert os.waitpid(process, 0)[1] == 0
    assert caplog.text.count("order ") == 1
    handle(3)
    assert caplog.text.count("order ") == 2

def test_reports():
    log.warning("first \\u20ac")
    for order in range(100):
        handle(order)
    assert False, "its own reason"

def test_setup_and_call_have_logs_of_their_own(caplog):
    assert caplog.text == ""
""",
        *options,
    )
    assert outcomes(result) == {"passed": 6, "failed": 1, "errors": 1}, result.stdout.str()
    result.stdout.fnmatch_lines(["*its own reason*", "*Captured log call*", "WARNING *first \u20ac*", "*order 99: xxx*"])


@pytest.mark.parametrize("options", [[], ["--memtrack-limit=50MB"], ["--memtrack"]])
def test_who_looks_at_the_log_in_ways_of_his_own_finds_it(tests, pytester, options):  # noqa: F811
    """Handlers of the project's, a hook that reads the stash, doctests, and the stream of caplog's handler."""
    pytester.makeconftest("""
import pytest
from _pytest.logging import caplog_records_key

@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.when == "call" and item.name == "test_logs_an_error":
        levels = [record.levelname for record in item.stash[caplog_records_key]["call"]]
        report.outcome = "failed" if "ERROR" in levels else "passed"
    return report
""")
    result = tests(
        LOGS
        + '''
from _pytest.logging import LogCaptureHandler, catching_logs

@pytest.fixture
def logs():
    with catching_logs(LogCaptureHandler(), level=logging.INFO) as handler:
        yield handler

def test_own_handler(logs):
    log.warning("hello")
    assert [record.message for record in logs.records] == ["hello"] and "hello" in logs.stream.getvalue()

def test_logs_an_error():
    log.error("broken")

def test_stream(caplog):
    log.warning("one")
    assert not any(handler.stream.isatty() or handler.stream.closed for handler in logging.getLogger().handlers if hasattr(handler, "stream"))
    stream = caplog.handler.stream
    stream.seek(0)
    assert "one" in stream.read()
    stream.seek(0)
    stream.truncate()
    log.warning("two")
    assert "two" in caplog.text and "one" not in caplog.text

def documented():
    """
    >>> caplog = getfixture("caplog")
    >>> log.warning("in a doctest")
    >>> [record.message for record in caplog.records]
    ['in a doctest']
    """
''',
        "--doctest-modules",
        *options,
    )
    assert outcomes(result) == {"passed": 3, "failed": 1}, result.stdout.str()
    result.stdout.fnmatch_lines(["FAILED *::test_logs_an_error*"])


PRINTS = """
import sys

def tell(orders):
    for order in range(orders):
        print("y" * 5000)
"""


def test_what_a_test_prints_is_no_leak_and_not_held(tests):  # noqa: F811
    code = LOGS + PRINTS + """
@pytest.mark.limit_leaks("20 kB")
def test_leaks(capsys):
    tell(100)

@pytest.mark.limit_memory("100 kB")
def test_held(capsys):
    tell(1000)

@pytest.mark.limit_memory("100 kB")
def test_over(capsys):
    tell(100)
    kept = load(1)

@pytest.mark.limit_leaks("20 kB")
def test_keeps(capsys, kept=[]):
    kept.append("z" * 100_000 + str(len(kept)))
    print(kept[-1])
"""
    result = tests(code)
    assert outcomes(result) == {"passed": 2, "failed": 2}, result.stdout.str()
    result.stdout.fnmatch_lines(["limit_memory('100 kB'): the test held 1.0* MB *", "kept by pytest for its report, not judged: what it prints (*kB)"])
    assert outcomes(tests(code.replace("(capsys)", "()"), "--capture=sys")) == {"passed": 2, "failed": 2}


def test_a_failure_names_the_library_through_which_it_was_allocated(tests):  # noqa: F811
    result = tests(
        """
import json

@pytest.mark.limit_memory("1 MB")
def test_over():
    kept = json.loads("[" + ",".join(["12345.5"] * 100_000) + "]")
"""
    )
    assert outcomes(result) == {"failed": 1}
    result.stdout.fnmatch_lines(["* MB * test_over at test_shop.py:*, via *json/*"])


def test_a_failure_names_threads_that_are_older_than_the_test(tests):  # noqa: F811
    """Where they count, and only they."""
    result = tests(
        """
import queue
ORDERS, DONE = queue.Queue(), queue.Queue()

def serve():
    kept = []
    while ORDERS.get():
        kept.append(bytearray(3_000_000))
        DONE.put(True)

SERVER = threading.Thread(target=serve, name="server", daemon=True)

def ask():
    ORDERS.put(True)
    DONE.get()

def test_starts():
    SERVER.start()

@pytest.mark.limit_memory("1 MB")
def test_by_an_older_one():
    ask()

@pytest.mark.limit_memory("1 MB")
def test_by_its_own():
    thread = threading.Thread(target=load, args=(7,))
    thread.start()
    thread.join()

@pytest.mark.limit_memory("1 MB", current_thread_only=True)
def test_not_counted():
    ask()

@pytest.mark.limit_leaks("1 MB")
def test_leaks_by_an_older_one():
    ask()
"""
    )
    assert outcomes(result) == {"passed": 2, "failed": 3}, result.stdout.str()
    # The summary at the end has the texts again where CI is set.
    lines = result.outlines[: next(at for at, line in enumerate(result.outlines) if "short test summary info" in line)]
    said = [line for line in lines if line.startswith("by threads that are older than the test: ")]
    assert len(said) == 2 and all("(3.00 MB); with current_thread_only=True" in line for line in said), said


WARNS = """
import warnings

class Odd(UserWarning):
    def __init__(self, number, *, more):
        super().__init__(f"odd {number}")
        self.more = more

class Plain(DeprecationWarning):
    pass

class Text(str):
    pass

class Number(int):
    pass

def old(text, category=DeprecationWarning):
    warnings.warn(text, category, stacklevel=2)
"""


def test_warnings_are_no_leak_and_not_held(tests):  # noqa: F811
    result = tests(
        WARNS
        + """
@pytest.mark.limit_leaks("10 kB")
def test_same():
    for number in range(100):
        old("use new")

@pytest.mark.limit_leaks("10 kB")
def test_each():
    for number in range(100):
        old(f"{number}: use new", Plain)

@pytest.mark.limit_leaks("10 kB")
@pytest.mark.filterwarnings("always")
def test_odd():
    for number in range(100):
        warnings.warn(Odd(number, more=bytearray(1000)))

@pytest.mark.limit_leaks("10 kB")
@pytest.mark.filterwarnings("always")
def test_new_categories():
    # As of a module that each run loads again. Without "always" the module's __warningregistry__ holds them.
    for number in range(20):
        old("use new", type("New", (UserWarning,), {"text": "x" * 1000}))
    old("use new", Plain)

@pytest.mark.limit_memory("500 kB")
def test_held():
    for number in range(5000):
        old(f"{number}: use new")

@pytest.mark.limit_memory("1 MB")
def test_over():
    old("use new")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn(Odd(1, more=bytearray(1000)))
    kept = load(3)
""",
    )
    assert outcomes(result) == {"passed": 5, "failed": 1}, result.stdout.str()
    result.stdout.fnmatch_lines(
        [
            "limit_memory('1 MB'): the test held 3.0* MB *",
            "kept by pytest for its report, not judged: warnings (* B)",
            "kept by pytest and judged: 1 warning, with what it refers to; *",
        ]
    )


@pytest.mark.parametrize("options", ["--memtrack-limit=50MB", "--memtrack"])
def test_warnings_are_what_they_are_without_memtrack(tests, pytester, options):  # noqa: F811
    """Those that pytest reports, whatever they are, and those that a test looks at itself."""
    pytester.makeconftest("""
known = []

def pytest_warning_recorded(warning_message, nodeid):
    each = warning_message
    known.append((str(each.message), each.category.__name__, each.lineno, type(each.message).__name__, getattr(each.message, "more", None), nodeid))

def pytest_sessionfinish():
    with open("known.txt", "w") as file:
        print(*known, sep=chr(10), file=file)
""")
    code = """
@pytest.fixture
def warns():
    old("before")
    yield
    old("after")

@pytest.mark.filterwarnings("always")
def test_kinds(warns):
    old("text")
    old("\u20ac", Plain)
    warnings.warn(Odd(7, more=(1, 2)))
    warnings.warn(Plain(1, "two", None))
    warnings.warn(Plain(["a", "list"]))
    warnings.warn(Plain("bytes", bytearray(b"abc")))
    warnings.warn(Text("a text of another type"))
    warnings.warn_explicit("line", UserWarning, "other.py", Number(3))
    warnings.warn_explicit("elsewhere", UserWarning, "other.py", 17)
    process = os.fork()
    if process == 0:
        old("child")
        os._exit(0)
    os.waitpid(process, 0)
    old("text")

@pytest.mark.filterwarnings("error")
def test_error():
    with pytest.raises(DeprecationWarning):
        old("raised")

def test_recwarn(recwarn):
    old("one")
    assert [str(each.message) for each in recwarn.list] == ["one"]

def test_own():
    with pytest.warns(DeprecationWarning, match="two"):
        old("two")
    with warnings.catch_warnings(record=True) as own:
        warnings.simplefilter("always")
        old("three")
        assert len(own) == 1
    old("four")

def test_threads():
    threads = [threading.Thread(target=lambda: [old("many") for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

def test_left_open():
    left = warnings.catch_warnings()
    left.__enter__()
    old("five")
    left.__exit__(None, None, None)
    old("six")
"""
    without = tests(WARNS + code, "-p", "no:memtrack_tests")
    known = (pytester.path / "known.txt").read_text()
    assert len(known.splitlines()) == 215, known
    result = tests(WARNS + code, options)
    assert outcomes(result) == {"passed": 6} == outcomes(without), result.stdout.str()
    assert (pytester.path / "known.txt").read_text() == known


def test_a_thread_that_warns_as_the_test_ends(monkeypatch):
    """Its warning is in the report, and nothing fails by it."""
    monkeypatch.syspath_prepend(str(REPOSITORY / "python"))
    from memtrack._shared_bytes import SharedBytes
    from memtrack._test_warnings import KeptWarnings

    reached, goes_on = threading.Event(), threading.Event()

    class Lock:
        """Lets the thread go on as soon as somebody waits for it."""

        def __init__(self):
            self._lock = threading.Lock()
            self.release = self._lock.release

        def acquire(self, blocking=True, timeout=-1):
            if blocking:
                goes_on.set()
            return self._lock.acquire(blocking, timeout)

    class Bytes(SharedBytes):
        def content(self):
            known = super().content()
            goes_on.set()
            thread.join()
            return known

    class Kept(KeptWarnings):
        def _packed(self, message):
            if threading.current_thread() is thread:
                reached.set()
                goes_on.wait()
            return super()._packed(message)

    def message(text):
        return warnings.WarningMessage(UserWarning(text), UserWarning, "shop.py", 1)

    shown = []
    thread = threading.Thread(target=lambda: kept.add(message("amid")))
    with warnings.catch_warnings():
        kept = Kept(shown, Bytes())
        kept._lock = Lock()
        kept.add(message("before"))
        thread.start()
        reached.wait()
        kept.restore()
        kept.add(message("after"))
    assert [str(each.message) for each in shown] == ["before", "amid", "after"]
