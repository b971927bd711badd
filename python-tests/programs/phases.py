"""Three functions that keep memory, each in a time of its own, and one that comes early but keeps nothing till late."""

import sys
import threading
import time

PAUSE = 0.06  # seconds: several memory snapshots
held = []


def pass_time():
    end = time.monotonic() + PAUSE
    while time.monotonic() < end:
        bytearray(5000)  # an event, without which nothing is noted
        time.sleep(0.001)


def early():
    held.append(bytearray(10_000_000))


def mid():
    held.append(bytearray(20_000_000))


def late():
    held.append(bytearray(5_000_000))


def first_freed_then_kept(keep):
    for _ in range(1):
        block = bytearray(1_000_000)
        if keep:
            held.append(block)


def phases(start):
    first_freed_then_kept(False)
    for phase in early, mid, late:
        start(phase)
        pass_time()
    first_freed_then_kept(True)
    pass_time()


def in_a_thread(phase):
    thread = threading.Thread(target=phase)
    thread.start()
    thread.join()


if __name__ == "__main__":
    phases(in_a_thread if "threads" in sys.argv else lambda phase: phase())
