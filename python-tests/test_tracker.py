"""memtrack.Tracker in a program that was started plainly: each file holds exactly its span, and the program notices nothing.

The programs count by themselves what they allocate.
"""

import json
import os
import shutil
import sys

import pytest

from conftest import KEEP, REPOSITORY, execute, until


@pytest.fixture
def program(executable, tmp_path):
    """Runs code with the package; its prints are the result."""

    def run(interpreter, code, status=0, **options):
        environment = {
            **os.environ,
            "PYTHONPATH": str(REPOSITORY / "python"),
            "MEMTRACK": str(executable),
            **options.pop("env", {}),
        }
        environment = {name: value for name, value in environment.items() if value is not None}
        done = execute([interpreter, "-c", KEEP + code], cwd=tmp_path, env=environment, **options)
        assert done.status == status, done.stderr.decode()
        return done.stdout.decode().splitlines()

    return run


@pytest.fixture
def figures(memtrack):
    """What stats says of a capture."""
    return lambda name: json.loads(memtrack("stats", "--json", name).stdout)


def test_a_file_holds_its_span(program, any_interpreter, memtrack, figures):
    program(
        any_interpreter,
        """
before = keep(20)
with memtrack.Tracker("a.bin") as tracker:
    assert memtrack.is_recording()
    inside = keep(50)
    freed = keep(30)
    del freed
    del before
after = keep(10)
assert not memtrack.is_recording()
memtrack.mark("nobody records")
""",
    )
    got = figures("a.bin")
    assert got["capture"]["complete"] and got["capture"]["began_late"]
    assert 80 <= got["allocations"]["count"] <= 90
    assert 80 * 70_002 <= got["allocations"]["bytes"] <= 80 * 70_002 + 30_000
    assert 50 <= got["leaked"]["allocations"] <= 60
    assert 20 <= got["capture"]["frees_of_earlier_blocks"] <= 30


def test_every_option_may_be_given_as_it_is_by_default(program, python, figures):
    names = program(
        python,
        """
import inspect
defaults = {name: value.default for name, value in inspect.signature(memtrack.Tracker).parameters.items() if value.kind == value.KEYWORD_ONLY}
with memtrack.Tracker("a.bin", **defaults):
    inside = keep(50)
print(defaults["sample"], set(memtrack.__all__) <= set(dir(memtrack)))
""",
    )
    assert names == ["None True"]
    assert "sample_bytes" not in figures("a.bin")["capture"]


def test_nothing_of_memtracks_own_is_counted(program, any_interpreter, figures):
    program(
        any_interpreter,
        """
for name in "abc":
    with memtrack.Tracker(name + ".bin"):
        pass
""",
    )
    for name in "abc":
        assert figures(f"{name}.bin")["account"]["events"] == 0


def test_no_thread_of_memtrack_is_left_among_the_programs(program, any_interpreter, figures):
    """Where a program has several, the first recording has one of its own for some milliseconds, and may end before it."""
    lines = program(
        any_interpreter,
        """
import os, threading, time
stop = threading.Event()
threads = [threading.Thread(target=stop.wait) for _ in range(3)]
for thread in threads:
    thread.start()
tasks = lambda: sorted(os.listdir("/proc/self/task"))
before = tasks()
for name in "abc":
    with memtrack.Tracker(name + ".bin"):
        inside = keep(50)
    while tasks() != before:
        time.sleep(0.001)
stop.set()
for thread in threads:
    thread.join()
print(len(before))
""",
    )
    assert lines == ["4"]
    for name in "abc":
        got = figures(f"{name}.bin")
        assert got["capture"]["complete"] and 50 <= got["allocations"]["count"] <= 60


def test_no_tracker_waits_for_a_barrier_in_all_processes_of_the_machine(executable, python, tmp_path):
    """That takes ten milliseconds and more; the process is registered for quick ones."""
    if not shutil.which("strace"):
        pytest.skip("no strace")
    code = "import memtrack\nfor name in 'abc':\n    with memtrack.Tracker(name + '.bin'): pass\n"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "python"), "MEMTRACK": str(executable)}
    done = execute(["strace", "-e", "trace=membarrier", "-o", tmp_path / "calls", python, "-c", code], cwd=tmp_path, env=environment)
    assert done.status == 0, done.stderr
    calls = (tmp_path / "calls").read_text()
    assert "MEMBARRIER_CMD_GLOBAL_EXPEDITED" in calls and "MEMBARRIER_CMD_GLOBAL," not in calls, calls


@pytest.mark.parametrize("limit", [400 << 20, 6 << 30])
def test_an_address_space_that_is_limited_has_room_for_a_recording(program, python, figures, limit):
    """The recorder has the same limit: it takes less shared memory."""
    program(
        python,
        f"""
import resource
resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))
with memtrack.Tracker("a.bin"):
    inside = keep(50)
""",
    )
    got = figures("a.bin")
    assert got["capture"]["complete"] and 50 <= got["allocations"]["count"] <= 60


def test_to_enter_imports_no_large_module(any_interpreter, executable, tmp_path):
    """They take more time than all else that it does. `-S`: an environment may import them when Python starts."""
    code = """
import sys
import memtrack
with memtrack.Tracker("a.bin") as tracker:
    tracker.mark("one \\"word\\" \u00fc")
    large = {"json", "re", "enum", "typing", "socket", "shutil", "platform", "contextlib"} & set(sys.modules)
assert not large, large
"""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "python"), "MEMTRACK": str(executable)}
    done = execute([any_interpreter, "-S", "-c", code], cwd=tmp_path, env=environment)
    assert done.status == 0, done.stderr.decode()


def test_requests_and_answers_are_json(monkeypatch):
    monkeypatch.syspath_prepend(str(REPOSITORY / "python"))
    from memtrack._json_lines import to_line, to_object

    texts = ["a b", "/tmp/\u00fc \U0001d11e", '"\\\\"', "\n\x00\x7f\x85", "\udcff", ""]
    for value in (*texts, texts, 0, -5, True, False, None, {}, {"a": {"b": [True, None, 1]}}):
        assert json.loads(to_line(value)) == value and to_line(value).count(b"\n") == 1
    for slots in ('{"slots":16384}', '{"slots":null}', '{"slots":-1}', '{"slots":1,"a":2}', '{"notes":[]}'):
        for line in (f'{{"ok":{slots}}}\n'.encode(), f'{{"ok":{slots}}}'.encode()):
            assert to_object(line) == json.loads(line)


def test_with_the_wrappers_of_pythons_allocators(program, any_interpreter, figures):
    program(
        any_interpreter,
        """
numbers = [None] * 1000
with memtrack.Tracker("a.bin", trace_python_allocators=True):
    kept = [[] for _ in numbers]
with memtrack.Tracker("b.bin", trace_python_allocators=True):
    pass
""",
    )
    assert 900 <= figures("a.bin")["allocations"]["count"] <= 1030
    assert figures("b.bin")["allocations"]["count"] == 0


def test_the_recorder_is_no_child_and_gets_no_signals(program, python, figures):
    program(
        python,
        """
signals = []
signal.signal(signal.SIGCHLD, lambda *_: signals.append(1))
signal.signal(signal.SIGINT, lambda *_: None)
descriptors, variables = set(os.listdir("/proc/self/fd")), set(os.environ)
children = lambda: open(f"/proc/self/task/{os.getpid()}/children").read().split()
with memtrack.Tracker("a.bin"):
    kept = keep(7)
    assert not children(), children()
    os.killpg(os.getpgrp(), signal.SIGINT)
    time.sleep(0.05)
    try:
        raise SystemExit(os.waitpid(-1, os.WNOHANG))
    except ChildProcessError:
        pass
    kept += keep(7)
assert not signals
assert threading.active_count() == 1 and len(os.listdir("/proc/self/task")) == 1
assert len(set(os.listdir("/proc/self/fd")) - descriptors) <= 1
assert set(os.environ) == variables
""",
        start_new_session=True,
    )
    assert figures("a.bin")["allocations"]["count"] >= 14


@pytest.mark.parametrize(
    "end, status",
    [("os.kill(os.getpid(), 9)", 128 + 9), ("os._exit(3)", 3), ("sys.exit(4)", 4), ("raise ValueError('own')", 1)],
)
def test_however_the_program_ends_the_file_is_readable(program, any_interpreter, figures, end, status):
    program(
        any_interpreter,
        f"""
with memtrack.Tracker("a.bin"):
    kept = keep(40)
    {end}
""",
        status=status,
    )
    wait_until_complete(figures, "a.bin")
    got = figures("a.bin")
    assert 40 <= got["allocations"]["count"] <= 400
    assert got["leaked"]["bytes"] >= 40 * 70_002


def test_a_connection_that_goes_at_the_end_makes_no_warning(any_interpreter, executable, tmp_path):
    """It is open until the program ends, which is no mistake of the program; hypothesis, for one, makes Python show what is said then."""
    code = "import memtrack, memtrack._tracker\nwith memtrack.Tracker('a.bin'):\n    kept = [bytearray(70_001)]\nmemtrack._tracker._recorder = None\n"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "python"), "MEMTRACK": str(executable)}
    done = execute([any_interpreter, "-X", "dev", "-W", "error", "-c", code], cwd=tmp_path, env=environment)
    assert (done.status, done.stderr.decode()) == (0, "")


def wait_until_complete(figures, name):
    until(f"{name} is complete", lambda: figures(name)["capture"]["complete"])


def test_a_fork_child(program, any_interpreter, figures):
    program(
        any_interpreter,
        """
with memtrack.Tracker("a.bin") as tracker:
    child = os.fork()
    if child == 0:
        keep(300)
        assert not memtrack.is_recording()
        try:
            tracker.stop()
            os._exit(1)
        except memtrack.Error as error:
            assert "forked" in str(error)
        with memtrack.Tracker("own.bin"):
            kept = keep(25)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    kept = keep(40)
child = os.fork()
if child == 0:
    with memtrack.Tracker("child.bin"):
        kept = keep(25)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
with memtrack.Tracker("again.bin"):
    kept = keep(10)
# A child that leaves the block goes on as without it.
with memtrack.Tracker("left.bin"):
    child = os.fork()
if child == 0:
    os._exit(7)
assert os.waitpid(child, 0)[1] == 7 << 8
""",
    )
    assert 40 <= figures("a.bin")["allocations"]["count"] <= 60
    assert 25 <= figures("own.bin")["allocations"]["count"] <= 40
    assert 25 <= figures("child.bin")["allocations"]["count"] <= 40
    assert 10 <= figures("again.bin")["allocations"]["count"] <= 20


def test_children_that_are_followed(program, any_interpreter, memtrack, figures, tmp_path):
    program(
        any_interpreter,
        """
with memtrack.Tracker("a.bin", follow_fork=True):
    kept = keep(40)
    child = os.fork()
    if child == 0:
        kept += keep(300)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
""",
    )
    (child,) = set(os.listdir(tmp_path)) - {"a.bin"}
    assert 40 <= figures("a.bin")["allocations"]["count"] <= 60
    assert 300 <= figures(child)["allocations"]["count"] <= 340


def test_marks_and_snapshots(program, python, memtrack, figures):
    program(
        python,
        """
with memtrack.Tracker("a.bin") as tracker:
    first = keep(10)
    memtrack.mark("warm")
    second = keep(20)
    tracker.snapshot("now.bin")
    third = keep(40)
    try:
        tracker.snapshot("now.bin")
        raise SystemExit("overwritten")
    except memtrack.Error as error:
        assert "exists" in str(error)
""",
    )
    assert [mark["name"] for mark in figures("a.bin")["capture"]["marks"]] == ["warm"]
    assert 30 * 70_002 <= figures("now.bin")["allocations"]["bytes"] < 31 * 70_002
    assert 70 * 70_002 <= figures("a.bin")["allocations"]["bytes"] < 71 * 70_002
    since = json.loads(memtrack("stats", "--json", "--from", "mark:warm", "a.bin").stdout)
    assert 60 * 70_002 <= since["allocations"]["bytes"] < 61 * 70_002


def test_detach_says_that_the_program_ends_its_own_recording(program, python):
    lines = program(
        python,
        """
import subprocess
with memtrack.Tracker("a.bin"):
    done = subprocess.run([os.environ["MEMTRACK"], "detach", str(os.getpid())], capture_output=True, text=True)
print(done.returncode != 0, "the program itself began this recording" in done.stderr)
""",
    )
    assert lines == ["True True"]


def test_threads_allocate_while_it_begins_and_ends(program, any_interpreter, figures):
    program(
        any_interpreter,
        """
go_on, counted = True, []
def work():
    while go_on:
        keep(1, 100_000)
threads = [threading.Thread(target=work) for _ in range(4)]
[thread.start() for thread in threads]
for number in range(12):
    with memtrack.Tracker("a.bin", overwrite=True):
        kept = keep(20)
        time.sleep(0.005)
    del kept
def stop_elsewhere(tracker):
    thread = threading.Thread(target=tracker.stop)
    thread.start()
    thread.join()
tracker = memtrack.Tracker("b.bin")
tracker.start()
kept = keep(20)
stop_elsewhere(tracker)
go_on = False
[thread.join() for thread in threads]
""",
    )
    for name in ("a.bin", "b.bin"):
        got = figures(name)
        assert got["capture"]["complete"] and got["account"]["lost"]["events"] == 0
        # What the workers hold at the end comes to the program's own blocks.
        assert 20 <= got["leaked"]["allocations"] <= 40


def test_wrong_use_is_an_error_with_a_remedy(program, python):
    said = program(
        python,
        """
def error_of(call, *words, **options):
    try:
        call(*words, **options)
    except memtrack.Error as error:
        print(error)
    else:
        print("no error")
    assert not memtrack.is_recording()
enter = lambda *words, **options: memtrack.Tracker(*words, **options).start()
open("there.bin", "w").write("x")
error_of(enter, "there.bin")
error_of(enter, "/no/such/directory/a.bin")
error_of(enter, "a.bin", aggregate=True, allocation_timestamps=True)
error_of(enter, "a.bin", sample=0)
error_of(enter, "a.bin", memory_interval_ms=0)
with memtrack.Tracker("whole.bin"):
    try:
        enter("a.bin", sample="lots")
    except memtrack.Error as error:
        print(error)
os.unlink("whole.bin")
error_of(memtrack.Tracker("a.bin").stop)
used = memtrack.Tracker("used.bin")
with used: pass
error_of(used.start)
error_of(used.stop)
assert open("there.bin").read() == "x"
assert sorted(name for name in os.listdir(".") if name.endswith(".bin")) == ["there.bin", "used.bin"]
with memtrack.Tracker("there.bin", overwrite=True): pass
""",
    )
    expected = ["overwrite=True", "no directory", "aggregate=True cannot be combined with allocation_timestamps=True: an"]
    expected += ["sample=0: expected the bytes between two", "memory_interval_ms=0: expected whole milliseconds", "sample=lots: not a size"]
    expected += ["not started", "used before", "stopped already"]
    assert all(part in line for part, line in zip(expected, said)) and len(said) == len(expected), said


@pytest.mark.parametrize("named", ["/no/such/program", "/bin/true", "/etc/passwd"])
def test_without_a_recorder_the_program_is_unharmed(program, python, named):
    (said, count) = program(
        python,
        """
try:
    memtrack.Tracker("a.bin").start()
except memtrack.Error as error:
    print(error)
print(len(keep(3)))
assert not os.path.exists("a.bin")
""",
        env={"MEMTRACK": named},
    )
    assert named.rsplit("/")[-1] in said or os.path.realpath(named) in said
    assert "the environment variable MEMTRACK names it" in said
    assert count == "3"


def test_a_recorder_that_is_killed(program, python):
    program(
        python,
        """
tracker = memtrack.Tracker("a.bin")
tracker.start()
kept = keep(5)
(recorder,) = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and is_recorder(int(pid))]
os.kill(recorder, 9)
kept += keep(5)
tries = 0
while memtrack.is_recording():
    tries += 1
    assert tries < 100_000, "still recording"
    os.sched_yield()
try:
    tracker.stop()
    raise SystemExit("no error")
except memtrack.Error as error:
    assert "recorder has ended" in str(error), error
with memtrack.Tracker("b.bin"):
    kept += keep(5)
""".replace(
            "tracker = memtrack",
            """
def is_recorder(pid):
    try:
        words = open(f"/proc/{pid}/cmdline", "rb").read().split(bytes(1))
        return words[1:2] == [b"recorder"] and os.readlink(f"/proc/{pid}/cwd") == os.getcwd()
    except OSError:
        return False
tracker = memtrack""",
            1,
        ),
    )


def test_a_full_disk(program, python):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    (said,) = program(
        python,
        """
try:
    memtrack.Tracker("/dev/full", overwrite=True).start()
except memtrack.Error as error:
    print(error)
""",
    )
    assert said.startswith("/dev/full: ") and "No space left" in said


def test_a_disk_that_fills_while_it_records(program, figures, tmp_path):
    """Where this user may mount a small disk: the program goes on, the file has what there was room for, and the next works."""
    code = """
tracker = memtrack.Tracker("small/a.bin", trace_python_allocators=True, allocation_timestamps=True)
tracker.start()
work = 0
until = time.monotonic() + 60
while os.statvfs("small").f_bavail and time.monotonic() < until:
    work += sum(len(bytes(size * size % 4999)) for size in range(100_000))
for take in (lambda: tracker.snapshot("now.bin"), tracker.stop):
    try:
        take()
        print("nothing")
    except memtrack.Error as error:
        print(error)
assert work > 0 and not memtrack.is_recording()
with memtrack.Tracker("after.bin"):
    kept = keep(5)
"""
    mounted = "mount -t tmpfs -o size=1m none small && exec \"$0\" \"$@\" || exit 77"
    (tmp_path / "small").mkdir()
    (tmp_path / "python").write_text(f"#!/bin/sh\nexec unshare -m sh -c '{mounted}' '{sys.executable}' \"$@\"\n")
    (tmp_path / "python").chmod(0o755)
    if execute([tmp_path / "python", "-c", ""], cwd=tmp_path).status:
        pytest.skip("no mount name space")
    snapshot, stop = program(tmp_path / "python", code + 'import shutil; shutil.copy("small/a.bin", "a.bin")')
    assert "No space left" in snapshot and "small/a.bin" in stop and "No space left" in stop
    full, after = figures("a.bin"), figures("after.bin")
    assert not full["capture"]["complete"] and full["allocations"]["count"] > 100_000
    assert after["capture"]["complete"] and after["allocations"]["bytes"] // 70_002 == 5


def test_greenlets(program, python, tmp_path):
    """Some began before, some are switched to in another thread; a Tracker begins in one and stops in another."""
    if execute([python, "-c", "import greenlet"]).status:
        pytest.skip("no greenlet")
    (held,) = program(
        python,
        """
import greenlet

def work(kept, depth=5):
    kept += keep(1)
    if depth:
        return work(kept, depth - 1)
    greenlet.getcurrent().parent.switch()
    kept += keep(3)

def start():
    tracker.start()
    greenlet.getcurrent().parent.switch()

tracker, kept, tail = memtrack.Tracker("a.bin"), [], []
early = greenlet.greenlet(work)
early.switch(kept)
first = greenlet.greenlet(start)
first.switch()
some = [greenlet.greenlet(work) for _ in range(50)]
for one in some:
    one.switch(kept)
for one in some:
    one.switch()
early.switch()

def elsewhere():
    one = greenlet.greenlet(work)
    one.switch(tail)
    with memtrack.Tracker("b.bin"):
        one.switch()

worker = threading.Thread(target=elsewhere)
worker.start()
worker.join()
greenlet.greenlet(tracker.stop).switch()

def blocks(name):
    found = memtrack.Capture(name).allocations("allocated", min_bytes=70_000, function="work")
    return [(one.count, sum(frame.function == "work" for frame in one.stack)) for one in found]

counts = {}
for count, depth in blocks("a.bin"):
    counts[depth] = counts.get(depth, 0) + count
print(sorted(counts.items()), blocks("b.bin"))
""",
    )
    # 51 that began inside, with a block at each depth; 52 went on with 3 more at the deepest.
    assert held == f"{[*((depth, 51) for depth in range(1, 6)), (6, 51 + 52 * 3)]} [(3, 6)]"


def test_a_subinterpreter_is_refused(program, any_interpreter):
    program(
        any_interpreter,
        """
try:
    import _interpreters as interpreters
except ImportError:
    try:
        import _xxsubinterpreters as interpreters
    except ImportError:
        sys.exit()
code = '''
import memtrack
try:
    memtrack.Tracker("a.bin").start()
except memtrack.Error as error:
    assert "subinterpreter" in str(error), error
else:
    raise SystemExit("no error")
'''
one = interpreters.create()
failed = interpreters.run_string(one, code)
assert not failed, failed
assert not os.path.exists("a.bin")
""",
    )


def test_trackers_nest(program, any_interpreter, figures, tmp_path):
    program(
        any_interpreter,
        """
with memtrack.Tracker("outer.bin"):
    first = keep(10)
    with memtrack.Tracker("inner.bin"):
        second = keep(20)
        del first
        with memtrack.Tracker("empty.bin"):
            pass
    third = keep(30)
with memtrack.Tracker("after.bin"):
    fourth = keep(5)
""",
    )
    size = 70_002
    inner, empty, outer = figures("inner.bin"), figures("empty.bin"), figures("outer.bin")
    assert empty["allocations"]["count"] <= 2 and empty["allocations"]["bytes"] < 1000
    # What memtrack itself allocates for the ones inside belongs to the ones around them.
    assert 20 * size <= inner["allocations"]["bytes"] <= 20 * size + 40_000
    assert 10 <= inner["capture"]["frees_of_earlier_blocks"] <= 20
    assert 60 * size <= outer["allocations"]["bytes"] <= 60 * size + 150_000
    assert 5 * size <= figures("after.bin")["allocations"]["bytes"] <= 5 * size + 10_000
    for one in (inner, empty, outer):
        assert one["capture"]["complete"] and one["capture"]["unmatched_frees"] == 0
    assert sorted(path.name for path in tmp_path.glob("*.bin*")) == ["after.bin", "empty.bin", "inner.bin", "outer.bin"]


def test_trackers_overlap_in_threads_and_tasks(program, any_interpreter, figures, tmp_path):
    program(
        any_interpreter,
        """
import asyncio
a, b = memtrack.Tracker("a.bin"), memtrack.Tracker("b.bin")
a.start()
one = keep(5)
b.start()
two = keep(7)
worker = threading.Thread(target=a.stop)
worker.start()
worker.join()
assert memtrack.is_recording()
three = keep(9)
del one
b.stop()
assert not memtrack.is_recording()
try:
    a.stop()
    sys.exit(3)
except memtrack.Error as error:
    assert "stopped already" in str(error)

async def task(name, count):
    with memtrack.Tracker(name):
        await asyncio.sleep(0.01)
        kept = keep(count)
        await asyncio.sleep(0.02)
        return len(kept)

async def both():
    return await asyncio.gather(task("c.bin", 11), task("d.bin", 13))

assert asyncio.run(both()) == [11, 13]
""",
    )
    size = 70_002

    def blocks(name):
        got = figures(name)
        assert got["capture"]["complete"] and got["capture"]["unmatched_frees"] == 0
        # Python may take an arena of 1 MiB for its objects at any time.
        arenas = sum(row["bytes"] for row in got["allocators"] if row["allocator"] == "pymalloc_arena")
        return (got["allocations"]["bytes"] - arenas) // size

    # All threads and tasks belong to a span.
    assert [blocks(name) for name in ("a.bin", "b.bin", "c.bin", "d.bin")] == [12, 16, 24, 24]
    assert figures("b.bin")["capture"]["frees_of_earlier_blocks"] >= 5
    assert len(list(tmp_path.glob("*.bin*"))) == 4


def large_blocks(stats):
    """How many blocks of 2 to 4 MiB were allocated: none but the program's own are so large."""
    return sum(row["count"] for row in stats["size_histogram"] if row["max_bytes"] == 4 << 20)


def test_the_file_of_the_first_tracker_is_complete_when_it_stops(program, any_interpreter, figures, tmp_path):
    program(
        any_interpreter,
        """
import json, shutil, subprocess

def allocated(name):
    stats = [os.environ["MEMTRACK"], "stats", "--json", name]
    got = json.loads(subprocess.run(stats, stdout=subprocess.PIPE, check=True).stdout)
    assert got["capture"]["complete"], name
    return sum(row["count"] for row in got["size_histogram"] if row["max_bytes"] == 4 << 20)

size = 3 << 20
os.mkdir("gone")
a, b = memtrack.Tracker("gone/a.bin"), memtrack.Tracker("b.bin")
a.start()
one = keep(5, size)
b.start()
two = keep(7, size)
a.stop()
assert os.listdir("gone") == ["a.bin"]
assert allocated("gone/a.bin") == 12
three = keep(9, size)
# Its name may be used again, and its directory may go.
with memtrack.Tracker("gone/a.bin", overwrite=True):
    four = keep(3, size)
assert allocated("gone/a.bin") == 3
live = [os.environ["MEMTRACK"], "live", "--jsonl", "--every", "100ms", str(os.getpid())]
viewer = subprocess.Popen(live, stdout=subprocess.PIPE)
while json.loads(viewer.stdout.readline()).get("live", {}).get("bytes", 0) < 24 * size:
    pass
viewer.kill()
viewer.wait()
shutil.rmtree("gone")
c = memtrack.Tracker("c.bin")
c.start()
five = keep(11, size)
b.stop()
assert sorted(os.listdir(".")) == ["b.bin"]
os.kill(os.getpid(), 9)
""",
        status=128 + 9,
    )
    until("c.bin is there", (tmp_path / "c.bin").exists)
    assert [large_blocks(figures(name)) for name in ("b.bin", "c.bin")] == [30, 11]
    assert sorted(path.name for path in tmp_path.glob("*")) == ["b.bin", "c.bin"]


def test_a_first_tracker_whose_directory_is_gone_says_so(program, any_interpreter, figures):
    program(
        any_interpreter,
        """
size = 3 << 20
os.mkdir("gone")
a, b = memtrack.Tracker("gone/a.bin"), memtrack.Tracker("b.bin")
a.start()
b.start()
one = keep(5, size)
os.unlink("gone/a.bin")
os.rmdir("gone")
try:
    a.stop()
    sys.exit(3)
except memtrack.Error as error:
    assert "gone/a.bin" in str(error), error
two = keep(3, size)
b.stop()
assert not memtrack.is_recording()
with memtrack.Tracker("after.bin"):
    three = keep(2, size)
""",
    )
    assert [large_blocks(figures(name)) for name in ("b.bin", "after.bin")] == [8, 2]


def test_what_the_first_tracker_does_not_record_is_refused_inside(program, python, tmp_path):
    program(
        python,
        """
def refused(words, **options):
    try:
        with memtrack.Tracker("inner.bin", **options):
            sys.exit(3)
    except memtrack.Error as error:
        assert words in str(error), error

with memtrack.Tracker("outer.bin") as outer:
    refused("--native", native_traces=True)
    refused("--trace-python-allocators", trace_python_allocators=True)
    with memtrack.Tracker("there.bin"):
        pass
    try:
        memtrack.Tracker("there.bin").start()
        sys.exit(3)
    except memtrack.Error as error:
        assert "file exists" in str(error)
    with memtrack.Tracker("there.bin", overwrite=True):
        pass
    outer.mark("still")
with memtrack.Tracker("sums.bin", aggregate=True):
    refused("single events")
""",
    )
    assert sorted(path.name for path in tmp_path.glob("*.bin")) == ["outer.bin", "sums.bin", "there.bin"]


def test_the_recorder_sums_up_as_another_process_does(program, any_interpreter):
    said = program(
        any_interpreter,
        """
from memtrack._spans import captures_at, span_sums, sums_of_small
times = [0]
with memtrack.Tracker("a.bin", allocation_timestamps=True):
    for count in (30, 50):
        times.append(time.monotonic_ns())
        kept = keep(count)
        times.append(time.monotonic_ns())
times.append(2**63 - 1)
spans = list(zip(times, times[1:]))
ours, theirs = sums_of_small(captures_at("a.bin"), spans), span_sums(captures_at("a.bin"), spans)
assert ours == theirs, (ours, theirs)
assert 30 * 70_000 <= ours[1].peak_bytes <= 32 * 70_000 and 50 <= ours[3].allocations <= 60
# The same from a process where nobody has recorded, and of what is no capture.
import memtrack._tracker
assert memtrack._tracker.sums_by_recorder(["missing.bin"], spans) is None
memtrack._tracker._recorder.close()
memtrack._tracker._recorder = None
print(sums_of_small(["a.bin"], spans) == theirs)
""",
    )
    assert said == ["True"]


def test_a_recording_for_a_limit_says_that_it_has_no_accounts(program, python, memtrack):
    program(
        python,
        """
from memtrack._test_limits import MemoryLimit, RecordedCall
with RecordedCall("a.bin", [MemoryLimit("1MB")], ".", [], {}).started() as test:
    for _ in test.numbers():
        kept = keep(10)
assert test.figures()["allocated_bytes"] >= 700_000 and test.held_bound <= 1 << 20
with memtrack.Tracker("b.bin"):
    kept = keep(10)
""",
    )
    refused, shown = memtrack("resident", "a.bin"), memtrack("resident", "b.bin")
    assert refused.status == 1 and b"for the limit of a test" in refused.stderr
    assert shown.status == 0, shown.stderr
