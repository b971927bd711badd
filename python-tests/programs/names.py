"""Threads with names given in every way. Each allocates a block of a size of its own; prints "size name" for each."""

import concurrent.futures
import ctypes
import threading

LIBC = ctypes.CDLL(None)
PR_SET_NAME = 15
FIRST_SIZE = 2_000_003
blocks, printed = [], []


def allocate(name):
    size = FIRST_SIZE + 64 * len(printed)
    printed.append(f"{size + bytearray(1000).__sizeof__() - bytearray().__sizeof__() - 1000} {name}")
    blocks.append(bytearray(size))


class Named(threading.Thread):
    """A thread whose attributes are not those of every other."""

    def __init__(self, number):
        super().__init__(name=f"own class {number}")
        self.__dict__[f"attribute {number}"] = number
        vars(self)["another"] = None

    def run(self):
        allocate(self.name)


def renamed_inside():
    LIBC.prctl(PR_SET_NAME, b"from inside", 0, 0, 0)
    allocate("from inside")


def renamed_outside(ready, done):
    ready.set()
    done.wait()
    allocate("from outside")


def run(thread):
    thread.start()
    thread.join()


def main():
    run(threading.Thread(target=allocate, args=["before its start"], name="before its start"))
    run(threading.Thread(target=allocate, args=["Ünïcödé 名"], name="Ünïcödé 名"))
    run(Named(1))
    run(Named(2))
    run(threading.Thread(target=renamed_inside, name="replaced"))
    ready, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=renamed_outside, args=[ready, done])
    thread.start()
    ready.wait()
    LIBC.pthread_setname_np(ctypes.c_ulong(thread.ident), b"from outside")
    done.set()
    thread.join()
    with concurrent.futures.ThreadPoolExecutor(1, "pool") as pool:
        pool.submit(allocate, "pool_0").result()
    print("\n".join(printed))


main()
