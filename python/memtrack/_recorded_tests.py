"""What is done around each test of a session that records tests: all of them, or those with limits.

A suite has thousands of small tests, so what each costs counts. Invariant: the test has its own function back after its call.
"""

import functools
from typing import TYPE_CHECKING, Any, Callable, Generator, Optional

import pytest

from memtrack._pytest_plugin import wraps_hook
from memtrack._test_calls import replace_call, timed
from memtrack._test_figures import take_told

if TYPE_CHECKING:
    from memtrack._junit import JunitProperties
    from memtrack._pytest_plugin import MemtrackPlugin


class RecordedTests:
    """The hooks of each test."""

    def __init__(self, plugin: "MemtrackPlugin") -> None:
        self._plugin = plugin
        self._forks_all = bool(plugin.config.getoption("forked", False))

    @wraps_hook(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: Optional[pytest.Item]) -> Generator[None, Any, Any]:
        """A test that pytest-forked gives a process of its own has its recording there, where it cannot end or begin the session's.
        One without limits runs at its own speed, without a recording that rests: that makes calls of malloc slower."""
        plugin = self._plugin
        if plugin.session is not None and (self._forks_all or item.get_closest_marker("forked")):
            (plugin.session.pause if plugin.has_limits(item) else plugin.session.begin)()
        plugin.next = nextitem
        result = yield
        if plugin.is_shared and not plugin.goes_on:
            plugin.end_shared()
        return result

    @wraps_hook(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        plugin = self._plugin
        try:
            limits = plugin.limits(item)
        except (TypeError, ValueError) as error:
            pytest.fail(f"{item.nodeid}: {error}", pytrace=False)
        plugin.is_limited = bool(limits)
        if not limits and plugin.session is None:
            return (yield)
        restore = plugin.limited().begin(item, limits) if limits else self._timed(item)
        try:
            return (yield)
        finally:
            restore()
            if limits:
                # Before the report is made, which has them.
                plugin.limited().note_late()

    def _timed(self, item: pytest.Item) -> Callable[[], None]:
        """Puts what notes its span around the call of a test without limits; gives what takes that away again."""
        assert self._plugin.session is not None
        return replace_call(item, functools.partial(timed, self._plugin.session, item))


class LateLimits:
    """Fails tests whose limit came in their call, when nobody looked any more."""

    def __init__(self, plugin: "MemtrackPlugin") -> None:
        self._plugin = plugin

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        """After a test that has not failed."""
        if not self._plugin.is_limited:
            self._plugin.fail_if_late(item)


class Reports:
    """Takes the reports of a session that records all tests, also those of tests that ran in processes of their own."""

    def __init__(self, plugin: "MemtrackPlugin", junit: "JunitProperties") -> None:
        self._plugin = plugin
        self._junit = junit

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._junit.note(report)
        if report.when == "call" and report.passed:
            self._plugin.passed.add(report.nodeid)
        if report.user_properties:
            take_told(report, self._plugin.session)
