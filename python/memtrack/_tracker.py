"""memtrack.Tracker: records this process, from when it says so until it says so.

The library is loaded into this process and called in the calling thread; a process of its own writes the capture.
Invariant: recording begins with the last thing that starting does, and ends with the first thing that stopping does.
"""

import ctypes
import os
import threading
import time
import warnings
from types import TracebackType
from typing import Any, Dict, List, Optional, Tuple, Type, Union

from memtrack._control import ask_recording, is_recorded
from memtrack._errors import CaptureWarning, Error
from memtrack._library import (
    BUSY,
    DONE,
    NOT_MAPPED,
    NOT_RECORDED,
    OTHER_SLOT_COUNT,
    Library,
    load_library,
    status_text,
)
from memtrack._recorder import Recorder, position_in

#: How often a library that is busy is asked again.
_TRIES = 200

_lock = threading.RLock()
_library: Optional[Library] = None
_recorder: Optional[Recorder] = None
#: The Tracker whose recording it is.
_active: Optional["Tracker"] = None
#: Those that began while it recorded, and have not stopped: each is a span of its recording.
_inner: List["Tracker"] = []
_watches_forks = False


def is_recording() -> bool:
    """Whether this process is being recorded: by a Tracker, `memtrack run`, `attach` or `start`."""
    return _active is not None or is_recorded()


def mark(name: str) -> None:
    """Names this moment in the capture, for `--from mark:NAME` and `--to mark:NAME` of every report.

    The capture is that of the Tracker that records this process, else of `memtrack run`, `attach` or `start`. Does nothing
    where nothing is recorded.

    >>> mark("after warm-up")
    """
    active = _active
    if active is not None:
        active.mark(name)
    else:
        ask_recording({"command": "mark", "name": name})


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
    - `follow_fork`: record forked children, too, each in a file of its own beside this one.
    - `overwrite`: replace a file that exists.
    - `memory_interval_ms`: sample resident memory this often.

    Trackers nest and overlap, in any threads: one that begins while another records is a span of that recording, and has a
    file of its own when it stops. It records what the first one was asked to record, and no more.

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
        follow_fork: bool = False,
        overwrite: bool = False,
        memory_interval_ms: int = 10,
    ) -> None:
        self.file_name = os.path.abspath(os.fspath(file_name))
        flags = {
            "--native" if native_traces else "--no-native": True,
            "--trace-python-allocators": trace_python_allocators,
            "--allocation-timestamps": allocation_timestamps,
            "--aggregate": aggregate,
            "--follow": follow_fork,
            "--force": overwrite,
        }
        self._flags = flags
        self._overwrite = overwrite
        self._options = [f"--output={self.file_name}", f"--snapshot-interval={memory_interval_ms}"]
        self._options += [flag for flag, is_wanted in flags.items() if is_wanted]
        self._library: Optional[Library] = None
        self._process: Optional[int] = None
        self._is_over = False
        #: Of a span: the answers that have the tickets of its begin and end.
        self._begin, self._begin_length = bytearray(256), 0
        self._end_answer = bytearray(256)
        #: The file of a Tracker that stopped before those inside, until they have.
        self._part: Optional[str] = None

    def __enter__(self) -> "Tracker":
        with _lock:
            if _active is not None and self._process is None:
                return self._enter_span()
            library, memory, slots = self._prepare()
            tries = 0
            while True:
                status = library.attach(memory, slots)
                if status == DONE:
                    # Nothing from here to the end of the function allocates.
                    os.close(memory)
                    return self
                tries += 1
                memory, slots = self._after_refusal(status, memory, slots, tries)

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        if self._process is None:
            return
        # Nothing before the call of the library allocates; `with` would make two methods.
        _lock.acquire()
        try:
            if self in _inner or (self is _active and _inner and not self._is_over):
                assert _recorder is not None
                self._end_span(_recorder.ask_position(self._end_answer))
                return
            status = self._library.detach() if self is _active and self._library is not None else DONE
            self._end(status)
        except Error as failure:
            if error is None:
                raise
            # The program's own exception is what matters.
            warnings.warn(str(failure), CaptureWarning, stacklevel=2)
        finally:
            _lock.release()

    def start(self) -> None:
        """Begins to record, as `with` does."""
        self.__enter__()

    def stop(self) -> None:
        """Completes the file."""
        if self._process is None:
            self._check_is_active()
        self.__exit__(None, None, None)

    def mark(self, name: str) -> None:
        """Names this moment in the capture, for `--from mark:NAME` and `--to mark:NAME` of every report."""
        self._ask({"mark": name})

    def snapshot(self, file_name: Union[str, "os.PathLike[str]"], *, overwrite: bool = False) -> None:
        """Writes a complete capture of everything up to now; the recording goes on."""
        self._ask({"snapshot": {"output": os.path.abspath(os.fspath(file_name)), "force": overwrite}})

    def _ask(self, request: Any) -> Any:
        with _lock:
            self._check_is_active()
            assert _recorder is not None
            return _recorder.ask(request)

    def _check_is_active(self) -> None:
        if self._process is None:
            raise Error("this Tracker was not started: use it in a with statement, or call its start()")
        if self._process != os.getpid():
            raise Error(
                f"this Tracker records process {self._process}, from which this one was forked: the parent stops it; "
                "follow_fork=True records children"
            )
        if self._is_over or (self is not _active and self not in _inner):
            raise Error("this Tracker was stopped already")

    def _prepare(self) -> Tuple[Library, int, int]:
        """Everything but the call that begins: the recorder, the file, and the shared memory."""
        global _active
        if self._process is not None:
            raise Error("this Tracker was used before: make another one for each recording")
        if is_recorded():
            raise Error(
                "this process is already being recorded (by 'memtrack run' or 'attach', see 'memtrack ps'): name the span by "
                "memtrack.mark() at its begin and end, for --from and --to mark:NAME"
            )
        _refuse_subinterpreter()
        self._library, recorder = _connect()
        memory = _memory_file()
        try:
            slots = recorder.ask({"begin": {"options": self._options, "memory": memory}})["slots"]
            if slots is None:
                raise Error(status_text(NOT_MAPPED))
        except BaseException:
            os.close(memory)
            raise
        # Before 3.11 the first call of a function allocates its frame.
        self.__exit__(None, None, None)
        self._process = os.getpid()
        _active = self
        return self._library, memory, slots

    def _enter_span(self) -> "Tracker":
        """Begins while another Tracker records."""
        assert _active is not None and _recorder is not None
        lacking = [name for name, is_wanted in self._flags.items() if is_wanted and not _active._flags.get(name)]
        lacking = [name for name in lacking if name not in ("--no-native", "--force", "--follow")]
        if lacking or _active._flags["--aggregate"]:
            what = "single events" if _active._flags["--aggregate"] else f"what {' and '.join(lacking)} would record"
            raise Error(
                f"this process is being recorded by another Tracker, into {_active.file_name}, without {what}: "
                "give the first Tracker the options of those inside"
            )
        if os.path.lexists(self.file_name) and not self._overwrite:
            raise Error(f"{self.file_name}: file exists; overwrite it with overwrite=True, or name another")
        if not os.path.isdir(os.path.dirname(self.file_name)):
            raise Error(f"{self.file_name}: there is no such directory")
        self._library = _active._library
        self._process = os.getpid()
        _inner.append(self)
        try:
            # The last thing: what follows belongs to the span.
            self._begin_length = _recorder.ask_position(self._begin)
        except Error:
            _inner.remove(self)
            self._process = None
            raise
        return self

    def _end_span(self, end_length: int) -> None:
        """Writes the file of a span, or of the first Tracker, which stops before those inside."""
        global _active
        self._check_is_active()
        assert _active is not None and _recorder is not None
        self._is_over = True
        owner = _active
        begin = None if self is owner else position_in(self._begin, self._begin_length)
        span: Dict[str, Any] = {"begin": begin, "end": position_in(self._end_answer, end_length)}
        target = self.file_name
        if self is owner:
            # The recording goes on in the file of this name.
            target = self._part = f"{self.file_name}.part-{os.getpid()}"
        else:
            _inner.remove(self)
        try:
            _recorder.ask({"span": {**span, "output": target, "force": self is owner or self._overwrite}})
        finally:
            if owner._is_over and not _inner:
                owner._is_over = False
                assert owner._library is not None
                owner._end(owner._library.detach())

    def _after_refusal(self, status: int, memory: int, slots: int, tries: int) -> Tuple[int, int]:
        """The memory to try next; raises Error, with everything as it was, if there is none."""
        global _active
        assert _recorder is not None
        reason = status_text(status)
        try:
            if status == BUSY and tries < _TRIES:
                time.sleep(0.001)
                return memory, slots
            if status in (NOT_MAPPED, OTHER_SLOT_COUNT):
                os.close(memory)
                memory = -1
                memory = _memory_file()
                offered: Optional[int] = _recorder.ask({"give": {"memory": memory}})["slots"]
                if offered is not None:
                    return memory, offered
        except Error as error:
            reason = str(error)
        if memory >= 0:
            os.close(memory)
        _active = self._process = None
        _recorder.ask("discard")
        raise Error(f"this process cannot be recorded: {reason}")

    def _end(self, status: int) -> None:
        """Completes the file."""
        global _active
        self._check_is_active()
        assert _recorder is not None and self._library is not None
        tries = 0
        while status == BUSY and tries < _TRIES:
            time.sleep(0.001)
            tries += 1
            status = self._library.detach()
        _active = None
        self._is_over = True
        said = _recorder.ask("end")
        if self._part is not None:
            os.replace(self._part, self.file_name)
        for note in said["notes"]:
            warnings.warn(note, CaptureWarning, stacklevel=3)
        if status not in (DONE, NOT_RECORDED):
            raise Error(f"the recording has ended, but this process was not put back wholly: {status_text(status)}")


def _connect() -> Tuple[Library, Recorder]:
    """The library and the recorder, started if there is none."""
    global _library, _recorder, _watches_forks
    if _library is None:
        _library = load_library()
    if not _watches_forks:
        os.register_at_fork(after_in_child=_forget_in_child)
        _watches_forks = True
    if _recorder is None or not _recorder.is_alive():
        _recorder = Recorder(_library)
    return _library, _recorder


def _forget_in_child() -> None:
    """The recorder and the recording are the parent's."""
    global _lock, _recorder, _active, _inner
    _lock = threading.RLock()
    if _recorder is not None:
        _recorder.close()
    _recorder = _active = None
    _inner = []


def _refuse_subinterpreter() -> None:
    """The library reads the frames of the main interpreter's threads only."""
    python = ctypes.PyDLL(None)
    # Before 3.9 it has an underscore.
    current = getattr(python, "PyInterpreterState_Get", None) or python._PyInterpreterState_Get
    current.restype = ctypes.c_void_p
    python.PyInterpreterState_GetID.argtypes = [ctypes.c_void_p]
    python.PyInterpreterState_GetID.restype = ctypes.c_int64
    if python.PyInterpreterState_GetID(current()) != 0:
        raise Error("a Tracker cannot be used in a subinterpreter: start it in the main one; it records all threads")


def _memory_file() -> int:
    """An empty memory file, which this process and the recorder share."""
    try:
        return os.memfd_create("memtrack", os.MFD_CLOEXEC)
    except OSError as error:
        raise Error(f"shared memory cannot be created: {error}") from error
