"""The file that a recording is to be written to.

Invariant: a file that is there is overwritten only where that was asked for.
"""

from __future__ import annotations

import os

from memtrack._errors import Error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Union


def output_path(file_name: Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]) -> str:
    """The absolute path of a file, as the recorder can be told of it."""
    path = os.fsdecode(file_name)
    try:
        path = os.path.abspath(path)
    except FileNotFoundError:
        raise Error(f"{path}: the working directory was removed; name the file by its whole path") from None
    try:
        path.encode()
    except UnicodeEncodeError:
        raise Error(f"{path!r}: the name is not in UTF-8; name another") from None
    return path


def check_file(path: str, overwrite: bool) -> None:
    """Raises Error if it may not be written."""
    if os.path.isdir(path):
        raise Error(f"{path}: is a directory; name a file")
    if os.path.lexists(path) and not overwrite:
        raise Error(f"{path}: file exists; overwrite it with overwrite=True, or name another")


class undone:
    """What is written at the path within is removed again, and what was there before is there afterwards."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._aside = os.path.join(os.path.dirname(path), f".memtrack-{os.getpid()}")

    def __enter__(self) -> None:
        _move(self._path, self._aside)

    def __exit__(self, *error: object) -> None:
        try:
            os.unlink(self._path)
        except FileNotFoundError:
            pass
        _move(self._aside, self._path)


def _move(path: str, to: str) -> None:
    """Moves a file, if it is there."""
    try:
        os.rename(path, to)
    except FileNotFoundError:
        pass
