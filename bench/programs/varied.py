"""Allocates blocks with sizes and lifetimes of recorded programs, from stacks that move by a few frames at each event.

varied.py SHAPE KIND DEPTH EVENTS; the shapes are the functions in SHAPES, the kinds those of distributions.json. A lifetime is
a number of further events: each event frees what is due, and makes a block that is due later. All draws have fixed seeds.
"""

import asyncio
import itertools
import json
import pathlib
import queue
import random
import sys
import threading

# A block lives this many events at most; a later block that is due at the same event takes its place.
WHEEL = 1 << 16
# The largest block, so that memory that is only cleared does not hide what recording costs.
LARGEST = 16 * 1024
# The levels at the top of the stack in which it moves.
MOVING = 8

wheel = [None] * WHEEL
draw = None  # The next event: the place that is due, the place of the new block, its size.
branch = None  # Which functions the next one calls.


def prepare(kind, events):
    global draw, branch
    path = pathlib.Path(__file__).resolve().parent.parent / "distributions.json"
    pairs = json.loads(path.read_text())["kinds"][kind]["pairs"]
    head = sys.getsizeof(b"")
    drawn = []
    for at, (size, lifetime) in enumerate(random.Random(1).choices(pairs, k=WHEEL)):
        drawn.append((at, (at + min(lifetime + 1, WHEEL - 1)) % WHEEL, max(min(size, LARGEST) - head, 1)))
    draw = itertools.islice(itertools.cycle(drawn), events).__next__
    chance = random.Random(2)
    branches = [tuple(chance.choices((parse, visit, emit), k=chance.choice((0, 1, 1, 2, 3)))) for _ in range(4099)]
    branch = itertools.cycle(branches).__next__


def parse(depth):
    due, place, size = draw()
    wheel[due] = None
    wheel[place] = bytes(size)
    if depth:
        for step in branch():
            step(depth - 1)


def visit(depth):
    if depth:
        for step in branch():
            step(depth - 1)
            due, place, size = draw()
            wheel[due] = None
            wheel[place] = bytes(size)


def emit(depth):
    due, place, size = draw()
    wheel[due] = None
    wheel[place] = bytes(size)
    due, place, size = draw()
    wheel[due] = None
    wheel[place] = bytes(size)
    if depth > 1:
        visit(depth - 2)


def descend(depth):
    """Down to where the stack begins to move."""
    if depth > MOVING:
        return descend(depth - 1)
    for _ in range(200):
        parse(depth)


def calls(depth):
    while True:
        descend(depth)


def tokens():
    while True:
        due, place, size = draw()
        wheel[due] = None
        wheel[place] = bytes(size)
        yield place


def pairs(source):
    for place in source:
        due, _, size = draw()
        wheel[due] = None
        wheel[place] = bytes(size)
        yield place, size


def generators(depth):
    """A chain of generators, which are resumed from below and yield at every event."""
    if depth > MOVING:
        return generators(depth - 1)
    for place, size in pairs(itertools.chain.from_iterable(zip(tokens(), tokens()))):
        wheel[place] = bytes(size)


async def awaited(depth):
    if depth:
        due, place, size = draw()
        wheel[due] = None
        wheel[place] = bytes(size)
        await awaited(depth - 1)
        due, place, size = draw()
        wheel[due] = None
        wheel[place] = bytes(size)
    else:
        await asyncio.sleep(0)


async def task(depth):
    # A task cannot raise StopIteration.
    try:
        while True:
            await awaited(depth)
    except RuntimeError:
        pass


def coroutines(depth):
    """Fifty tasks that take turns, each with its own chain of coroutines."""

    async def together():
        await asyncio.gather(*(task(depth) for _ in range(50)))

    asyncio.run(together())


def random_free(depth):
    """Many live blocks, of which one after another is replaced, in random order."""
    if depth > MOVING:
        return random_free(depth - 1)
    count = 200_000
    order = list(range(count))
    random.Random(3).shuffle(order)
    blocks = [None] * count
    for at in itertools.cycle(order):
        blocks[at] = bytes(draw()[2])


def growth(depth):
    """Buffers that grow by reallocation until they are due."""
    if depth > MOVING:
        return growth(depth - 1)
    buffers = [bytearray(600) for _ in range(1000)]
    while True:
        for at in range(1000):
            size = draw()[2]
            buffers[at] += b"x" * min(size, 300)
            if len(buffers[at]) > 20_000:
                buffers[at] = bytearray(600)


def handover(depth):
    """One thread makes blocks, another frees them."""
    batches = queue.Queue(8)

    def consume():
        while batches.get() is not None:
            pass

    consumer = threading.Thread(target=consume)
    consumer.start()
    try:
        while True:
            batches.put([bytes(draw()[2]) for _ in range(100)])
    finally:
        batches.put(None)
        consumer.join()


SHAPES = {shape.__name__: shape for shape in (calls, generators, coroutines, random_free, growth, handover)}


def main(shape, kind, depth, events):
    sys.setrecursionlimit(10_000)
    prepare(kind, int(events))
    try:
        SHAPES[shape](int(depth))
    except (StopIteration, RuntimeError):
        pass


main(*sys.argv[1:])
