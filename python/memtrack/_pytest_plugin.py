"""The plugin for pytest: limits of tests, and a summary of what they hold.

It is loaded wherever memtrack is installed, and does nothing until a marker or an option asks for it. Invariant: it
changes neither what tests do nor the order of hooks; a limit fails a test by an exception at the end of its call, so that
whatever handles failures (reruns, xfail, unittest) handles it.
"""

import contextlib
import inspect
import os
import re
import tempfile
import warnings

# By name: a test may replace them in their modules while it is recorded.
from os import getpid, unlink
from os.path import exists
from typing import TYPE_CHECKING, Any, Callable, Dict, Generator, List, Optional, Set, Tuple, TypeVar

import pytest

from memtrack._program import keep_program

if TYPE_CHECKING:
    from memtrack._junit import JunitProperties
    from memtrack._limited_calls import LimitedCalls
    from memtrack._test_figures import Figures, RecordedSession
    from memtrack._test_limits import Limit

_Hook = TypeVar("_Hook", bound=Callable[..., Any])
#: Whether pytest has wrappers of hooks that are generators and no more, and uses them itself: before pluggy 1.6 a StopIteration of a test
#: comes out of them as a RuntimeError, so that it is to be none of memtrack's doing.
_HAS_WRAPPERS = int(pytest.__version__.split(".")[0]) >= 8 and "wrapper" in inspect.signature(pytest.hookimpl).parameters
UNCHECKED = "memtrack: the limits of this test cannot be checked: "
_MARKERS = {
    "limit_memory": "limit_memory(limit, *, current_thread_only=False): fails the test if it holds more at its own "
    "high-water mark, such as 24 MB.",
    "limit_leaks": "limit_leaks(limit, *, repeat=5, filter_fn=None, current_thread_only=False): runs the test several times, and "
    "fails it if what it leaves goes on growing by more than the limit with each run.",
}
_OPTIONS = {
    "memtrack": ("Record all tests, and show which hold most", None),
    "memtrack_top": ("Show the N tests that hold most; 0 shows all (default: 10)", "N"),
    "memtrack_dir": ("Keep the captures in DIR", "DIR"),
    "memtrack_limit": ("limit_memory for tests without such a marker, such as 100MB", "SIZE"),
    "memtrack_compare": ("Compare the peaks with FILE; write it if it does not exist. Implies --memtrack", "FILE"),
    "memtrack_fail_over": ("With --memtrack-compare: fail if the peak of a test grew by more, such as 10%% or 5MB", "GROWTH"),
    "memtrack_native": ("Record the stacks of native code, too", None),
    "memtrack_python_allocators": (
        "yes or no: record every Python object, not only the arenas that objects lie in (default: of tests with a limit)",
        "WHEN",
    ),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("memtrack")
    for name, (text, value) in _OPTIONS.items():
        option = f"--{name.replace('_', '-')}"
        if value is None:
            group.addoption(option, action="store_true", default=None, help=text)
            parser.addini(name, text, type="bool", default=False)
        else:
            group.addoption(option, metavar=value, default=None, help=text)
            parser.addini(name, text.replace("%%", "%"), default=None)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    keep_program()
    options = _Options(config)
    other = config.pluginmanager.get_plugin("memray_manager")
    if other is not None and options.records_all and not config.getoption("memray", None):
        # With --memtrack its markers are ours: two recordings of one call would each see the other's memory.
        config.pluginmanager.unregister(other)
        other = None
    for text in _MARKERS.values() if other is None else ():
        config.addinivalue_line("markers", text)
    if other is None or options.records_all or options.limit:
        config.pluginmanager.register(MemtrackPlugin(config, options, other is None), "memtrack_tests")


class _Options:
    """The command line's options, else those of the ini file."""

    def __init__(self, config: pytest.Config) -> None:
        from memtrack._sizes import Growth, parse_size

        def value(name: str) -> Any:
            given = config.getoption(name, None)
            return config.getini(name) or None if given is None else given

        try:
            self.compare: Optional[str] = value("memtrack_compare")
            self.records_all = bool(value("memtrack") or self.compare)
            self.top = _number("--memtrack-top", value("memtrack_top"), 10)
            self.directory_name: Optional[str] = value("memtrack_dir")
            # From here, wherever a test changes to.
            self.directory: Optional[str] = os.path.abspath(self.directory_name) if self.directory_name else None
            self.limit: Optional[str] = value("memtrack_limit")
            if self.limit:
                parse_size(self.limit)
            growth = value("memtrack_fail_over")
            self.fail_over = Growth(growth) if growth else None
            self.native = bool(value("memtrack_native"))
            self.python_allocators = _yes_or_no(value("memtrack_python_allocators"))
        except ValueError as error:
            raise pytest.UsageError(f"memtrack: {error}") from None
        if self.fail_over and not self.compare:
            raise pytest.UsageError("memtrack: --memtrack-fail-over needs --memtrack-compare FILE")
        # A directory of the ini file is made where something is to be written there.
        is_asked = self.records_all or self.limit or config.getoption("memtrack_dir", None)
        if is_asked and not config.option.collectonly and not getattr(config.option, "help", False):
            self._try_files()

    def _try_files(self) -> None:
        """What cannot be written is said before any test runs; under pytest-xdist by its controller."""
        option = f"--memtrack-dir {self.directory_name}: cannot be created"
        try:
            if self.directory is not None:
                os.makedirs(self.directory, exist_ok=True)
            option = f"--memtrack-compare {self.compare}: cannot be written"
            if self.compare and not exists(self.compare):
                tempfile.TemporaryFile(dir=os.path.dirname(self.compare) or ".").close()
        except OSError as error:
            raise pytest.UsageError(f"memtrack: {option}: {error.strerror}") from None


def _markers(item: pytest.Item) -> Tuple[Optional[pytest.Mark], Optional[pytest.Mark]]:
    """The closest marker of each kind, as `get_closest_marker` gives them, in one pass, which each test without limits takes, too."""
    memory = leaks = None
    node: Any = item
    while node is not None:
        for marker in node.own_markers:
            if memory is None and marker.name == "limit_memory":
                memory = marker
            elif leaks is None and marker.name == "limit_leaks":
                leaks = marker
        node = node.parent
    return memory, leaks


def _number(option: str, text: Optional[str], default: int) -> int:
    if not text:
        return default
    if not text.isdecimal():
        raise ValueError(f"{option} {text}: expected a number")
    return int(text)


def _yes_or_no(text: Optional[str]) -> Optional[bool]:
    if text is None:
        return None
    if text.lower() not in ("yes", "no", "true", "false"):
        raise ValueError(f"--memtrack-python-allocators {text}: expected yes or no")
    return text.lower() in ("yes", "true")


def wraps_hook(**options: bool) -> Callable[[_Hook], _Hook]:
    """Marks a function that wraps a hook, in the way that costs each test less, where pytest has it."""
    known: Dict[str, Any] = {**options, "wrapper" if _HAS_WRAPPERS else "hookwrapper": True}
    mark: Callable[[_Hook], _Hook] = pytest.hookimpl(**known)
    return mark


class MemtrackPlugin:
    """The hooks of one session. Those of each test are `RecordedTests`, which a session without anything to record does not have."""

    def __init__(self, config: pytest.Config, options: _Options, has_markers: bool) -> None:
        self.config = config
        self.options = options
        self.has_markers = has_markers
        self.session: "Optional[RecordedSession]" = None
        self.figures: "Dict[str, Figures]" = {}
        self.wrong: List[str] = []
        self.comparison: List[str] = []
        self.problems: List[str] = []
        self.passed: Set[str] = set()
        self._junit: "Optional[JunitProperties]" = None
        self._directory: Optional[str] = None
        self._numbers: Dict[str, int] = {}
        self._paths: Set[str] = set()
        self.process = getpid()
        """The session's, not that of a test in a process of its own."""
        #: The limits of tests with one marker, by its size, which is a text; of those with none by None.
        self._limits: "Dict[Optional[str], List[Limit]]" = {}
        #: Records the calls of tests with limits, from the first one on.
        self._limited: "Optional[LimitedCalls]" = None
        self._is_prepared = False
        self.is_limited = False
        """The test that is called has limits."""
        self.next: Optional[pytest.Item] = None
        """The test after this one."""

    # --- which tests, and how ------------------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """All hooks have had the tests: that of a conftest.py may have given them markers."""
        if not self.config.option.collectonly:
            if self.options.records_all or any(map(self.has_limits, session.items)):
                self.prepare()
            else:
                # There is no marker that could be wrong. A suite may collect again.
                if self.has_markers and not self.config.pluginmanager.hasplugin("memtrack_late_markers"):
                    self.config.pluginmanager.register(_LateMarkers(self), "memtrack_late_markers")
                return
        if hasattr(self.config, "workerinput"):
            # What a worker of pytest-xdist refuses, its controller takes for a crash: the test itself fails there.
            return
        for item in session.items:
            try:
                self.limits(item)
            except (TypeError, ValueError) as error:
                raise pytest.UsageError(f"{item.nodeid}: {error}") from None

    def prepare(self, shows_warnings: Any = None) -> None:
        """Prepares for tests with limits, before the first of them has fixtures. `shows_warnings`: what pytest has put in place to record
        the warnings of a test that has begun."""
        if self._is_prepared:
            return
        self._is_prepared = True
        # What these need of other modules, a test may replace there as soon as its fixtures are made.
        from memtrack import _control, _tracker, _unpatched  # noqa: F401

        self.limited()
        self._record_tests(shows_warnings)
        _unpatched.keep_modules()

        # Where it cannot be made, the tests say so.
        with contextlib.suppress(OSError):
            self._captures()

    def _record_tests(self, shows_warnings: Any = None) -> None:
        """Has the tests that come, and the call of the present one, recorded, each as it is to be."""
        if not self.config.pluginmanager.hasplugin("memtrack_recorded_tests"):
            from memtrack._recorded_tests import LateLimits, RecordedTests
            from memtrack._test_output import OutputPlugin

            self.config.pluginmanager.register(RecordedTests(self), "memtrack_recorded_tests")
            self.config.pluginmanager.register(LateLimits(self), "memtrack_late_limits")
            self.config.pluginmanager.register(OutputPlugin(self, shows_warnings), "memtrack_output")

    def has_limits(self, item: pytest.Item) -> bool:
        """Whether the test has a limit that is judged here: one with a marker of pytest-memray's is judged there."""
        memory, leaks = _markers(item)
        return bool(self.options.limit) if memory is None and leaks is None else self.has_markers

    def fail_if_late(self, item: pytest.Item) -> None:
        """After the call of a test without limits that has not failed."""
        if self.has_limits(item):
            pytest.fail(f"{UNCHECKED}its marker came after its setup; add it in a fixture, or in pytest_runtest_setup", pytrace=False)

    def limits(self, item: pytest.Item) -> "List[Limit]":
        """The limits of a test: its markers', else that of --memtrack-limit. A fixture may have added a marker."""
        memory, leaks = _markers(item)
        if not (self.has_markers if memory or leaks else self.options.limit):
            return []
        size = memory.args[0] if memory is not None and len(memory.args) == 1 and not memory.kwargs else None
        # Most tests have the same one, and each a marker of its own.
        is_usual = leaks is None and (memory is None or type(size) is str)
        known = self._limits.get(size) if is_usual else None
        if known is None:
            from memtrack._test_limits import limits_of

            known = limits_of(memory, leaks, self.options.limit, _MARKERS)
            if is_usual:
                self._limits[size] = known
        return known

    def limited(self) -> "LimitedCalls":
        """What records the calls of tests with limits."""
        if self._limited is None:
            from memtrack._limited_calls import LimitedCalls

            self._limited = LimitedCalls(self)
            self.config.pluginmanager.register(self._limited, "memtrack_limited_calls")
        return self._limited

    @property
    def goes_on(self) -> bool:
        """Whether the next test has limits, too."""
        return self.next is not None and self.has_limits(self.next)

    @property
    def is_shared(self) -> bool:
        """Whether tests with limits share a recording at present."""
        return self._limited is not None and self._limited.is_shared

    def end_shared(self) -> None:
        """Ends the recording that tests with limits share, if there is one."""
        if self._limited is not None:
            self._limited.end_shared()

    def capture_path(self, name: str) -> str:
        """A name for a capture, after the test's, which no other test of the session has."""
        name = re.sub(r"[^\w.=-]+", "-", name.replace(os.sep, "-")).strip("-")[:150]
        # A point before a number is for those of children: `1.5` is none of `1`.
        name = re.sub(r"\.(?=\d)", "_", name)
        worker = os.environ.get("PYTEST_XDIST_WORKER")
        stem = os.path.join(self._captures(), f"{name}-{worker}" if worker else name)
        number = self._numbers.get(stem, 0) + 1
        path = f"{stem}-{number}.bin" if number > 1 else f"{stem}.bin"
        # That of a test in a process of its own is known by its file only.
        while path in self._paths or (self.options.directory is None and exists(path)):
            number += 1
            path = f"{stem}-{number}.bin"
        self._numbers[stem] = number
        self._paths.add(path)
        if self.options.directory is not None and exists(path):
            from memtrack._spans import captures_at

            for earlier in captures_at(path):  # of an earlier session
                unlink(earlier)
        return path

    def _captures(self) -> str:
        directory = self.options.directory
        if directory is not None:
            os.makedirs(directory, exist_ok=True)
            return directory
        if self._directory is None:
            factory = getattr(self.config, "_tmp_path_factory", None)
            # pytest keeps the directories of its last three sessions.
            self._directory = str(factory.mktemp("memtrack")) if factory else tempfile.mkdtemp(prefix="memtrack-")
        return self._directory

    # --- all tests of a session -----------------------------------------------------------------------------------------

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, Any, None]:
        if self.options.records_all:
            # Before a test replaces what these need.
            from memtrack import _test_figures  # noqa: F401
            from memtrack._junit import JunitProperties
            from memtrack._recorded_tests import Reports

            self._junit = JunitProperties(self.config)
            self.config.pluginmanager.register(Reports(self, self._junit), "memtrack_reports")
        distributed = self.config.pluginmanager.hasplugin("dsession")
        if not self.options.records_all or distributed or self.config.option.collectonly:
            yield
            self.end_shared()
            return
        from memtrack import Error, _control, _test_calls, _unpatched  # noqa: F401
        from memtrack._test_figures import RecordedSession

        self._record_tests()
        _unpatched.keep_modules()
        options: Dict[str, Any] = {
            "native_traces": self.options.native,
            "trace_python_allocators": self.options.python_allocators is True,
        }
        if self.options.directory is None:
            # Its file is removed, and no figure of a test has to do with resident memory.
            options["memory_interval_ms"] = 10_000
        try:
            recorded = RecordedSession(self.capture_path("memtrack-session"), options)
            recorded.begin()
        except Error as error:
            raise pytest.UsageError(f"memtrack: {error}") from error
        self.session = recorded
        yield
        self.session = None
        self.end_shared()
        try:
            self.figures = recorded.end()
        except Error as error:
            self.problems.append(str(error))
        if self.options.directory is None:
            for path in recorded.files:
                if exists(path):
                    unlink(path)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker of pytest-xdist has ended."""
        told: "Optional[Dict[str, Any]]" = (getattr(node, "workeroutput", None) or {}).get("memtrack")
        if told is None:
            told = {"figures": {}, "problems": ["it ended without figures"] if self.options.records_all else []}
        for name, figures in told["figures"].items():
            known = self.figures.get(name)
            if known is None or figures["peak_bytes"] > known["peak_bytes"]:
                self.figures[name] = figures
        self.problems += [f"worker {node.gateway.id}: {problem}" for problem in told["problems"]]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        worker_output = getattr(self.config, "workeroutput", None)
        if worker_output is not None:
            worker_output["memtrack"] = {"figures": self.figures, "problems": self.problems}
            return
        if not self.options.records_all:
            return
        if self._junit is not None:
            self._junit.add(self.figures)
        if self.options.compare:
            self._compare(self.options.compare)
        if (self.wrong or self.problems) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _compare(self, path: str) -> None:
        from memtrack import Error
        from memtrack._test_figures import compared

        if self._unmeasured() and not self.problems:
            self.problems.append(self._unmeasured())
        if not self.figures:
            self.comparison = [f"no test was measured, so that nothing is compared with {path}"]
            return
        if self.problems and not exists(path):
            self.comparison = [f"{path}: not written, since figures are missing"]
            return
        try:
            self.comparison, self.wrong = compared(self.figures, path, self.options.fail_over)
        except Error as error:
            self.problems.append(str(error))

    def _unmeasured(self) -> str:
        """Which tests have passed without figures, if any."""
        names = sorted(self.passed.difference(self.figures))
        others = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
        return f"{names[0]}{others}: passed without being measured" if names else ""

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self.options.records_all:
            return
        from memtrack._test_figures import summary

        if self.figures:
            terminalreporter.write_sep("=", f"memtrack: memory of {len(self.figures):,} {'tests' if len(self.figures) > 1 else 'test'}")
            for line in summary(self.figures, self.options.top):
                terminalreporter.write_line(line)
        if self._unmeasured() and not self.options.compare:
            terminalreporter.write_line(f"memtrack: {self._unmeasured()}", yellow=True)
        if self.comparison:
            terminalreporter.write_sep("=", f"memtrack: compared with {self.options.compare}", red=bool(self.wrong))
            for line in self.comparison:
                terminalreporter.write_line(line, red=any(line.endswith(f"more than {over}") for over in self._over()))
        if self.wrong:
            number = f"{len(self.wrong)} tests hold" if len(self.wrong) > 1 else "1 test holds"
            terminalreporter.write_line(f"{number} more than allowed by --memtrack-fail-over", red=True)
        for problem in self.problems:
            terminalreporter.write_line(f"memtrack: error: {problem}", red=True)
        if self.options.directory is not None and self.figures:
            terminalreporter.write_line(f"captures: {self.options.directory_name}")

    def _over(self) -> List[str]:
        return [self.options.fail_over.text] if self.options.fail_over else []


class _LateMarkers:
    """Awaits the first limit in a session without any: a hook or a fixture may add a marker to a test that has begun."""

    def __init__(self, plugin: MemtrackPlugin) -> None:
        self._plugin = plugin
        self._shows_warnings: Any = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_fixture_setup(self, request: pytest.FixtureRequest) -> None:
        """This fixture may replace what memtrack needs."""
        self._look(getattr(request, "_pyfuncitem", None))

    @wraps_hook(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """The last fixture may have added it. None has begun to record warnings yet; the name is that of `_test_warnings`."""
        self._shows_warnings = getattr(warnings, "_showwarnmsg_impl", None)
        result = yield
        self._look(item)
        return result

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        """After a test that has not failed: nobody has looked at a limit that came in its call."""
        self._plugin.fail_if_late(item)

    def _look(self, item: Optional[pytest.Item]) -> None:
        manager = self._plugin.config.pluginmanager
        if item is not None and manager.is_registered(self) and self._plugin.has_limits(item):
            self._plugin.prepare(self._shows_warnings)
            manager.unregister(self)
