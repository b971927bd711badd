"""Sizes as text, in both directions. Invariant: what is printed can be read again; MB is 10^6, MiB 2^20."""

import functools
import re
from typing import Union

_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", 1):
    _UNITS[f"{_letter}b"] = 1000**_power
    _UNITS[f"{_letter}ib"] = 1024**_power


#: Growth below this is never a regression, whatever its share.
LEAST_GROWTH = 100_000


def parse_size(size: Union[str, int, float]) -> int:
    """The bytes of "24 MB", "1.5GiB", "100 kB" or a plain number.

    >>> parse_size("24 MB"), parse_size("1.5KiB"), parse_size(512)
    (24000000, 1536, 512)
    """
    try:
        if isinstance(size, (int, float)):
            return int(size)
        if isinstance(size, str):
            return _parsed(size)
    except (OverflowError, ValueError):  # infinite, or no number
        pass
    raise ValueError(f"{size!r} is no size; expected one such as 24 MB, 1.5GiB or 100kB")


@functools.lru_cache(maxsize=64)
def _parsed(size: str) -> int:
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-zA-Z]*)\s*", size)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(size)
    return int(float(match[1]) * unit)


def size_text(size: float) -> str:
    """Three digits and a unit.

    >>> size_text(0), size_text(999), size_text(1047), size_text(40_000_000), size_text(999_950)
    ('0 B', '999 B', '1.05 kB', '40.0 MB', '1.00 MB')
    """
    if abs(size) < 1000:
        return f"{size:.0f} B"
    for unit in ("kB", "MB", "GB", "TB"):
        size /= 1000
        if abs(size) < 999.5 or unit == "TB":
            break
    digits = 2 if abs(size) < 9.995 else 1 if abs(size) < 99.95 else 0
    return f"{size:.{digits}f} {unit}"


class Growth:
    """`--memtrack-fail-over`: by how much the peak of a test may grow."""

    def __init__(self, text: str) -> None:
        self.text = text
        percent = text.strip().endswith("%")
        try:
            self.share = float(text.strip()[:-1]) / 100 if percent else None
            self.bytes = 0 if percent else parse_size(text)
        except ValueError:
            raise ValueError(f"{text!r}: expected 10%, or a size such as 5MB") from None

    def is_exceeded(self, before: int, now: int) -> bool:
        """Whether it grew by more."""
        if self.share is None:
            return now - before > self.bytes
        return now - before > max(before * self.share, LEAST_GROWTH)
