"""A program in which few blocks keep many pages, and which keeps them for a while."""

import ctypes
import time

libc = ctypes.CDLL(None)
malloc, free = libc.malloc, libc.free
malloc.restype, malloc.argtypes, free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]


def touched(size):
    block = malloc(size)
    ctypes.memset(block, 1, size)
    return block


def session():
    return touched(100)


def work():
    scratch = []
    for _ in range(5000):
        scratch += [touched(100) for _ in range(35)]
        session()
    for block in scratch:
        free(block)


work()
# Longer than the test looks back, so that memtrack has looked in between on a busy machine, too.
time.sleep(3)
