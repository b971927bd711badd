"""Counts the interrupts that reach it, says each, and ends with the third."""

import signal
import sys
import threading

count = 0
done = threading.Event()


def interrupt(number, frame):
    global count
    count += 1
    print("interrupt", count, flush=True)
    if count == 3:
        done.set()


signal.signal(signal.SIGINT, interrupt)
print("ready", flush=True)
done.wait()
print("had", count, flush=True)
sys.exit(5)
