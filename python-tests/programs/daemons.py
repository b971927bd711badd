"""Ends while eight daemon threads allocate, with and without the GIL."""

import ctypes
import threading
import time

LIBC = ctypes.CDLL(None)  # releases the GIL around a call
LIBC.malloc.argtypes, LIBC.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
LIBC.free.argtypes, LIBC.free.restype = [ctypes.c_void_p], None


def busy(number):
    while True:
        kept = [bytearray(700 + index % 50) for index in range(20)]
        LIBC.free(LIBC.malloc(1000 + number))
        del kept


for number in range(8):
    threading.Thread(target=busy, args=[number], daemon=True).start()
time.sleep(0.02)
print("ends")
