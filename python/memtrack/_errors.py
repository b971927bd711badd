"""What this package raises. Invariant: the text is what the command line would say, without `error: `.

Programs pay for what this module and the Tracker's import, so they leave out what is only for type checkers, and what is
seldom needed.
"""

from __future__ import annotations

import errno
import warnings


class Error(RuntimeError):
    """Something that memtrack could not do: what, where, and what helps."""


class CaptureWarning(UserWarning):
    """Something that memtrack says of a capture that it read, such as that it is not complete."""


def with_remedy(error: OSError) -> str:
    """What the system says, and how to raise the limit that is the reason."""
    if error.errno != errno.EMFILE:
        return str(error)
    return f"{error}; memtrack needs about 15 file descriptors: raise the limit (ulimit -n)"


class quietly:
    """Without CaptureWarning, where a filter might make an exception of it in the middle of something else."""

    def __init__(self) -> None:
        self._filters = warnings.catch_warnings()

    def __enter__(self) -> None:
        self._filters.__enter__()
        warnings.simplefilter("ignore", CaptureWarning)

    def __exit__(self, *error: object) -> None:
        self._filters.__exit__(None, None, None)
