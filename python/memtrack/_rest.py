"""A recording that rests between the calls that it records: to begin and end one for each takes far longer.

While it rests, this process is not recorded: it forks as if it were not, and any other recording may begin, to which this one gives
way. Invariant: what is given of a call is what a recording of its own would have, sums or a file.
"""

from __future__ import annotations

# By name: a test may replace them in their modules while it is recorded.
from os import getpid, unlink

from memtrack import _tracker
from memtrack._errors import Error, quietly
from memtrack._interrupts import release, surely
from memtrack._library import BUSY, DONE, NOT_RECORDED
from memtrack._unpatched import undisturbed
from memtrack._spans import captures_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

    from memtrack._recorder import Recorder
    from memtrack._tracker import Tracker

#: The size of its records, in bytes, from which on another one is begun: the file of a call has what was recorded before it, too. A file
#: of them takes about a quarter.
_LARGE = 4 << 20
#: Stands for sums that are asked for, and not known yet.
LATE: "List[int]" = []
#: A time after every recording, in nanoseconds.
_END = 2**63 - 1


def spans_between(runs: Sequence[Tuple[int, int]]) -> List[Tuple[int, int]]:
    """The spans of these runs, and those before, between and after them."""
    times = [0, *(time for run in runs for time in run), _END]
    return list(zip(times, times[1:]))


def _times(runs: Sequence[Tuple[int, int]]) -> List[int]:
    return [time for run in runs for time in run]


class RestingRecording:
    """A recording of this process, which goes on for one call after the other. Calls are made by one thread at a time."""

    def __init__(self, path: Callable[[], str], options: Dict[str, Any]) -> None:
        self._path = path
        self._options = options
        self._tracker: "Optional[Tracker]" = None
        self._process = getpid()
        self._is_large = False
        #: The recorder that is still to answer of which runs the sums are wanted.
        self._late: "Optional[Tuple[Recorder, Sequence[Tuple[int, int]]]]" = None
        #: What it has answered.
        self._late_sums: "Optional[List[int]]" = None
        #: The moment of the last rest, where the recorder was not told of it.
        self._after: "Optional[List[int]]" = None

    def go_on(self) -> bool:
        """Records from now on, as the last thing. False: this is no process or moment for it."""
        if getpid() != self._process:
            return False
        try:
            with _tracker._lock:
                if self._late is not None:
                    # Nobody has asked for it.
                    self._settle()
                if self._tracker is not None and _tracker._active is self._tracker:
                    # Another call has not ended.
                    return False
                # That uses nothing that a test replaces.
                if self._resume():
                    return True
                with undisturbed():
                    return self._go_on_anew()
        except BaseException:
            surely(self.end)
            raise

    def _go_on_anew(self) -> bool:
        """The same in another recording."""
        self.end()
        if _tracker.is_recording():
            return False
        if self._begin() and self._resume():
            return True
        self.end()
        return False

    def _begin(self) -> bool:
        tracker = _tracker.Tracker(self._path(), allocation_timestamps=True, follow_fork=True, **self._options)
        # Of one call they say little.
        tracker._has_accounts = False
        tracker._rests = True
        self._tracker = tracker
        self._after = None
        tracker.__enter__()
        # A call begins where the one before it ended.
        return self.rest(()) is not None

    def _rests(self) -> bool:
        return _tracker._end_resting == self.end

    def _resume(self) -> bool:
        tracker, recorder = self._tracker, _tracker._recorder
        if tracker is None or not self._rests() or self._is_large or recorder is None or not recorder.is_open():
            return False
        assert tracker._library is not None
        _tracker._active, _tracker._end_resting = tracker, None
        if tracker._library.go_on() == DONE:
            return True
        # It is to be ended.
        _tracker._active, _tracker._end_resting = None, self.end
        return False

    def rest(self, runs: Sequence[Tuple[int, int]], most: int = -1) -> "Optional[List[int]]":
        """Records no more, as the first thing. The sums of the runs, and of what is before, between and after them, four numbers each;
        None where only the file of the call says them, for which `keep` has to be called. Where it raises, the recording has ended.

        Where all that was recorded is certain to be no more than `most` bytes, and not known to this process, the result is `LATE`: the
        sums are asked for, and not waited for; `late_sums` gives them."""
        tracker = self._tracker
        if getpid() != self._process:
            return []
        if tracker is None or tracker._library is None:
            raise Error("the recording ended before the test did")
        # Nothing before the call of the library allocates; `with` would make two methods.
        try:
            # A Tracker that another thread begins meanwhile is a part of the recording, or comes after it.
            _tracker._lock.acquire()
            # What a Tracker inside goes on to record cannot rest.
            children = -1 if _tracker._spans else tracker._library.rest()
            if children >= 0:
                _tracker._active, _tracker._end_resting = None, self.end
            recorder = _tracker._recorder
            assert recorder is not None
            is_small = children == 0 and tracker._library.most_bytes() <= most
            known = tracker._library.rest_sums() if is_small else None
            if known is not None:
                self._after = known[12:]
                return known[:12]
            request = self._request(runs)
            if is_small:
                recorder.ask_ahead(request)
                self._late = recorder, runs
                return LATE
            sums = self._sums(recorder, runs, recorder.ask_line(request))
        except BaseException:
            # Of a signal handler, or of a recorder that has nothing to go on with.
            surely(self.end)
            raise
        finally:
            release(_tracker._lock)
        return sums if children == 0 else None

    def _request(self, runs: Sequence[Tuple[int, int]]) -> bytes:
        """Asks for the sums of these spans since the last rest."""
        after, self._after = self._after, None
        if after is None:
            return b'{"rest":{"times":%r}}\n' % _times(runs)
        return b'{"rest":{"times":%r,"after":%r}}\n' % (_times(runs), after)

    def _sums(self, recorder: "Recorder", runs: Sequence[Tuple[int, int]], answer: List[int]) -> List[int]:
        """The sums of an answer to a rest, or what takes longer."""
        size, *sums = answer
        if not sums:
            # More than is kept at hand, or what cannot be written.
            size, *sums = recorder.ask_line(b'{"written":%r}\n' % _times(runs))
        self._is_large = size >= _LARGE
        return sums

    @property
    def note_run(self) -> Callable[[], int]:
        """Notes that the run of a call begins or ends, and gives the time, as `now_ns` does."""
        assert self._tracker is not None and self._tracker._library is not None
        return self._tracker._library.note_run

    def late_sums(self) -> List[int]:
        """The sums of the last rest, as it gives them where they are waited for. Raises Error where they are not known."""
        if getpid() != self._process:
            return []
        try:
            with _tracker._lock:
                self._settle()
                sums, self._late_sums = self._late_sums, None
        except BaseException:
            # Of a signal handler.
            surely(self.end)
            raise
        if sums is None:
            raise Error("the recording ended before what it says of the test was read")
        return sums

    def _settle(self) -> None:
        """Takes the answer that was not waited for. Where there is none, nothing is known; the next call finds out whether it goes on."""
        late, self._late = self._late, None
        if late is None:
            return
        recorder, runs = late
        self._late_sums = None
        try:
            self._late_sums = self._sums(recorder, runs, recorder.late_answer())
        except Error:
            # It may know no more of the calls before.
            self._is_large = True

    def keep(self, path: str) -> None:
        """Writes the file of the last call; ends the recording."""
        tracker = self._tracker
        if tracker is None or getpid() != self._process:
            return
        with _tracker._lock:
            assert _tracker._recorder is not None
            try:
                _tracker._recorder.ask({"since": {"output": path, "force": False, "needs": tracker._needs}})
                if _tracker._spans:
                    _tracker._recorder.ask({"span_end": {"span": path}})
            except BaseException:
                surely(self.end)
                raise
            self._complete()

    def end(self) -> None:
        """Ends the recording, if there is one."""
        # What is said of its capture is of no use to anybody.
        with quietly(), _tracker._lock:
            try:
                self._settle()
                self._complete()
            except Error:
                # It has no more calls, so nothing is lost by it.
                pass

    def _complete(self) -> None:
        """Ends the recording; its own file is removed."""
        tracker, self._tracker, self._is_large = self._tracker, None, False
        if tracker is None or getpid() != self._process:
            return
        try:
            if self._rests():
                self._end_rest(tracker)
            else:
                tracker.__exit__(None, None, None)
        finally:
            for path in captures_of(tracker):
                try:
                    unlink(path)
                except OSError:
                    # It was never written.
                    pass

    def _end_rest(self, tracker: "Tracker") -> None:
        """Ends the recording while it rests. Where another has begun, which has ended this one, that is not touched."""
        assert tracker._library is not None
        try:
            status = tracker._library.end_resting()
            _tracker._active, _tracker._end_resting = tracker, None
            tracker._end(NOT_RECORDED if status == BUSY else status)
        except Error:
            raise
        except BaseException:
            # Of a signal handler.
            surely(lambda: self._end_rest_anyway(tracker))
            raise

    def _end_rest_anyway(self, tracker: "Tracker") -> None:
        """The same after an exception amid that. May be called again."""
        assert tracker._library is not None
        tracker._library.end_resting()
        _tracker._active = _tracker._end_resting = None
        if _tracker._recorder is not None:
            # It may have been told before.
            _tracker._recorder.exchange(b'"end"\n')
