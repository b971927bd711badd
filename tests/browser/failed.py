"""Asks for memory that nobody has, holds two blocks that one line asked for, and has more resident than it allocated."""

import mmap


def ask():
    return bytearray(1 << 53)


def again():
    return bytearray(1 << 52)


def pair():
    return [bytearray(10_000_000), bytearray(20_000_000)]


for function in (ask, again, again):
    try:
        function()
    except MemoryError:
        pass
shared = mmap.mmap(-1, 80_000_000)
for at in range(0, len(shared), 4096):
    shared[at] = 1
kept = pair()
