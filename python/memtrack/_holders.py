"""Who holds memory, as text: the places in own code with most bytes, their source line, and who called them.

Used where a test fails on a limit and in notebooks. Invariant: the shares add up to what was judged.
"""

import dataclasses
import linecache
import os
import sysconfig
from typing import Callable, Dict, Iterable, List, Optional, Sequence, Tuple

from memtrack._records import Frame, Stack
from memtrack._sizes import size_text

_CALLERS = 4
#: Places with less than this part of the whole, 0.1 %, are summed up.
LEAST_SHARE = 1000
_STANDARD = tuple(
    sorted({os.path.realpath(path) + os.sep for path in map(sysconfig.get_path, ("stdlib", "platstdlib")) if path})
)
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
NO_STACK = Frame("<no stack>", "", 0, 0)


@dataclasses.dataclass(frozen=True)
class Holding:
    """What one call stack holds."""

    bytes: int
    count: int
    allocator: str
    stack: Stack
    older_thread: str = ""
    """The thread, if it was there before what is judged."""


def older_threads(holdings: Iterable[Holding]) -> str:
    """The threads that were there before, with what they hold, largest first."""
    sizes: Dict[str, int] = {}
    for holding in holdings:
        if holding.older_thread:
            sizes[holding.older_thread] = sizes.get(holding.older_thread, 0) + holding.bytes
    return ", ".join(f"{name} ({size_text(size)})" for name, size in sorted(sizes.items(), key=lambda each: -each[1]))


def holders_text(
    holdings: Iterable[Holding], root: str, most: int = 5, cell: Callable[[str], Optional[str]] = lambda file: None
) -> List[str]:
    """A table of the places that hold most, in the order of their bytes. `cell` gives the name of a notebook's cell, by its file."""

    def text(frame: Frame) -> str:
        named = cell(frame.file)
        return f"{frame.function} at {named}, line {frame.line}" if named else _place_text(frame, root)

    places = _by_place(holdings, root)
    whole = sum(place.bytes for place in places) or 1
    lines = [f"{'Size':>9}  {'Part':>7}  {'Count':>7}  Allocator  Place"]
    shown = [place for place in places[:most] if place.bytes * LEAST_SHARE >= whole] or places[:1]
    for place in shown:
        allocators = sorted(place.allocators)
        more = f" +{len(allocators) - 1}" if len(allocators) > 1 else ""
        part = f"{100 * place.bytes / whole:.1f} %"
        lines.append(
            f"{size_text(place.bytes):>9}  {part:>7}  {place.count:>7,}  {place.main_allocator}{more}  "
            f"{text(place.stack[place.at])}{place.via(text)}"
        )
        source = linecache.getline(place.stack[place.at].file, place.stack[place.at].line).strip()
        if source:
            lines.append(f"{'':>29}{source}")
        callers = [text(frame) for frame in place.stack[place.at + 1 :]]
        lines += [f"{'':>29}called by {caller}" for caller in callers[:_CALLERS]]
        if len(callers) > _CALLERS:
            lines.append(f"{'':>29}and {len(callers) - _CALLERS} more")
    if len(places) > len(shown):
        rest = sum(place.bytes for place in places[len(shown) :])
        lines.append(f"{size_text(rest):>9}  in {len(places) - len(shown)} more")
    return lines


class _Place:
    """Everything that was allocated at one place."""

    def __init__(self, stack: Stack, at: int) -> None:
        self.stack = stack
        self.at = at
        self.bytes = 0
        self.count = 0
        self.most = -1
        self.allocators: Dict[str, int] = {}
        #: By the function that the place called, and by none where it allocated by itself: bytes, and one of its frames.
        self.callees: Dict[Tuple[str, str], Tuple[int, Frame]] = {}

    def add(self, holding: Holding, at: int) -> None:
        self.bytes += holding.bytes
        self.count += holding.count
        self.allocators[holding.allocator] = self.allocators.get(holding.allocator, 0) + holding.bytes
        callee = holding.stack[at - 1] if at else NO_STACK
        key = callee.function, callee.file
        self.callees[key] = self.callees.get(key, (0, callee))[0] + holding.bytes, callee
        if holding.bytes > self.most:
            # The callers of the stack that holds most.
            self.most, self.stack, self.at = holding.bytes, holding.stack or (NO_STACK,), at

    def via(self, text: Callable[[Frame], str]) -> str:
        """The function that the place called for most of it, unless it allocated most by itself; as in `memtrack table`."""
        key = max(self.callees, key=lambda each: self.callees[each][0])
        callees = len(self.callees) - ((NO_STACK.function, NO_STACK.file) in self.callees)
        if not callees or self.callees[key][1] == NO_STACK:
            return ""
        more = f" and {callees - 1} more" if callees > 1 else ""
        return f", via {text(self.callees[key][1])}{more}"

    @property
    def main_allocator(self) -> str:
        return max(self.allocators, key=lambda name: self.allocators[name])


def _by_place(holdings: Iterable[Holding], root: str) -> List[_Place]:
    places: Dict[Tuple[str, str, int], _Place] = {}
    for holding in holdings:
        stack = holding.stack or (NO_STACK,)
        at = own_frame(stack, root)
        frame = stack[at]
        places.setdefault((frame.function, frame.file, frame.line), _Place(stack, at)).add(holding, at)
    return sorted(places.values(), key=lambda place: -place.bytes)


def own_frame(stack: Sequence[Frame], root: str) -> int:
    """The innermost frame of own code; without any that of a package; else the innermost."""
    fallback = None
    for number, frame in enumerate(stack):
        if is_own(frame.file, root):
            return number
        if fallback is None and any(part in frame.file for part in _PACKAGES):
            fallback = number
    return fallback or 0


def is_own(file: str, root: str) -> bool:
    """Whether a source file is the project's, not an installed package's."""
    if not file.startswith(root.rstrip(os.sep) + os.sep):
        return False
    return not any(part in file for part in _PACKAGES) and not file.startswith(_STANDARD)


def _place_text(frame: Frame, root: str) -> str:
    if not frame.file:
        return frame.function
    file = os.path.relpath(frame.file, root) if is_own(frame.file, root) else _shortened(frame.file)
    return f"{frame.function} at {file}:{frame.line}" if frame.line else f"{frame.function} at {file}"


def _shortened(file: str) -> str:
    """The path of a library below its packages."""
    for part in _PACKAGES:
        if part in file:
            return file.split(part)[-1]
    for directory in _STANDARD:
        if file.startswith(directory):
            return file[len(directory) :]
    return file


