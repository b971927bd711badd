"""Marked allocations: blocks of a size that nothing else in a program has, so that a test can count them."""

import ctypes

SIZE = 100_003  # bytes of a marked block
libc = ctypes.CDLL(None)
libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
libc.free.argtypes, libc.free.restype = [ctypes.c_void_p], None


def block(size=SIZE):
    """A Python object with one block of exactly that many bytes: a bytearray asks for its length and one more."""
    return bytearray(size - 1)


def blocks(count, size=SIZE):
    return [block(size) for _ in range(count)]
