"""An extension module that the test compiles calls into Python and back: merged stacks, frame by frame with their lines."""

import os

import pytest

from conftest import PROGRAMS, VERSIONS, compile_extension, interpreter_path

SOURCES = {name: PROGRAMS / name for name in ("boundary.c", "boundary.py")}

TAKE = ["take@take", "keep@keep"]
MAIN = "<module>@"

# The frames of the two sources, root first, for each marked block in the order of the allocations.
INNER = ["outer@sorted", "key@key", "inner@inner"]
BEYOND = [*INNER, "around@around", "call@call"]
FROM_C = [MAIN + "outer", "around@around", "call@call"]
BYTES = 33  # what a bytes object has besides its bytes
EXPECTED = [
    (3000001, [MAIN + "first", *TAKE]),
    (3000007, [MAIN + "outer", "around@before", "keep@keep"]),
    (3000003, [*FROM_C, *INNER, "around@before", "keep@keep"]),
    (3000005, [*FROM_C, *BEYOND, "innermost@innermost", *TAKE]),
    (3000006 + BYTES, [*FROM_C, *BEYOND, "innermost@bytes"]),
    (3000004, [*FROM_C, *INNER, "around@after", "keep@keep"]),
    (3000008, [MAIN + "outer", "around@after", "keep@keep"]),
    (3000003, [MAIN + "again", *INNER, "around@before", "keep@keep"]),
    (3000005, [MAIN + "again", *BEYOND, "innermost@innermost", *TAKE]),
    (3000006 + BYTES, [MAIN + "again", *BEYOND, "innermost@bytes"]),
    (3000004, [MAIN + "again", *INNER, "around@after", "keep@keep"]),
    (3000010, [MAIN + "list", "generator@generator", *TAKE]),
    (3000011 + BYTES, [MAIN + "list", "generator@yield", "made@made"]),
    (3000014, ["native@native", "keep@keep"]),
    (3000015, ["with_python@with_python", "call@call", "in_thread@in_thread", *TAKE]),
    (3000021 + BYTES, [MAIN + "format", "__repr__@repr", "made@made"]),
    (3000020, [MAIN + "forget", "__del__@del", *TAKE]),
    (3000022, [MAIN + "last", *TAKE]),
]


def labels():
    """{file name: {line: label}}"""
    found = {}
    for name, path in SOURCES.items():
        lines = enumerate(path.read_text().splitlines(), 1)
        found[name] = {number: line.rpartition("@")[2].split()[0] for number, line in lines if "@" in line}
    return found


def told(stack, known):
    """`function@label` for each frame of the sources; what is between them is the interpreter's or the system's."""
    own = [frame for frame in stack if os.path.basename(frame.file) in known]
    return [
        frame.name.rpartition(".")[2] + "@" + str(known[os.path.basename(frame.file)].get(frame.line, frame.line))
        for frame in own
    ]


@pytest.fixture(params=[*VERSIONS, "system"])
def capture(request, memtrack, tmp_path):
    interpreter = interpreter_path(request.param)
    compile_extension(interpreter, SOURCES["boundary.c"], tmp_path)
    return memtrack.record(interpreter, SOURCES["boundary.py"], tmp_path, options=("--native",))


def test_frames_of_both_sides_in_their_order_with_their_lines(capture):
    known = labels()
    marked = [record for record in capture.allocations() if 3000000 < record.size < 3000100]
    found = [(record.size, told(capture.records.stack(record.stack), known)) for record in marked]
    for (_, expected), (_, stack) in zip(EXPECTED, found):
        assert stack == expected
    assert found == EXPECTED
    stats = capture.stats()["capture"]
    assert (stats["lost_blocks"], stats["unmatched_frees"], stats["truncated_stacks"]) == (0, 0, 0)


def test_threads_that_c_started_have_no_frames_of_others(capture):
    stacks = {record.size: capture.records.stack(record.stack) for record in capture.allocations()}
    for size in (3000014, 3000015):
        names = [frame.name.rpartition(".")[2] for frame in stacks[size]]
        assert "<module>" not in names and "main" not in names, names
    assert not any(frame.file.endswith(".py") for frame in stacks[3000014])


def test_numpy_allocates_below_the_line_that_called_it(memtrack, python, tmp_path):
    pytest.importorskip("numpy")
    script = tmp_path / "app.py"
    script.write_text(
        "import numpy\n"
        "def ones():\n"
        "    return numpy.ones(1_000_003)\n"
        "def doubled(values):\n"
        "    return values + values\n"
        "kept = doubled(ones())\n"
    )
    capture = memtrack.record(python, script, options=("--native",))
    arrays = [record for record in capture.allocations() if record.size == 8 * 1_000_003]
    assert len(arrays) == 2
    for record, expected in zip(arrays, (["<module>:6", "ones:3"], ["<module>:6", "doubled:5"])):
        stack = capture.records.stack(record.stack)
        assert [f"{frame.name}:{frame.line}" for frame in stack if frame.file == str(script)] == expected
        innermost = next(frame for frame in reversed(stack) if "numpy" in frame.file)
        assert "_multiarray_umath" in innermost.file, innermost
        last = max(index for index, frame in enumerate(stack) if frame.file == str(script))
        assert stack.index(innermost) > last
