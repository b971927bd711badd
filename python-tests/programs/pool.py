"""Many short-lived threads, WIDTH at a time. Usage: pool.py TOTAL. Prints its memory in kB after a tenth and at the end,
and how many ids its threads had:

    anonymous shared anonymous shared threads
"""

import sys
import threading

WIDTH = 200
TOTAL = int(sys.argv[1])


ids = bytearray(1 << 22)  # of each id that the system can give, whether a thread had it


def work(number):
    return [bytearray(1000 + number % 7) for _ in range(10)]


def memory():
    with open("/proc/self/status", encoding="ascii") as file:
        values = dict(line.split(":", 1) for line in file)
    return [int(values[name].split()[0]) for name in ("RssAnon", "RssShmem")]


def wave(number):
    threads = [threading.Thread(target=work, args=[number + index]) for index in range(WIDTH)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
        ids[thread.native_id] = 1


early = None
for number in range(0, TOTAL, WIDTH):
    wave(number)
    if early is None and number >= TOTAL // 10:
        early = memory()
print(*early, *memory(), ids.count(1))
