"""Runs the program to read captures, and passes on what it says.

Invariant: the program's errors become memtrack.Error, and its warnings CaptureWarning, with their own words. Nothing
that it writes is held back: a large answer is read line by line.
"""

import os
import sys
import tempfile
import warnings

# By name: a test may replace it in its module while it is recorded.
from subprocess import DEVNULL, PIPE, Popen
from types import MappingProxyType
from typing import IO, Dict, Generator, List, Mapping, Sequence

from memtrack._errors import CaptureWarning, Error
from memtrack._program import find_program

_USAGE = "For more information, try '--help'."


def read_output(arguments: Sequence[str], **variables: str) -> bytes:
    """All that the program prints, with these variables in its environment."""
    return b"".join(read_lines(arguments, variables))


def read_lines(arguments: Sequence[str], variables: Mapping[str, str] = MappingProxyType({})) -> Generator[bytes, None, None]:
    """What the program prints, line by line. Ends the program when the iterator is closed."""
    # A file, not a pipe: nobody reads what it says while it is asked for lines.
    with tempfile.TemporaryFile() as said:
        process = _start(arguments, said, variables)
        assert process.stdout is not None
        try:
            yield from process.stdout
            status = process.wait()
        finally:
            if process.returncode is None:
                process.kill()
            process.stdout.close()
            process.wait()
        said.seek(0)
        _pass_on(said.read().decode(errors="replace"), status)


def _start(arguments: Sequence[str], said: IO[bytes], variables: Mapping[str, str]) -> "Popen[bytes]":
    try:
        program = find_program()
        return Popen(
            [program, *arguments],
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=said,
            env={**_environment(), **variables},
            bufsize=1 << 20,
        )
    except OSError as error:
        raise Error(str(error)) from error


def _environment() -> Dict[str, str]:
    """Without what would colour or break the program's messages."""
    left_out = ("CLICOLOR_FORCE", "COLUMNS")
    return {**{name: value for name, value in os.environ.items() if name not in left_out}, "NO_COLOR": "1"}


def _pass_on(said: str, status: int) -> None:
    errors: List[str] = []
    for line in said.splitlines():
        if line.startswith("warning: "):
            # At the line of the caller that asks for the capture.
            warnings.warn(line[len("warning: ") :], CaptureWarning, stacklevel=_outside())
        elif line.startswith("error: "):
            errors = [line[len("error: ") :]]
        elif errors and line != _USAGE:
            errors.append(line)
    if status != 0:
        text = "\n".join(errors).strip()
        raise Error(text or f"the program ended with status {status} and no message")


def _outside() -> int:
    """How far above the caller the first frame is that is not of this package."""
    frame = sys._getframe(1)
    package = os.path.dirname(os.path.abspath(__file__))
    level = 1
    while frame.f_back is not None and os.path.dirname(frame.f_code.co_filename) == package:
        frame = frame.f_back
        level += 1
    return level
