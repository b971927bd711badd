"""Grows, shrinks and leaks in a known way, in two threads; an argument makes it hold more, and other things."""

import sys
import threading
import time

MORE = len(sys.argv) > 1
kept = []


def load(count):
    kept.append([bytearray(20_000) for _ in range(count)])


def temporary():
    for _ in range(50):
        bytearray(30_000)


def only_in_base():
    kept.append(bytearray(3_000_000))


def only_in_new():
    kept.append(bytearray(4_000_000))


def grows():
    kept.append(bytearray(5_000_000 if MORE else 1_000_000))


def stays():
    kept.append(bytearray(2_000_000))


def doubles():
    for _ in range(2 if MORE else 1):
        kept.append(bytearray(400_000))


def old_name():
    kept.append(bytearray(500_000))


def new_name():
    kept.append(bytearray(500_000))


def calls_renamed():
    (new_name if MORE else old_name)()


def nested(depth):
    if depth:
        nested(depth - 1)
    else:
        load(50)


def main():
    worker = threading.Thread(target=load, args=(30,), name="worker")
    worker.start()
    worker.join()
    stays()
    grows()
    doubles()
    calls_renamed()
    (only_in_new if MORE else only_in_base)()
    time.sleep(0.1)
    nested(30)
    temporary()
    time.sleep(0.1)
    kept.pop()
    time.sleep(0.1)


main()
