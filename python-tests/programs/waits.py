"""Allocates, waits for a line, allocates again, and ends; says what it does and which signal reaches it."""

import os
import select
import signal
import sys

import marks


def terminated(number, frame):
    print("signal", number, flush=True)
    sys.exit(6)


signal.signal(signal.SIGTERM, terminated)
# A signal just before the read begins would else be heard of only when it ends.
heard, said = os.pipe()
os.set_blocking(said, False)
signal.set_wakeup_fd(said)
kept = marks.blocks(200)
print("ready", flush=True)
select.select([sys.stdin, heard], [], [])
line = sys.stdin.readline()
kept += marks.blocks(200, marks.SIZE + 1)
print("heard", line.strip(), flush=True)
sys.exit(4)
