"""Every stack in the capture is the one that Python itself tells, on every interpreter, with and without timestamps."""

import collections
import json
import os

import pytest

from conftest import Frame, Records, interpreter_path

QUALIFIED_NAMES_SINCE = (3, 11)
MARKING_FUNCTIONS = ("mark", "mark_native")
SMALLEST_MARKED = 3_000_000  # bytes; nothing else in the program comes near


@pytest.fixture(params=[(), ("--allocation-timestamps",)], ids=["plain", "timestamps"])
def options(request):
    return request.param


def expected_stacks(path, version):
    """{size: stack} of the marked allocations, as the program noted them. Each has a size of its own."""
    stacks = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        names = entry["qualified"] if version >= QUALIFIED_NAMES_SINCE else [name for name, _, _ in entry["stack"]]
        frames = [Frame(name, file, line) for name, (_, file, line) in zip(names, entry["stack"])]
        assert entry["size"] not in stacks
        stacks[entry["size"]] = frames
    return stacks


def recorded_stacks(capture):
    """{size: [stack, ...]} of the allocations of marked size."""
    stacks = collections.defaultdict(list)
    records = Records(capture.reading("parse", "--min-bytes", SMALLEST_MARKED, capture.path))
    for record in records.events:
        if record.kind in ("ALLOC", "MAP"):
            stacks[record.size].append(records.stack(record.stack))
    return stacks


def without_empty_blocks(options):
    """Python's allocators are asked for blocks of no bytes, too, which are samples of the counts only."""
    return ("--min-bytes", 1) if "--trace-python-allocators" in options else ()


def text(frames):
    return " > ".join(f"{frame.name} {frame.file.rsplit('/', 1)[-1]}:{frame.line}" for frame in frames)


def differences(recorded, expected):
    for size in sorted(expected.keys() | recorded.keys()):
        there, wanted = recorded.get(size, []), expected.get(size)
        if there != [wanted]:
            yield f"{size} bytes: {' AND '.join(map(text, there)) or 'nothing'}\n  instead of {text(wanted or [])}"


def test_stacks_are_those_that_python_tells(memtrack, interpreter, options, programs, tmp_path):
    compare_stacks(memtrack, interpreter, options, programs, tmp_path)


def test_stacks_of_free_threaded_builds_are_those_that_python_tells(
    memtrack, free_threaded, options, programs, tmp_path
):
    """There blocks come from no malloc, so that they are seen only where the interpreter's own allocators are."""
    compare_stacks(memtrack, free_threaded, ("--trace-python-allocators", *options), programs, tmp_path)


def test_stacks_of_threads_that_run_python_at_the_same_time(memtrack, free_threaded, programs, tmp_path):
    """With generators that are handed from thread to thread, and code that is dropped while others run."""
    compare_stacks(memtrack, free_threaded, ("--trace-python-allocators",), programs, tmp_path, "parallel.py")


def compare_stacks(memtrack, interpreter, options, programs, tmp_path, program="stacks.py"):
    noted = tmp_path / "expected"
    capture = memtrack.record(interpreter, programs / program, noted, options=options)
    stats = capture.stats()["capture"]
    assert (stats["lost_blocks"], stats["unmatched_frees"], stats["truncated_stacks"]) == (0, 0, 0)
    assert stats["has_allocation_timestamps"] == ("--allocation-timestamps" in options)
    expected = expected_stacks(noted, tuple(map(int, stats["python_version"].split(".")[:2])))
    assert len(expected) > 1000
    wrong = list(differences(recorded_stacks(capture), expected))
    assert not wrong, "\n".join([f"{len(wrong)} of {len(expected)} stacks are wrong:", *wrong[:10]])
    samples = capture.speedscope("--allocated", "--min-bytes", SMALLEST_MARKED).samples()
    marked = {stack for stack, _, _ in samples if stack[-1].name in MARKING_FUNCTIONS}
    assert marked == set(map(tuple, expected.values()))


@pytest.mark.parametrize("version", ["3.8", "3.11", "3.13"])
def test_code_objects_that_follow_each_other_at_one_address_keep_their_names(memtrack, version, programs):
    capture = memtrack.record(interpreter_path(version), programs / "code_reuse.py")
    allocated = [
        (stack[-1].name, stack[-1].file, stack[-1].line, size)
        for stack, size, _ in capture.speedscope("--allocated").samples()
        if stack[-1].name.startswith("made_")
    ]
    assert sorted(allocated) == sorted((f"made_{n}", f"<made {n}>", 2 + n % 5, 100_000 + n) for n in range(200))


CELLS = """\
def held(size):
    block = bytearray(size)
    return lambda: (block, size)


def caller(size):
    return held(size)


kept = [caller(3_000_001), caller(3_000_002), caller(3_000_003)]
"""


def test_a_call_that_allocates_while_it_is_set_up_is_on_the_stack_from_its_first_line_on(memtrack, interpreter, tmp_path):
    """The cells of `held` are allocated before a traceback would show it, and nothing comes between them and its block."""
    program = tmp_path / "cells.py"
    program.write_text(CELLS)
    capture = memtrack.record(interpreter, program, env={**os.environ, "PYTHONMALLOC": "malloc"})
    own = [("<module>", 10), ("caller", 7), ("held", 2)]
    for size, (stack,) in sorted(recorded_stacks(capture).items()):
        assert (size, [(frame.name, frame.line) for frame in stack]) == (size, own)
    assert len(recorded_stacks(capture)) == 3


@pytest.mark.parametrize("version", ["sid-3.14", "sid-3.15"])
def test_functions_are_right_under_the_compiler_and_most_lines(memtrack, version, plain, programs, tmp_path):
    """Compiled code does not always store where it is, so that a line may be an earlier one of the same function."""
    python, environment = interpreter_path(version), {**os.environ, "PYTHON_JIT": "1"}
    if plain(python, "-c", "import sys; print(sys._jit.is_enabled())", env=environment).stdout != b"True\n":
        pytest.skip(f"{version} has no compiler")
    noted = tmp_path / "expected"
    recorded = recorded_stacks(memtrack.record(python, programs / "stacks.py", noted, env=environment))
    expected = expected_stacks(noted, (3, 14))
    functions = {size: [(frame.name, frame.file) for frame in stack] for size, stack in expected.items()}
    found = {size: [(frame.name, frame.file) for frame in stack] for size, (stack, *_) in recorded.items()}
    assert {size: (found.get(size), wanted) for size, wanted in functions.items() if found.get(size) != wanted} == {}
    assert sum(recorded[size] != [stack] for size, stack in expected.items()) < len(expected) / 100


COLUMNS_SINCE = (3, 11)
CALLS = """\
def pair(*blocks):
    return blocks


def line():
    return pair("äß", bytearray(3_000_001), bytearray(3_000_002))


def single():
    return bytearray(3_000_003)


held = line(), single()
"""


def columns_of(rows):
    """{(function, column)} of the places in that program which hold its big blocks."""
    own = [row for row in rows if row["function"] in ("line", "single") and row["bytes"] > 3_000_000]
    return {(row["function"], row.get("column")) for row in own}


@pytest.mark.parametrize("options", [(), ("--aggregate",)], ids=["events", "aggregated"])
def test_columns_are_shown_where_a_line_holds_several_calls(memtrack, interpreter, options, tmp_path):
    # Without arenas, which are taken from the system by whichever line needs one.
    compare_columns(memtrack, interpreter, options, {**os.environ, "PYTHONMALLOC": "malloc"}, tmp_path)


def test_columns_in_free_threaded_builds(memtrack, free_threaded, tmp_path):
    compare_columns(memtrack, free_threaded, ("--trace-python-allocators",), None, tmp_path)


def compare_columns(memtrack, interpreter, options, environment, tmp_path):
    program = tmp_path / "calls.py"
    program.write_text(CALLS, encoding="utf-8")
    capture = memtrack.record(interpreter, "-S", "-X", "utf8", program, options=options, env=environment)
    report = json.loads(capture.reading("table", "--json", "--allocated", capture.path))
    source = CALLS.splitlines()[5].encode()
    columns = {source.index(b"bytearray(3_000_00%d" % number) + 1 for number in (1, 2)}
    stats = capture.stats()
    if tuple(map(int, stats["capture"]["python_version"].split(".")[:2])) < COLUMNS_SINCE:
        columns = {None}
    expected = {("single", None), *(("line", column) for column in columns)}
    assert columns_of(report["rows"]) == columns_of(stats["top_by_size"]) == expected
    text = capture.reading("table", "--allocated", "--all-frames", "-n", "0", capture.path).splitlines()
    for column in columns:
        place = "calls.py:6" + (f":{column}" if column else "")  # names may be shortened
        assert any(line.endswith(place) for line in text), text
    # What has no room for columns has the line once.
    profile = capture.speedscope("--allocated", *without_empty_blocks(options))
    frames = [frame for frame in profile.frames if frame.name == "line"]
    assert [(frame.file, frame.line) for frame in frames] == [(str(program), 6)]
    assert profile.leaf("line")[0] in range(6_000_003, 6_002_000)
