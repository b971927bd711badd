"""What stands around the call of a test function while its test is recorded: it begins and ends the recording, or notes the span.

Invariant: what the function returns or raises goes on, and the test has its own function back afterwards.
"""

import functools
import inspect
import unittest
from typing import TYPE_CHECKING, Any, Callable, List, Union

import pytest

if TYPE_CHECKING:
    from memtrack._pytest_plugin import MemtrackPlugin
    from memtrack._test_limits import Limit


def replace_call(item: pytest.Item, recorded: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[[], None]:
    """Puts `recorded` around the call of the test function; gives what takes it away again."""
    if not isinstance(item, pytest.Function):
        # A doctest, or an item of another plugin: all that it does.
        runtest = item.runtest
        item.runtest = recorded(runtest)  # type: ignore[method-assign]
        return functools.partial(setattr, item, "runtest", runtest)
    function = item.obj
    item.obj = recorded(function)
    instance = item.instance
    asynchronous = isinstance(instance, unittest.TestCase) and inspect.iscoroutinefunction(function)
    if asynchronous:
        # unittest looks these up by name.
        setattr(instance, item.name, item.obj)

    def restore() -> None:
        item.obj = function
        if asynchronous:
            delattr(instance, item.name)

    return restore


def limited(
    plugin: "MemtrackPlugin", item: pytest.Item, limits: "List[Limit]", function: Callable[..., Any]
) -> Callable[..., Any]:
    """The function, recorded and judged."""
    from memtrack._test_limits import await_test, call_test

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> None:
            __tracebackhide__ = True
            with plugin.recording(item, limits) as test:
                for number in test.numbers():
                    with _named_run(item, number):
                        await await_test(function, args, kwargs)
            plugin.judge(item, test)

        return awaited

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> None:
        __tracebackhide__ = True
        with plugin.recording(item, limits) as test:
            if not test.repeat:
                # As below, with less that is recorded: of a small test it is the larger part.
                note_run = test.note_run
                begin = note_run()
                call_test(function, args, kwargs)
                test.runs.append((begin, note_run()))
            for number in test.numbers() if test.repeat else ():
                with _named_run(item, number):
                    call_test(function, args, kwargs)
        plugin.judge(item, test)

    return called


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


def timed(plugin: "MemtrackPlugin", item: pytest.Item, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as a span of the session's recording."""
    from memtrack._spans import now_ns as now

    session = plugin.session
    assert session is not None
    session.begin()
    ran = session.ran

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            begin = now()
            try:
                return await function(*args, **kwargs)
            finally:
                ran(item, (begin, now()))

        return awaited

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        begin = now()
        try:
            return function(*args, **kwargs)
        finally:
            ran(item, (begin, now()))

    return called
