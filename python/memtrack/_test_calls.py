"""What stands around the call of a test function while its test is recorded: it begins and ends the recording (`_limited_calls`), or
notes the span.

Invariant: what the function returns or raises goes on, and the test has its own function back afterwards.
"""

import functools
import inspect
import unittest
from time import CLOCK_MONOTONIC, clock_gettime_ns
from types import FunctionType
from typing import TYPE_CHECKING, Any, Callable

import pytest

if TYPE_CHECKING:
    from memtrack._test_figures import RecordedSession


def replace_call(item: pytest.Item, recorded: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[[], None]:
    """Puts `recorded` around the call of the test function; gives what takes it away again."""
    if not isinstance(item, pytest.Function):
        # A doctest, or an item of another plugin: all that it does.
        runtest = item.runtest
        item.runtest = recorded(runtest)  # type: ignore[method-assign]
        return functools.partial(setattr, item, "runtest", runtest)
    function = item.obj
    # Before 8.2 pytest takes the instance of the function that the item has: for us here, for fixtures while it runs.
    instance = item.instance
    item.obj = recorded(function)
    if hasattr(function, "__self__"):
        setattr(item.obj, "__self__", function.__self__)
    case = instance if isinstance(instance, unittest.TestCase) else None
    if case is not None:
        # unittest looks its method up by name, and so may another plugin that calls the case without a look at the item.
        setattr(case, case._testMethodName, item.obj)

    def restore() -> None:
        item.obj = function
        if case is not None:
            # pytest takes it away, too.
            vars(case).pop(case._testMethodName, None)

    return restore


def is_async(function: Callable[..., Any]) -> bool:
    """As `inspect.iscoroutinefunction`, at once for what a suite mostly has."""
    if type(function) is FunctionType and not vars(function):
        return bool(function.__code__.co_flags & inspect.CO_COROUTINE)
    return inspect.iscoroutinefunction(function)


def goes_on(result: Any) -> bool:
    """Whether what a function has returned has still to be done by whoever has called it: a coroutine, or a Deferred of Twisted's."""
    if result is None:
        return False
    if hasattr(type(result), "addCallback"):
        return not getattr(result, "called", False) or bool(getattr(result, "paused", False))
    return inspect.isawaitable(result) or inspect.isgenerator(result)


def timed(session: "RecordedSession", item: pytest.Item, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as a span of the session's recording."""
    # As `now_ns`, without a frame.
    now = functools.partial(clock_gettime_ns, CLOCK_MONOTONIC)
    session.begin()
    ran = session.ran

    if is_async(function):

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
