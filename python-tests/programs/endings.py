"""Ends in the way its argument names, after marked allocations that it counts as it makes them.

The size of a block tells where it was made: SIZE in the main part, SIZE + 1 and on in what runs after it.
"""

import atexit
import os
import signal
import subprocess
import sys
import threading

import marks

COUNT = 300
held = []


def ready():
    held.extend(marks.blocks(COUNT))
    print("made", len(held), flush=True)
    print("on its way", file=sys.stderr, flush=True)


def exits():
    sys.exit(7)


def exits_at_once():
    os._exit(8)


def exception():
    raise ValueError("a reason")


def by_signal(number):
    os.kill(os.getpid(), number)
    signal.pause()


def sigterm():
    by_signal(signal.SIGTERM)


def sigint():
    by_signal(signal.SIGINT)


def sigkill():
    by_signal(signal.SIGKILL)


def sigsegv():
    marks.ctypes.string_at(8)


def abort():
    os.abort()


def executes():
    os.execv(sys.executable, [sys.executable, "-c", "import sys; print('the next image', flush=True); sys.exit(9)"])


def thread_outlives_main():
    main = threading.current_thread()

    def late():
        main.join()
        held.extend(marks.blocks(COUNT, marks.SIZE + 1))
        print("after main", flush=True)

    threading.Thread(target=late).start()


def exit_handlers():
    @atexit.register
    def last():
        held.extend(marks.blocks(COUNT, marks.SIZE + 1))
        print("last words", flush=True)


def daemon_threads():
    started = threading.Barrier(4)

    def busy():
        started.wait()
        while True:
            marks.block(2000)

    for _ in range(3):
        threading.Thread(target=busy, daemon=True).start()
    started.wait()
    held.extend(marks.blocks(COUNT, marks.SIZE + 1))
    print("leaves them", flush=True)


def closes_descriptors():
    os.closerange(3, 256)
    held.extend(marks.blocks(COUNT, marks.SIZE + 1))
    print("closed", flush=True)


def runs_memtrack():
    inner, capture = sys.argv[2:]
    command = (
        [inner, "run", "-q", "-o", capture, "--", sys.executable, __file__, "exits"]
        if inner
        else [sys.executable, __file__, "exits"]
    )
    print("inner status", subprocess.call(command), flush=True)


if __name__ == "__main__":
    ready()
    globals()[sys.argv[1]]()
