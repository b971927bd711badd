"""What pytest keeps of a test for its report: the text of its log, its warnings, and what it prints.

None of it is the test's memory. While the test runs, the text of the log lies in shared memory, which counts as no allocation. The
records of the log are kept for whoever asks for them, and count. Invariant: what pytest reports, and what `caplog` and `capsys` give, is
what it is without memtrack.
"""

import functools
import io
import logging
import sys
from typing import TYPE_CHECKING, Any, Callable, Dict, Generator, List, Optional

import pytest
from _pytest.capture import CaptureIO

from memtrack import _test_limits
from memtrack._pytest_plugin import wraps_hook
from memtrack._shared_bytes import SharedBytes
from memtrack._test_warnings import KeptWarnings, recorded, recorded_by

if TYPE_CHECKING:
    from memtrack._pytest_plugin import MemtrackPlugin


class SharedText(io.StringIO):
    """A text that grows, outside of the heap. Whoever does more than write and ask for all of it has an ordinary one from then on."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes = SharedBytes()
        self._is_ordinary = False

    def begin(self, text: str) -> None:
        """It is this text, and no other."""
        super().seek(0)
        super().truncate()
        self._is_ordinary = False
        self._bytes.clear()
        self.write(text)

    @property
    def size(self) -> int:
        """In bytes, as UTF-8."""
        return len(super().getvalue()) if self._is_ordinary else self._bytes.size

    def write(self, text: str) -> int:
        """Adds a text."""
        if self._is_ordinary:
            return super().write(text)
        self._bytes.append(text.encode("utf-8", "surrogatepass"))
        return len(text)

    def getvalue(self) -> str:
        """All of it."""
        return super().getvalue() if self._is_ordinary else self._bytes.content().decode("utf-8", "surrogatepass")

    def _ordinary(self) -> None:
        if not self._is_ordinary:
            text = self.getvalue()
            self._is_ordinary = True
            super().write(text)

    def seek(self, *place: int) -> int:
        """As of StringIO; so are the next ones."""
        self._ordinary()
        return super().seek(*place)

    def tell(self) -> int:
        """See `seek`."""
        self._ordinary()
        return super().tell()

    def truncate(self, size: Optional[int] = None) -> int:
        """See `seek`."""
        self._ordinary()
        return super().truncate(size)

    def read(self, size: Optional[int] = -1) -> str:
        """See `seek`."""
        self._ordinary()
        return super().read(size)

    def readline(self, size: int = -1) -> str:  # type: ignore[override]
        """See `seek`."""
        self._ordinary()
        return super().readline(size)

    def __next__(self) -> str:  # type: ignore[override]
        self._ordinary()
        return super().__next__()


class _Handler:
    """A handler of pytest's that writes to a text, and the stream that it had before."""

    def __init__(self, handler: Any, text: SharedText) -> None:
        self.handler = handler
        self.text = text
        self._stream = handler.stream
        text.begin(self._stream.getvalue())
        handler.stream = text

    def restore(self) -> None:
        """It has its stream again."""
        handler = self.handler
        handler.acquire()
        try:
            if handler.stream is self.text:
                # As if it had been written there.
                self._stream.seek(0)
                self._stream.truncate()
                self._stream.write(self.text.getvalue())
                handler.stream = self._stream
        finally:
            handler.release()
        self.text.begin("")


class _Diverts:
    """A filter of a handler of pytest's, which lets everything pass. Most tests log nothing, so what has to be done with the stream is
    done when the first record comes; nothing of the handler's own work is below this frame."""

    def __init__(self, handler: Any) -> None:
        self.handler = handler
        self.output: "Optional[OutputOfTest]" = None

    def filter(self, record: Any) -> bool:
        """This record is written to a text, if a test is being called."""
        output = self.output
        if output is not None:
            output.divert(self.handler)
        return True


class OutputOfTest:
    """What pytest keeps of the call of one test."""

    def __init__(
        self, item: pytest.Item, handlers: List[Any], texts: List[SharedText], kept: "Optional[KeptWarnings]", marks_printed: bool
    ) -> None:
        """`handlers` are pytest's of the log, and `texts` are used again by later tests. `marks_printed`: the stacks of what the test prints
        are to tell that it is printed."""
        self._item = item
        self._known = handlers
        self._texts = texts
        self._handlers: List[_Handler] = []
        #: Where the test puts a stream of its own, that is where its log goes.
        self._streams = [handler.stream for handler in handlers]
        if "caplog" in getattr(item, "fixturenames", ()):
            # It may look at the streams before it logs.
            for handler in handlers:
                self.divert(handler)
        # Where a file has what is printed, it is no memory.
        in_memory = [each for each in (sys.stdout, sys.stderr) if isinstance(each, CaptureIO)] if marks_printed else []
        self._printed = [stream for stream in in_memory if "write" not in vars(stream)]
        for stream in self._printed:
            setattr(stream, "write", functools.partial(write_captured, stream.write))
        self.warnings = kept

    def restore(self) -> None:
        """The test was called."""
        for stream in self._printed:
            vars(stream).pop("write", None)
        self._known = []
        for handler in self._handlers:
            handler.restore()
        if self.warnings is not None:
            self.warnings.restore()

    def divert(self, handler: Any) -> None:
        """What this handler writes goes to a text from here on."""
        handler.acquire()
        try:
            is_known = any(each.handler is handler for each in self._handlers)
            # A thread may log as the test ends.
            is_its_own = any(handler.stream is each for each in self._streams)
            if handler in self._known and not is_known and is_its_own and type(handler.stream) is io.StringIO:
                if len(self._texts) <= len(self._handlers):
                    self._texts.append(SharedText())
                self._handlers.append(_Handler(handler, self._texts[len(self._handlers)]))
        finally:
            handler.release()

    def next_run(self) -> None:
        """The test runs again: its caplog begins anew."""
        from _pytest import logging as plugin

        if self.warnings is not None:
            self.warnings.next_run()
        for handler in self._known:
            self.divert(handler)
        for each in self._handlers:
            handler = each.handler
            records: List[logging.LogRecord] = []
            handler.acquire()
            try:
                handler.records, handler.stream = records, each.text
                each.text.begin("")
            finally:
                handler.release()
            key, known = getattr(plugin, "caplog_records_key", None), getattr(self._item, "stash", {})
            if key is not None and key in known and handler is self._known[0]:
                known[key]["call"] = records

    def kept_bytes(self) -> Dict[str, int]:
        """The sizes of what is outside of the heap, by name."""
        log = max((each.text.size for each in self._handlers), default=0)
        return {"log": log, "warnings": self.warnings.size if self.warnings is not None else 0}

    def judged(self) -> List[str]:
        """Lines that say what lies in the heap."""
        lines = []
        records = max((len(handler.records) for handler in self._known), default=0)
        if records:
            text = "1 log record, with what its" if records == 1 else f"{records:,} log records, with what their"
            lines.append(f"kept by pytest and judged: {text} arguments hold; with --log-level=ERROR, for example, only those of errors")
        whole = self.warnings.whole if self.warnings is not None else 0
        if whole:
            text = "1 warning, with what it refers" if whole == 1 else f"{whole:,} warnings, with what they refer"
            lines.append(f"kept by pytest and judged: {text} to; with -p no:warnings, for example, none")
        return lines


class OutputPlugin:
    """Begins with what is next to the call of a test: pytest's own handlers are in their places then."""

    def __init__(self, plugin: "MemtrackPlugin", shows_warnings: Any = None) -> None:
        """`shows_warnings`: that of a test that has begun; see `pytest_runtest_protocol`."""
        self._plugin = plugin
        self._texts: List[SharedText] = []
        self._bytes = SharedBytes()
        self._warned: Optional[List[Any]] = recorded_by(shows_warnings)
        logging_plugin = plugin.config.pluginmanager.get_plugin("logging-plugin")
        #: The one that caplog has is the first.
        self._handlers = [getattr(logging_plugin, name, None) for name in ("caplog_handler", "report_handler")]
        self._handlers = [each for each in self._handlers if isinstance(each, logging.StreamHandler)]
        self._output: Optional[OutputOfTest] = None
        self._diverts = [_Diverts(handler) for handler in self._handlers]

    def _set_output(self, output: Optional[OutputOfTest]) -> None:
        self._output = output
        for each in self._diverts:
            each.output = output
            # What sets up the log anew may have taken it away.
            if output is not None and each not in each.handler.filters:
                each.handler.addFilter(each)

    @wraps_hook(trylast=True)
    def pytest_runtest_protocol(self) -> Generator[None, Any, Any]:
        """pytest has begun to record warnings, and no fixture has."""
        self._warned = recorded()
        result = yield
        self._warned = None
        return result

    @wraps_hook(trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        has_limits = self._plugin.is_limited
        if not has_limits and self._plugin.session is None:
            return (yield)
        outer, outer_here = _test_limits.output, self._output
        texts = self._texts if outer is None else []
        _test_limits.output = own = OutputOfTest(item, self._handlers, texts, self._kept_warnings(outer is None), has_limits)
        self._set_output(own)
        try:
            return (yield)
        finally:
            _test_limits.output = outer
            self._set_output(outer_here)
            own.restore()

    def _kept_warnings(self, is_outer: bool) -> Optional[KeptWarnings]:
        """What takes the test's warnings in place of pytest's list. A list of the test's own, as that of recwarn, is left to it."""
        if self._warned is None or self._warned is not recorded():
            return None
        return KeptWarnings(self._warned, self._bytes if is_outer else SharedBytes())


def write_captured(write: Callable[[str], int], text: str) -> int:
    """Writes what a test prints to where pytest keeps it; what is allocated below this frame is pytest's."""
    return write(text)
