"""Deep stacks are exact where a mark in a frame stands for the frames below it, and where marks are switched off."""

import os

import pytest

from conftest import FREE_THREADED, interpreter_path
from test_stacks import differences, expected_stacks, recorded_stacks

DEEP_LOOP = """
import sys, time
sys.setrecursionlimit(5000)

def loop(count):
    for _ in range(count):
        bytearray(600)

def down(depth):
    return down(depth - 1) if depth else best()

def best():
    fastest = 1e9
    for _ in range(40):
        begin = time.perf_counter()
        loop(2000)
        fastest = min(fastest, time.perf_counter() - begin)
    print(fastest)

down({depth})
"""


@pytest.mark.parametrize("options", [(), ("--no-frame-marks",)], ids=["marks", "no-marks"])
def test_an_old_frame_that_changes_is_seen(memtrack, interpreter, options, programs, tmp_path):
    compare_deep_stacks(memtrack, interpreter, options, programs, tmp_path)


@pytest.mark.parametrize("options", [(), ("--no-frame-marks",)], ids=["marks", "no-marks"])
def test_an_old_frame_that_changes_is_seen_without_the_gil(memtrack, free_threaded, options, programs, tmp_path):
    compare_deep_stacks(memtrack, free_threaded, ("--trace-python-allocators", *options), programs, tmp_path)


def compare_deep_stacks(memtrack, interpreter, options, programs, tmp_path):
    noted = tmp_path / "expected"
    capture = memtrack.record(interpreter, programs / "deep.py", noted, options=options)
    version = tuple(map(int, capture.stats()["capture"]["python_version"].split(".")[:2]))
    expected = expected_stacks(noted, version)
    assert len(expected) > 80
    wrong = list(differences(recorded_stacks(capture), expected))
    assert not wrong, "\n".join([f"{len(wrong)} of {len(expected)} stacks are wrong:", *wrong[:10]])


@pytest.mark.parametrize("version", ["sid-3.14", "sid-3.15"])
def test_under_the_compiler_marks_change_nothing(memtrack, version, plain, programs, tmp_path):
    """Its lines are not always exact, but with marks they are those of the whole comparison."""
    python, environment = interpreter_path(version), {**os.environ, "PYTHON_JIT": "1"}
    if plain(python, "-c", "import sys; print(sys._jit.is_enabled())", env=environment).stdout != b"True\n":
        pytest.skip(f"{version} has no compiler")
    program = (python, programs / "deep.py", tmp_path / "expected")
    with_marks, without = (
        recorded_stacks(memtrack.record(*program, options=options, env=environment))
        for options in ((), ("--no-frame-marks",))
    )
    assert len(with_marks) > 80
    assert list(differences(with_marks, {size: stack for size, (stack,) in without.items()})) == []


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "sid-3.14", "sid-3.15", *FREE_THREADED])
def test_an_allocation_costs_about_the_same_on_a_deep_stack(memtrack, version):
    """Comparing all of 800 frames takes five times as long as the allocation itself."""
    python, options = interpreter_path(version), ("--trace-python-allocators",) if version in FREE_THREADED else ()
    shallow, deep = [], []
    # A busy machine makes each of them slower now and then, but not all of one kind.
    for _ in range(8):
        shallow.append(loop_time(memtrack, python, 3, options))
        deep.append(loop_time(memtrack, python, 800, options))
        if min(deep) < 2 * min(shallow):
            return
    raise AssertionError(f"shallow {shallow}, deep {deep}")


def loop_time(memtrack, python, depth, options):
    """Seconds that the loop takes while it is recorded."""
    outcome, _ = memtrack.run(python, "-c", DEEP_LOOP.format(depth=depth), options=options)
    return float(outcome.stdout)
