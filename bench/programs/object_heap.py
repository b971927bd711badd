"""Ends with many objects alive. object_heap.py KIND OBJECTS

What a picture of objects costs depends on where they are: `shuffled` ones are referred to in another order than that in which they were
allocated, and `churned` ones are what is left of three rounds in which half of all were replaced at random.
"""

import random
import sys


class Node:
    def __init__(self, number):
        self.number = number
        self.text = str(number)


class Record:
    def __init__(self, number):
        self.key = "k%d" % number
        self.tags = [number, number + 1]
        self.next = None


class Slots:
    __slots__ = ("first", "second")

    def __init__(self, number):
        self.first = number
        self.second = None


def dictionaries(count):
    return [{"id": at, "name": "n%d" % at, "value": at * 1.5 + 1000} for at in range(count // 4)]


def shuffled(count):
    kept = dictionaries(count)
    random.Random(1).shuffle(kept)
    return kept


def instances(count):
    return [Node(at + 1000) for at in range(count // 3)]


def slots(count):
    return [Slots(at + 1000) for at in range(count // 2)]


def lists(count):
    return [[at + 1000, []] for at in range(count // 3)]


def texts(count):
    return ["n%d" % at for at in range(count)]


def churned(count):
    chance = random.Random(2)
    kept = {at: Record(at + 1000) for at in range(count // 5)}
    for turn in range(3):
        keys = list(kept)
        chance.shuffle(keys)
        half = len(keys) // 2
        for key in keys[:half]:
            del kept[key]
        for at in range(half):
            kept[turn, at] = Record(at + 5000)
    values = list(kept.values())
    for value in values:
        value.next = chance.choice(values)
    return kept


KINDS = {make.__name__: make for make in (dictionaries, shuffled, instances, slots, lists, texts, churned)}
kept = KINDS[sys.argv[1]](int(sys.argv[2]))
