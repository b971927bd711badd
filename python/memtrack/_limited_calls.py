"""Records the calls of tests with limits, and judges them.

What it uses it imports at once: an import while a test begins or ends takes longer than most of what is done then. Invariant: a test
that is over a limit fails by an exception at the end of its call, and so does one that cannot be recorded.
"""

import contextlib
import functools

# By name: a test may replace it in its module while it is recorded.
from os import getpid
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Tuple, Union

import pytest

from memtrack._errors import Error
from memtrack._pytest_plugin import UNCHECKED
from memtrack._rest import RestingRecording
from memtrack._test_calls import goes_on, is_async, replace_call
from memtrack._test_limits import LimitExceeded, RecordedCall, await_test, call_test, own_fixtures
from memtrack._unpatched import has_builtins, undisturbed

if TYPE_CHECKING:
    from memtrack._pytest_plugin import MemtrackPlugin
    from memtrack._test_limits import Limit


_UNSEEN = (
    "its function was not called, or by another plugin in a way that memtrack does not see; "
    "run it without that plugin (-p no:NAME), or take the limit away"
)
_GOES_ON = (
    "its function has returned something that goes on ({}), such as a Deferred or a coroutine, for whoever calls it; "
    "memtrack sees to the end of functions, and of `async def`"
)


class LimitedCalls:
    """The calls of tests with limits of one session."""

    def __init__(self, plugin: "MemtrackPlugin") -> None:
        self._plugin = plugin
        self._root = str(plugin.config.rootpath)
        self._options: Dict[str, Any] = {
            "native_traces": plugin.options.native,
            "trace_python_allocators": plugin.options.python_allocators is not False,
        }
        self._resting: Optional[RestingRecording] = None
        #: A test that is within its limits, whose figures are still to come.
        self._late: Optional[Tuple[pytest.Item, RecordedCall]] = None
        #: The test whose limits are still to be looked at, and why they are not.
        self._unseen: Optional[Tuple[pytest.Item, str]] = None

    def begin(self, item: pytest.Item, limits: "List[Limit]") -> Callable[[], None]:
        """Puts what records and judges it around the call of a test; gives what takes that away again."""
        self._unseen = item, _UNSEEN
        return replace_call(item, functools.partial(self._recorded, item, limits))

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        """After a test that has not failed: its limits were looked at. What unittest skips, which calls nothing, is an outcome of the item."""
        unseen, self._unseen = self._unseen, None
        if unseen is not None and unseen[0] is item and not getattr(item, "_excinfo", None):
            pytest.fail(_unchecked(unseen[1]), pytrace=False)

    def _recorded(self, item: pytest.Item, limits: "List[Limit]", function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, recorded and judged."""
        if is_async(function):

            @functools.wraps(function)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                __tracebackhide__ = True
                result = None
                with self._recording(item, limits) as test:
                    for number in test.numbers():
                        with _named_run(item, number):
                            result = await await_test(function, args, kwargs)
                self._judge(item, test)
                return result

            return awaited

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            result = None
            with self._recording(item, limits) as test:
                if not test.repeat:
                    # As below, with less that is recorded: of a small test it is the larger part.
                    note_run = test.note_run
                    begin = note_run()
                    result = call_test(function, args, kwargs)
                    test.runs.append((begin, note_run()))
                for number in test.numbers() if test.repeat else ():
                    with _named_run(item, number):
                        # Two of them do not go on at one time.
                        result = result if goes_on(result) else call_test(function, args, kwargs)
            if goes_on(result):
                self._unseen = item, _GOES_ON.format(type(result).__name__)
            self._judge(item, test)
            return result

        return called

    def _recording(self, item: pytest.Item, limits: "List[Limit]") -> RecordedCall:
        """A recording for one call of this test, which has begun; the test fails where there can be none."""
        self._unseen = None
        # Of an earlier call of the same test.
        self.note_late()
        if self._plugin.session is not None:
            self._plugin.session.pause()
        shared = self._shared()
        fixtures = functools.partial(own_fixtures, item, self._root)
        try:
            if shared is not None:
                path = functools.partial(self._path_of_own, item.nodeid)
                return RecordedCall(path, limits, self._root, fixtures, self._options, resting=shared).started()
            with undisturbed():
                path_of_its_own = self._plugin.capture_path(item.nodeid)
                return RecordedCall(path_of_its_own, limits, self._root, fixtures, self._options).started()
        except Error as error:
            reason = str(error)
        pytest.fail(_unchecked(reason), pytrace=False)

    def _shared(self) -> Optional[RestingRecording]:
        """The recording that tests with limits share. None where the test has a recording of its own: where each is to have a file; in
        the process of a single test, where nobody would end a shared one; for a test that stands alone, for which a shared one is more
        work; and with native stacks, since while nothing is recorded another library may come to the place of one that was unloaded."""
        options = self._plugin.options
        if getpid() != self._plugin.process or options.directory is not None or options.native:
            return None
        if self._resting is None and self._plugin.goes_on:
            self._resting = RestingRecording(lambda: self._plugin.capture_path("memtrack-limits"), self._options)
        return self._resting

    def _path_of_own(self, name: str) -> str:
        """The name for the capture of a test, whatever it has replaced."""
        with undisturbed():
            return self._plugin.capture_path(name)

    @property
    def is_shared(self) -> bool:
        """Whether there is a recording that tests share."""
        return self._resting is not None

    def end_shared(self) -> None:
        """Ends the recording that tests share, if there is one."""
        resting, self._resting = self._resting, None
        if resting is not None:
            with undisturbed():
                resting.end()

    def _judge(self, item: pytest.Item, test: RecordedCall) -> None:
        """Fails the test if it is over a limit; keeps the capture in that case, or where captures are kept."""
        if test.is_late:
            self._late = item, test
            return
        if test.has_figures():
            # This uses nothing that the test has replaced.
            self._note_figures(item, test)
            if test.is_surely_within():
                return
        wrong: Optional[str] = None
        with undisturbed():
            try:
                wrong = self._exceeded(item, test)
            except Error as error:
                wrong = _unchecked(str(error))
        if wrong is not None:
            pytest.fail(wrong, pytrace=False)

    def note_late(self) -> None:
        """Notes the figures of a test that was judged before they were known. It has passed, whether they become known or not."""
        if self._late is None:
            return
        (item, test), self._late = self._late, None
        with contextlib.nullcontext() if has_builtins() else undisturbed(), contextlib.suppress(Error):
            test.await_figures()
            self._note_figures(item, test)

    def _exceeded(self, item: pytest.Item, test: RecordedCall) -> Optional[str]:
        """By what the test is over a limit; if it is not, its captures are removed unless they are kept."""
        self._note_figures(item, test)
        try:
            test.judge()
        except LimitExceeded as error:
            return str(error)
        if self._plugin.options.directory is None:
            test.remove()
        return None

    def _note_figures(self, item: pytest.Item, test: RecordedCall) -> None:
        figures = test.figures()
        if self._plugin.session is not None:
            self._plugin.session.note_apart(item.nodeid, figures)
        own = [(f"memtrack_{name}", value) for name, value in figures.items()]
        if item.user_properties:
            # Of an earlier run of the same test there are some.
            names = [name for name, _ in own]
            item.user_properties[:] = [known for known in item.user_properties if known[0] not in names]
        item.user_properties += own


class _named_run:
    """Says which run of `limit_leaks` a test failed in: it may not be made to run twice."""

    def __init__(self, item: pytest.Item, number: int) -> None:
        self.item = item
        self.number = number

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Union[type, None], *_: object) -> None:
        if kind is not None and self.number and issubclass(kind, Exception):
            text = f"failed in run {self.number + 1} of limit_leaks; with repeat=1 the test runs once"
            self.item.add_report_section("call", "memtrack", text)


def _unchecked(reason: str) -> str:
    return UNCHECKED + reason
