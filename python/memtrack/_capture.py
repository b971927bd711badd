"""Captures, read in Python: sums of a view, every event, memory over time, and the numbers of `memtrack stats`.

The program reads; this module asks it and gives names and types to the answers. Invariant: every figure is the one that
the command line reports for the same capture, view and filters.
"""

import contextlib
import dataclasses
import datetime
import glob
import itertools
import numbers
import os
import tempfile

# By name: a test may replace it in its module while it is recorded.
from json import loads
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

from memtrack._errors import Error
from memtrack._keywords import of_keywords
from memtrack._reading import read_lines, read_output
from memtrack._records import Columns, Frame, RecordDecoder, Stack

if TYPE_CHECKING:
    # Where they are not installed, or have no types, what they give is Any.
    import pandas  # type: ignore[import-untyped,import-not-found,unused-ignore] # pyright: ignore[reportMissingImports]
    import pyarrow  # type: ignore[import-untyped,import-not-found,unused-ignore] # pyright: ignore[reportMissingImports]
    from typing_extensions import Literal, TypedDict, Unpack

    View = Literal["high-water-mark", "leaks", "leaks-at-exit", "temporary", "allocated"]
    Table = Literal["events", "sites", "windows", "snapshots", "stacks", "frames", "threads", "processes"]
    Text = Union[str, Sequence[str]]

    class Filters(TypedDict, total=False):
        """Which allocations are meant: the options of the command line, by their names.

        A text, or several of which one has to fit: `thread`, `function`, `file`, `module`, `allocator`. Whose code
        allocated: `own`, `libraries`, `stdlib`, `imports`. `min_bytes`: the size of a single allocation. `from_` and `to`:
        when it was made, as a number of seconds or as the text of `--from` and `--to` ("250ms", "50%", "mark:NAME").
        """

        thread: Union[Text, int]
        function: Text
        file: Text
        module: Text
        allocator: Text
        own: bool
        libraries: bool
        stdlib: bool
        imports: bool
        min_bytes: Union[int, str]
        from_: Union[str, float]
        to: Union[str, float]
        debug_dir: Union[str, "os.PathLike[str]"]


_TABLES = ("events", "frames", "processes", "sites", "snapshots", "stacks", "threads", "windows")
_TEXTS = ("thread", "function", "file", "module", "allocator", "min_bytes", "debug_dir")
_FLAGS = ("own", "libraries", "stdlib", "imports")
_TIMES = {"from_": "from", "to": "to"}
#: What the options of filters are here.
_KEYWORDS = {f"--{name.replace('_', '-')}": name for name in (*_TEXTS, "temporary_threshold")}
_KEYWORDS.update((f"--{option}", name) for name, option in _TIMES.items())
_VIEWS = {
    "high-water-mark": [],
    "leaks": ["--leaks"],
    "leaks-at-exit": ["--at-exit"],
    "temporary": ["--temporary"],
    "allocated": ["--allocated"],
}  # type: Dict[str, List[str]]


class Interval(NamedTuple):
    """The ends of the 95 % intervals of two estimates."""

    bytes_low: int
    """The least that the bytes are."""
    bytes_high: int
    """The most."""
    count_low: int
    """The least that the number of allocations is."""
    count_high: int
    """The most."""


@dataclasses.dataclass(frozen=True)
class Allocation:
    """What one call stack has allocated with one allocator in one thread, as far as it belongs to the view."""

    __slots__ = ("bytes", "count", "allocator", "thread", "thread_name", "stack", "interval")

    bytes: int
    """Bytes requested."""
    count: int
    """The number of allocations."""
    allocator: str
    """The function that was called, such as `malloc`, `mmap` or `pymalloc_malloc`."""
    thread: int
    """The operating system's number of the thread."""
    thread_name: str
    """Its last name; empty where it has none."""
    stack: Stack
    """The call stack, innermost frame first; empty where none is known."""
    interval: Optional[Interval]
    """Of a recording with samples, of which `bytes` and `count` are estimates; None where every allocation was recorded."""

    def __reduce__(self) -> "Tuple[Any, ...]":
        # The slots of a frozen class cannot be set afterwards, which pickle and copy would do.
        return Allocation, tuple(getattr(self, name) for name in self.__slots__)

    @property
    def bytes_low(self) -> int:
        """The low end of the interval of `bytes`; `bytes` itself where every allocation was recorded."""
        return self.bytes if self.interval is None else self.interval.bytes_low

    @property
    def bytes_high(self) -> int:
        """The high end of the interval of `bytes`, or `bytes`."""
        return self.bytes if self.interval is None else self.interval.bytes_high

    @property
    def count_low(self) -> int:
        """The low end of the interval of `count`, or `count`."""
        return self.count if self.interval is None else self.interval.count_low

    @property
    def count_high(self) -> int:
        """The high end of the interval of `count`, or `count`."""
        return self.count if self.interval is None else self.interval.count_high

    @property
    def size(self) -> int:
        """`bytes`, by the name that memray has for it."""
        return self.bytes

    @property
    def n_allocations(self) -> int:
        """`count`, by the name that memray has for it."""
        return self.count

    @property
    def tid(self) -> int:
        """`thread`, by the name that memray has for it."""
        return self.thread

    def stack_trace(self, max_stacks: Optional[int] = None) -> List[Tuple[str, str, int]]:
        """Function, file and line of the innermost frames, as memray's records give them."""
        return [(frame.function, frame.file, frame.line) for frame in self.stack[:max_stacks]]

    def hybrid_stack_trace(self, max_stacks: Optional[int] = None) -> List[Tuple[str, str, int]]:
        """The same: stacks have native functions in their places where they were recorded."""
        return self.stack_trace(max_stacks)


class Event(NamedTuple):
    """Something that happened to memory, at one moment."""

    kind: str
    """`alloc`, `free`, `map`, `unmap`, `remap_from` (the old range of an mremap), `failed_alloc` (it gave no memory),
    `free_undo` and `unmap_undo` (the thread's last one did not happen: its realloc or munmap failed), `finalizing`
    (Python begins to end), `exec`."""
    time_ns: int
    """Nanoseconds since the recording began, of several captures since the earliest began: exact with allocation timestamps,
    else to a millisecond."""
    address: int
    """Where; 0 for kinds without an address."""
    size: int
    """Bytes: of a free those of the block that it frees; 0 where that block is not known."""
    allocator: Optional[str]
    """The function that was called; of a free the one that made the block."""
    thread: int
    """The operating system's number of the thread that did it."""
    stack: Stack
    """The call stack that allocated, innermost frame first. Frees have that of the block: who made it, not who freed."""
    pid: Optional[int]
    """The process, where several captures are read."""


class Snapshot(NamedTuple):
    """The memory of the process at one moment."""

    time_ns: int
    """Nanoseconds since the recording began."""
    live_bytes: int
    """Bytes allocated and not freed; an estimate where only samples of allocations were recorded."""
    rss_bytes: int
    """Resident memory, without memtrack's own."""


class Metadata(NamedTuple):
    """What is known of a recording, by the names that memray has for it."""

    start_time: Optional[datetime.datetime]
    end_time: Optional[datetime.datetime]
    total_allocations: int
    peak_memory: Optional[int]
    """Bytes; None for several captures whose largest sum is not known: aggregated ones have no events."""
    command_line: str
    pid: Optional[int]
    main_thread_id: Optional[int]
    python_allocator: Optional[str]
    has_native_traces: bool
    trace_python_allocators: bool


class Capture:
    """A recording: one file, or the files of a process tree.

    Nothing is read before it is asked for, and everything that is asked for is read anew, so a capture may be asked
    while it is still being written.

    >>> capture = Capture("app.bin")
    >>> largest = max(capture.allocations(), key=lambda allocation: allocation.bytes)
    >>> largest.bytes >= 40_000_000, largest.count, largest.stack[0].line
    (True, 40, 16)
    """

    def __init__(self, file_name: "Union[str, os.PathLike[str]]", *more: "Union[str, os.PathLike[str]]") -> None:
        self.files: Tuple[str, ...] = tuple(os.fspath(name) for name in (file_name, *more))
        """The paths."""

    def __repr__(self) -> str:
        return f"Capture({', '.join(map(repr, self.files))})"

    def __enter__(self) -> "Capture":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def stats(self, **filters: "Unpack[Filters]") -> Dict[str, Any]:
        """What `memtrack stats --json` says: totals, peak, leaks, sizes, allocators, threads, functions, modules.

        >>> stats = Capture("app.bin").stats()
        >>> stats["peak"]["bytes"] >= stats["leaked"]["bytes"]
        True
        """
        known: Dict[str, Any] = loads(self._output(["stats", "--json"], filters))
        return known

    def allocations(
        self, view: "View" = "high-water-mark", *, temporary_threshold: int = 1, **filters: "Unpack[Filters]"
    ) -> Iterator[Allocation]:
        """A view as sums, one for each call stack, allocator and thread, in the order of their first allocation.

        `view` is what was live at the peak (`high-water-mark`), what was never freed (`leaks`: live when Python began to
        end; `leaks-at-exit`: at the very end), what its thread freed after at most `temporary_threshold` further
        allocations (`temporary`), or everything (`allocated`).

        Of a recording with samples (`Tracker(sample=…)`, `run --sample`) the figures are estimates, whose 95 % intervals are
        `bytes_low` to `bytes_high` and `count_low` to `count_high`. What needs every allocation, which are `temporary` here and
        `events()`, also as a table, raises an error; `live_bytes` of `snapshots()` are estimates, too.

        >>> sum(leak.bytes for leak in Capture("app.bin").allocations("leaks", function="remember")) > 8_000_000
        True
        """
        if view not in _VIEWS:
            raise ValueError(f"view {view!r}: expected one of {', '.join(_VIEWS)}")
        options = [*_VIEWS[view], *_options(filters)]
        if view == "temporary":
            options.append(f"--temporary-threshold={temporary_threshold}")
        return self._allocations(options)

    def _allocations(self, options: List[str]) -> Iterator[Allocation]:
        with self._records("allocations", options) as (decoder, rows):
            for row in rows:
                sizes, counts, allocators, tids, names, stacks, *ends = row.values
                functions = map(decoder.allocators.__getitem__, allocators)
                # Only samples have them.
                intervals = map(Interval, *ends[0]) if ends else itertools.repeat(None)
                yield from map(Allocation, sizes, counts, functions, tids, names, decoder.stacks(stacks), intervals)

    def events(self, **filters: "Unpack[Filters]") -> Iterator[Event]:
        """Every event, in the one order of all threads; several captures one after the other, with times since the earliest of
        them began.

        They are read while they are taken, so a capture of any size needs the same little memory here. With filters come
        the allocations that they select, and what ends them.

        >>> live = peak = 0
        >>> for event in Capture("app.bin").events(function="remember"):
        ...     live += {"alloc": event.size, "free": -event.size}.get(event.kind, 0)
        ...     peak = max(peak, live)
        >>> peak > 8_000_000
        True
        """
        return self._events(_options(filters))

    def _events(self, options: List[str]) -> Iterator[Event]:
        with self._records("events", options) as (decoder, rows):
            for row in rows:
                kinds, times, addresses, sizes, allocators, tids, stacks = row.values
                yield from map(
                    Event,
                    map(decoder.kinds.__getitem__, kinds),
                    times,
                    addresses,
                    sizes,
                    map(decoder.allocators.__getitem__, allocators),
                    tids,
                    decoder.stacks(stacks),
                    [decoder.pid] * len(kinds),
                )

    def snapshots(self) -> Iterator[Snapshot]:
        """Live and resident memory over time, as often as it was recorded.

        >>> max(snapshot.live_bytes for snapshot in Capture("app.bin").snapshots()) > 1_000_000
        True
        """
        with self._records("snapshots", []) as (_, rows):
            for row in rows:
                yield from map(Snapshot, *row.values)

    def to_arrow(self, table: "Table" = "events", **filters: "Unpack[Filters]") -> "pyarrow.Table":
        """A table of `memtrack transform parquet` as a pyarrow.Table: `events`, `sites`, `windows`, `snapshots`, or what they
        refer to by key (`processes`, `threads`, `stacks`, `frames`). Where pyarrow is installed.

        >>> events = Capture("app.bin").to_arrow()
        >>> events.column_names[:4]
        ['process', 'order', 'time_ns', 'kind']
        """
        try:
            import pyarrow  # type: ignore[import-untyped,import-not-found,unused-ignore] # pyright: ignore[reportMissingImports]
            from pyarrow import parquet  # type: ignore[import-untyped,import-not-found,unused-ignore] # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise Error(f"{error}; pip install pyarrow") from error
        with tempfile.TemporaryDirectory(prefix="memtrack-") as directory:
            tables = os.path.join(directory, "tables")
            self._output(["transform", "parquet", "-o", tables], filters)
            files = sorted(glob.glob(os.path.join(tables, glob.escape(table), "**", "*.parquet"), recursive=True))
            if not files and table == "events":
                # Samples and sums have none: says so.
                next(self.events(**filters), None)
            if not files and table in _TABLES:
                raise Error(
                    f"{', '.join(self.files)}: without the table {table!r}; aggregated captures have windows only of"
                    " 'memtrack run --window', and snapshots only as Capture.snapshots() gives them"
                )
            if not files:
                raise ValueError(f"table {table!r}: expected one of {', '.join(_TABLES)}")
            return pyarrow.concat_tables([parquet.ParquetFile(path).read() for path in files])

    def to_pandas(self, table: "Table" = "events", **filters: "Unpack[Filters]") -> "pandas.DataFrame":
        """The same as a pandas.DataFrame, where pandas is installed, too. Integers of columns with missing values are pandas'
        nullable ones (`Int64`), which keep every bit of keys and addresses.

        >>> events = Capture("app.bin").to_pandas()
        >>> int(events[events.kind == "alloc"]["size"].sum()) > 40_000_000
        True
        """
        try:
            import pandas  # type: ignore[import-untyped,import-not-found,unused-ignore] # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise Error(f"{error}; pip install pandas") from error
        arrow = self.to_arrow(table, **filters)
        # Beside missing values pandas would make floats of them, which hold 53 bits.
        # Sizes and addresses are signed ones, of which differences can be taken.
        known = {"int32": pandas.Int32Dtype(), "int64": pandas.Int64Dtype(), "uint64": pandas.Int64Dtype()}
        nullable = {
            name: column.to_pandas(types_mapper=lambda kind: known.get(str(kind)))
            for name, column in zip(arrow.column_names, arrow.columns)
            if column.null_count and str(column.type) in known
        }
        frame: "pandas.DataFrame" = arrow.drop(list(nullable)).to_pandas()
        for at, name in enumerate(arrow.column_names):
            if name in nullable:
                frame.insert(at, name, nullable[name])
        return frame

    # --- by the names of memray.FileReader ---------------------------------------------------------------------------

    @property
    def metadata(self) -> Metadata:
        """What is known of the recording, as memray.FileReader gives it."""
        stats = self.stats()
        about = stats["capture"]
        start = _moment(about.get("start_time"))
        duration = datetime.timedelta(milliseconds=about.get("duration_ms") or 0)
        return Metadata(
            start_time=start,
            end_time=start + duration if start else None,
            total_allocations=stats["allocations"]["count"],
            peak_memory=stats["peak"]["bytes"],
            command_line=" ".join(about.get("command_line") or ()),
            pid=about.get("pid"),
            main_thread_id=about.get("pid"),  # on Linux
            python_allocator=about.get("python_allocator"),
            has_native_traces=bool(about.get("has_native_traces")),
            trace_python_allocators=bool(about.get("traces_python_allocators")),
        )

    def get_high_watermark_allocation_records(self, merge_threads: bool = True) -> Iterator[Allocation]:
        """The view `high-water-mark`."""
        return _threads_merged(self.allocations(), merge_threads)

    def get_leaked_allocation_records(self, merge_threads: bool = True) -> Iterator[Allocation]:
        """The view `leaks-at-exit`."""
        return _threads_merged(self.allocations("leaks-at-exit"), merge_threads)

    def get_temporary_allocation_records(self, merge_threads: bool = True, threshold: int = 1) -> Iterator[Allocation]:
        """The view `temporary`."""
        return _threads_merged(self.allocations("temporary", temporary_threshold=threshold), merge_threads)

    def get_allocation_records(self) -> Iterator[Allocation]:
        """Every single allocation; frees are in `events()`."""
        for event in self.events():
            if event.kind in ("alloc", "map"):
                yield Allocation(event.size, 1, event.allocator or "", event.thread, "", event.stack, None)

    def get_memory_snapshots(self) -> Iterator[Snapshot]:
        """The same as `snapshots()`."""
        return self.snapshots()

    # --- asking the program -------------------------------------------------------------------------------------------

    def _command(self, words: List[str], options: List[str]) -> List[str]:
        return [*words, *options, "--", *self.files]

    def _output(self, words: List[str], filters: Any) -> bytes:
        with of_keywords(_KEYWORDS):
            return read_output(self._command(words, _options(filters)))

    @contextlib.contextmanager
    def _records(self, table: str, options: List[str]) -> Iterator[Tuple[RecordDecoder, Iterator[Columns]]]:
        command = self._command(["transform", "records", "--table", table], options)
        decoder = RecordDecoder()
        # The program ends when its lines are no longer wanted.
        with of_keywords(_KEYWORDS), contextlib.closing(read_lines(command)) as lines:
            yield decoder, decoder.rows(lines)


def _options(filters: Any) -> List[str]:
    """The filters as the command line has them."""
    options: List[str] = []
    for name, value in filters.items():
        if value is None:
            continue
        if name in _FLAGS:
            options += [f"--{name}"] if value else []
        elif name in _TIMES:
            options.append(f"--{_TIMES[name]}={_seconds(value) if isinstance(value, numbers.Real) else value}")
        elif name in _TEXTS:
            values = value if isinstance(value, (list, tuple, set, frozenset)) else [value]
            options += [f"--{name.replace('_', '-')}={os.fspath(one) if name == 'debug_dir' else one}" for one in values]
        else:
            known = ", ".join(sorted((*_TEXTS, *_FLAGS, *_TIMES)))
            raise TypeError(f"{name!r} is no filter; expected one of {known}")
    return options


def _seconds(value: numbers.Real) -> str:
    """Seconds as the command line has them, which knows no exponents: 5e-05 is `0.00005s`."""
    return f"{float(value):.9f}".rstrip("0").rstrip(".") + "s"


def _moment(text: Optional[str]) -> Optional[datetime.datetime]:
    """A time as RFC 3339 has it; Python 3.8 knows neither `Z` nor nanoseconds."""
    if not text:
        return None
    return datetime.datetime.strptime(text[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=datetime.timezone.utc)


def _threads_merged(records: Iterator[Allocation], merge: bool) -> Iterator[Allocation]:
    """One record for all threads, of number 0, as memray gives it."""
    if not merge:
        yield from records
        return
    sums: Dict[Tuple[Stack, str], Tuple[int, int, Optional[Interval]]] = {}
    for record in records:
        key = (record.stack, record.allocator)
        size, count, interval = sums.get(key, (0, 0, record.interval and Interval(0, 0, 0, 0)))
        if interval is not None and record.interval is not None:
            # The sums of the ends hold in at least 95 %.
            interval = Interval(*map(int.__add__, interval, record.interval))
        sums[key] = (size + record.bytes, count + record.count, interval)
    for (stack, allocator), (size, count, interval) in sums.items():
        yield Allocation(size, count, allocator, 0, "", stack, interval)


__all__ = ["Allocation", "Capture", "Event", "Frame", "Interval", "Metadata", "Snapshot"]
