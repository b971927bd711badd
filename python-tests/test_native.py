"""Native and Python frames in one stack: in the right order, on every interpreter, with callbacks from C and threads."""

import re
import shutil
import subprocess

import pytest

from conftest import interpreter_path
from test_stacks import differences, expected_stacks, recorded_stacks

MARKED = 3_000_000  # bytes; nothing else in the programs comes near

PROGRAM = """
import ctypes, threading
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
size = 3_000_001

def mark():
    global size
    size += 1
    return libc.malloc(size - 1)

@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
def compare(a, b):
    mark()
    return 0

def sorting():
    array = (ctypes.c_int * 2)(2, 1)
    libc.qsort(array, 2, 4, compare)

def key(value):
    mark()
    return value

def nested(depth):
    if depth:
        return sorted([depth], key=lambda depth: nested(depth - 1))
    mark()

def generator():
    mark()
    yield 1

mark()
sorting()
sorted([1], key=key)
nested(3)
list(generator())
nested(2)
thread = threading.Thread(target=sorting)
thread.start()
thread.join()
mark()
"""

# Python functions that called each marked allocation, innermost last.
EXPECTED = [
    ["<module>", "mark"],
    ["<module>", "sorting", "compare", "mark"],
    ["<module>", "key", "mark"],
    ["<module>"] + 3 * ["nested", "<lambda>"] + ["nested", "mark"],
    ["<module>", "generator", "mark"],
    ["<module>"] + 2 * ["nested", "<lambda>"] + ["nested", "mark"],
    ["_bootstrap", "_bootstrap_inner", "run", "sorting", "compare", "mark"],
    ["<module>", "mark"],
]


@pytest.fixture(params=["3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14-tail", "/usr/bin/python3.11"])
def stacks(request, memtrack, tmp_path):
    version = request.param
    path = version if version.startswith("/") else interpreter_path(version)
    script = tmp_path / "app.py"
    script.write_text(PROGRAM)
    capture = memtrack.record(path, script, options=("--native",))
    marked = [record for record in capture.allocations() if record.size > MARKED]
    return [(record.size, capture.records.stack(record.stack)) for record in marked]


def is_python(frame):
    return frame.file.endswith(".py") or frame.file.startswith("<frozen")


def short(frame):
    return frame.name.rsplit(".", 1)[-1]


def test_python_frames_are_those_without_native_ones(stacks):
    assert [size for size, _ in stacks] == list(range(MARKED + 1, MARKED + 1 + len(EXPECTED)))
    for (_, stack), expected in zip(stacks, EXPECTED):
        assert [short(frame) for frame in stack if is_python(frame)] == expected


def test_evaluation_loops_are_replaced(stacks):
    for _, stack in stacks:
        loops = ("_PyEval_EvalFrameDefault", "_TAIL_CALL", "memtrack")
        assert not [frame for frame in stack if frame.name.startswith(loops)]


def test_native_frames_stand_between_their_callers_and_callees(stacks):
    callback = next(stack for _, stack in stacks if "compare" in map(short, stack))
    names = [short(frame) for frame in callback]
    between = names[names.index("sorting") + 1 : names.index("compare")]
    assert any(name.startswith("qsort") or "msort" in name for name in between), between
    for _, stack in stacks:
        # What is called from Python, down to the call of malloc, is native; and so is what called it.
        assert not is_python(stack[-1]) and not is_python(stack[0])


def test_a_thousand_stacks_are_those_that_python_tells(memtrack, interpreter, programs, tmp_path):
    """Generators, coroutines, callbacks, exceptions, recursion: the Python frames are right, whatever stands between."""
    compare_stacks(memtrack, interpreter, (), programs / "stacks.py", tmp_path)


def test_deep_stacks_are_those_that_python_tells(memtrack, interpreter, programs, tmp_path):
    """Frames that are on the wire already are stepped over: never one that has changed."""
    compare_stacks(memtrack, interpreter, ("--trace-python-allocators",), programs / "deep.py", tmp_path)


@pytest.mark.parametrize("program", ["stacks.py", "parallel.py"])
def test_stacks_of_free_threaded_builds_are_those_that_python_tells(memtrack, free_threaded, program, programs, tmp_path):
    compare_stacks(memtrack, free_threaded, ("--trace-python-allocators",), programs / program, tmp_path)


def compare_stacks(memtrack, interpreter, options, program, tmp_path):
    noted = tmp_path / "expected"
    capture = memtrack.record(interpreter, program, noted, options=("--native", *options))
    stats = capture.stats()["capture"]
    assert (stats["lost_blocks"], stats["unmatched_frees"], stats["truncated_stacks"]) == (0, 0, 0)
    expected = expected_stacks(noted, tuple(map(int, stats["python_version"].split(".")[:2])))
    files = {frame.file for stack in expected.values() for frame in stack}
    recorded = recorded_stacks(capture)
    for stacks in recorded.values():
        stacks[:] = [[frame for frame in stack if frame.file in files] for stack in stacks]
    wrong = list(differences(recorded, expected))
    assert not wrong, "\n".join([f"{len(wrong)} of {len(expected)} stacks are wrong:", *wrong[:5]])


TURNS = """
import random
def plain(size):
    bytes(size)
def other(size):
    x = 1; bytearray(size)
def lines(size):
    if size % 2:
        bytes(size)
    else:
        bytes(size)
def deep(depth, size):
    if depth:
        deep(depth - 1, size)
    else:
        bytes(size)
def through(depth, size):
    if depth:
        sorted([size], key=lambda size: through(depth - 1, size))
    else:
        bytes(size)
def generator(size):
    while True:
        bytearray(size)
        yield
BASE = 1_000_000
running = generator(BASE + 900)
kinds = [lambda: plain(BASE + 100), lambda: other(BASE + 200), lambda: lines(BASE + 301), lambda: lines(BASE + 302)]
kinds += [lambda depth=depth: deep(depth, BASE + 400 + depth) for depth in (0, 1, 13, 40)]
kinds += [lambda depth=depth: through(depth, BASE + 500 + depth) for depth in (0, 1, 2, 5)]
kinds += [lambda: next(running), lambda: [plain(BASE + 700), other(BASE + 800), plain(BASE + 700)]]
random.seed(1)
for _ in range(3000):
    kinds[random.randrange(len(kinds))]()
"""


def turns_expected(size):
    """The Python functions of a block of this size, outermost first."""
    kind, more = divmod(size - 1_000_000, 100)
    functions = {
        1: ["plain"],
        2: ["other"],
        3: ["lines"],
        4: ["deep"] * (more + 1),
        5: ["through"] + ["<lambda>", "through"] * more,
        7: ["plain"],
        8: ["other"],
        9: ["generator"],
    }[kind]
    return ["<module>", "<lambda>", *functions]


TURNS_SIZES = [1_000_000 + more for more in (100, 200, 301, 302, 400, 401, 413, 440, 500, 501, 502, 505, 700, 800, 900)]


def test_stacks_that_take_turns(memtrack, interpreter, tmp_path):
    """What is remembered of the stacks before never shows in the next: each is known from the size of its block."""
    script = tmp_path / "turns.py"
    script.write_text(TURNS)
    capture = memtrack.record(interpreter, script, options=("--native",))
    # Before what was asked for stands the object's head; behind it a zero.
    sizes = {size + extra: size for size in TURNS_SIZES for extra in (1, 33)}
    ways = {}
    for record in capture.allocations():
        if record.size not in sizes:
            continue
        size = sizes[record.size]
        stack = capture.records.stack(record.stack)
        assert [short(frame) for frame in stack if is_python(frame)] == turns_expected(size), (size, stack)
        last = max(index for index, frame in enumerate(stack) if is_python(frame))
        natives = tuple(frame.name for frame in stack[last + 1 :])
        assert natives and not any("EvalFrame" in name for name in natives), stack
        ways.setdefault(size, set()).add(natives)
    assert sorted(ways) == TURNS_SIZES
    # The same way down each time for the same kind of object; specialized instructions may take a shorter one.
    assert all(len(ways) <= 2 for ways in ways.values()), ways


def test_python_has_no_native_stacks_unless_asked(memtrack, python, programs):
    """Also behind a program that is no Python, and where Python is a library of another name."""
    for target in ([python, "-c", "bytearray(10**6)"], ["env", python, "-c", "bytearray(10**6)"]):
        assert memtrack("run", "-q", "-f", "-o", "capture.bin", "--", *target).status == 0
        table = memtrack("table", "--allocated", "--csv", "capture.bin").stdout.decode()
        assert "_PyEval" not in table and "<module>" in table


def test_the_end_of_run_names_native_functions_of_a_python_program(memtrack, python, tmp_path):
    """One function that allocates at several of its addresses is one row, and none is an address."""
    (tmp_path / "lib.c").write_text(
        "#include <stdlib.h>\n#include <pthread.h>\nvoid *kept[2];\n"
        "static void *fill_tables(void *none) { kept[0] = calloc(3000000, 1); kept[1] = calloc(2000000, 1); return none; }\n"
        "void begin(void) { pthread_t one; pthread_create(&one, 0, fill_tables, 0); pthread_join(one, 0); }\n"
    )
    compiler = shutil.which("cc") or pytest.skip("no C compiler")
    subprocess.run([compiler, "-g", "-O1", "-shared", "-fPIC", "-o", tmp_path / "lib.so", tmp_path / "lib.c", "-lpthread"], check=True)
    program = "import ctypes; ctypes.CDLL('./lib.so').begin()"
    ended = memtrack("run", "--native", "-f", "-o", "capture.bin", python, "-c", program, cwd=tmp_path)
    rows = [line for line in ended.stderr.decode().splitlines() if " MB " in line and "%" in line]
    assert any("5.00 MB" in row and "fill_tables at " in row for row in rows), rows
    assert not any(re.search(r"\+0x[0-9a-f]+ at", row) for row in rows), rows
