"""memtrack: records the memory allocations of Python and native programs, and shows who made them.

The program `memtrack` does the work; this package finds it. Invariant: importing it starts nothing and loads no
library.
"""

from memtrack._errors import CaptureWarning, Error
from memtrack._program import find_program

__all__ = ["CaptureWarning", "Error", "__version__", "find_program"]


def __getattr__(name):
    # Looked up when it is asked for: the metadata of a distribution takes milliseconds to read.
    if name == "__version__":
        from importlib.metadata import version

        return version("memtrack")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
