"""Figures of each test of a session that is recorded as a whole, and their comparison with those of an earlier one.

No test needs a process of its own: the recording goes on, and one pass over it in the end tells the spans of the tests
apart. Invariant: a test that ran more than once has the figures of its largest run.
"""

import json
import os

# By name: a test may replace it in its module while it is recorded.
from os import getpid
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Tuple

from memtrack._errors import Error
from memtrack._sizes import LEAST_GROWTH, Growth, size_text
from memtrack._spans import Span, captures_of, span_sums
from memtrack._unpatched import undisturbed

if TYPE_CHECKING:
    import pytest

    from memtrack._tracker import Tracker

Figures = Dict[str, int]
SCHEMA, VERSION = "memtrack-pytest", 1
#: Names of properties of tests: its figures, and what a test tells that runs in a process of its own.
PREFIX, _SPAN = "memtrack_", "memtrack-span"
_NAMES = ("peak_bytes", "allocated_bytes", "allocations")


class _Part(NamedTuple):
    """A recording of the session, up to a test that had one of its own."""

    tracker: "Tracker"
    first: int
    """How many spans were before it."""


class RecordedSession:
    """The tests of a process in one recording, or in several where tests with a limit have recordings of their own."""

    def __init__(self, path: str, options: Dict[str, Any]) -> None:
        self.spans: List[Tuple[Span, str]] = []
        """When each test ran, and its name."""
        self.apart: Dict[str, Figures] = {}
        """The figures of tests that had a recording of their own, of the largest run of each."""
        self._process = getpid()
        self._stem, self._suffix = os.path.splitext(path)
        self._options = options
        self._tracker: "Optional[Tracker]" = None
        self._parts: List[_Part] = []

    def begin(self) -> None:
        """Begins to record, or goes on with it."""
        if self._tracker is not None:
            return
        from memtrack._tracker import Tracker

        number = f"-{len(self._parts) + 1}" if self._parts else ""
        path = f"{self._stem}{number}{self._suffix}"
        tracker = Tracker(path, allocation_timestamps=True, follow_fork=True, overwrite=True, **self._options)
        with undisturbed():
            tracker.__enter__()
        self._tracker = tracker
        self._parts.append(_Part(tracker, len(self.spans)))

    def pause(self) -> None:
        """Ends the recording, until the next test begins one."""
        if self._tracker is not None:
            tracker, self._tracker = self._tracker, None
            with undisturbed():
                tracker.__exit__(None, None, None)

    def ran(self, item: "pytest.Item", span: Span) -> None:
        """A test has run. If it has a process of its own, that of the session is told by the test's report."""
        if getpid() == self._process:
            self.spans.append((span, item.nodeid))
        else:
            item.user_properties.append((_SPAN, list(span)))

    def note_apart(self, name: str, figures: Figures) -> None:
        """The figures of a test that had a recording of its own."""
        known = self.apart.get(name)
        if known is None or figures["peak_bytes"] > known["peak_bytes"]:
            self.apart[name] = figures

    def end(self) -> Dict[str, Figures]:
        """Ends the recording; gives the figures of each test."""
        self.pause()
        known = dict(self.apart)
        ends = [*(part.first for part in self._parts[1:]), len(self.spans)]
        for part, end in zip(self._parts, ends):
            ran = sorted(self.spans[part.first : end])
            with undisturbed():
                sums = span_sums(captures_of(part.tracker), [span for span, _ in ran]) if ran else []
            for (_, name), each in zip(ran, sums):
                figures = {"peak_bytes": each.peak_bytes, "allocated_bytes": each.bytes, "allocations": each.allocations}
                old = known.get(name)
                if old is None or figures["peak_bytes"] > old["peak_bytes"]:
                    known[name] = figures
        return known

    @property
    def files(self) -> List[str]:
        """Its captures."""
        return [path for part in self._parts for path in captures_of(part.tracker)]


def take_told(report: "pytest.TestReport", session: Optional[RecordedSession]) -> None:
    """Takes what the report of a test has for the session, which another process may have written."""
    told: Dict[str, Any] = {each[0]: each[1] for each in getattr(report, "user_properties", ())}
    if session is not None and report.when == "call":
        if _SPAN in told:
            begin, end = told[_SPAN]
            session.spans.append(((begin, end), report.nodeid))
        if all(PREFIX + name in told for name in _NAMES):
            session.note_apart(report.nodeid, {name: told[PREFIX + name] for name in _NAMES})
    if _SPAN in told:
        report.user_properties[:] = [each for each in report.user_properties if each[0] != _SPAN]


def summary(known: Dict[str, Figures], top: int) -> List[str]:
    """The tests that hold most."""
    names = sorted(known, key=lambda name: (-known[name]["peak_bytes"], name))
    lines = [f"{'Peak':>9}  {'Allocated':>9}  {'Count':>9}  Test"]
    for name in names[:top] if top else names:
        peak, allocated, count = (known[name][key] for key in _NAMES)
        lines.append(f"{size_text(peak):>9}  {size_text(allocated):>9}  {count:>9,}  {name}")
    if top and len(names) > top:
        lines.append(f"and {len(names) - top:,} more (--memtrack-top 0 shows all)")
    return lines


def compared(known: Dict[str, Figures], path: str, most: Optional[Growth]) -> Tuple[List[str], List[str]]:
    """What changed against the file, largest growth first, and the names of the tests that grew by too much.

    Without a file, it is written.
    """
    if not os.path.exists(path):
        _write(known, path)
        return [f"{path}: written; later runs are compared with it"], []
    before = _read(path)
    grown = sorted(
        ((known[name]["peak_bytes"] - before[name]["peak_bytes"], name) for name in known if name in before),
        key=lambda row: (-abs(row[0]), row[1]),
    )
    wrong = [
        name for _, name in grown if most and most.is_exceeded(before[name]["peak_bytes"], known[name]["peak_bytes"])
    ]
    told = [row for row in grown if abs(row[0]) > LEAST_GROWTH or row[1] in wrong]
    lines = [f"{'Before':>9}  {'Now':>9}  {'Change':>9}  Test"] if told else [f"no test changed by more than {size_text(LEAST_GROWTH)}"]
    for change, name in told:
        old, new = before[name]["peak_bytes"], known[name]["peak_bytes"]
        sign = "+" if change > 0 else "-"
        mark = f"  more than {most.text}" if most and name in wrong else ""
        lines.append(f"{size_text(old):>9}  {size_text(new):>9}  {sign + size_text(abs(change)):>9}  {name}{mark}")
    added = len(set(known) - set(before))
    if added:
        tests = "1 test is" if added == 1 else f"{added} tests are"
        lines.append(f"{tests} not in {path}; remove it to write it anew")
    return lines, wrong


def _write(known: Dict[str, Figures], path: str) -> None:
    content = {"schema": SCHEMA, "version": VERSION, "tests": {name: known[name] for name in sorted(known)}}
    temporary = f"{path}.{os.getpid()}"
    try:
        with open(temporary, "w") as file:
            json.dump(content, file, indent=1)
            file.write("\n")
        os.replace(temporary, path)
    except OSError as error:
        raise Error(f"{path}: cannot be written: {error.strerror}") from error


def _read(path: str) -> Dict[str, Figures]:
    try:
        with open(path) as file:
            content = json.load(file)
        if content["schema"] != SCHEMA or content["version"] != VERSION:
            raise ValueError(f"schema {content['schema']!r}, version {content['version']!r}")
        return {str(name): {key: int(value) for key, value in each.items()} for name, each in content["tests"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Error(f"{path}: expected figures of tests as --memtrack-compare writes them; found {error}") from error
