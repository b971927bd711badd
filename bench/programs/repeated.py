"""The best case: one line allocates one size, again and again. repeated.py DEPTH EVENTS"""

import sys


def work(depth, events):
    if depth:
        return work(depth - 1, events)
    for _ in range(events):
        bytes(600)


work(int(sys.argv[1]), int(sys.argv[2]))
