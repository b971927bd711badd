"""Allocates in interpreters inside the interpreter. Prints a JSON object: {size of a block: [[function, line], …]}, root first.

What two interpreters allocate at once, one of them without the GIL, has the size WITHOUT_GIL; what is allocated in the
other meanwhile has a size from CONTENDED on, and below WITHOUT_GIL.
"""

import ctypes
import json
import sys
import threading
import traceback

try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

LIBC = ctypes.CDLL(None)  # releases the GIL around a call
LIBC.malloc.argtypes, LIBC.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
CONTENDED = 3_000_000
WITHOUT_GIL = 4_000_000
expected = {}
INSIDE = """
import time


def inner():
    return bytearray({})


def middle():
    return inner()


for _ in range({}):
    blocks = [middle()]
    time.sleep(0)  # others may have the GIL
"""
INSIDE_STACK = [["<module>", 14], ["middle", 10], ["inner", 6]]


def rounded(length):
    """What bytearray(length) asks the allocator for."""
    return bytearray(1000).__sizeof__() - bytearray().__sizeof__() + length - 1000


def next_line():
    """The caller's stack, as it will be in its next line."""
    *callers, own = [[frame.name, frame.lineno] for frame in traceback.extract_stack()[:-1]]
    return [*callers, [own[0], own[1] + 1]]


def nested(interpreter, length, times=1):
    expected[rounded(length)] = INSIDE_STACK
    interpreters.run_string(interpreter, INSIDE.format(length, times))


def in_a_thread(interpreter):
    nested(interpreter, CONTENDED)
    nested(interpreter, CONTENDED + 100_000, 500)


def without_the_gil(thread):
    """Asks for memory while another thread runs the interpreter that this one has made."""
    while True:
        expected[WITHOUT_GIL] = next_line()
        LIBC.free(ctypes.c_void_p(LIBC.malloc(WITHOUT_GIL)))
        if not thread.is_alive():
            break


def main():
    interpreter = interpreters.create()
    nested(interpreter, 5_000_000)
    expected[rounded(6_000_000)] = next_line()
    block = bytearray(6_000_000)
    nested(interpreter, 7_000_000)
    thread = threading.Thread(target=in_a_thread, args=[interpreter])
    thread.start()
    if sys.version_info < (3, 12):
        # Later ones share no GIL.
        without_the_gil(thread)
    thread.join()
    thread = threading.Thread(target=nested, args=[interpreter, 8_000_000, 20])
    thread.start()
    thread.join()
    interpreters.destroy(interpreter)
    return block


keep = main()
print(json.dumps(expected))
