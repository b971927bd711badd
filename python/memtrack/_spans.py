"""Figures of spans of time in a capture: what single tests, or runs of one, allocated and kept.

Invariant: spans are in nanoseconds of the monotonic clock, in their order, and do not overlap.
"""

import contextlib
import glob
import itertools
import os
import re
import tempfile

# By name: a test may replace them in their module. Libraries that stop time replace monotonic_ns wherever it was imported, but not these.
from time import CLOCK_MONOTONIC, clock_gettime_ns
from typing import TYPE_CHECKING, Callable, Iterator, List, NamedTuple, Sequence, Tuple

from memtrack._capture import Allocation
from memtrack._reading import read_lines
from memtrack._records import Columns, RecordDecoder

if TYPE_CHECKING:
    from memtrack._tracker import Tracker

Span = Tuple[int, int]


def now_ns() -> int:
    """The present moment on the clock of spans."""
    return clock_gettime_ns(CLOCK_MONOTONIC)


class SpanSum(NamedTuple):
    """What was allocated in a span."""

    allocations: int
    """Their number."""
    bytes: int
    """The bytes that were allocated."""
    peak_bytes: int
    """The most of these bytes that was live at once; of several processes the sum of what each had."""
    kept_bytes: int
    """What was live at the end of the span."""


def captures_at(path: str) -> List[str]:
    """The capture, and those of children beside it: `out.PID-1.bin`, or `out.2.PID-1.bin` where there was such a file already."""
    stem, suffix = os.path.splitext(path)
    found = glob.glob(f"{glob.escape(stem)}.*{glob.escape(suffix)}")
    children = [name for name in found if re.fullmatch(r"\.(\d+\.)?\d+-\d+", name[len(stem) : len(name) - len(suffix)])]
    return [path, *sorted(children)]


def captures_of(tracker: "Tracker") -> List[str]:
    """The captures that a Tracker has written, which has stopped: as its recorder says, else those at the place of its file."""
    return tracker._captures or captures_at(tracker.file_name)


def span_sums(files: Sequence[str], spans: Sequence[Span]) -> List[SpanSum]:
    """The sum of each span."""
    sums = [SpanSum(0, 0, 0, 0)] * len(spans)
    with _rows("spans", files, spans) as (_, rows):
        for row in rows:
            for number, *values in zip(*row.values):
                sums[number] = SpanSum(*(one + more for one, more in zip(sums[number], values)))
    return sums


def sums_of_small(files: Sequence[str], spans: Sequence[Span]) -> List[SpanSum]:
    """The same, at once where a recorder runs that has little else to do."""
    from memtrack._tracker import sums_by_recorder

    known = sums_by_recorder(files, spans)
    if known is None:
        return span_sums(files, spans)
    return [SpanSum(*map(sum, zip(*of_files))) for of_files in zip(*known)]


def live_at_ends(files: Sequence[str], spans: Sequence[Span]) -> Iterator[Tuple[int, Allocation]]:
    """What is live at the end of each span, with the number of the span."""
    with _rows("live", files, spans) as (decoder, rows):
        for row in rows:
            numbers, sizes, counts, allocators, tids, names, stacks = row.values
            functions = map(decoder.allocators.__getitem__, allocators)
            yield from zip(numbers, map(Allocation, sizes, counts, functions, tids, names, decoder.stacks(stacks), itertools.repeat(None)))


def at_their_peak(path: str, selects: Callable[[Allocation], bool]) -> List[Allocation]:
    """Of the allocations of one capture that `selects` takes, by call stack, allocator and thread: those that were live when
    these together held most."""
    with _records(["--table", "peak", "--", path]) as (decoder, rows):
        selected = [number for number, allocation in enumerate(_allocations(decoder, rows)) if selects(allocation)]
    with tempfile.NamedTemporaryFile("w", prefix="memtrack-rows-") as file:
        file.writelines(f"{number}\n" for number in selected)
        file.flush()
        with _records(["--table", "peak", "--rows", file.name, "--", path]) as (decoder, rows):
            return list(_allocations(decoder, rows))


def _allocations(decoder: RecordDecoder, rows: Iterator[Columns]) -> Iterator[Allocation]:
    for row in rows:
        sizes, counts, allocators, tids, names, stacks = row.values
        functions = map(decoder.allocators.__getitem__, allocators)
        yield from map(Allocation, sizes, counts, functions, tids, names, decoder.stacks(stacks), itertools.repeat(None))


@contextlib.contextmanager
def _rows(
    table: str, files: Sequence[str], spans: Sequence[Span]
) -> Iterator[Tuple[RecordDecoder, Iterator[Columns]]]:
    with tempfile.NamedTemporaryFile("w", prefix="memtrack-spans-") as file:
        file.writelines(f"{begin} {end}\n" for begin, end in spans)
        file.flush()
        with _records(["--table", table, "--spans", file.name, "--", *files]) as known:
            yield known


@contextlib.contextmanager
def _records(arguments: List[str]) -> Iterator[Tuple[RecordDecoder, Iterator[Columns]]]:
    decoder = RecordDecoder()
    with contextlib.closing(read_lines(["transform", "records", *arguments])) as lines:
        yield decoder, decoder.rows(lines)
