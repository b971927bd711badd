"""Threads that allocate after pauses, each block of a size of its own, and free it after another.

Prints for each block its size, a byte more than the bytearray's, and the clock before and after its allocation, and before and after its free.
"""

import sys
import threading
import time

FIRST_SIZE = 3_000_000
PAUSES = 0.05, 0.4, 0.003, 0.7, 0.0015
LINES = []


def work(number, blocks):
    for at in range(blocks):
        size = FIRST_SIZE + number * 1000 + at
        time.sleep(PAUSES[(number + at) % len(PAUSES)])
        before = time.monotonic_ns()
        block = bytearray(size)
        made = time.monotonic_ns()
        time.sleep(PAUSES[(number + at + 1) % len(PAUSES)])
        freeing = time.monotonic_ns()
        del block
        LINES.append((size + 1, before, made, freeing, time.monotonic_ns()))


threads = [threading.Thread(target=work, args=(number, 4)) for number in range(1, int(sys.argv[1]) + 1)]
for thread in threads:
    thread.start()
work(0, 5)
for thread in threads:
    thread.join()
for line in LINES:
    print(*line)
