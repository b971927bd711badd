"""Loads that only allocate: the best case, then sizes, lifetimes and stacks as real programs have them."""

import json
import pathlib

from .loads import DEFAULT, NATIVE, OBJECTS, TIMESTAMPS, Load

BEST = "The best case: one line, one size, again and again"
PYTHON = "Python that only allocates, varied"
COMPILED = "C, C++ and Rust that only allocate, varied"
START = "Start-up and calls"

TEST_PROGRAMS = pathlib.Path(__file__).resolve().parent.parent / "python-tests" / "programs"
DISTRIBUTIONS = pathlib.Path(__file__).resolve().parent / "distributions.json"
BY_DEFAULT = (DEFAULT, (TIMESTAMPS,), (NATIVE,))
BY_OBJECT = ((OBJECTS,), (OBJECTS, NATIVE))

CALLS = """
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)
for _ in range(3):
    fib(29)
"""
METHODS = """
class Counter:
    def __init__(self):
        self.value = 0
    def add(self, amount):
        self.value += amount
        return self
counter = Counter()
for _ in range(5_000_000):
    counter.add(1)
"""


def loads():
    return [*start(), *best(), *python(), *compiled()]


def start():
    modes = (DEFAULT,)
    yield Load(START, "10 starts of `pass`", modes, lambda shop: shop.python_command(["-c", "pass"], repeat=10))
    yield Load(START, "fib", modes, lambda shop: shop.python_command([str(shop.file("fib.py", CALLS))]))
    yield Load(START, "5 M method calls", modes, lambda shop: shop.python_command([str(shop.file("methods.py", METHODS))]))
    yield Load(START, "10 starts of true", ((NATIVE,),), lambda shop: shop.native_command("true", repeat=10))


def best():
    for depth in (0, 50, 400):
        modes = BY_DEFAULT if depth == 50 else (DEFAULT,)
        yield Load(BEST, f"Python, 3 M allocations, depth {depth}", modes,
                   lambda shop, depth=depth: shop.script("repeated.py", depth, 3_000_000))
    modes = (DEFAULT, (TIMESTAMPS,), (NATIVE,))
    yield Load(BEST, "C, 20 M malloc and free", modes, lambda shop: shop.compiled("repeated.c", 20_000_000))
    yield Load(BEST, "C, 2 threads of 10 M malloc and free", (DEFAULT,),
               lambda shop: shop.compiled("repeated.c", 10_000_000, 2))


def python():
    for depth in (10, 50, 400):
        yield varied("calls", "blocks", depth, 600_000, BY_DEFAULT if depth == 50 else (DEFAULT, (NATIVE,)))
    for depth in (10, 50, 400):
        yield varied("calls", "objects", depth, 1_000_000, (*BY_OBJECT, (OBJECTS, TIMESTAMPS)) if depth == 50 else BY_OBJECT)
    for shape in ("generators", "coroutines"):
        yield varied(shape, "blocks", 20, 500_000, (DEFAULT, (NATIVE,)))
        yield varied(shape, "objects", 20, 800_000, BY_OBJECT)
    yield varied("random_free", "objects", 20, 1_000_000, BY_OBJECT)
    yield varied("growth", "blocks", 20, 700_000, (DEFAULT, (NATIVE,)))
    yield varied("handover", "blocks", 20, 600_000, (DEFAULT, (NATIVE,)))
    yield varied("handover", "objects", 20, 1_000_000, ((OBJECTS,),))


def varied(shape, kind, depth, events, modes):
    return Load(PYTHON, f"{shape.replace('_', ' ')}, {kind}, depth {depth}", modes,
                lambda shop: shop.script("varied.py", shape, f"python {kind}", depth, events))


def compiled():
    modes = (DEFAULT, (NATIVE,))
    for depth in (10, 50, 400):
        yield Load(COMPILED, f"C, calls, depth {depth}", (*modes, (TIMESTAMPS,)) if depth == 50 else modes,
                   lambda shop, depth=depth: in_c(shop, "calls", depth, 6_000_000))
    for shape, events in (("random_free", 4_000_000), ("growth", 1_500_000)):
        yield Load(COMPILED, f"C, {shape.replace('_', ' ')}", modes,
                   lambda shop, shape=shape, events=events: in_c(shop, shape, 10, events))
    for shape in ("random", "handover"):
        source = TEST_PROGRAMS / f"threads_{shape}.c"
        for threads in (2, 4, 8):
            yield Load(COMPILED, f"C, {shape}, {threads} threads", modes if threads == 4 else (DEFAULT,),
                       lambda shop, source=source, threads=threads: shop.compiled(source, threads, 4_000_000))
    yield Load(COMPILED, "C++ containers", modes, lambda shop: shop.compiled("containers.cc", 400))
    yield Load(COMPILED, "Rust collections", modes, lambda shop: shop.compiled("collections.rs", 400))


def in_c(shop, shape, depth, events):
    pairs = json.loads(DISTRIBUTIONS.read_text())["kinds"]["native blocks"]["pairs"]
    path = shop.file("pairs.txt", "".join(f"{size} {lifetime}\n" for size, lifetime in pairs))
    return shop.compiled("varied.c", shape, path, depth, events)
