"""Children by fork, by multiprocessing and by subprocess; the parent goes on."""

import multiprocessing
import os
import subprocess
import sys

kept = []


def in_parent():
    kept.extend(bytearray(40_000) for _ in range(50))


def in_child(number):
    return len([bytearray(40_000) for _ in range(100)]) + number


if __name__ == "__main__":
    in_parent()
    if (child := os.fork()) == 0:
        in_child(0)
        os._exit(3)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(in_child, range(10)))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(in_child, range(3)))
    print(subprocess.run([sys.executable, "-c", "print('child')"], capture_output=True, text=True).stdout.strip())
    in_parent()
