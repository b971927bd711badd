"""`memtrack objects` of programs that make it hard: within the collector whenever they are stopped, or with another allocator."""

import ctypes.util
import json
import subprocess

import pytest

from conftest import FREE_THREADED, OBJECT_VERSIONS, PATIENCE, flat, interpreter_path

COLLECTING = """
import gc, json, os, sys, threading
class Kept:
    def __init__(self, number):
        self.held = [number]
        self.ring = {number: [self]}
class Slots:
    __slots__ = ("held",)
KEPT = [Kept(number) for number in range(30000)]
for one in KEPT[::3]:
    one.slots = Slots()
    one.slots.held = one
    one.closure = (lambda number: lambda: number)(one)
def told():
    counts = {}
    for attempt in range(2):
        counts.clear()
        for one in gc.get_objects():
            name = type(one).__module__ + "." + type(one).__qualname__
            counts[name] = counts.get(name, 0) + 1
        one = None
        text = json.dumps(counts)
        if attempt == 0:
            print("once", flush=True)
    print(text, flush=True)
def collect():
    ready.set()
    go.wait()
    while True:
        gc.collect()
gc.disable()
ready, go = threading.Event(), threading.Event()
threading.Thread(target=collect, daemon=True).start()
ready.wait()
gc.collect()
told()
go.set()
sys.stdin.readline()
os._exit(0)
"""
LARGE = """
import ctypes, os, select
forget_decref = ctypes.pythonapi.Py_IncRef
forget_decref.argtypes = [ctypes.py_object]
def wait():
    # What is alive is the same from before the test reads the line until it goes on.
    os.write(1, told)
    select.select([0], [], [])
    os.read(0, 100)
def forget(numbers):
    for number in numbers:
        forget_decref(b"x" * (1000 + number * number * 777))
        forget_decref(10 ** (5000 + number * 1333))
told = b"%d\\n" % os.getpid()
forget(range(2))
wait()
forget(range(40))
wait()
"""


def counts(told):
    """Objects in the collector's lists, by type."""
    found = {}
    for row in told["types"]:
        found[row["type"]] = found.get(row["type"], 0) + row["tracked"]
    return found


@pytest.mark.parametrize("version", OBJECT_VERSIONS)
def test_a_program_that_always_collects_has_all_of_its_objects(executable, tmp_path, version):
    """While the collector works, its lists hang on its stack in parts, and nothing but blocks has what is in those."""
    script = tmp_path / "app.py"
    script.write_text(COLLECTING)
    with subprocess.Popen(
        flat([interpreter_path(version), script]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        process.stdout.readline()
        expected = json.loads(process.stdout.readline())
        for _ in range(3):
            command = [str(executable), "objects", str(process.pid), "--json"]
            told = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            assert told["unreadable"] == 0 and told["consistent"]
            found = counts(told)
            # Of what the thread itself is about a little comes and goes; in free-threaded builds an object that waits for it.
            near = {name for name, count in expected.items() if abs(found.get(name, 0) - count) <= 4}
            assert set(expected) == near
            exact = ("__main__.Kept", "__main__.Slots", "builtins.list", "builtins.function", "builtins.cell", "builtins.type")
            assert {name: found[name] for name in exact} == {name: expected[name] for name in exact}
        process.stdin.write("\n")


@pytest.mark.parametrize("allocator", [None, "jemalloc", "mimalloc", "tcmalloc_minimal"])
@pytest.mark.parametrize("version", [version for version in OBJECT_VERSIONS if version not in FREE_THREADED])
def test_large_objects_that_c_code_holds_are_found_or_said_to_be_missing(executable, tmp_path, version, allocator):
    """What the collector does not know, and the interpreter's own allocator does not have: only a recording knows all blocks."""
    library = allocator and (ctypes.util.find_library(allocator) or pytest.skip(f"{allocator} is not installed"))
    script, capture = tmp_path / "app.py", tmp_path / "app.bin"
    script.write_text(LARGE)
    command = flat(["env", *([f"LD_PRELOAD={library}"] if library else []), interpreter_path(version), script])

    def told_of(target):
        done = subprocess.run([str(executable), "objects", str(target), "--json"], capture_output=True, text=True, check=True)
        told = json.loads(done.stdout)
        rows = {row["type"]: (row["count"], row["own_bytes"]) for row in told["types"]}
        return rows["builtins.bytes"] + rows["builtins.int"], told["misses_large"]

    def more(process):
        """What objects of C code there are more after they were made; and whether some may be missing."""
        found = []
        for _ in range(2):
            pid = int(process.stdout.readline())
            found.append(told_of(pid))
            said = subprocess.run([str(executable), "objects", str(pid)], capture_output=True, text=True, check=True).stderr
            assert ("of more than 512 bytes that only C code holds are not found" in said) == found[-1][1]
            process.stdin.write("\n")
            process.stdin.flush()
        assert process.wait(PATIENCE) == 0
        return [after - before for before, after in zip(found[0][0], found[1][0])], found[1][1]

    size = sum(33 + 1000 + number * number * 777 for number in range(40))
    run = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **run) as process:
        found, is_missing = more(process)
    assert (is_missing, found[:3]) == ((True, [0, 0, 0]) if allocator else (False, [40, size, 40]))
    with subprocess.Popen([str(executable), "run", "-q", "--objects-at", "end", "-o", str(capture), "--", *command], **run) as process:
        found, is_missing = more(process)
    assert (is_missing, found[:3]) == (False, [40, size, 40])
    (_, of_bytes, numbers, _), is_missing = told_of(capture)
    assert of_bytes > size and numbers > 42 and not is_missing
