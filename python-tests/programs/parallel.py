"""Threads that run Python at the same time, where the interpreter lets them: each allocates blocks of sizes of its own.

Usage: parallel.py EXPECTED. Writes one JSON object a line to the file EXPECTED, as stacks.py does.
"""
import json
import sys
import threading
import traceback

THREADS = 4
ROUNDS = 150
FIRST_SIZE = 3_000_017

own = threading.local()


def block_size(length):
    """What bytearray(length) asks the allocator for."""
    return bytearray(1000).__sizeof__() - bytearray().__sizeof__() + length - 1000


def note(length):
    """Notes the stack of the caller's caller, in its present line."""
    frames = list(traceback.walk_stack(sys._getframe(1)))[::-1]
    stack = [[frame.f_code.co_name, frame.f_code.co_filename, line] for frame, line in frames]
    qualified = [frame.f_code.co_qualname for frame, _ in frames]
    own.noted.append({"case": own.name, "size": block_size(length), "stack": stack, "qualified": qualified})


def mark():
    own.serial += 1
    length = FIRST_SIZE + own.serial * THREADS * 64 + own.number * 64
    return note(length), bytearray(length)


def generate(depth):
    if depth:
        yield from generate(depth - 1)
    mark()
    yield depth


def descend(depth):
    block = [depth] * 50
    return descend(depth - 1) if depth else mark(), block


class Thing:
    def __init__(self, mark_it):
        self.block = mark() if mark_it else bytearray(100)

    def __lt__(self, other):
        mark()
        return False


def short_lived(number):
    """Code that is made, run and dropped: its address, and that of its bytecode, goes to the next."""
    names = {"mark": mark}
    source = "\n" * (number % 5) + f"def made_{number}(cell):\n    return mark(), lambda: cell\n"
    exec(compile(source, f"<made {number}>", "exec"), names)
    names.pop(f"made_{number}")(number)


def handed_over(shared):
    """Resumes generators that another thread may have begun."""
    try:
        generator = shared.pop()
    except IndexError:
        generator = generate(2)
    if next(generator, None) is not None:
        shared.append(generator)


def work(number, barrier, shared, results):
    own.name, own.number, own.serial, own.noted = f"thread {number}", number, 0, []
    barrier.wait()
    for count in range(ROUNDS):
        descend(count % 20)
        list(generate(3))
        Thing(count % 10 == 0)
        sorted([Thing(False), Thing(False)])
        short_lived(number * ROUNDS + count)
        handed_over(shared)
    results[number] = own.noted


def main():
    barrier, shared, results = threading.Barrier(THREADS), [], {}
    threads = [threading.Thread(target=work, args=(number, barrier, shared, results)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == THREADS
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        for noted in results.values():
            file.writelines(json.dumps(entry) + "\n" for entry in noted)


if __name__ == "__main__":
    main()
