"""However a program ends, it ends as without memtrack, and its capture holds what it allocated up to the last."""

import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile

import pytest

from conftest import PATIENCE, WHOLE, Capture, interpreter_path

SIZE, COUNT = 100_003, 300  # as in programs/marks.py and programs/endings.py
KILLS = 67 if WHOLE else 7  # in each of three modes
STATUS = {
    "exits": 7,
    "exits_at_once": 8,
    "exception": 1,
    "sigterm": 128 + 15,
    "sigint": 128 + 2,
    "sigsegv": 128 + 11,
    "abort": 128 + 6,
    "sigkill": 128 + 9,
    "executes": 9,
    "thread_outlives_main": 0,
    "exit_handlers": 0,
    "daemon_threads": 0,
    "closes_descriptors": 0,
}
WITH_A_SECOND_BATCH = ("thread_outlives_main", "exit_handlers", "daemon_threads", "closes_descriptors")
EVERY_WAY = [("3.11", ending) for ending in STATUS]
WHERE_INTERPRETERS_DIFFER = ("exits", "sigterm", "thread_outlives_main", "exit_handlers", "daemon_threads")
OTHERS = [(version, ending) for version in ("3.8", "3.10", "3.13", "system") for ending in WHERE_INTERPRETERS_DIFFER]


def of_size(capture, size):
    """Number of recorded allocations of exactly that size. Counted in the text: there may be millions of others."""
    return capture.text.count(f" size={size} allocator=")


@pytest.mark.parametrize("version, ending", EVERY_WAY + OTHERS)
def test_it_ends_as_without_memtrack_and_nothing_is_lost(memtrack, plain, programs, version, ending):
    command = [interpreter_path(version), programs / "endings.py", ending]
    outcome, capture = memtrack.run(*command)
    if (ending, outcome.status) == ("daemon_threads", STATUS["sigsegv"]):
        # CPython itself reads a state that it has freed, recorded or not: 3.10 once in 200 runs of a busy machine.
        outcome, capture = memtrack.run(*command)
    assert outcome == plain(*command)
    assert outcome.status == STATUS[ending]
    assert of_size(capture, SIZE) == COUNT
    assert of_size(capture, SIZE + 1) == (COUNT if ending in WITH_A_SECOND_BATCH else 0)
    stats = capture.stats()
    assert (stats["capture"]["lost_blocks"], stats["capture"]["unmatched_frees"]) == (0, 0)
    assert stats["peak"]["bytes"] >= COUNT * SIZE
    # What a program held that replaced itself went with it.
    assert ending == "executes" or stats["leaked"]["bytes"] >= COUNT * SIZE


def test_memtrack_within_memtrack(memtrack, plain, programs, tmp_path):
    command = [sys.executable, programs / "endings.py", "runs_memtrack"]
    inner = Capture(memtrack, tmp_path / "inner.bin")
    outcome, outer = memtrack.run(*command, memtrack.executable, inner.path)
    assert outcome == plain(*command, "", "")
    assert b"inner status 7" in outcome.stdout
    for capture in (outer, inner):
        assert of_size(capture, SIZE) == COUNT
        assert capture.stats()["capture"]["lost_blocks"] == 0


@pytest.mark.parametrize("ending", ["exits", "exception", "sigkill"])
def test_what_memtrack_says_comes_after_what_the_program_said(memtrack, plain, programs, ending):
    command = [sys.executable, programs / "endings.py", ending]
    outcome, alone = memtrack("run", "-o", "spoken.bin", *command), plain(*command)
    assert (outcome.status, outcome.stdout) == (alone.status, alone.stdout)
    assert outcome.stderr.startswith(alone.stderr)
    assert b"spoken.bin" in outcome.stderr[len(alone.stderr) :]


# --- killed from outside ----------------------------------------------------------------------------------------------


def started(memtrack, *target, options=()):
    command = memtrack.command("run", "-q", "-o", "capture.bin", *options, "--", *target)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([str(word) for word in command], cwd=memtrack.directory, **pipes)


def only_child(pid):
    """The program that memtrack runs."""
    with open(f"/proc/{pid}/task/{pid}/children") as children:
        # memtrack's signal probe is a fork of memtrack.
        [child] = [child for child in children.read().split() if not is_memtrack(child)]
    return int(child)


def is_memtrack(pid):
    return os.readlink(f"/proc/{pid}/exe").endswith("/memtrack")


@pytest.mark.parametrize(
    "options", [(), ("--allocation-timestamps",), ("--aggregate",)], ids=["plain", "timestamps", "aggregated"]
)
def test_killed_at_any_moment_it_loses_nothing(memtrack, programs, tmp_path, options):
    counter = tmp_path / "counter"
    dice = random.Random(1)
    for _ in range(KILLS):
        counter.write_bytes(bytes(8))
        process = started(memtrack, sys.executable, programs / "counted.py", counter, options=["-f", *options])
        enough = dice.randrange(1, 30_000)
        while int.from_bytes(counter.read_bytes(), sys.byteorder) < enough:
            assert process.poll() is None, process.communicate()
        os.kill(only_child(process.pid), signal.SIGKILL)
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 128 + 9
        made = int.from_bytes(counter.read_bytes(), sys.byteorder)
        profile = Capture(memtrack, tmp_path / "capture.bin").speedscope("--allocated")
        recorded = sum(count for stack, _, count in profile.samples() if stack[-1].name == "block")
        assert made <= recorded <= made + 10  # the one that was about to be counted, and what small objects needed


def test_without_memtrack_the_program_runs_on(memtrack, programs, tmp_path):
    process = started(memtrack, sys.executable, programs / "waits.py")
    assert process.stdout.readline() == b"ready\n"
    process.kill()
    assert process.wait(PATIENCE) == -signal.SIGKILL
    printed, complaints = process.communicate(b"go on\n", timeout=PATIENCE)
    assert (printed, complaints) == (b"heard go on\n", b"")
    capture = Capture(memtrack, tmp_path / "capture.bin")
    assert memtrack("stats", capture.path).status == 0
    assert of_size(capture, SIZE) in range(201)


def test_a_signal_to_memtrack_is_the_programs(memtrack, programs, tmp_path):
    process = started(memtrack, sys.executable, programs / "waits.py")
    assert process.stdout.readline() == b"ready\n"
    process.terminate()
    # Read before the program's input ends, which it waits for, too.
    assert process.stdout.readline() == b"signal 15\n"
    assert process.communicate(timeout=PATIENCE) == (b"", b"")
    assert process.returncode == 6
    assert of_size(Capture(memtrack, tmp_path / "capture.bin"), SIZE) == 200


PROCESSOR_TIME = """
import resource, signal
signal.signal(signal.SIGXCPU, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_CPU, (1, 1))
while True:
    pass
"""


def test_a_kill_for_processor_time_is_not_put_down_to_memory_alone(memtrack):
    outcome, capture = memtrack.run(sys.executable, "-c", PROCESSOR_TIME)
    assert outcome.status == 128 + 9
    # Where processors are shared, the kernel counts time that others had: then it is said with a doubt.
    assert "CPU time limit (ulimit -t) of 1 s" in capture.stats()["capture"]["end_reason"]


def test_directories_of_killed_recorders_are_removed_by_the_next_one(executable, tmp_path, request):
    # A short path: in a long one there is no room for the name of a socket.
    temporary = pathlib.Path(tempfile.mkdtemp(prefix="mt-"))
    request.addfinalizer(lambda: shutil.rmtree(temporary))
    environment = {**os.environ, "TMPDIR": str(temporary)}
    command = [executable, "run", "-q", "-o", tmp_path / "c.bin", "sh", "-c", "echo started; read line"]
    running = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert running.stdout.readline() == b"started\n"
    running.kill()
    running.communicate(b"\n")
    [left] = temporary.iterdir()
    following = [executable, "run", "-q", "-f", "-o", tmp_path / "c.bin", "true"]
    subprocess.run(following, env=environment, check=True)
    assert left.exists(), "it may be one that is just being set up"
    os.utime(left, (os.path.getmtime(left) - 100,) * 2)
    subprocess.run(following, env=environment, check=True)
    assert not list(temporary.iterdir())
