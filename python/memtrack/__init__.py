"""memtrack: records the memory allocations of Python and native programs, and shows who made them.

The program `memtrack` does the work; this package starts it, and reads what it writes. Invariant: importing it starts
nothing, loads no library, and imports nothing more than it is asked for.
"""

from __future__ import annotations

from importlib import import_module

from memtrack._errors import CaptureWarning, Error
from memtrack._program import find_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memtrack._capture import Allocation, Capture, Event, Frame, Interval, Metadata, Snapshot
    from memtrack._tracker import Tracker, is_recording, mark

    __version__: str

#: Names that are imported when they are first asked for, and where from.
_LATER = {
    "Allocation": "_capture",
    "Capture": "_capture",
    "Event": "_capture",
    "Frame": "_capture",
    "Interval": "_capture",
    "Metadata": "_capture",
    "Snapshot": "_capture",
    "load_ipython_extension": "_ipython",
    "unload_ipython_extension": "_ipython",
    "Tracker": "_tracker",
    "is_recording": "_tracker",
    "mark": "_tracker",
}

__all__ = [
    "Allocation",
    "Capture",
    "CaptureWarning",
    "Error",
    "Event",
    "Frame",
    "Interval",
    "Metadata",
    "Snapshot",
    "Tracker",
    "__version__",
    "find_program",
    "is_recording",
    "mark",
]


def __getattr__(name: str) -> object:
    if name in _LATER:
        try:
            value = getattr(import_module(f"memtrack.{_LATER[name]}"), name)
        except OSError as error:
            # Of a signal handler, which has none.
            if error.errno is None:
                raise
            raise Error(f"memtrack cannot be imported: {error}") from error
    elif name == "__version__":
        # The metadata of a distribution takes milliseconds to read.
        from importlib.metadata import version

        value = version("memtrack")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> "list[str]":
    return sorted({*globals(), *__all__})
