"""memtrack.Tracker in a program that is being recorded: each file is exactly its span of that recording.

The programs count by themselves what they allocate.
"""

import json
import os
import subprocess
import tempfile
import time

import pytest

from conftest import KEEP, PATIENCE, REPOSITORY, until

SIZE = 70_002

SPANS = """
first = keep(10)
memtrack.mark("early")
clock = [time.monotonic()]
with memtrack.Tracker("a.bin") as tracker:
    clock.append(time.monotonic())
    second = keep(20)
    memtrack.mark("warm")
    with memtrack.Tracker("b.bin"):
        third = keep(5)
        del first
    tracker.snapshot("now.bin")
    time.sleep(0.1)
    fourth = keep(7)
    clock.append(time.monotonic())
clock.append(time.monotonic())
with open("clock", "w") as file:
    print(*clock, file=file)
memtrack.mark("late")
fifth = keep(11)
assert memtrack.is_recording()
"""


@pytest.fixture
def environment(executable):
    return {**os.environ, "PYTHONPATH": str(REPOSITORY / "python"), "MEMTRACK": str(executable)}


@pytest.fixture
def figures(memtrack):
    """What stats says of a capture."""
    return lambda name, *options: json.loads(memtrack("stats", "--json", *options, name).stdout)


def blocks(got):
    """The program's own blocks, where little else was allocated."""
    count, rest = divmod(got["allocations"]["bytes"], SIZE)
    assert rest < 40_000, got["allocations"]
    return count


def check_spans(figures, directory):
    a, b, now = figures("a.bin"), figures("b.bin"), figures("now.bin")
    assert (blocks(a), blocks(b), blocks(now)) == (32, 5, 25)
    for one in (a, b):
        assert one["capture"]["complete"] and not one["capture"]["snapshot"]
        assert one["leaked"]["moment"] == "recording-end"
        assert 10 <= one["capture"]["frees_of_earlier_blocks"] <= 15 and one["capture"]["unmatched_frees"] == 0
    assert now["capture"]["snapshot"] and now["leaked"]["moment"] == "snapshot"
    # Marks and times are those of the span.
    assert [mark["name"] for mark in a["capture"]["marks"]] == ["warm"] and not b["capture"]["marks"]
    before, first, last, after = (float(time) * 1000 for time in (directory / "clock").read_text().split())
    assert max(100, last - first - 1) <= a["capture"]["duration_ms"] <= after - before + 1
    assert a["peak"]["time_ms"] <= a["capture"]["duration_ms"]
    assert a["capture"]["marks"][0]["time_ms"] <= a["capture"]["duration_ms"] - 100
    assert a["capture"]["start_time"] < b["capture"]["start_time"]


def test_under_memtrack_run(memtrack, any_interpreter, environment, figures, tmp_path):
    outcome, capture = memtrack.run(any_interpreter, "-c", KEEP + SPANS, env=environment)
    assert outcome.status == 0, outcome.stderr.decode()
    check_spans(figures, tmp_path)
    whole = capture.stats()
    assert [mark["name"] for mark in whole["capture"]["marks"]] == ["early", "warm", "late"]
    begun = figures("a.bin")["capture"]["start_time"]
    assert whole["capture"]["start_time"] < begun
    since = capture.stats("--from", "mark:early", "--to", "mark:late")
    assert 32 <= since["allocations"]["bytes"] // SIZE < 45


@pytest.mark.parametrize("follows", [True, False])
def test_in_forked_children(memtrack, python, environment, figures, follows):
    code = """
with memtrack.Tracker("parent.bin") as tracker:
    kept = keep(3)
    child = os.fork()
    if child == 0:
        assert memtrack.is_recording() == FOLLOWS
        try:
            tracker.stop()
            os._exit(1)
        except memtrack.Error as error:
            assert "forked" in str(error)
        kept += keep(30)
        with memtrack.Tracker("child.bin"):
            kept += keep(25)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    kept += keep(4)
"""
    options = ["--follow"] if follows else []
    code = KEEP + code.replace("FOLLOWS", str(follows))
    outcome, capture = memtrack.run(python, "-c", code, options=options, env=environment)
    assert outcome.status == 0, outcome.stderr.decode()
    assert blocks(figures("parent.bin")) == 7
    assert blocks(figures("child.bin")) == 25


@pytest.mark.parametrize(
    "end, status, reason",
    [
        ("os.kill(os.getpid(), 9)", 128 + 9, "SIGKILL"),
        ("os._exit(3)", 3, None),
        ("raise SystemExit(4)", 4, None),
    ],
)
def test_however_the_program_ends_open_spans_have_files(memtrack, python, environment, figures, end, status, reason):
    code = f"""
outer, inner = memtrack.Tracker("a.bin"), memtrack.Tracker("b.bin")
outer.start()
kept = keep(8)
inner.start()
kept += keep(6)
{end}
"""
    outcome, capture = memtrack.run(python, "-c", KEEP + code, env=environment)
    assert outcome.status == status, outcome.stderr.decode()
    outer, inner = figures("a.bin"), figures("b.bin")
    assert (outer["leaked"]["bytes"] // SIZE, inner["leaked"]["bytes"] // SIZE) == (14, 6)
    for one in (outer, inner):
        assert one["capture"]["complete"] and one["capture"]["exit_status"] == status
        assert not reason or reason in one["capture"]["end_reason"]
    assert capture.stats()["leaked"]["bytes"] // SIZE >= 14


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "os._exit(0)", "os.execv('/bin/true', ['true'])"])
def test_children_of_open_spans_have_files_however_the_program_ends(memtrack, python, environment, figures, tmp_path, end):
    code = f"""
def forked(count):
    child = os.fork()
    if child == 0:
        kept = keep(count)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
forked(2)
memtrack.Tracker("a.bin", follow_fork=True).start()
forked(7)
memtrack.Tracker("b.bin", follow_fork=True).start()
forked(5)
{end}
"""
    memtrack.run(python, "-c", KEEP + code, options=["--follow"], env=environment)
    children = lambda span: sorted(blocks(figures(path.name)) for path in tmp_path.glob(f"{span}.*-*.bin"))
    assert (children("a"), children("b")) == ([5, 7], [5])


def test_a_span_that_cannot_be_written_when_it_ends_is_written_at_the_end(memtrack, python, environment, figures, tmp_path):
    """It has what it had when it ended. Another span of that name takes its place, and another file stays."""
    code = """
os.mkdir("spans")
lost, replaced, taken = (memtrack.Tracker(f"spans/{name}.bin") for name in "abc")
lost.start(), replaced.start(), taken.start()
kept = keep(8)
os.rename("spans", "away")
for tracker in (lost, replaced, taken):
    try:
        tracker.stop()
        raise SystemExit("no error")
    except memtrack.Error as error:
        assert "spans/" in str(error) and "tried again when the recording ends" in str(error), error
os.rename("away", "spans")
with open("spans/c.bin", "w") as other:
    other.write("of the program")
kept += keep(30)
with memtrack.Tracker("spans/b.bin"):
    kept += keep(3)
"""
    outcome, _ = memtrack.run(python, "-c", KEEP + code, env=environment)
    assert outcome.status == 0, outcome.stderr.decode()
    assert [blocks(figures(f"spans/{name}.bin")) for name in ("a", "b", "c-2")] == [8, 3, 8]
    assert (tmp_path / "spans/c.bin").read_text() == "of the program"
    assert "the span is written to" in " ".join(outcome.stderr.decode().split())


def test_open_spans_of_a_killed_tracker_have_files(python, environment, figures, tmp_path):
    """The first Tracker's own recorder writes them, and its own file where it had stopped before."""
    code = KEEP + """
for number, stops in ((1, False), (2, True)):
    if os.fork() == 0:
        first, inner, last = (memtrack.Tracker(f"{name}{number}.bin") for name in ("first", "inner", "last"))
        first.start()
        kept = keep(8)
        inner.start()
        kept += keep(6)
        if stops:
            first.stop()
        last.start()
        kept += keep(4)
        os.kill(os.getpid(), 9)
    os.wait()
"""
    subprocess.run([python, "-c", code], env=environment, cwd=tmp_path, check=True)
    expected = {"first1": 18, "inner1": 10, "last1": 4, "first2": 14, "inner2": 10, "last2": 4}
    files = {f"{name}.bin" for name in expected}
    until("each has its file", lambda: {path.name for path in tmp_path.iterdir()} == files)
    until("each is complete", lambda: all(figures(name)["capture"]["complete"] for name in files))
    for name, count in expected.items():
        got = figures(f"{name}.bin")
        assert got["capture"]["complete"] and blocks(got) == count, name


def test_what_the_recording_lacks_is_an_error_that_says_what_to_do(memtrack, python, environment):
    code = KEEP + """
def refused(*words, **options):
    try:
        memtrack.Tracker(options.pop("name", "a.bin"), **options).start()
    except memtrack.Error as error:
        assert all(word in str(error) for word in words), error
    else:
        raise SystemExit("no error")
refused("--native", "native_traces=True", native_traces=True)
refused("--trace-python-allocators", "--follow", trace_python_allocators=True, follow_fork=True)
refused("aggregate=True", aggregate=True)
refused("/no/such/a.bin", name="/no/such/a.bin")
open("there.bin", "w").close()
refused("there.bin", "overwrite=True", name="there.bin")
assert not os.path.exists("a.bin")
with memtrack.Tracker("there.bin", overwrite=True, allocation_timestamps=True):
    kept = keep(3)
"""
    outcome, _ = memtrack.run(python, "-c", code, options=["--allocation-timestamps"], env=environment)
    assert outcome.status == 0, outcome.stderr.decode()
    code = KEEP + """
try:
    memtrack.Tracker("sums.bin").start()
except memtrack.Error as error:
    assert "--aggregate" in str(error), error
else:
    raise SystemExit("no error")
"""
    outcome, _ = memtrack.run(python, "-c", code, options=["--aggregate"], env=environment)
    assert outcome.status == 0, outcome.stderr.decode()


WAITING = KEEP + """
def wait_for(recorded):
    while memtrack.is_recording() != recorded:
        time.sleep(0.01)
print("ready", flush=True)
wait_for(True)
"""


def started(words, tmp_path, environment):
    process = subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n", process.stderr.read()
    return process


def test_in_an_attached_program(executable, memtrack, python, environment, figures, tmp_path):
    code = WAITING + SPANS + """
last = memtrack.Tracker("last.bin")
last.start()
kept = keep(9)
print("waits", flush=True)
wait_for(False)
import warnings
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    last.stop()
assert "ended before" in str(said[0].message), said
with memtrack.Tracker("own.bin"):
    kept += keep(2)
"""
    process = started([python, "-c", code], tmp_path, environment)
    attached = subprocess.Popen([executable, "attach", "-q", "-o", tmp_path / "whole.bin", str(process.pid)])
    assert process.stdout.readline() == "waits\n", process.communicate()
    memtrack("detach", str(process.pid))
    assert attached.wait(PATIENCE) == 0
    said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
    check_spans(figures, tmp_path)
    assert blocks(figures("last.bin")) == 9 and blocks(figures("own.bin")) == 2


def runs_in(pid, directory):
    """Whether this is the process's working directory; a process of another test may have ended since it was listed."""
    try:
        return os.readlink(f"/proc/{pid}/cwd") == str(directory)
    except OSError:
        return False


def test_in_a_program_that_was_started_dormant(executable, memtrack, python, environment, figures, tmp_path):
    words = [executable, "run", "-q", "--dormant", python, "-c", WAITING + SPANS]
    process = started(words, tmp_path, environment)
    own = until("it is known", lambda: [one["pid"] for one in memtrack.processes() if one["command_line"][1:2] == ["-c"] and runs_in(one["pid"], tmp_path)])
    memtrack("start", str(own[0]), "-o", tmp_path / "whole.bin")
    said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
    check_spans(figures, tmp_path)


def test_a_recording_that_cannot_be_reached(memtrack, python, environment):
    """Its socket is where the program does not look: a mark is a warning, a Tracker an error, and the program goes on."""
    code = KEEP + """
import warnings
del os.environ["XDG_RUNTIME_DIR"]
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    memtrack.mark("lost")
assert "cannot be reached" in str(said[0].message), said
try:
    memtrack.Tracker("a.bin").start()
except memtrack.Error as error:
    assert "cannot be reached" in str(error) and "memtrack ps" in str(error), error
else:
    raise SystemExit("no error")
assert not os.path.exists("a.bin")
"""
    with tempfile.TemporaryDirectory() as runtime:
        outcome, _ = memtrack.run(python, "-c", code, env={**environment, "XDG_RUNTIME_DIR": runtime})
    assert outcome.status == 0, outcome.stderr.decode()
