"""Programs as people write them: same output, nothing lost, and the amounts that are known beforehand."""

import re
import sys

import pytest

from conftest import interpreter_path

ARENA = 1 << 20  # pymalloc's, of the interpreter that runs the tests


@pytest.fixture
def recorded(memtrack, plain):
    """Records a program, checks that it did as without memtrack, and gives its capture."""

    def check(*command, normal=lambda output: output, environment=None):
        outcome, capture = memtrack.run(*command, env=environment)
        alone = plain(*command, env=environment)
        assert outcome.status == alone.status, outcome.stderr.decode()
        assert normal(outcome.stdout) == normal(alone.stdout)
        assert outcome.stderr == alone.stderr
        stats = capture.stats()["capture"]
        assert (stats["lost_blocks"], stats["truncated_stacks"], stats["unmatched_frees"]) == (0, 0, 0)
        assert stats["complete"] is True
        return capture

    return check


def own(profile, function, size, count):
    """Whether that function itself allocated exactly so many bytes in so many blocks, apart from pymalloc's arenas."""
    found_size, found_count = profile.leaf(function)
    arenas = found_count - count
    return (found_size - arenas * ARENA, arenas < 20) == (size * count, True)


def test_numpy_and_pandas(recorded, programs):
    pytest.importorskip("pandas")
    capture = recorded(sys.executable, programs / "dataframe.py")
    peak = capture.speedscope()
    large = [(size, count) for stack, size, count in peak.samples() if "large_array" in {frame.name for frame in stack}]
    assert large == [(12_500_000 * 8, 1)]
    arrays = [record for record in capture.allocations() if record.size == 4_001 * 8]
    assert len([record for record in arrays if capture.records.stack(record.stack)[-1].name == "array"]) == 1000
    size, count = peak.leaf("array")  # with the few bytes that numpy takes for the shape of each
    assert 1000 * 4_001 * 8 <= size < 1000 * (4_001 * 8 + 100) + ARENA and count >= 1000
    assert 140e6 < capture.stats()["peak"]["bytes"] < 300e6


@pytest.mark.parametrize("framework", ["flask", "django"])
def test_web_requests(recorded, programs, framework):
    pytest.importorskip(framework)
    capture = recorded(sys.executable, programs / f"{framework}_requests.py")
    allocated, leaked = capture.speedscope("--allocated"), capture.speedscope("--leaks")
    assert own(allocated, "work", 100_003, 50)
    assert own(leaked, "keep", 70_001, 50)
    assert own(leaked, "work", 100_003, 0)


def test_pytest_run(recorded, programs):
    def normal(output):
        return re.sub(rb"in [\d.]+s", b"in TIME", output)

    suite, options = programs / "suite", ["-v", "-p", "no:cacheprovider", "--rootdir"]
    capture = recorded(sys.executable, "-m", "pytest", *options, suite, suite, normal=normal)
    assert own(capture.speedscope("--leaks"), "keep", 80_001, 30)
    assert own(capture.speedscope("--allocated"), "resource", 200_001, 31)


@pytest.mark.parametrize("version", ["3.8", "3.11", "3.12", "3.13", "system"])
def test_threads(recorded, programs, version):
    capture = recorded(interpreter_path(version), programs / "threads.py")
    sizes = [record.size for record in capture.allocations()]
    assert sizes.count(10_001) == 2 * 2000
    assert sizes.count(60_001) == 200
    size, count = capture.speedscope("--leaks").leaf("keep")
    assert (size >= 200 * 60_001) and (200 <= count < 210)
    assert len(capture.stats()["threads"]) >= 6


def test_json(recorded, plain, programs):
    command = [sys.executable, programs / "documents.py"]
    capture = recorded(*command)
    length = int(plain(*command).stdout) // 40
    assert own(capture.speedscope("--allocated"), "round_trip", length + 1, 40)


def test_asyncio(recorded, programs):
    capture = recorded(sys.executable, programs / "tasks.py")
    leaked = capture.speedscope("--leaks")
    assert own(leaked, "keep", 30_001, 200)
    assert own(leaked, "keep_more", 50_001, 20)


def test_children(recorded, programs):
    """They run as ever; the capture is the parent's alone."""
    capture = recorded(sys.executable, programs / "forks.py")
    sizes = [record.size for record in capture.allocations()]
    assert sizes.count(40_001) == 100
    functions = {frame.name for frame in capture.speedscope("--allocated").frames}
    assert "in_child" not in functions


def test_greenlets(recorded, programs):
    pytest.importorskip("greenlet")
    capture = recorded(sys.executable, programs / "switches.py")
    kept = [record for record in capture.allocations() if record.size in (30_001, 20_001)]
    stacks = {(record.size, tuple(frame.name for frame in capture.records.stack(record.stack))) for record in kept}
    assert stacks == {(30_001, ("ping",) * 11 + ("keep",)), (20_001, ("pong", "keep"))}
    assert len(kept) == 40
