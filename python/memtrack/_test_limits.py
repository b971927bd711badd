"""Limits of tests: records the call of a test function, and judges what was allocated below it.

Fixtures are apart: what they allocate before the test lies outside of the recording, and what a fixture allocates that
the test asks for while it runs is left out and named. Invariant: a test that fails by itself is not judged.
"""

import dataclasses
import gc
import inspect
import os
import re
import sys

# By name: a test may replace them in their modules while it is recorded.
from os import listdir, unlink
from os.path import exists
from threading import active_count, get_native_id
from threading import enumerate as threads_of_python
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Dict, FrozenSet, Iterable, Iterator, List, NamedTuple, Optional, Tuple, TypeVar, Union

from memtrack._capture import Allocation, Capture
from memtrack._errors import Error, quietly
from memtrack._growth import Growth, growth
from memtrack._holders import Holding, holders_text, is_own, older_threads
from memtrack._interrupts import surely
from memtrack._records import Frame, Stack
from memtrack._rest import LATE, spans_between
from memtrack._sizes import parse_size, size_text
from memtrack._spans import at_their_peak, captures_at, captures_of, live_at_ends, now_ns, sums_of_small
from memtrack._unpatched import has_builtins, undisturbed

if TYPE_CHECKING:
    import pytest

    from memtrack._rest import RestingRecording
    from memtrack._test_output import OutputOfTest
    from memtrack._tracker import Tracker

#: What pytest keeps of the test that is being called.
output: "Optional[OutputOfTest]" = None
_AnyLimit = TypeVar("_AnyLimit")
#: Stands for what the test prints among what is not judged; no fixture is called so.
PRINTED = "<printed>"
#: Runs of a test with limit_leaks that does not say how many.
REPEAT = 5
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_OUTPUT = (_HERE + "_test_output.py", _HERE + "_test_warnings.py")


class LimitExceeded(Exception):
    """The text says by what, and who holds it."""


class StackOfLeak(NamedTuple):
    """What a `filter_fn` gets."""

    frames: Stack


@dataclasses.dataclass(frozen=True)
class MemoryLimit:
    """`limit_memory`: most bytes at the test's own high-water mark."""

    limit: Union[str, int]
    current_thread_only: bool = False
    marker: str = "limit_memory"

    def is_surely_kept(self, test: "RecordedCall") -> bool:
        """Whether all that was held is within it: what is judged is a part of that, so no further process need read the capture."""
        return test.held_bound is not None and test.held_bound <= parse_size(self.limit)

    def judge(self, test: "RecordedCall") -> Optional[str]:
        """What is wrong, if anything."""
        most = parse_size(self.limit)
        if self.is_surely_kept(test):
            return None
        judged, apart, whole = test.at_the_peak_of_all(self.current_thread_only)
        held = sum(holding.bytes for holding in judged)
        if whole <= most:
            return None
        # What the test held when it held most lies between these two. To find it takes longer than the test itself, if that is busy.
        if held <= most or size_text(held) != size_text(whole) or size_text(held - most) != size_text(whole - most):
            everything, _ = test.below_the_test(test.capture.allocations("allocated"), self.current_thread_only)
            if sum(holding.bytes for holding in everything) <= most:
                return None
            judged = test.at_its_peak(self.current_thread_only) or judged
            held = sum(holding.bytes for holding in judged)
        if held <= most:
            return None
        title = (
            f"{self.marker}({self.limit!r}): the test held {size_text(held)} at its high-water mark, "
            f"{size_text(held - most)} more than its limit"
        )
        return test.report(title, judged, apart)


@dataclasses.dataclass(frozen=True)
class LeakLimit:
    """`limit_leaks`: most bytes by which what is live grows with each run of the test."""

    limit: Union[str, int]
    repeat: int = REPEAT
    filter_fn: Optional[Callable[[Any], bool]] = None
    current_thread_only: bool = False

    def is_surely_kept(self, test: "RecordedCall") -> bool:
        """Whether all that was left is within it: what grows is a part of that."""
        return test.kept_since(self.first(len(test.runs))) <= parse_size(self.limit)

    def judge(self, test: "RecordedCall") -> Optional[str]:
        """What is wrong, if anything."""
        most = parse_size(self.limit)
        if self.is_surely_kept(test):
            return None
        growing, apart = self.growing(test)
        grown = growing.bytes
        if grown <= most:
            return None
        each = f"grows by {size_text(grown)} with each of {len(test.runs)} runs" if len(test.runs) > 1 else (
            f"holds {size_text(grown)} after its only run"
        )
        how = f"{each}, by stacks that differ each time" if growing.differs else each
        title = f"limit_leaks({self.limit!r}): what the test leaves {how}, {size_text(grown - most)} more than its limit"
        return test.report(title, growing.holdings, apart)

    @staticmethod
    def first(runs: int) -> int:
        """The first run of so many that counts: before it is the warm-up, if there are enough."""
        return min(runs - 1, 2)

    def growing(self, test: "RecordedCall") -> Tuple[Growth, Dict[str, int]]:
        """What grows with each run, and what fixtures have allocated meanwhile.

        A cache is filled by the first run, or once by another; what goes on growing does so with most of them.
        """
        at_ends: List[List[Allocation]] = [[] for _ in test.runs]
        for number, allocation in live_at_ends(test.capture.files, test.runs):
            at_ends[number].append(allocation)
        runs = []
        apart: Dict[str, int] = {}
        for allocations in at_ends:
            holdings, apart = test.below_the_test(allocations, self.current_thread_only)
            runs.append([each for each in holdings if self.filter_fn is None or self.filter_fn(StackOfLeak(each.stack))])
        return growth(runs, self.first(len(runs)), test.root), apart


Limit = Union[MemoryLimit, LeakLimit]


def limits_of(
    memory: "Optional[pytest.Mark]", leaks: "Optional[pytest.Mark]", option: Optional[str], texts: Dict[str, str]
) -> List[Limit]:
    """The limits that these markers give, else the option. Raises TypeError or ValueError where they give none; `texts` says of each
    marker what it takes."""
    found: List[Limit] = []
    if memory is not None:
        found.append(_of_marker(MemoryLimit, memory, texts))
    elif option:
        found.append(MemoryLimit(option, marker="--memtrack-limit "))
    if leaks is not None:
        leak_limit = _of_marker(LeakLimit, leaks, texts)
        if not isinstance(leak_limit.repeat, int) or leak_limit.repeat < 1:
            raise ValueError(f"limit_leaks: repeat is {leak_limit.repeat!r}, expected a number from 1 on")
        found.append(leak_limit)
    for limit in found:
        parse_size(limit.limit)
    return found


def _of_marker(kind: Callable[..., _AnyLimit], marker: "pytest.Mark", texts: Dict[str, str]) -> _AnyLimit:
    """The limit that a marker gives; where its arguments are none of the limit's, TypeError names the marker and what it takes."""
    try:
        return kind(*marker.args, **marker.kwargs)
    except TypeError as error:
        # Python's text begins with the function that was called, which nobody has written.
        wrong = re.sub(r"^\S*__init__\(\) ", "", str(error))
        written, _, _ = texts[marker.name].partition(": ")
        raise TypeError(f"{marker.name}: {wrong}; expected {written}") from None


def _collect() -> None:
    """Frees what nothing but the interpreter holds: cycles, and names that were looked up as attributes, of which it keeps some thousands."""
    clear = getattr(sys, "_clear_internal_caches", None) or getattr(sys, "_clear_type_cache", None)
    if clear is not None:
        clear()
    gc.collect()


def other_threads() -> FrozenSet[int]:
    """The ids of all threads of this process but the current one."""
    try:
        return frozenset(map(int, listdir("/proc/self/task"))) - {get_native_id()}
    except OSError:
        return frozenset()


class RecordedCall:
    """One call of a test function, or its repeated runs: in a recording of its own, or in one that rests between calls."""

    def __init__(
        self,
        path: Union[str, Callable[[], str]],
        limits: List[Limit],
        root: str,
        fixtures: Union[List[str], Callable[[], List[str]]],
        options: Dict[str, Any],
        others: FrozenSet[int] = frozenset(),
        resting: "Optional[RestingRecording]" = None,
    ) -> None:
        self._path = path
        self.others = others
        """Threads that are not judged, such as those of the kernel of a notebook."""
        self._older: FrozenSet[int] = frozenset()
        """Threads of Python that were there before it."""
        self.limits = limits
        self.root = root
        self.fixtures = fixtures
        self.options = options
        self.repeat = 0
        """How often the test runs for limits of leaks; 0: it has none, and runs once."""
        self._least = -1 if resting is None else parse_size(limits[0].limit)
        """What is within this is within each limit: neither what is held at once nor what is left is more than what was allocated."""
        for limit in limits:
            if isinstance(limit, LeakLimit):
                self.repeat = max(self.repeat, limit.repeat)
            if limit is not limits[0] and resting is not None:
                self._least = min(self._least, parse_size(limit.limit))
        self.is_late = False
        """It is certain to be within its limits, before more is known of it: `await_figures` waits for that."""
        self.runs: List[Tuple[int, int]] = []
        """The span of each run."""
        self.held_bound: Optional[int] = None
        """An upper bound, in bytes, of what everything that was recorded held at once; None until figures() was called."""
        self._kept: List[int] = []
        """What was left of each run, and of what is before, between and after them."""
        self._resting = resting
        """The recording that goes on for this call, unless there is none."""
        self._sums: Optional[List[int]] = None
        """What that says of the call: the members of the sum of each span."""
        self._failure: Optional[Error] = None
        """Why it says nothing."""
        self._tracker: "Optional[Tracker]" = None
        self._captures: Optional[Capture] = None

    @property
    def path(self) -> str:
        """Of its capture. Most calls have none, and need no name for it."""
        if callable(self._path):
            self._path = self._path()
        return self._path

    def started(self) -> "RecordedCall":
        """Itself, with the recording begun; `with` ends it. Raises Error if the process cannot be recorded."""
        if active_count() > 1:
            self._older = frozenset(thread.native_id for thread in threads_of_python() if thread.native_id is not None) - {get_native_id()}
        if self._resting is not None and self._resting.go_on():
            return self
        self._resting = None
        with undisturbed():
            from memtrack._tracker import Tracker

            # Exact times tell the runs apart.
            tracker = Tracker(self.path, allocation_timestamps=True, follow_fork=True, **self.options)
            # Of one test they say little.
            tracker._has_accounts = False
            tracker.__enter__()
        self._tracker = tracker
        return self

    def __enter__(self) -> "RecordedCall":
        return self

    def __exit__(self, *exception: Any) -> None:
        # What that needs it has by name; to look at all modules would be recorded.
        if self._resting is None:
            assert self._tracker is not None
            with quietly():
                self._tracker.__exit__(*exception)
            return
        try:
            # What fails by itself is kept at once.
            sums = self._resting.rest(self.runs, self._least if exception[0] is None else -1)
            if sums is LATE:
                self.is_late = True
                return
            self._sums = sums
            if sums is None or exception[0] is not None:
                self._keep(self._resting)
        except Error as error:
            # Who judges the test says so; where it has failed by itself, that is what matters.
            self._failure = error
        except BaseException:
            surely(self._resting.end)
            raise

    def _keep(self, resting: "RestingRecording") -> None:
        """Writes its captures."""
        with undisturbed():
            resting.keep(self.path)
            self._captures = Capture(*captures_at(self.path))

    @property
    def note_run(self) -> Callable[[], int]:
        """Gives the time at which its only run begins or ends, and notes it."""
        return now_ns if self._resting is None else self._resting.note_run

    def numbers(self) -> Iterator[int]:
        """The numbers of its runs, from 0."""
        for number in range(max(self.repeat, 1)):
            begin = now_ns()
            if number and output is not None:
                output.next_run()
            yield number
            if self.repeat:
                _collect()
            self.runs.append((begin, now_ns()))

    @property
    def capture(self) -> Capture:
        """The captures of its process and of the children that it has begun."""
        if self._captures is None and self._resting is not None:
            self._keep(self._resting)
        if self._captures is None:
            assert self._tracker is not None
            self._captures = Capture(*captures_of(self._tracker))
        return self._captures

    def is_surely_within(self) -> bool:
        """Whether its sums show that it is within all limits; no file has to be read then. It needs figures()."""
        return all(limit.is_surely_kept(self) for limit in self.limits)

    def judge(self) -> None:
        """Raises LimitExceeded where a limit is."""
        with undisturbed():
            wrong = [text for text in (limit.judge(self) for limit in self.limits) if text]
        if wrong:
            raise LimitExceeded("\n\n".join(wrong))

    def await_figures(self) -> None:
        """Waits for the figures of one that is late. Raises Error where there are none."""
        assert self._resting is not None
        self._sums = self._resting.late_sums()

    def has_figures(self) -> bool:
        """Whether figures() knows them at once, and what it uses was not replaced."""
        return self._sums is not None and self._failure is None and has_builtins()

    def figures(self) -> Dict[str, int]:
        """Peak and sum of everything, of its largest run. Raises Error where they are not known."""
        if self._failure is not None:
            raise self._failure
        sums = self._sums
        if sums is None:
            with undisturbed():
                read = sums_of_small(self.capture.files, spans_between(self.runs))
            sums = [number for each in read for number in each]
        # Four numbers of each span, and every other one is a run: between them is what lies before, between and after the runs.
        peaks = sums[2::4]
        self._kept = sums[3::4]
        # What is held at a moment was allocated in one of the spans up to it, of each at most its peak.
        self.held_bound = sum(peaks)
        return {
            "peak_bytes": max(peaks[1::2], default=0),
            "allocated_bytes": max(sums[5::8], default=0),
            "allocations": max(sums[4::8], default=0),
        }

    def kept_since(self, run: int) -> int:
        """An upper bound, in bytes, of what this and the later runs have left. It needs figures()."""
        return sum(self._kept[2 * run : 2 * len(self.runs)])

    def remove(self) -> None:
        """Removes its captures, if there are any."""
        for path in self.capture.files if self._resting is None or self._captures is not None else ():
            if exists(path):
                unlink(path)

    def below_the_test(
        self, allocations: Iterable[Allocation], current_thread_only: bool
    ) -> Tuple[List[Holding], Dict[str, int]]:
        """What was allocated below the test function, stacks from there on, and what fixtures have allocated meanwhile."""
        judged: List[Holding] = []
        apart: Dict[str, int] = {}
        own = get_native_id()
        for allocation in allocations:
            stack = _from_the_call(allocation.stack)
            fixture = _fixture(stack) if stack is not None else None
            if fixture is None and stack is not None:
                fixture = _of_pytest(stack)
            if fixture is not None:
                apart[fixture] = apart.get(fixture, 0) + allocation.bytes
            elif stack is not None and (allocation.thread == own or not (current_thread_only or allocation.thread in self.others)):
                older = (allocation.thread_name or str(allocation.thread)) if allocation.thread in self._older else ""
                judged.append(Holding(allocation.bytes, allocation.count, allocation.allocator, stack, older))
        return judged, apart

    def at_the_peak_of_all(self, current_thread_only: bool) -> Tuple[List[Holding], Dict[str, int], int]:
        """What was allocated below the test function, and what fixtures allocated meanwhile, when everything that was recorded held most; and the
        bytes of that."""
        at_peak = list(self.capture.allocations())
        return (*self.below_the_test(at_peak, current_thread_only), sum(allocation.bytes for allocation in at_peak))

    def at_its_peak(self, current_thread_only: bool) -> Optional[List[Holding]]:
        """What was allocated below the test function, when that held most. None of a process that has begun children: of them it
        is what was live at the high-water mark of all of them."""
        capture = self.capture
        if len(capture.files) > 1:
            return None
        judges = lambda allocation: bool(self.below_the_test([allocation], current_thread_only)[0])
        return self.below_the_test(at_their_peak(self.path, judges), current_thread_only)[0]

    def report(self, title: str, holdings: List[Holding], apart: Dict[str, int]) -> str:
        """The text of a failure."""
        lines = [title, *holders_text(holdings, self.root)]
        older = older_threads(holdings)
        if older:
            lines.append(f"by threads that are older than the test: {older}; with current_thread_only=True they do not count")
        lines += _kept_by_pytest(apart.pop(PRINTED, 0))
        own = self.fixtures() if callable(self.fixtures) else self.fixtures
        fixtures = {name: "" for name in own}
        fixtures.update({name: f" ({size_text(size)} while the test ran)" for name, size in apart.items() if name})
        if fixtures:
            lines.append(f"fixtures, not judged: {', '.join(name + size for name, size in fixtures.items())}")
        lines.append(f"capture: {' '.join(self.capture.files)}")
        return "\n".join(lines)


def _kept_by_pytest(printed: int) -> List[str]:
    """What pytest keeps of the test for its report, in words."""
    sizes = {**(output.kept_bytes() if output is not None else {}), "what it prints": printed}
    lines = output.judged() if output is not None else []
    texts = [f"{name} ({size_text(size)})" for name, size in sizes.items() if size]
    return [f"kept by pytest for its report, not judged: {', '.join(texts)}", *lines] if texts else lines


def own_fixtures(item: "pytest.Item", root: str) -> List[str]:
    """The fixtures of a test that are defined in its project."""
    defined: Dict[str, Any] = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    files = {
        name: getattr(getattr(inspect.unwrap(known[-1].func), "__code__", None), "co_filename", "")
        for name, known in defined.items()
        if known
    }
    return [name for name in getattr(item, "fixturenames", ()) if is_own(files.get(name, ""), root)]


def call_test(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Calls a test function; what is allocated below this frame is the test's."""
    __tracebackhide__ = True
    return function(*args, **kwargs)


async def await_test(function: Callable[..., Awaitable[Any]], args: Any, kwargs: Any) -> Any:
    """The same of an async one."""
    __tracebackhide__ = True
    return await function(*args, **kwargs)


def _from_the_call(stack: Stack) -> Optional[Stack]:
    """The part of a stack below the call of the test function; whole in other threads and tasks. None: memtrack's own."""
    own = False
    for number, frame in enumerate(stack):
        if frame.file.startswith(_HERE):
            if frame.function in ("call_test", "await_test"):
                return stack[:number]
            own = True
    return None if own else stack


def _of_pytest(stack: Stack) -> Optional[str]:
    """What pytest keeps for its report, if this is that; the empty text where it needs no name."""
    for frame in stack:
        if frame.file in _OUTPUT:
            return PRINTED if frame.function == "write_captured" else ""
    return None


def _fixture(stack: Stack) -> Optional[str]:
    """The fixture that is being set up, if one is; the empty text where pytest prepares one."""
    for number, frame in enumerate(stack):
        # Steps of pytest-bdd are called by the same function, and from elsewhere.
        if frame.function == "call_fixture_func" and frame.file.endswith("fixtures.py"):
            # With native stacks the interpreter's own functions lie between those of Python.
            outer = next(_of_python(stack[number + 1 :]), None)
            if outer is not None and outer.function == "pytest_fixture_setup":
                inner = next(_of_python(reversed(stack[:number])), frame)
                return inner.function if inner.file != frame.file else ""
    return None


def _of_python(frames: Iterable[Frame]) -> Iterator[Frame]:
    return (frame for frame in frames if frame.file.endswith(".py"))
