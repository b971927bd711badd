"""Two million live objects, in a list of 860,000 places that others are replaced in random order, from stacks that move. many_live.py EVENTS"""

import random
import sys

LIVE = 860_000


def first(at):
    return (at,)


def second(at):
    return [at]


def third(at):
    return first(at) if at % 3 else {"at": at}


def replace(kept, events, chance):
    makers = (first, second, third)
    made = 0
    while made < events:
        at = int(chance() * LIVE)
        kept[at] = makers[at % 3](made)
        made += 2


def main(events):
    kept = [None] * LIVE
    for at in range(LIVE):
        kept[at] = first(at) if at % 2 else "%d" % at
    replace(kept, events, random.Random(1).random)


main(int(sys.argv[1]))
