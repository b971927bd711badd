"""Trees of Python processes: each worker's figures are exact and in a capture of its own.

Worker n of programs/tree.py keeps n blocks of 100,000 + n bytes, which no other process allocates.
"""

import json

import pytest

from conftest import Capture

FOLLOW = ("--follow",)


def recorded(memtrack, *command, options=FOLLOW):
    """The captures of a run, the first process's first."""
    outcome, capture = memtrack.run(*command, options=options)
    assert outcome.status == 0, outcome
    assert outcome.stderr == b"", outcome
    return outcome, sorted(capture.path.parent.glob(f"{capture.path.stem}*.bin"), key=lambda path: len(path.name))


def workers(memtrack, captures):
    """{number of the worker: number of captures with exactly its blocks}, from rows of one place each. (bytes is calloc's.)"""
    found = {}
    for path in captures:
        table = json.loads(memtrack("table", "--allocated", "--json", path).stdout)
        for row in table["rows"]:
            if (row["file"] or "").endswith("tree.py") and row["allocator"].endswith("calloc") and row["bytes"] > 100_000:
                number = row["count"]
                # The header of a bytes object is a few words, in all versions the same for all of them.
                each = row["bytes"] // number
                assert 100_000 < each - number < 100_100, row
                found[number] = found.get(number, 0) + 1
    return found


def is_whole(memtrack, captures):
    for path in captures:
        capture = json.loads(memtrack("stats", "--json", path).stdout)["capture"]
        assert capture["complete"], capture
        assert (capture["unmatched_frees"], capture["lost_blocks"]) == (0, 0), capture


@pytest.mark.parametrize("way", ["fork", "spawn", "forkserver", "forks", "from_thread", "prefork"])
def test_workers(memtrack, python, programs, way):
    _, captures = recorded(memtrack, python, programs / "tree.py", way)
    assert workers(memtrack, captures) == dict.fromkeys(range(1, 6), 1)
    is_whole(memtrack, captures)


@pytest.mark.parametrize("way", ["subprocesses", "shell"])
def test_programs(memtrack, python, programs, way):
    _, captures = recorded(memtrack, python, programs / "tree.py", way)
    assert workers(memtrack, captures) == dict.fromkeys(range(1, 6), 1)
    is_whole(memtrack, captures)


def test_every_interpreter(memtrack, interpreter, programs):
    _, captures = recorded(memtrack, interpreter, programs / "tree.py", "forks")
    assert workers(memtrack, captures) == dict.fromkeys(range(1, 6), 1)
    assert len(captures) == 6


def test_fifty(memtrack, python, programs):
    _, captures = recorded(memtrack, python, programs / "tree.py", "many")
    assert workers(memtrack, captures) == dict.fromkeys(range(1, 51), 1)
    assert len(captures) == 51
    stats = json.loads(memtrack("stats", "--json", *captures).stdout)
    assert len(stats["processes"]) == 51
    rows = stats["processes"]
    assert stats["peak"]["sum_of_peaks"] == sum(row["peak"]["bytes"] for row in rows)
    assert stats["peak"]["bytes"] == sum(row["at_peak"]["bytes"] for row in rows)
    assert max(row["peak"]["bytes"] for row in rows) <= stats["peak"]["bytes"] <= stats["peak"]["sum_of_peaks"]


@pytest.mark.parametrize("options", [("--aggregate",), ("--trace-python-allocators",), ("--allocation-timestamps",)])
def test_with_other_options(memtrack, python, programs, options):
    _, captures = recorded(memtrack, python, programs / "tree.py", "forks", options=(*FOLLOW, *options))
    assert workers(memtrack, captures) == dict.fromkeys(range(1, 6), 1)
    is_whole(memtrack, captures)


def test_a_process_that_replaces_itself_has_one_capture(memtrack, python, programs):
    for options in (FOLLOW, ()):
        _, captures = recorded(memtrack, python, programs / "tree.py", "replaces", options=(*options, "-f"))
        assert len(captures) == 1
        sizes = [record.size for record in Capture(memtrack, captures[0]).allocations() if record.allocator == "calloc"]
        header = min(size for size in sizes if size > 100_000) - 100_001
        assert [sizes.count(100_000 + header + number) for number in range(1, 6)] == [1, 2, 3, 4, 5]


def test_stacks_of_children_begin_where_the_parent_was(memtrack, python, programs):
    _, captures = recorded(memtrack, python, programs / "tree.py", "forks")
    for path in captures[1:]:
        text = memtrack("transform", "collapsed", "--allocated", "-o", "-", path).stdout.decode()
        stacks = [line.rsplit(" ", 1)[0].split(";") for line in text.splitlines()]
        made = [stack for stack in stacks if any(frame.startswith("work") for frame in stack)]
        assert made and all(stack[0].startswith("<module>") for stack in made), stacks


@pytest.mark.parametrize("options", [(), FOLLOW])
def test_children_find_what_they_would_without_memtrack(memtrack, plain, python, programs, options):
    command = (python, programs / "tree.py", "surroundings")
    outcome, _ = memtrack.run(*command, options=options)
    assert outcome.stdout == plain(*command).stdout
