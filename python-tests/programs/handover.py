"""A producer makes blocks that a consumer frees, and some of its own that it frees at once or never."""

import queue
import threading
import time

kept = []
blocks = queue.Queue()
done = threading.Event()


def produce():
    for _ in range(20):
        blocks.put(bytearray(100_000))
    for _ in range(30):
        bytearray(50_000)
    kept.append(bytearray(700_000))
    blocks.put(None)
    done.wait()


def consume():
    block = blocks.get()
    while block is not None:
        block = blocks.get()
    done.set()


def linger():
    block = bytearray(3_000_000)
    time.sleep(0.3)
    return len(block)


threads = [threading.Thread(target=produce, name="producer"), threading.Thread(target=consume, name="consumer")]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
linger()
