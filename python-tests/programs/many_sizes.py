"""Hundreds of thousands of blocks of drawn sizes from stacks that move, in threads. many_sizes.py BLOCKS [THREADS [CHILDREN]]"""

import os
import random
import sys
import threading


def make(draw):
    return bytearray(int(draw() * 900) + 1)


def nested(draw, depth):
    return nested(draw, depth - 1) if depth else make(draw)


def work(blocks, seed, kept):
    draw = random.Random(seed).random
    held = [None] * 2000
    for at in range(blocks):
        block = nested(draw, at % 7)
        held[int(draw() * len(held))] = block
        if not at % 500:
            kept.append(block)


def main(blocks, threads=1, children=0):
    kept = []
    if children and not os.fork():
        work(blocks, 99, kept)
        os._exit(0)
    others = [threading.Thread(target=work, args=(blocks // threads, seed, kept)) for seed in range(1, threads)]
    [thread.start() for thread in others]
    work(blocks // threads, 0, kept)
    [thread.join() for thread in others]
    if children:
        os.wait()
    make.kept = kept


main(*map(int, sys.argv[1:]))
