"""Every stack in the capture is the one that Python itself tells, on every interpreter, with and without timestamps."""

import collections
import json

import pytest

from conftest import interpreter_path

QUALIFIED_NAMES_SINCE = (3, 11)
ARENA_SIZES = {True: 1 << 20, False: 256 << 10}  # what pymalloc maps at a time: since 3.10, before


@pytest.fixture(params=[(), ("--allocation-timestamps",)], ids=["plain", "timestamps"])
def options(request):
    return request.param


def expected_stacks(path, version):
    """{stack: (bytes, count)} of the marked allocations, as the program noted them."""
    stacks = collections.defaultdict(lambda: (0, 0))
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        names = entry["qualified"] if version >= QUALIFIED_NAMES_SINCE else [name for name, _, _ in entry["stack"]]
        stack = tuple((name, file, line) for name, (_, file, line) in zip(names, entry["stack"]))
        size, count = stacks[stack]
        stacks[stack] = size + entry["size"], count + 1
    return stacks


def recorded_stacks(profile):
    """{stack: (bytes, count)} of what the marking functions allocated."""
    return {
        tuple((frame.name, frame.file, frame.line) for frame in stack): (size, count)
        for stack, size, count in profile.samples()
        if stack[-1].name in ("mark", "mark_native")
    }


def without_arenas(recorded, expected, arena):
    """Takes out what pymalloc mapped in a marked line: the count tells how many arenas there can be."""
    arenas = recorded[1] - expected[1]
    return recorded[0] - arenas * arena, recorded[1] - arenas


def differences(recorded, expected, arena):
    for stack in sorted(expected.keys() | recorded.keys(), key=str):
        there, wanted = recorded.get(stack, (0, 0)), expected.get(stack, (0, 0))
        if without_arenas(there, wanted, arena) != wanted or there[1] < wanted[1] or there[1] > wanted[1] + 4:
            yield f"{there} instead of {wanted}: " + " > ".join(f"{n} {f.rsplit('/', 1)[-1]}:{l}" for n, f, l in stack)


def test_stacks_are_those_that_python_tells(memtrack, interpreter, options, programs, tmp_path):
    noted = tmp_path / "expected"
    capture = memtrack.record(interpreter, programs / "stacks.py", noted, options=options)
    stats = capture.stats()["capture"]
    assert (stats["lost_blocks"], stats["unmatched_frees"], stats["truncated_stacks"]) == (0, 0, 0)
    assert stats["has_allocation_timestamps"] == bool(options)
    version = tuple(map(int, stats["python_version"].split(".")[:2]))
    expected = expected_stacks(noted, version)
    assert sum(count for _, count in expected.values()) > 1000
    wrong = list(differences(recorded_stacks(capture.speedscope("--allocated")), expected, ARENA_SIZES[version >= (3, 10)]))
    assert not wrong, "\n".join([f"{len(wrong)} of {len(expected)} stacks differ:", *wrong[:10]])


@pytest.mark.parametrize("version", ["3.8", "3.11", "3.13"])
def test_code_objects_that_follow_each_other_at_one_address_keep_their_names(memtrack, version, programs):
    capture = memtrack.record(interpreter_path(version), programs / "code_reuse.py")
    allocated = [
        (stack[-1].name, stack[-1].file, stack[-1].line, size)
        for stack, size, _ in capture.speedscope("--allocated").samples()
        if stack[-1].name.startswith("made_")
    ]
    assert sorted(allocated) == sorted((f"made_{n}", f"<made {n}>", 2 + n % 5, 100_000 + n) for n in range(200))
