"""Lines of JSON, as the recorder reads and writes them.

The module json, with re below it, takes longer to import than all that a Tracker needs else, so it is imported for what is
unusual only. Invariant: what is written and read means what it means to json.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Optional

#: The answer that a process waits for when it enters a Tracker, and its end; and that at the end of each test with a limit.
_SLOTS, _END = b'{"ok":{"slots":', b"}}\n"
_NUMBERS, _NUMBERS_END = b'{"ok":[', b"]}\n"
_DIGITS = b"0123456789,"

_loads: "Optional[Callable[[bytes], Any]]" = getattr(sys.modules.get("json"), "loads", None)


def to_line(value: object) -> bytes:
    """A value as a line."""
    return _text(value).encode() + b"\n"


def to_object(line: bytes) -> Dict[str, Any]:
    """The object in a line."""
    number = line[len(_SLOTS) : -len(_END)]
    if line.startswith(_SLOTS) and line.endswith(_END) and number.isdigit():
        return {"ok": {"slots": int(number)}}
    numbers = line[len(_NUMBERS) : -len(_NUMBERS_END)]
    if line.startswith(_NUMBERS) and line.endswith(_NUMBERS_END) and numbers and not numbers.strip(_DIGITS):
        return {"ok": list(map(int, numbers.split(b",")))}
    import json

    # As it was when this was imported, if it was there: a test may replace it while it is recorded.
    known: Dict[str, Any] = (_loads or json.loads)(line)
    return known


def _text(value: object) -> str:
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str) and value.isprintable():
        quoted = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{quoted}"'
    if isinstance(value, list):
        return f"[{','.join(map(_text, value))}]"
    if isinstance(value, dict):
        return "{%s}" % ",".join(f"{_text(name)}:{_text(member)}" for name, member in value.items())
    import json

    return json.dumps(value)
