"""Stacks deeper than the 8000 frames that are recorded: what is left is true, and how many were cut is told."""

import pytest

from conftest import interpreter_path
from test_stacks import recorded_stacks

DEEPEST = 8000
# The bytes of a block, with its head, tell how many frames are on the stack: `down` once for each, below the module.
RECURSION = """
import sys
sys.setrecursionlimit(200_000)
kept, wanted = [], set(map(int, sys.argv[2:]))

def down(frames, depth):
    if depth > 0:
        down(frames + 1, depth - 1)
    if frames in wanted:
        kept.append(bytes(3_000_000 + frames - sys.getsizeof(b"")))
        wanted.discard(frames)

down(2, int(sys.argv[1]) - 2)
"""
MODULE, CALL, ALLOCATION = ("<module>", 13), ("down", 8), ("down", 10)
# The stacks of so many blocks are of so many frames.
REPEATED = """
import sys
sys.setrecursionlimit(200_000)

def down(depth, blocks):
    if depth > 0:
        return down(depth - 1, blocks)
    for _ in range(blocks):
        bytearray(700)

down(int(sys.argv[1]) - 2, int(sys.argv[2]))
"""


def true_stack(frames):
    return [MODULE, *[CALL] * (frames - 2), ALLOCATION]


def record(memtrack, tmp_path, program, python, *words, options=()):
    script = tmp_path / "recursion.py"
    script.write_text(program)
    return memtrack.record(python, script, *words, options=options)


def stacks_of_blocks(memtrack, tmp_path, *words, options=()):
    """The program's own frames, by how many there truly were."""
    capture = record(memtrack, tmp_path, RECURSION, *words, options=options)
    return {
        size - 3_000_000: [(frame.name, frame.line) for frame in stack if frame.file.endswith("/recursion.py")]
        for size, (stack,) in recorded_stacks(capture).items()
    }


@pytest.mark.parametrize("deepest", [9_000, 90_000])
@pytest.mark.parametrize("version", ["3.11", "3.13"])
def test_of_a_cut_stack_the_oldest_frames_are_there_and_the_newest_one(memtrack, version, deepest, tmp_path):
    depths = sorted({2, 5000, DEEPEST - 1, DEEPEST, DEEPEST + 1, deepest - 1, deepest})
    stacks = stacks_of_blocks(memtrack, tmp_path, interpreter_path(version), deepest, *depths)
    assert sorted(stacks) == depths
    for frames, stack in stacks.items():
        true = true_stack(frames)
        assert stack == (true if frames <= DEEPEST else [*true[: DEEPEST - 1], true[-1]]), frames


@pytest.mark.parametrize("deepest", [9_000, 90_000])
@pytest.mark.parametrize("version", ["3.11", "3.13"])
def test_with_native_frames_the_oldest_and_the_newest_ones_are_there(memtrack, version, deepest, tmp_path):
    """Of the 8000, a few are native: those below the module, and those above the newest of Python's."""
    depths = sorted({2, 5000, DEEPEST - 100, DEEPEST + 1, deepest - 1, deepest})
    stacks = stacks_of_blocks(memtrack, tmp_path, interpreter_path(version), deepest, *depths, options=("--native",))
    assert sorted(stacks) == depths
    for frames, stack in stacks.items():
        if frames <= DEEPEST - 100:
            assert stack == true_stack(frames), frames
        else:
            assert DEEPEST - 100 < len(stack) < DEEPEST and stack == true_stack(len(stack)), frames


@pytest.mark.parametrize("options", [(), ("--native",), ("--aggregate",)], ids=["plain", "native", "aggregated"])
def test_how_many_stacks_were_cut_is_told(memtrack, options, tmp_path):
    """What the interpreter itself allocates so deep down is the same with and without the blocks."""

    def cut(frames, blocks):
        capture = record(memtrack, tmp_path, REPEATED, interpreter_path("3.11"), frames, blocks, options=options)
        stats = capture.stats()
        assert stats["account"]["truncated_stacks"] == stats["capture"]["truncated_stacks"]
        text = capture.reading("stats", "--recording", capture.path)
        assert f"\n  Stacks cut     {stats['account']['truncated_stacks']:,}\n" in text
        return stats["account"]["truncated_stacks"]

    assert cut(DEEPEST - 100, 5000) == 0
    assert cut(DEEPEST + 1, 5000) - cut(DEEPEST + 1, 0) == 5000


# Two call paths in turn, which become known, before and after calls that go deeper than is recorded.
RETURNING = """
import sys
sys.setrecursionlimit(200_000)

def one():
    return bytearray(700)

def other():
    return bytearray(700)

def down(depth, blocks):
    if depth > 0:
        return down(depth - 1, blocks)
    for _ in range(blocks):
        one(), other()

for _ in range(5):
    down(10, int(sys.argv[2]))
    down(int(sys.argv[1]), 5)
"""


@pytest.mark.parametrize("options", [(), ("--native",)], ids=["plain", "native"])
@pytest.mark.parametrize("version", ["3.8", "3.11", "3.13"])
def test_known_stacks_are_whole_again_after_a_cut_one(memtrack, version, options, tmp_path):
    def cut(blocks):
        words = (interpreter_path(version), DEEPEST + 50, blocks)
        return record(memtrack, tmp_path, RETURNING, *words, options=options).stats()["account"]["truncated_stacks"]

    assert cut(200) == cut(0) > 0
