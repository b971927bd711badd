"""memtrack.Tracker: records this process, from when it says so until it says so.

The library is loaded into this process and called in the calling thread; a process of its own writes the capture.
Invariant: recording begins with the last thing that starting does, and ends with the first thing that stopping does.
"""

from __future__ import annotations

import os
import threading
import warnings

# By name: a test may replace them in their modules while it is recorded.
from os import close, getpid
from time import sleep

from memtrack._connection import Connection
from memtrack._errors import CaptureWarning, Error
from memtrack._interrupts import pass_on, release, surely
from memtrack._keywords import OF_TRACKER, in_keywords, of_keywords
from memtrack._library import (
    BUSY,
    DONE,
    NOT_MAPPED,
    NOT_RECORDED,
    OTHER_SLOT_COUNT,
    TRIES,
    Library,
    is_recording_now,
    load_library,
    refuse_subinterpreter,
    status_text,
)
from memtrack._output_file import check_file, output_path, undone
from memtrack._recorder import Recorder, memory_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Callable, List, Optional, Sequence, Tuple, Type, Union

_lock = threading.RLock()
_library: Optional[Library] = None
_recorder: Optional[Recorder] = None
#: The Tracker whose recording it is.
_active: Optional["Tracker"] = None
#: The recording of this process by somebody else, while Trackers use it.
_other: Optional[Connection] = None
#: Trackers that began while this process was recorded, and have not stopped: each is a span of that recording.
_spans: List["Tracker"] = []
#: Ends the recording that rests, if one does (`_rest`): it gives way to any that begins.
_end_resting: Optional[Callable[[], None]] = None
#: Ends the capture of the active Tracker, and not the recording.
_CUT = b'"cut"\n'
_watches_forks = False


def is_recording() -> bool:
    """Whether this process is being recorded: by a Tracker, `memtrack run`, `attach` or `start`."""
    recorder = _recorder if _active is not None else None
    # The library records on for a recorder that was killed.
    return is_recording_now() and (recorder is None or not recorder.has_ended())


def mark(name: str) -> None:
    """Names this moment in the capture, for `--from mark:NAME` and `--to mark:NAME` of every report.

    The capture is that of the Tracker that records this process, else of `memtrack run`, `attach` or `start`. Does nothing
    where nothing is recorded, and warns where the recording cannot be reached.

    >>> mark("after warm-up")
    """
    with _lock:
        try:
            recording = _recording()
        except Error as error:
            warnings.warn(str(error), CaptureWarning, stacklevel=2)
            return
        if recording is not None:
            recording.mark(name)
            _leave_other()


def sums_by_recorder(captures: Sequence[str], spans: Sequence[Tuple[int, int]]) -> Optional[List[List[Tuple[int, ...]]]]:
    """For each capture, and each span, four sums, by the recorder that a Tracker has started; None without one.

    Another process would take as long to start as all that a small recording costs.
    """
    with _lock:
        return None if _recorder is None else _recorder.sums(captures, spans)


class Tracker:
    """Records the allocations of this process, all its threads included, into a file.

        with memtrack.Tracker("out.bin"):
            work()

    The file has what was allocated inside, and what was freed of it until the end; blocks from before that are freed
    inside are counted apart. Read it with `memtrack.Capture("out.bin")`, or with any report of the program `memtrack`.

    A process of its own writes the file, so it is readable whatever happens to this one: exceptions, `os._exit` and
    SIGKILL included.

    Parameters:

    - `native_traces`: record native call stacks, too.
    - `trace_python_allocators`: record every block that Python's own allocators hand out, instead of the memory that they
      request from the system.
    - `allocation_timestamps`: record the exact time of every allocation and deallocation.
    - `aggregate`: write totals per call stack instead of single events.
    - `sample`: record samples of allocations, this many bytes apart on the average (`65536`, `"512KiB"`; `True`: 512 KiB; `"auto"`: at most 100 samples a second), instead of all of
      them; figures are estimates with 95 % intervals then. A span of a recording has what the recording has.
    - `follow_fork`: record forked children, too, each in a file of its own beside this one.
    - `overwrite`: replace a file that exists.
    - `memory_interval_ms`: sample resident memory this often.

    Trackers nest and overlap, in any threads: one that begins while this process is being recorded, by another Tracker,
    `memtrack run` or `attach`, is a span of that recording, and has a file of its own when it stops, or at the latest when
    that recording ends. It has what that recording records, and no more: where it asks for more, Error says what to do.

    Raises `memtrack.Error` where recording is not possible; the program is as it was then.
    """

    def __init__(
        self,
        file_name: Union[str, "os.PathLike[str]"],
        *,
        native_traces: bool = False,
        trace_python_allocators: bool = False,
        allocation_timestamps: bool = False,
        aggregate: bool = False,
        sample: Union[bool, int, str, None] = None,
        follow_fork: bool = False,
        overwrite: bool = False,
        memory_interval_ms: int = 10,
    ) -> None:
        self.file_name: str = output_path(file_name)
        flags = {
            "--native" if native_traces else "--no-native": True,
            "--trace-python-allocators": trace_python_allocators,
            "--allocation-timestamps": allocation_timestamps,
            "--aggregate": aggregate,
            "--follow": follow_fork,
            "--force": overwrite,
        }
        flagged = ["--native"] if native_traces else []
        flagged += [flag for flag in ("--trace-python-allocators", "--allocation-timestamps", "--follow") if flags[flag]]
        self._needs = [flag[2:] for flag in flagged]
        self._aggregates = aggregate
        self._overwrite = overwrite
        self._options = [f"--output={self.file_name}", f"--snapshot-interval={memory_interval_ms}"]
        self._options += [flag for flag, is_wanted in flags.items() if is_wanted]
        if sample is not None and sample is not False:
            self._options.append("--sample" if sample is True else f"--sample={sample}")
        self._distance = {} if sample is None or isinstance(sample, bool) else {"sample": str(sample)}
        #: Whether the capture says at its end which pages of this process are in memory: to read takes 40 ms for a gigabyte.
        self._has_accounts = True
        #: Whether its recording rests between calls.
        self._rests = False
        self._library: Optional[Library] = None
        self._process: Optional[int] = None
        #: The memory file that is shared with the recorder, until the recording has begun.
        self._memory = -1
        #: The library may have begun to record.
        self._has_begun = False
        self._is_over = False
        #: Of a span: the recording that it is of, and the request that ends it.
        self._within: Optional[Connection] = None
        self._end_request = _CUT
        #: What was written, as the recorder has said at the end; of a span it says nothing.
        self._captures: List[str] = []

    def __enter__(self) -> "Tracker":
        refuse_subinterpreter()
        if self._process is not None:
            raise Error("this Tracker was used before: make another one for each recording")
        try:
            with _lock:
                return self._enter()
        except BaseException:
            # A signal handler may raise one anywhere, also while the lock is released.
            surely(self._withdraw)
            raise

    def _enter(self) -> "Tracker":
        recording = _recording()
        if recording is not None:
            return self._enter_span(recording)
        library, slots = self._prepare()
        tries = 0
        while True:
            self._has_begun = True
            status = library.attach(self._memory, slots)
            if status == DONE:
                # Nothing from here to the end of the function allocates.
                memory = self._memory
                self._memory = -1
                close(memory)
                return self
            self._has_begun = False
            tries += 1
            slots = self._after_refusal(status, slots, tries)

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        if self._process is None:
            return
        # Nothing before the call of the library allocates; `with` would make two methods.
        try:
            _lock.acquire()
            within = self._within or (_recorder if self is _active and _spans else None)
            if within is not None and not self._is_over:
                self._end_span(within, within.exchange(self._end_request))
                return
            status = self._library.detach() if self is _active and self._library is not None else DONE
            # A child that was forked inside leaves the block, too; the parent ends the recording.
            if self._process == getpid():
                self._end(status)
        except Error as failure:
            if error is None:
                raise
            # The program's own exception is what matters.
            warnings.warn(str(failure), CaptureWarning, stacklevel=2)
        except BaseException:
            # Of a signal handler.
            surely(self._end_anyway)
            raise
        finally:
            release(_lock)

    def start(self) -> None:
        """Begins to record, as `with` does."""
        self.__enter__()

    def stop(self) -> None:
        """Completes the file."""
        if self._process is None:
            self._check_is_active()
        self.__exit__(None, None, None)
        if self._process != getpid():
            self._check_is_active()

    def mark(self, name: str) -> None:
        """Names this moment in the capture, for `--from mark:NAME` and `--to mark:NAME` of every report."""
        with _lock:
            self._recording().mark(name)

    def snapshot(self, file_name: Union[str, "os.PathLike[str]"], *, overwrite: bool = False) -> None:
        """Writes a complete capture of everything up to now; the recording goes on."""
        output = output_path(file_name)
        members = {"output": output, "force": overwrite}
        with _lock:
            recording = self._recording()
            check_file(output, overwrite)
            if self._within is None:
                recording.tell({"snapshot": members})
            elif not recording.exchange(recording.span_request("copy", {"span": self.file_name, **members})):
                raise recording.failure()

    def _recording(self) -> Connection:
        """The recording of this Tracker, which has begun and not ended."""
        self._check_is_active()
        recording = self._within or _recorder
        assert recording is not None
        return recording

    def _check_is_active(self) -> None:
        if self._process is None:
            raise Error("this Tracker was not started: use it in a with statement, or call its start()")
        if self._process != getpid():
            raise Error(
                f"this Tracker records process {self._process}, from which this one was forked: the parent stops it"
            )
        if self._is_over or (self is not _active and self not in _spans):
            raise Error("this Tracker was stopped already")

    def _prepare(self) -> Tuple[Library, int]:
        """Everything but the call that begins: the recorder, the file, and the shared memory. Gives its number of slots."""
        global _active
        check_file(self.file_name, self._overwrite)
        self._library, recorder = _connect()
        self._memory = memory_file()
        begin = {"options": self._options, "memory": self._memory, "accounts": self._has_accounts, "rests": self._rests}
        with of_keywords(OF_TRACKER):
            slots = recorder.ask({"begin": begin})["slots"]
        if slots is None:
            raise Error(status_text(NOT_MAPPED))
        # Before 3.11 the first call of a function allocates its frame.
        self.__exit__(None, None, None)
        self._process = getpid()
        _active = self
        return self._library, slots

    def _withdraw(self) -> None:
        """It has not begun, or is to end at once without a file: everything is as it was. May be called again."""
        global _active
        with _lock:
            if self in _spans:
                assert self._within is not None
                with undone(self.file_name):
                    self._within.exchange(self._end_request)
                self._forget_span()
            elif self._library is not None:
                if self._has_begun:
                    self._library.end_recording()
                self._close_memory()
                if _recorder is not None:
                    # It may not have begun anything.
                    _recorder.exchange(b'"discard"\n')
                if _active is self:
                    _active = None
            # What begins next is none of its recordings.
            self._library, self._has_begun, self._process, self._within = None, False, None, None

    def _close_memory(self) -> None:
        """Closes the memory file. Its number is forgotten first: it may be that of another file soon."""
        memory = self._memory
        self._memory = -1
        if memory >= 0:
            close(memory)

    def _enter_span(self, recording: Connection) -> "Tracker":
        """Begins while this process is being recorded."""
        if self._aggregates:
            raise Error(
                "aggregate=True begins a recording, and this process is being recorded already: leave it out, and sum up "
                "the file by any report"
            )
        check_file(self.file_name, self._overwrite)
        span = {"output": self.file_name, "force": self._overwrite, "needs": self._needs, "pid": getpid(), **self._distance}
        request = recording.span_request("begin", span)
        self._end_request = recording.span_request("end", {"span": self.file_name})
        # Before 3.11 the first call of a function allocates its frame.
        self.__exit__(None, None, None)
        self._within = recording
        self._process = getpid()
        _spans.append(self)
        # The last thing: what follows belongs to the span.
        if recording.exchange(request):
            return self
        self._forget_span()
        self._process = self._within = None
        failure = Error(in_keywords(str(recording.failure()), {"--sample": "sample"}))
        if _active is None or _active._is_over or not self._needs:
            raise failure
        raise Error(f"{failure} (the Tracker of {_active.file_name} records it, and has not been stopped)")

    def _end_span(self, within: Connection, is_done: bool) -> None:
        """After the end of a span; or of the first Tracker, which stops before those inside."""
        self._check_is_active()
        self._is_over = True
        owner = _active
        if self is not owner:
            self._forget_span()
        try:
            if not is_done and (owner is not None or is_recording_now()):
                raise within.failure()
            if not is_done:
                text = f"{self.file_name}: the recording of this process ended before this Tracker did, and so does the file"
                warnings.warn(text, CaptureWarning, stacklevel=4)
        finally:
            if owner is not None and owner._is_over and not _spans:
                owner._is_over = False
                assert owner._library is not None
                owner._end(owner._library.detach())

    def _forget_span(self) -> None:
        _spans.remove(self)
        _leave_other()

    def _end_anyway(self) -> None:
        """Ends it after an exception amid that. May be called again."""
        with _lock:
            owner = _active
            within = self._within or (_recorder if self is owner and _spans else None)
            if within is None:
                self._end_recording()
                return
            if not self._is_over:
                within.exchange(self._end_request)
                self._is_over = True
            if self in _spans:
                self._forget_span()
            if owner is not None and owner._is_over and not _spans:
                owner._end_recording()

    def _end_recording(self) -> None:
        """Ends the recording that is this Tracker's, of this process. May be called again."""
        global _active
        if self._library is None or self._process != getpid():
            return
        if _active is self:
            self._library.end_recording()
            _active = None
        self._is_over = True
        if _recorder is not None:
            # It may have been told before.
            _recorder.exchange(b'"end"\n')

    def _after_refusal(self, status: int, slots: int, tries: int) -> int:
        """The slots of the memory to try next; raises Error if there is none."""
        assert _recorder is not None
        reason = status_text(status)
        try:
            if status == BUSY and tries < TRIES:
                sleep(0.001)
                return slots
            if status in (NOT_MAPPED, OTHER_SLOT_COUNT):
                self._close_memory()
                self._memory = memory_file()
                offered: Optional[int] = _recorder.ask({"give": {"memory": self._memory}})["slots"]
                if offered is not None:
                    return offered
        except Error as error:
            reason = str(error)
        raise Error(f"this process cannot be recorded: {reason}")

    def _end(self, status: int) -> None:
        """Completes the file."""
        global _active
        self._check_is_active()
        assert _recorder is not None and self._library is not None
        if status == BUSY:
            status = self._library.end_recording()
        _active = None
        self._is_over = True
        said = _recorder.ask("end")
        self._captures = said["captures"] or [self.file_name]
        for note in said["notes"]:
            warnings.warn(note, CaptureWarning, stacklevel=3)
        if status not in (DONE, NOT_RECORDED):
            raise Error(f"the recording has ended, but this process was not put back wholly: {status_text(status)}")


def _recording() -> Optional[Connection]:
    """What records this process now, whoever has begun it."""
    global _other
    if _active is not None:
        return _recorder
    if _other is not None and not _other.is_alive():
        _other.close()
        _other = None
    if not is_recording_now():
        return None
    if _other is None:
        from memtrack._control import find_recording

        _watch_forks()
        _other = find_recording()
    return _other


def _leave_other() -> None:
    """Closes the connection to another's recording that is not used any more."""
    global _other
    if _other is not None and not _spans:
        _other.close()
        _other = None


def _connect() -> Tuple[Library, Recorder]:
    """The library and the recorder, started if there is none."""
    global _library, _recorder
    if _end_resting is not None:
        _end_resting()
    if _library is None:
        _library = load_library()
    _watch_forks()
    if _recorder is None or not _recorder.is_alive():
        _recorder = Recorder(_library)
    return _library, _recorder


def _watch_forks() -> None:
    global _watches_forks
    if not _watches_forks:
        os.register_at_fork(after_in_child=_forget_in_child)
        _watches_forks = True


def _forget_in_child() -> None:
    """The recorder and the recording are the parent's."""
    global _lock, _recorder, _other, _active, _spans, _end_resting
    _lock = threading.RLock()
    for connection in (_recorder, _other):
        if connection is not None:
            connection.close()
    for tracker in _spans:
        tracker._within = None
    _recorder = _other = _active = _end_resting = None
    _spans = []
