"""Calls Python's allocators by hand, with sizes that nothing else has, while tracemalloc comes and goes."""

import ctypes
import sys
import threading
import tracemalloc

BASES = {"PyMem_Raw": 331, "PyMem_": 337, "PyObject_": 347}
IMPOSSIBLE = 1 << 62
OBJECTS, THREADS, ROUNDS = 1000, 4, 100


class Domain:
    """The functions of one domain; pythonapi holds the GIL over a call, CDLL does not."""

    def __init__(self, prefix, library=ctypes.pythonapi):
        size, block = ctypes.c_size_t, ctypes.c_void_p
        self.malloc = library[prefix + "Malloc"]
        self.calloc = library[prefix + "Calloc"]
        self.realloc = library[prefix + "Realloc"]
        self.free = library[prefix + "Free"]
        for function, arguments in (
            (self.malloc, [size]),
            (self.calloc, [size, size]),
            (self.realloc, [block, size]),
            (self.free, [block]),
        ):
            function.restype = None if function is self.free else block
            function.argtypes = arguments


def call(domain, base):
    """Leaves one block of 100_000 + base behind; gives the blocks that are to be freed later."""
    small = domain.malloc(base)
    zeroed = domain.calloc(7, base)
    moved = domain.realloc(domain.realloc(None, base + 2), base + 4)
    large = domain.malloc(100_000 + base)
    assert domain.malloc(IMPOSSIBLE) is None
    assert domain.realloc(large, IMPOSSIBLE) is None
    domain.free(None)
    domain.free(domain.malloc(2_000_000 + base))
    domain.free(moved)
    return [small, zeroed]


def call_all():
    later = []
    for prefix, base in BASES.items():
        domain = Domain(prefix)
        later += [(domain, block) for block in call(domain, base)]
    return later


def free(blocks):
    for domain, block in blocks:
        domain.free(block)


def make(kept):
    for _ in range(OBJECTS):
        kept.append(object())


def without_gil(domain, size):
    for _ in range(ROUNDS):
        domain.free(domain.realloc(domain.malloc(size), size + 1))


def main():
    kept = []
    make(kept)
    before = call_all()
    tracemalloc.start()
    during = call_all()
    free(before)
    tracemalloc.stop()
    after = call_all()
    free(during + after)
    raw = Domain("PyMem_Raw", ctypes.CDLL(None))
    threads = [threading.Thread(target=without_gil, args=(raw, 5_001 + 2 * n)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(len(kept), tracemalloc.is_tracing(), sys.flags.dev_mode)


main()
