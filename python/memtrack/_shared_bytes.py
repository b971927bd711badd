"""Memory outside of the heap for what pytest keeps of a test: it counts as no allocation, and no recording has it.

Invariant: a forked child does not write to that of its parent.
"""

import mmap

# By name: a test may replace it in its module while it is recorded.
from os import getpid

_FIRST_SIZE = 1 << 16
#: Memory is given back with its test if it is larger.
_MOST_KEPT = 1 << 20


class SharedBytes:
    """Bytes that grow, outside of the heap."""

    def __init__(self) -> None:
        self._process = getpid()
        self._memory = mmap.mmap(-1, _FIRST_SIZE)
        self.size = 0

    def clear(self) -> None:
        """There are none."""
        self.size = 0
        if len(self._memory) > _MOST_KEPT:
            self._memory = mmap.mmap(-1, _FIRST_SIZE)

    def append(self, content: bytes) -> None:
        """Adds these."""
        end = self.size + len(content)
        if end > len(self._memory) or getpid() != self._process:
            # A forked child has bytes of its own from here on.
            larger = mmap.mmap(-1, max(2 * len(self._memory), end))
            larger[: self.size] = memoryview(self._memory)[: self.size]
            self._memory, self._process = larger, getpid()
        self._memory[self.size : end] = content
        self.size = end

    def content(self) -> bytes:
        """All of them."""
        return self._memory[: self.size]
