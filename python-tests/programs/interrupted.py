"""Counts the interrupts that reach it, says each, and ends with the third."""

import os
import signal
import sys

count = 0


def say(text):
    """Without the locks of print, within which the next interrupt may come."""
    os.write(1, f"{text}\n".encode())


def interrupt(number, frame):
    global count
    count += 1
    say(f"interrupt {count}")


arrived, arrives = os.pipe()
os.set_blocking(arrives, False)
signal.set_wakeup_fd(arrives)
signal.signal(signal.SIGINT, interrupt)
say("ready")
while count < 3:
    os.read(arrived, 1)
say(f"had {count}")
sys.exit(5)
