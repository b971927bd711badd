"""Allocates, waits for a line, allocates again, and ends; says what it does and which signal reaches it."""

import signal
import sys

import marks


def terminated(number, frame):
    print("signal", number, flush=True)
    sys.exit(6)


signal.signal(signal.SIGTERM, terminated)
kept = marks.blocks(200)
print("ready", flush=True)
line = sys.stdin.readline()
kept += marks.blocks(200, marks.SIZE + 1)
print("heard", line.strip(), flush=True)
sys.exit(4)
