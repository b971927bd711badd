"""Threads that change their names when they have allocated already. Each allocates a block of a size of its own; prints
"size name" for each, with the name that counts, the last one."""

import ctypes
import threading
import time

LIBC = ctypes.CDLL(None)
PR_SET_NAME = 15
FIRST_SIZE = 2_000_003
blocks, printed = [], []
end = threading.Event()
one_by_one = threading.Lock()


def allocate(name):
    with one_by_one:
        size = FIRST_SIZE + 64 * len(printed)
        printed.append(f"{size + bytearray(1000).__sizeof__() - bytearray().__sizeof__() - 1000} {name}")
    blocks.append(bytearray(size))


def rename(name):
    threading.current_thread().name = name


def after_the_last_block():
    allocate("after the last block")
    rename("after the last block")


def several_times():
    allocate("Ünïcödé 名")
    for name in "first", "second", "Ünïcödé 名":
        rename(name)
        blocks.append(bytearray(1_000_000))


def after_the_system():
    allocate("after prctl")
    LIBC.prctl(PR_SET_NAME, b"by prctl", 0, 0, 0)
    rename("after prctl")


def by_the_system():
    allocate("by prctl")
    LIBC.prctl(PR_SET_NAME, b"by prctl", 0, 0, 0)


def at_work_to_the_end():
    allocate("a daemon")
    rename("a daemon")
    end.wait()


def unchanged():
    allocate("unchanged")


def main():
    threads = [
        threading.Thread(target=work, name="unchanged" if work is unchanged else f"early {work.__name__}")
        for work in (after_the_last_block, several_times, after_the_system, by_the_system, unchanged)
    ]
    threads.append(threading.Thread(target=at_work_to_the_end, name="early", daemon=True))
    for thread in threads:
        thread.start()
        time.sleep(0.01)  # their sizes are in the order of their names
    for thread in threads[:-1]:
        thread.join()
    print("\n".join(printed))
    return threads


threads = main()
