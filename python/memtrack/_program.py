"""Where the program `memtrack` is that was installed with this package.

Why: `python -m memtrack` has to work where the directory of scripts is not on PATH, and must not start the program of
another installation. Invariant: PATH comes last.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, Optional

NAME = "memtrack"
#: Names the program to use instead.
VARIABLE = "MEMTRACK"
#: What it named when it was asked to be kept, and the PATH of then.
_kept: Optional[str] = None
_kept_path: Optional[str] = None


def keep_program() -> None:
    """The program is the one that is found now, also where the environment is cleared later, as by a test."""
    global _kept, _kept_path
    _kept, _kept_path = os.environ.get(VARIABLE), os.environ.get("PATH")


def find_program() -> str:
    """The path of the program: `$MEMTRACK`, else the one that was installed with this package, else that of PATH.

    Raises FileNotFoundError, with where it was looked for, if there is none.
    """
    named = os.environ.get(VARIABLE) or _kept
    if named:
        if os.path.isfile(named) and os.access(named, os.X_OK):
            return named
        raise FileNotFoundError(f"{named}: this is no program; the environment variable {VARIABLE} names it")
    places = []
    for place in _places():
        places.append(place)
        path = os.path.join(place, NAME)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    import shutil

    found = (shutil.which(NAME, path=_kept_path) if _kept_path else None) or shutil.which(NAME)
    if found:
        return found
    raise FileNotFoundError(f"the program {NAME} is neither on PATH nor in any of: {', '.join(dict.fromkeys(places))}")


def how_to_mend() -> str:
    """What to do where the program that was found is another one."""
    if os.environ.get(VARIABLE) or _kept:
        return f"the environment variable {VARIABLE} names it: set it to the program memtrack, or unset it"
    return "install memtrack again"


def _places() -> Iterator[str]:
    """Directories of scripts: of this interpreter, of its user, and those that go with this package's own place."""
    import sysconfig

    yield sysconfig.get_path("scripts")
    yield sysconfig.get_path("scripts", scheme=f"{os.name}_user")
    packages = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    # pip install --prefix PREFIX: PREFIX/lib/pythonX.Y/site-packages; pip install --target DIRECTORY: DIRECTORY.
    yield os.path.normpath(os.path.join(packages, "..", "..", "..", "bin"))
    yield os.path.join(packages, "bin")
    yield os.path.dirname(sys.executable)
