"""Allocates without end, and counts in a file that outlives it; for being killed.

Usage: counted.py FILE. FILE's first eight bytes hold how many blocks of SIZE bytes were made.
"""

import ctypes
import mmap
import sys

import marks

with open(sys.argv[1], "r+b") as file:
    shared = mmap.mmap(file.fileno(), 8)
made = ctypes.c_uint64.from_buffer(shared)
kept = [None] * 1000
while True:
    kept[made.value % 1000] = marks.block(2_011)
    made.value += 1
