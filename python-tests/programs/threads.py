"""Four threads that hand each other blocks, and a pool; every block is counted."""

import concurrent.futures
import queue
import threading

COUNT = 2000
kept = []


def produces(line):
    for _ in range(COUNT):
        line.put(bytearray(10_000))
    line.put(None)


def consumes(line):
    while (block := line.get()) is not None:
        assert len(block) == 10_000


def keep():
    return bytearray(60_000)


def keeps(number):
    kept.append(keep())
    return number


lines = [queue.Queue(50) for _ in range(2)]
threads = [threading.Thread(target=end, args=(line,)) for line in lines for end in (produces, consumes)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    print(sum(pool.map(keeps, range(200))))
