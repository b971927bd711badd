"""Decodes what `memtrack transform records` writes: rows in columns, and the tables that they refer to.

Invariant: equal stacks of one answer are one tuple, and equal frames one Frame, as long as their number is not extreme.
"""

from array import array

# By name: a test may replace it in its module while it is recorded.
from json import loads
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from memtrack._errors import Error

#: Frames in the tuples that are kept to be used again: at most about 32 MB of pointers.
_KEPT_FRAMES = 4_000_000


class Frame(NamedTuple):
    """A place in the program: a function, and the line in it that was being executed."""

    function: str
    """The function's name, qualified where the interpreter knows it (3.11+); of native code the demangled one."""
    file: str
    """The source file, or the empty text where it is not known."""
    line: int
    """The line, from 1; 0 where it is not known."""
    column: int
    """Where in the line the call begins, from 1; 0 where it is not known."""

    @property
    def filename(self) -> str:
        """`file`, by the name that pytest-memray has for it."""
        return self.file

    @property
    def lineno(self) -> int:
        """`line`, by the name that pytest-memray has for it."""
        return self.line


Stack = Tuple[Frame, ...]


class Columns(NamedTuple):
    """A line with rows: the name of its table, and a list of values for each column."""

    table: str
    values: List[List[Any]]


class RecordDecoder:
    """The tables of one answer, and the lines that use them."""

    def __init__(self) -> None:
        self.kinds: List[str] = []
        self.pid: Optional[int] = None
        self._begin([])

    def _begin(self, allocators: List[Optional[str]]) -> None:
        """Another capture begins, with tables of its own."""
        self.allocators = allocators
        self._names: List[str] = []
        self._frames: List[Frame] = []
        self._callers = array("I", [0])
        self._innermost = array("I", [0])
        self._forget()

    def _forget(self) -> None:
        self._stacks: Dict[int, Stack] = {0: ()}
        self._kept = 0

    def rows(self, lines: Iterator[bytes]) -> Iterator[Columns]:
        """The lines with rows; what they refer to is known when they come."""
        ended = False
        for line in lines:
            kind, *values = _parsed(line)
            ended = kind == "end"
            if kind == "names":
                self._names += values[0]
            elif kind == "frames":
                names = self._names
                self._frames += [Frame(names[function], names[file], *place) for function, file, *place in values[0]]
            elif kind == "stacks":
                self._callers.extend([caller for caller, _ in values[0]])
                self._innermost.extend([frame for _, frame in values[0]])
            elif kind == "allocators":
                self._begin(values[0])
            elif kind == "kinds":
                self.kinds = values[0]
            elif kind == "process":
                self.pid = values[0]
            elif not ended:
                yield Columns(kind, values)
        if not ended:
            raise Error("the program's answer ends before its last line")

    def stacks(self, numbers: Sequence[int]) -> List[Stack]:
        """The stacks with these numbers, innermost frame first."""
        known = self._stacks
        return [known[number] if number in known else self._stack(number) for number in numbers]

    def _stack(self, number: int) -> Stack:
        frames: List[Frame] = []
        outer = number
        while outer not in self._stacks:
            frames.append(self._frames[self._innermost[outer]])
            outer = self._callers[outer]
        stack = (*frames, *self._stacks[outer])
        self._kept += len(stack)
        if self._kept > _KEPT_FRAMES:
            self._stacks.clear()
            self._stacks[0] = ()
            self._kept = len(stack)
        self._stacks[number] = stack
        return stack


def _parsed(line: bytes) -> List[Any]:
    try:
        parsed: List[Any] = loads(line)
    except ValueError as error:
        raise Error(f"a line of the program's answer cannot be read: {error}") from error
    return parsed
