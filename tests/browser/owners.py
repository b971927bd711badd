"""Memory that own code, a library, the standard library, an import and a thread without Python code hold, each in a known way."""

import _thread
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "site-packages"))
import library  # noqa: E402

kept = []


def keep(size):
    kept.append(bytearray(size))


def in_thread(target, *arguments):
    thread = threading.Thread(target=target, args=arguments)
    thread.start()
    thread.join()


def main():
    keep(900_000)
    # No frame of this file is on the stacks of these threads.
    in_thread(library.hold)
    empty = bytearray()
    kept.append(empty)
    in_thread(empty.__init__, 600_000)
    # This thread has no frame of Python's at all; the interpreter's lock is held until the memory is there.
    frameless = bytearray()
    kept.append(frameless)
    _thread.start_new_thread(frameless.__init__, (700_000,))
    while not frameless:
        pass


main()
