"""Aggregated captures: the sums of a plain capture in a file that does not grow with the events."""

import sys

import pytest

from conftest import PROGRAMS

VIEWS = {
    "high-water-mark": (),
    "leaks": ("--leaks",),
    "at exit": ("--leaks", "--at-exit"),
    "temporary": ("--temporary",),
    "allocated": ("--allocated",),
}


# Two runs allocate alike: pymalloc's arenas would come in other lines, as the kernel places the first of them.
REPEATABLE = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONMALLOC": "malloc"}


@pytest.fixture(scope="module")
def plain_capture(module_memtrack):
    return module_memtrack.record(sys.executable, PROGRAMS / "views.py", env=REPEATABLE)


@pytest.fixture(scope="module")
def aggregated(module_memtrack):
    command = [sys.executable, PROGRAMS / "views.py"]
    return module_memtrack.record(*command, options=["--aggregate"], env=REPEATABLE)


def of_the_program(profile):
    """Samples of the program's own lines: what lives on elsewhere differs from run to run, for the interpreter's caches
    are keyed by addresses."""
    return [sample for sample in profile.samples() if str(sample[0][-1].file).endswith("views.py")]


def test_sums_are_those_of_a_plain_capture(plain_capture, aggregated):
    plain_stats, stats = plain_capture.stats(), aggregated.stats()
    assert stats["capture"]["aggregated"] is True and plain_stats["capture"]["aggregated"] is False
    for name in ("allocations", "deallocations", "allocators", "size_histogram", "mappings"):
        assert stats[name] == plain_stats[name], name
    for name in ("peak", "leaked"):
        assert abs(stats[name]["bytes"] - plain_stats[name]["bytes"]) < 10_000, name


@pytest.mark.parametrize("view", VIEWS)
def test_speedscope_has_the_same_samples_in_the_order_first_seen(plain_capture, aggregated, view):
    profile, of_plain = (
        aggregated.speedscope(*VIEWS[view]),
        plain_capture.speedscope(*VIEWS[view], "--order", "capture"),
    )
    assert profile.file["memtrack"]["ordering"] == "capture-order"
    assert of_the_program(profile) == of_the_program(of_plain)
    assert of_the_program(profile)


def test_the_file_does_not_grow_with_the_events(module_memtrack):
    def size(count):
        code = f"for _ in range({count}): bytearray(2000)"
        return module_memtrack.record(sys.executable, "-c", code, options=["--aggregate"]).path.stat().st_size

    assert size(1_000_000) < size(1000) + 50_000


def test_a_killed_program_leaves_its_sums(memtrack):
    code = "import os; kept = [bytearray(99_999) for _ in range(300)]; os.kill(os.getpid(), 9)"
    outcome, capture = memtrack.run(sys.executable, "-c", code, options=["--aggregate"])
    assert outcome.status == 128 + 9
    assert capture.stats()["peak"]["bytes"] >= 300 * 100_000
