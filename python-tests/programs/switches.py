"""greenlets: many stacks in one thread, switched between in the middle of functions."""

import greenlet

kept = []


def keep(size):
    return bytearray(size)


def ping(depth):
    if depth:
        return ping(depth - 1)
    for _ in range(20):
        kept.append(keep(30_000))
        pongs.switch()


def pong():
    while True:
        kept.append(keep(20_000))
        pings.switch()


pings, pongs = greenlet.greenlet(ping), greenlet.greenlet(pong)
pings.switch(10)
print(len(kept))
