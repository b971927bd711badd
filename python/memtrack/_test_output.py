"""What pytest keeps of a test for its report: the text of its log, the records of that, and what it prints.

None of it is the test's memory. While the test runs, the text of the log lies in shared memory, which counts as no allocation, and
records that nobody can ask for are not kept. Invariant: what pytest reports, and what `caplog` and `capsys` give, is what it is without
memtrack.
"""

import functools
import inspect
import logging
import mmap
import sys

# By name: a test may replace it in its module while it is recorded.
from os import getpid
from typing import TYPE_CHECKING, Any, Callable, Generator, List, Tuple

import pytest

from memtrack import _test_limits
from memtrack._holders import is_own

if TYPE_CHECKING:
    from memtrack._pytest_plugin import MemtrackPlugin

_FIRST_SIZE = 1 << 16


class SharedText:
    """A text that grows, outside of the heap."""

    def __init__(self) -> None:
        self._process = getpid()
        self._memory = mmap.mmap(-1, _FIRST_SIZE)
        self.size = 0
        """In bytes."""

    def write(self, text: str) -> int:
        """Adds a text."""
        content = text.encode("utf-8", "surrogatepass")
        end = self.size + len(content)
        if end > len(self._memory) or getpid() != self._process:
            # A forked child has a text of its own from here on.
            larger = mmap.mmap(-1, max(2 * len(self._memory), end))
            larger[: self.size] = memoryview(self._memory)[: self.size]
            self._memory, self._process = larger, getpid()
        self._memory[self.size : end] = content
        self.size = end
        return len(text)

    def flush(self) -> None:
        """Nothing waits."""

    def getvalue(self) -> str:
        """All of it, as of StringIO."""
        return self._memory[: self.size].decode("utf-8", "surrogatepass")


class _NoRecords(List[logging.LogRecord]):
    """A list of records that keeps none."""

    def append(self, record: logging.LogRecord) -> None:
        """Nobody can ask for it."""


class _Handler:
    """A handler of pytest's, and what it had when the test began."""

    def __init__(self, handler: Any, text: SharedText, keeps_records: bool) -> None:
        self.handler = handler
        self.text = text
        self._stream, self.kept_records = handler.stream, handler.records
        text.size = 0
        text.write(self._stream.getvalue())
        handler.stream = text
        if not keeps_records:
            handler.records = _NoRecords()

    def restore(self) -> None:
        """It has its text and its list again."""
        handler = self.handler
        handler.acquire()
        try:
            if handler.stream is self.text:
                # As if it had been written there.
                self._stream.seek(0)
                self._stream.write(self.text.getvalue())
                handler.stream = self._stream
            if type(handler.records) is _NoRecords:
                handler.records = self.kept_records
        finally:
            handler.release()


class OutputOfTest:
    """What pytest keeps of the call of one test."""

    def __init__(self, item: pytest.Item, root: str, texts: List[SharedText], marks_printed: bool) -> None:
        """`texts` are used again by later tests. `marks_printed`: the stacks of what the test prints are to tell that it is printed."""
        from _pytest.capture import CaptureIO
        from _pytest.logging import LogCaptureHandler

        self._item = item
        self._handlers: List[_Handler] = []
        found = [handler for handler in logging.root.handlers if isinstance(handler, LogCaptureHandler)]
        self._asks = bool(found) and asks_for_log(item, root)
        report = getattr(item.config.pluginmanager.get_plugin("logging-plugin"), "report_handler", None)
        while len(texts) < len(found):
            texts.append(SharedText())
        for handler, text in zip(found, texts):
            self._handlers.append(_Handler(handler, text, self._asks and handler is not report))
        # Where a file has what is printed, it is no memory.
        in_memory = [each for each in (sys.stdout, sys.stderr) if isinstance(each, CaptureIO)] if marks_printed else []
        self._printed = [stream for stream in in_memory if "write" not in vars(stream)]
        for stream in self._printed:
            setattr(stream, "write", functools.partial(write_captured, stream.write))

    def restore(self) -> None:
        """The test was called."""
        for handler in self._handlers:
            handler.restore()
        for stream in self._printed:
            vars(stream).pop("write", None)

    def next_run(self) -> None:
        """The test runs again: its caplog begins anew."""
        from _pytest import logging as plugin

        for each in self._handlers if self._asks else ():
            handler = each.handler
            if type(handler.records) is _NoRecords:
                continue
            records: List[logging.LogRecord] = []
            handler.acquire()
            try:
                handler.records, handler.stream, each.text.size = records, each.text, 0
            finally:
                handler.release()
            each.kept_records = records
            key, known = getattr(plugin, "caplog_records_key", None), getattr(self._item, "stash", {})
            if key is not None and key in known:
                known[key]["call"] = records

    @property
    def log_bytes(self) -> int:
        """The size of the log's text."""
        return max((each.text.size for each in self._handlers), default=0)


class OutputPlugin:
    """Begins with what is next to the call of a test: pytest's own handlers are in their places then."""

    def __init__(self, plugin: "MemtrackPlugin") -> None:
        self._plugin = plugin
        self._root = str(plugin.config.rootpath)
        self._texts: List[SharedText] = []

    @pytest.hookimpl(hookwrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, None]:
        has_limits = self._plugin.has_limits(item)
        if not has_limits and self._plugin.session is None:
            yield
            return
        outer = _test_limits.output
        _test_limits.output = own = OutputOfTest(item, self._root, self._texts if outer is None else [], has_limits)
        try:
            yield
        finally:
            own.restore()
            _test_limits.output = outer


def write_captured(write: Callable[[str], int], text: str) -> int:
    """Writes what a test prints to where pytest keeps it; what is allocated below this frame is pytest's."""
    return write(text)


def asks_for_log(item: "pytest.Item", root: str) -> bool:
    """Whether the test may look at its log: by caplog, or by asking for it while it runs."""
    names: Tuple[str, ...] = tuple(getattr(item, "fixturenames", ()))
    info = getattr(item, "_fixtureinfo", None)
    if info is None or "caplog" in names or "caplog" in getattr(getattr(item, "_request", None), "_fixture_defs", ()):
        return True
    if "request" not in names:
        return False
    taking = (known[-1] for known in info.name2fixturedefs.values() if known and "request" in known[-1].argnames)
    return "request" in info.argnames or any(is_own(_source(fixture.func), root) for fixture in taking)


def _source(function: Any) -> str:
    return getattr(getattr(inspect.unwrap(function), "__code__", None), "co_filename", "")
