"""gevent: greenlets that take turns in one thread, in the middle of functions."""

import gevent

kept = []


def keep():
    kept.append(bytearray(3_000_000))
    gevent.sleep(0)


def nested(depth):
    if depth:
        return nested(depth - 1)
    for _ in range(3):
        keep()


def worker():
    nested(2)
    keep()


workers = [gevent.spawn(worker) for _ in range(4)]
keep()
gevent.joinall(workers)
keep()
