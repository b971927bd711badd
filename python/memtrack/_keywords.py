"""What the program says of options, said of the keyword arguments that these came from.

Invariant: only names are replaced; what is wrong stays in the program's words.
"""

from __future__ import annotations

from memtrack._errors import Error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict

#: What the options of a recording are in a Tracker.
OF_TRACKER = {
    "--sample": "sample",
    "--snapshot-interval": "memory_interval_ms",
    "--native": "native_traces=True",
    "--trace-python-allocators": "trace_python_allocators=True",
    "--allocation-timestamps": "allocation_timestamps=True",
    "--aggregate": "aggregate=True",
    "--follow": "follow_fork=True",
}
_WRONG = "invalid value '"


def in_keywords(text: str, keywords: "Dict[str, str]") -> str:
    """The text with each option by the name that it has as a keyword argument: `sample=0: expected …`."""
    value, found, rest = text.partition("' for '--")
    if found and value.startswith(_WRONG):
        # In brackets, or after a space: the syntax of the option's value.
        option, _, reason = rest.partition("'")
        name = option.partition("[")[0].partition(" ")[0]
        text = f"--{name}={value[len(_WRONG) :]}{reason}"
    import re  # Errors are rare, and it takes a while.

    for option, keyword in keywords.items():
        # Not within a path or a value.
        text = re.sub(rf"(?<![\w/.='\"-]){option}(?![\w-])", keyword, text)
    return text


class of_keywords:
    """Errors inside name the keyword arguments."""

    def __init__(self, keywords: "Dict[str, str]") -> None:
        self._keywords = keywords

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if isinstance(error, Error):
            error.args = (in_keywords(str(error), self._keywords),)
