"""Allocations of many kinds, for what is exported: threads, recursion, leaks, temporary ones, and names to be quoted."""

import json
import mmap
import threading

kept = []


def parse(count):
    return json.loads(json.dumps([{"a": number} for number in range(count)]))


def leak(size):
    kept.append(bytearray(size))


def churn(count):
    for _ in range(count):
        bytearray(2000)


def recurse(depth):
    return [bytearray(1500), recurse(depth - 1)] if depth else [bytearray(700)]


def work():
    held = [bytearray(10_000) for _ in range(50)]
    leak(300_000)
    return len(held)


exec(compile("def odd():\n    kept.append(bytearray(4321))\n", 'a "quoted", odd; name|.py', "exec"))

thread = threading.Thread(target=work, name="worker")
thread.start()
thread.join()
leak(100_000)
parse(5000)
odd()
churn(300)
recurse(6)
mapped = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
