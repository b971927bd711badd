"""What this package raises. Invariant: the text is what the command line would say, without `error: `."""

import contextlib
import warnings
from typing import Iterator


class Error(RuntimeError):
    """Something that memtrack could not do: what, where, and what helps."""


class CaptureWarning(UserWarning):
    """Something that memtrack says of a capture that it read, such as that it is not complete."""


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Without CaptureWarning, where a filter might make an exception of it in the middle of something else."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)
        yield
