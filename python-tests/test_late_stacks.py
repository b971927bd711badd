"""Call stacks of a process that is recorded from its middle on: they are what `traceback` says."""

import json
import subprocess

from conftest import PATIENCE, Capture, flat
from test_attach import Attached

# Each allocation has a size of its own; with it the program prints the stack that Python has.
PROGRAM = """
import json, sys, threading, traceback

told = {}
sizes = iter(range(1_000_001, 2_000_000))
kept = []

def allocate():
    size = next(sizes)
    kept.append(bytearray(size)); told[size] = [(entry.name, entry.lineno) for entry in traceback.extract_stack()]

def outer(depth):
    if depth:
        return outer(depth - 1)
    [allocate() for _ in range(2)]
    (lambda: allocate())()

def generator():
    while True:
        allocate()
        yield

class Walker:
    def __call__(self):
        for _ in map(lambda _: allocate(), range(2)):
            pass

async def coroutine():
    while True:
        allocate()
        await Once()

class Once:
    def __await__(self):
        yield

def thread(begin, done):
    while begin.acquire() and running:
        outer(2)
        done.release()

running = True
begin, done = threading.Semaphore(0), threading.Semaphore(0)
worker = threading.Thread(target=thread, args=(begin, done))
worker.start()
steps = generator()
task = coroutine()

def work():
    outer(3)
    next(steps)
    Walker()()
    task.send(None)
    begin.release()
    done.acquire()

def main():
    work()
    told.clear()
    print("ready", flush=True)
    for line in sys.stdin:
        told.clear()
        for _ in range(int(line)):
            work()
        print(json.dumps(told), flush=True)

main()
running = False
begin.release()
worker.join()
task.close()
"""


def test_stacks_are_those_of_traceback(memtrack, interpreter, tmp_path):
    script = tmp_path / "late.py"
    script.write_text(PROGRAM)
    command = flat([interpreter, script])
    program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert program.stdout.readline() == "ready\n"
        for cycle in range(2):
            capture = Capture(memtrack, tmp_path / f"{cycle}.bin")
            attached = Attached(memtrack.executable, program.pid, "-o", capture.path)
            program.stdin.write("5\n")
            program.stdin.flush()
            told = {int(size): list(map(tuple, stack)) for size, stack in json.loads(program.stdout.readline()).items()}
            attached.end()
            assert len(told) == 50
            assert recorded(capture, script) == told
    finally:
        program.stdin.close()
        assert program.wait(PATIENCE) == 0


def recorded(capture, script):
    """Function and line of each frame, outermost first, by the size that the program asked for."""
    stacks = {}
    for record in capture.allocations():
        if record.size > 1_000_000 and record.allocator != "pymalloc_arena":
            frames = capture.records.stack(record.stack)
            # Recorded functions have qualified names; a byte is added to each bytearray.
            own = [(frame.name.rsplit(".", 1)[-1], frame.line) for frame in frames if frame.file != "<frozen runpy>"]
            stacks[record.size - 1] = own
    return stacks
