"""'memtrack attach' records programs that run already, and leaves them as they were."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import PATIENCE, flat, state_of, until

PROGRAM = """
import sys, time
kept = []
def grow(size):
    kept.append(bytearray(size))
print("ready", flush=True)
for line in sys.stdin:
    for _ in range(int(line)):
        grow(100_000)
    print("done", len(kept), flush=True)
"""


class Target:
    """A program that allocates on request."""

    def __init__(self, path, *words):
        (path / "program.py").write_text(PROGRAM)
        command = [*(words or (sys.executable,)), path / "program.py"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=path)
        self.pid = self.process.pid
        assert self.process.stdout.readline() == "ready\n"

    def grow(self, count):
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def descriptors(self):
        return sorted(os.listdir(f"/proc/{self.pid}/fd"))

    def threads(self):
        return sorted(os.listdir(f"/proc/{self.pid}/task"))

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(PATIENCE) == 0


class Attached:
    """memtrack attach, once it records."""

    def __init__(self, executable, pid, *options):
        self.process = subprocess.Popen([executable, "attach", str(pid), *options], stderr=subprocess.PIPE, text=True)
        line = self.process.stderr.readline()
        assert "recording process" in line, line + self.process.stderr.read()

    def end(self, by=signal.SIGINT):
        if by:
            self.process.send_signal(by)
        text = self.process.stderr.read()
        assert self.process.wait(PATIENCE) == 0, text
        return text


@pytest.fixture
def target(tmp_path):
    target = Target(tmp_path)
    yield target
    if target.process.poll() is None:
        target.process.kill()
        target.process.wait()


def figures(executable, capture, *options):
    run = subprocess.run([executable, "stats", "--json", *options, capture], capture_output=True, text=True, check=True)
    return json.loads(run.stdout)


def test_what_is_allocated_meanwhile_is_recorded_and_nothing_else(executable, target, tmp_path):
    assert target.grow(30) == "done 30\n"
    before = target.descriptors(), target.threads()
    for cycle in range(1, 4):
        capture = tmp_path / f"{cycle}.bin"
        attached = Attached(executable, target.pid, "-o", capture)
        assert target.grow(10 * cycle).startswith("done")
        text = attached.end()
        assert "runs on, without memtrack" in text and "program.py" in text
        assert (target.descriptors(), target.threads()) == before
        target.grow(5)
        stats = figures(executable, capture)
        blocks = subprocess.run([executable, "query", "--json", "bytes > 99kB", "-n", "0", capture], capture_output=True, text=True)
        rows = [row for row in json.loads(blocks.stdout)["rows"] if row["function"] == "grow"]
        assert len(rows) == 10 * cycle, rows
        assert stats["capture"]["complete"] is True
        assert stats["leaked"]["moment"] == "recording-end"
        table = subprocess.run([executable, "table", "--leaks", capture], capture_output=True, text=True, check=True)
        assert "live when the recording ended" in table.stdout
    maps = Path(f"/proc/{target.pid}/maps").read_text()
    assert len({line.split()[-2] for line in maps.splitlines() if "memtrack" in line}) == 1, "loaded once"
    assert target.grow(1) == "done 106\n"
    target.end()


def test_the_end_of_the_program_ends_the_recording(executable, target, tmp_path):
    attached = Attached(executable, target.pid, "-o", tmp_path / "a.bin")
    target.grow(3)
    target.end()
    text = attached.end(by=None)
    stats = figures(executable, tmp_path / "a.bin")
    assert "has ended" in text and stats["capture"]["complete"] is True and stats["leaked"]["moment"] == "finalization"


def test_a_duration_and_a_second_terminal_end_it_too(executable, memtrack, target, tmp_path):
    begun = time.monotonic()
    Attached(executable, target.pid, "-o", tmp_path / "a.bin", "--duration", "300ms").end(by=None)
    assert time.monotonic() - begun > 0.3
    attached = Attached(executable, target.pid, "-o", tmp_path / "b.bin")
    assert target.pid in [process["pid"] for process in memtrack.processes()]
    again = subprocess.run([executable, "attach", str(target.pid)], capture_output=True, text=True, cwd=tmp_path)
    assert again.returncode == 1 and "already being recorded" in again.stderr
    target.grow(4)
    ended = subprocess.run([executable, "detach", str(target.pid)], capture_output=True, text=True)
    assert ended.returncode == 0 and "b.bin" in ended.stderr, ended.stderr
    attached.end(by=None)
    assert figures(executable, tmp_path / "b.bin")["capture"]["complete"] is True
    assert sorted(path.name for path in tmp_path.glob("*.bin")) == ["a.bin", "b.bin"], "the refused one left nothing"
    target.end()


def test_in_the_background(executable, target, tmp_path):
    command = [executable, "attach", str(target.pid), "--detached", "-o", tmp_path / "a.bin"]
    begun = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert begun.returncode == 0 and "in the background" in begun.stderr, begun.stderr
    target.grow(7)
    assert subprocess.run([executable, "detach", str(target.pid)], capture_output=True, timeout=PATIENCE).returncode == 0
    assert figures(executable, tmp_path / "a.bin")["capture"]["complete"] is True
    for again in ([*command, "-f", "-q"], [executable, "detach", "-q", str(target.pid)]) * 8:
        # Who begins at once is not taken for the one that is just ending.
        assert subprocess.run(again, timeout=PATIENCE).returncode == 0
    refused = subprocess.run([executable, "attach", "999999999", "--detached"], capture_output=True, text=True, timeout=PATIENCE)
    assert refused.returncode == 1 and "no process has this id" in refused.stderr
    target.end()


def test_a_recorder_that_was_killed_leaves_a_program_that_runs(executable, target, tmp_path):
    attached = Attached(executable, target.pid, "-o", tmp_path / "a.bin")
    target.grow(3)
    attached.process.kill()
    attached.process.wait()
    assert target.grow(30_0) == "done 303\n"
    restored = subprocess.run([executable, "detach", str(target.pid)], capture_output=True, text=True)
    assert restored.returncode == 0 and "as it was before" in restored.stderr, restored.stderr
    Attached(executable, target.pid, "-o", tmp_path / "b.bin").end()
    target.end()


def test_a_recorder_that_was_killed_is_no_obstacle_for_the_next_one(executable, target, tmp_path):
    attached = Attached(executable, target.pid, "-o", tmp_path / "a.bin")
    target.grow(3)
    attached.process.kill()
    attached.process.wait()
    again = Attached(executable, target.pid, "-o", tmp_path / "b.bin")
    assert target.grow(30) == "done 33\n"
    again.end()
    assert 30 <= figures(executable, tmp_path / "b.bin")["allocations"]["count"] <= 40
    target.end()


def test_a_recording_that_is_not_found_is_left_alone(executable, target, tmp_path, monkeypatch):
    """Its recorder still answers the library, so 'detach' does not take it for one that was killed."""
    for name in ("one", "other"):
        (tmp_path / name).mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "one"))
    attached = Attached(executable, target.pid, "-o", tmp_path / "a.bin")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "other"))
    refused = subprocess.run([executable, "detach", str(target.pid)], capture_output=True, text=True)
    assert refused.returncode == 1 and "nothing was changed" in refused.stderr, refused.stderr
    refused = subprocess.run([executable, "attach", str(target.pid)], capture_output=True, text=True, cwd=tmp_path)
    assert refused.returncode == 1 and "nothing was changed" in refused.stderr, refused.stderr
    target.grow(30)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "one"))
    attached.end()
    told = json.loads(subprocess.run([executable, "stats", "--json", tmp_path / "a.bin"], capture_output=True, check=True).stdout)
    assert told["allocations"]["count"] >= 30
    target.end()


def test_refusals_name_the_reason(executable, target, tmp_path):
    def refused(pid, reason):
        run = subprocess.run([executable, "attach", str(pid)], capture_output=True, text=True, cwd=tmp_path)
        assert run.returncode == 1 and re.search(reason, " ".join(run.stderr.split())), run.stderr

    os.kill(target.pid, signal.SIGSTOP)
    until("it is stopped", lambda: state_of(target.pid) == "T")
    refused(target.pid, "is stopped .* kill -CONT")
    os.kill(target.pid, signal.SIGCONT)
    refused(2**30, "no process has this id")
    if os.geteuid() == 0:
        run = ["setpriv", "--reuid", "65534", "--clear-groups", executable, "attach", str(target.pid)]
        run = subprocess.run(run, capture_output=True, text=True, cwd=tmp_path)
        assert run.returncode == 1 and "belongs to another user (0)" in " ".join(run.stderr.split()), run.stderr
    assert not list(tmp_path.glob("*.bin"))
    target.end()


def test_a_dormant_program_is_recorded_from_start_to_stop(executable, memtrack, tmp_path):
    target = Target(tmp_path, executable, "run", "--dormant", sys.executable)
    children = Path(f"/proc/{target.pid}/task/{target.pid}/children").read_text().split()
    ((pid, state),) = until("it is known", lambda: [(one["pid"], one["state"]) for one in memtrack.processes() if str(one["pid"]) in children])
    assert state == "dormant"

    def command(name, *options):
        return subprocess.run([executable, name, str(pid), *options], capture_output=True, text=True, timeout=PATIENCE)

    assert "nothing is being recorded" in command("stop").stderr
    target.grow(20)
    for cycle in (1, 2):
        capture = tmp_path / f"{cycle}.bin"
        started = command("start", "-o", capture)
        assert started.returncode == 0, started.stderr
        assert command("start").returncode == 1
        target.grow(10 * cycle)
        stopped = command("stop")
        assert stopped.returncode == 0 and str(capture) in stopped.stderr, stopped.stderr
        target.grow(5)
        blocks = subprocess.run([executable, "query", "--json", "bytes = 100001", "-n", "0", capture], capture_output=True, text=True)
        assert len(json.loads(blocks.stdout)["rows"]) == 10 * cycle, blocks.stdout
        stats = figures(executable, capture)
        assert stats["capture"]["complete"] is True and stats["leaked"]["moment"] == "recording-end"
    assert command("start", "-o", tmp_path / "last.bin").returncode == 0
    assert target.grow(7) == "done 67\n"
    target.end()
    assert figures(executable, tmp_path / "last.bin")["capture"]["complete"] is True


FORKED_READER = """
import os, sys
child = os.fork()
if child:
    os.waitpid(child, 0)
else:
    kept = []
    print(os.getpid(), os.getppid(), flush=True)
    for line in sys.stdin:
        kept += [bytearray(100_000) for _ in range(int(line))]
        print("done", flush=True)
"""


ENDED_CHILDREN = """
import os
import sys

def child():
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writes)
        os.read(reads, 1)
        os._exit(0)
    os.close(reads)
    return pid, writes

first, first_ends = child()
second, second_ends = child()
print(first, second, os.getpid(), flush=True)
sys.stdin.readline()
os.write(first_ends, b"x")
os.waitpid(first, 0)
print("ended", flush=True)
sys.stdin.read()
"""


def test_a_child_that_has_ended_refuses_no_mark_and_is_complete_at_the_next_start(executable, memtrack, tmp_path):
    script = tmp_path / "forks.py"
    script.write_text(ENDED_CHILDREN)
    command = [executable, "run", "--dormant", "--follow", "-q", sys.executable, script]
    target = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    first, second, parent = (int(pid) for pid in target.stdout.readline().split())

    def asked(name, *options):
        return subprocess.run([executable, name, *map(str, options)], capture_output=True, text=True, timeout=PATIENCE)

    def states():
        return {process["pid"]: process["state"] for process in memtrack.processes()}

    until("they are known", lambda: {first, second, parent} <= states().keys())
    for pid in (first, parent):
        assert asked("start", pid, "-o", tmp_path / f"{pid}.bin").returncode == 0
    target.stdin.write("\n")
    target.stdin.flush()
    assert target.stdout.readline() == "ended\n"
    until("it has ended", lambda: states()[first] == "ended")
    marked = asked("mark", parent, "middle")
    assert marked.returncode == 0, marked.stderr
    assert asked("start", second, "-o", tmp_path / f"{second}.bin").returncode == 0
    assert "still being recorded" not in asked("stats", tmp_path / f"{first}.bin").stderr
    target.stdin.close()
    assert target.wait() == 0
    assert "middle" in asked("parse", tmp_path / f"{parent}.bin").stdout


def test_children_of_a_dormant_program_are_dormant_and_recorded_by_their_ids(executable, memtrack, tmp_path):
    script = tmp_path / "forks.py"
    script.write_text(FORKED_READER)
    command = [executable, "run", "--dormant", "--follow", "-q", sys.executable, script]
    target = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    child, parent = (int(pid) for pid in target.stdout.readline().split())

    def grow(number):
        target.stdin.write(f"{number}\n")
        target.stdin.flush()
        assert target.stdout.readline() == "done\n"

    def asked(name, *options):
        return subprocess.run([executable, name, *map(str, options)], capture_output=True, text=True, timeout=PATIENCE)

    def states():
        return {process["pid"]: process["state"] for process in memtrack.processes()}

    until("they are known", lambda: {parent, child} <= states().keys())
    assert (states()[parent], states()[child]) == ("dormant", "dormant")
    grow(20)
    captures = [tmp_path / f"{cycle}.bin" for cycle in (1, 2)]
    for cycle, capture in enumerate(captures, start=1):
        started = asked("start", child, "-o", capture)
        assert started.returncode == 0 and f"process {child}" in started.stderr, started.stderr
        assert (states()[parent], states()[child]) == ("dormant", "recording")
        assert "being recorded already" in asked("start", child).stderr
        grow(10 * cycle)
        # The program itself can be recorded beside it.
        if cycle == 1:
            assert asked("start", parent, "-o", tmp_path / "parent.bin").returncode == 0
            assert states()[parent] == "recording"
            assert asked("stop", parent).returncode == 0
        stopped = asked("stop", child)
        assert stopped.returncode == 0 and str(capture) in stopped.stderr, stopped.stderr
        assert states()[child] == "dormant"
        grow(5)
    assert "not being recorded" in asked("start", 1).stderr
    target.stdin.close()
    assert target.wait() == 0
    for cycle, capture in enumerate(captures, start=1):
        blocks = subprocess.run([executable, "query", "--json", "bytes = 100001", "-n", "0", capture], capture_output=True, text=True)
        assert len(json.loads(blocks.stdout)["rows"]) == 10 * cycle, blocks.stdout


CALLS = """
import os, sys

def cell(size):
    return [bytearray(size), size]

def row(count):
    return {str(number): cell(600 + number) for number in range(count)}

def table():
    return [row(count % 7) for count in range(40)], bytearray(5000)

print("ready", flush=True)
for line in sys.stdin:
    for _ in range(int(line)):
        table()
    print("done", flush=True)
if sys.argv[1:] and os.fork() == 0:
    for _ in range(50):
        table()
    os._exit(0)
if sys.argv[1:]:
    os.wait()
"""


def nameless(executable, capture):
    """The warning about frames without a name, if there is one."""
    result = subprocess.run([executable, "stats", capture], capture_output=True, text=True, check=True)
    return [line for line in result.stderr.splitlines() if "recorded name" in line]


def test_each_recording_of_a_process_has_all_names(executable, tmp_path):
    (tmp_path / "calls.py").write_text(CALLS)
    command = [sys.executable, tmp_path / "calls.py"]
    program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert program.stdout.readline() == "ready\n"
    for number in range(3):
        capture = tmp_path / f"{number}.bin"
        attached = Attached(executable, program.pid, "-o", capture)
        program.stdin.write("50\n")
        program.stdin.flush()
        assert program.stdout.readline() == "done\n"
        attached.end()
        assert nameless(executable, capture) == [], number
    program.stdin.close()
    assert program.wait(PATIENCE) == 0


def test_a_forked_child_has_all_names(executable, tmp_path):
    (tmp_path / "calls.py").write_text(CALLS)
    capture = tmp_path / "all.bin"
    command = [executable, "run", "-q", "--follow", "-o", capture, tmp_path / "calls.py", "fork"]
    assert subprocess.run(command, input="50\n", text=True, stdout=subprocess.DEVNULL, check=False).returncode == 0
    captures = sorted(tmp_path.glob("all*.bin"))
    assert [nameless(executable, capture) for capture in captures] == [[], []]


WAITS = "#include <unistd.h>\nint main(void) { char byte; write(1, \"r\", 1); read(0, &byte, 1); return 0; }\n"


@pytest.mark.parametrize(
    ("compiler", "reason"),
    [
        (["gcc", "-static"], "linked statically"),
        (["gcc", "-m32"], "a 32-bit one"),
        (["musl-gcc"], "the C library musl"),
        (["musl-gcc", "-static"], "linked statically"),
    ],
    ids=" ".join,
)
def test_programs_that_cannot_load_a_library_are_left_alone(executable, tmp_path, compiler, reason):
    (tmp_path / "waits.c").write_text(WAITS)
    try:
        subprocess.run([*compiler, "-o", tmp_path / "waits", tmp_path / "waits.c"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"{' '.join(compiler)} cannot build programs here")
    program = subprocess.Popen([tmp_path / "waits"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert program.stdout.read(1) == b"r"
    refused = subprocess.run([executable, "attach", str(program.pid)], capture_output=True, text=True, cwd=tmp_path)
    assert refused.returncode == 1 and reason in refused.stderr, refused.stderr
    assert list(tmp_path.glob("*.bin")) == []
    program.communicate(b"x")
    assert program.returncode == 0


@pytest.mark.skipif(not os.path.exists("/usr/bin/gcc"), reason="no compiler")
def test_a_native_program_keeps_the_library_and_no_other(executable, tmp_path):
    (tmp_path / "waits.c").write_text(WAITS)
    subprocess.run(["gcc", "-o", tmp_path / "waits", tmp_path / "waits.c"], check=True)
    program = subprocess.Popen([tmp_path / "waits"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert program.stdout.read(1) == b"r"
    files = lambda: {line.split(None, 5)[5].strip() for line in open(f"/proc/{program.pid}/maps") if "/" in line}
    before, descriptors = files(), sorted(os.listdir(f"/proc/{program.pid}/fd"))
    recorded = [executable, "attach", "-q", "-f", "-o", tmp_path / "a.bin", "--duration", "20ms", str(program.pid)]
    for _ in range(20):
        subprocess.run(recorded, check=True)
    left = {path for path in files() - before if "libmemtrack_shim" not in path}
    # Before glibc 2.34 'dlsym' is in libdl.
    libc = next(path for path in before if re.search("/libc[.-]", path))
    assert left == set() or b"GLIBC_2.34" not in Path(libc).read_bytes(), left
    assert sorted(os.listdir(f"/proc/{program.pid}/fd")) == descriptors
    program.communicate(b"x")
    assert program.returncode == 0


EXHAUSTED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))
try:
    while True:
        os.dup(0)
except OSError:
    pass
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_process_without_a_free_descriptor_is_told_of_its_limit(executable, tmp_path):
    program = subprocess.Popen([sys.executable, "-c", EXHAUSTED], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert program.stdout.readline() == b"ready\n"
    refused = subprocess.run([executable, "attach", str(program.pid)], capture_output=True, text=True, cwd=tmp_path)
    assert refused.returncode == 1 and f"prlimit --pid {program.pid} --nofile=" in refused.stderr, refused.stderr
    program.communicate()
    assert program.returncode == 0


OBJECTS = """
import os, sys

class Thing:
    def __init__(self, number):
        self.name = bytes(number + 100)

early = [Thing(number) for number in range(1000)]
text = ["x" * 50 + str(number) for number in range(1000)]
print("ready", flush=True)
for line in sys.stdin:
    early.clear()
    text.sort(reverse=True)
    text[0] += "y" * 100_000
    late = [Thing(number) for number in range(int(line))]
    if sys.argv[1:]:
        child = os.fork()
        if child == 0:
            held = [Thing(number) for number in range(int(line))]
            os._exit(0)
        os.waitpid(child, 0)
    print("done", flush=True)
"""


def objects_recorded(executable, path, *options, fork=False):
    """The captures of a program that makes 500 objects, and as many in a child if it forks, while it is attached."""
    (path / "objects.py").write_text(OBJECTS)
    command = [sys.executable, path / "objects.py", *(["fork"] if fork else [])]
    program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert program.stdout.readline() == "ready\n"
    attached = Attached(executable, program.pid, "-o", path / "a.bin", *options)
    program.stdin.write("500\n")
    program.stdin.flush()
    assert program.stdout.readline() == "done\n"
    attached.end()
    program.stdin.close()
    assert program.wait(PATIENCE) == 0
    return sorted(path.glob("a*.bin"), key=lambda capture: len(capture.name))


def made_by_init(executable, capture):
    """Number of allocations by Thing.__init__: bytes for each object, and dictionaries of instances."""
    table = subprocess.run([executable, "table", "--json", "--allocated", capture], capture_output=True, text=True, check=True)
    rows = [row for row in json.loads(table.stdout)["rows"] if row["function"] == "Thing.__init__"]
    return sum(row["count"] for row in rows)


@pytest.mark.parametrize("options", [[], ["--native"], ["--allocation-timestamps"], ["--aggregate"]], ids=" ".join)
def test_objects_are_recorded_from_the_attach_on(executable, tmp_path, options):
    (capture,) = objects_recorded(executable, tmp_path, "--trace-python-allocators", *options)
    stats = figures(executable, capture)
    assert stats["capture"]["complete"] and stats["capture"]["unmatched_frees"] == 0
    # A thousand objects with bytes each, and more: each is freed through the wrappers that it was not made by.
    assert stats["capture"]["frees_of_earlier_blocks"] >= 2000
    if "--native" not in options:
        assert 500 <= made_by_init(executable, capture) <= 1010


FORKS = """
import os, sys
print("ready", flush=True)
sys.stdin.readline()
child = os.fork()
if child == 0:
    kept = [bytearray(500) for _ in range(100)]
    print("child", os.getpid(), flush=True)
    for line in sys.stdin:
        kept = [bytearray(5000) for _ in range(int(line))]
        print("done", flush=True)
    os._exit(7)
os.close(0)
os._exit(os.waitpid(child, 0)[1] >> 8)
"""


@pytest.mark.parametrize("options", [[], ["--trace-python-allocators"], ["--native"]], ids=" ".join)
def test_a_child_that_inherits_a_recording_can_be_attached(executable, interpreter, tmp_path, options):
    """It has its parent's hooks, and does not record."""
    (tmp_path / "forks.py").write_text(FORKS)
    program = subprocess.Popen(
        flat([interpreter, tmp_path / "forks.py"]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert program.stdout.readline() == "ready\n"
    parent = Attached(executable, program.pid, "-o", tmp_path / "parent.bin", *options)
    print(file=program.stdin, flush=True)
    child = int(program.stdout.readline().split()[1])
    for number in range(2):
        capture = tmp_path / f"{number}.bin"
        attached = Attached(executable, child, "-o", capture, *options)
        print(20 + number, file=program.stdin, flush=True)
        assert program.stdout.readline() == "done\n"
        attached.end()
        blocks = [executable, "query", "--json", "bytes >= 5000 and bytes < 5100", "-n", "0", capture]
        blocks = json.loads(subprocess.run(blocks, capture_output=True, text=True, check=True).stdout)
        assert len(blocks["rows"]) == 20 + number
    program.stdin.close()
    assert program.wait(PATIENCE) == 7
    parent.end(by=None)


def test_children_that_are_forked_later_are_followed(executable, tmp_path):
    captures = objects_recorded(executable, tmp_path, "--trace-python-allocators", "--follow", fork=True)
    assert len(captures) == 2
    counts = [made_by_init(executable, capture) for capture in captures]
    assert counts[0] == counts[1] and 500 <= counts[0] <= 1010, counts
    child = figures(executable, captures[1])["capture"]
    assert child["forked"] and child["complete"] and child["unmatched_frees"] == 0


PREFORKED = """
import os, sys, time
workers = []
while len(workers) < 2:
    workers.append(os.fork())
    if workers[-1] == 0:
        time.sleep(600)
print(*workers, flush=True)
sys.stdin.readline()
for worker in workers:
    os.kill(worker, 9)
"""


@pytest.mark.parametrize("options", [["--follow"], ["--detached"]], ids=" ".join)
def test_children_that_run_already_are_named(executable, python, tmp_path, options):
    """As the workers of a server: who attaches to it may want these."""
    program = subprocess.Popen([python, "-c", PREFORKED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    workers = sorted(program.stdout.readline().split(), key=int)
    command = [executable, "attach", str(program.pid), "-o", tmp_path / "a.bin", *options]
    attached = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    said = ""
    while workers[-1] not in said:
        line = attached.stderr.readline()
        assert line, said
        said += " " + " ".join(line.split())
    program.communicate("\n")
    attached.stderr.read()
    assert attached.wait(PATIENCE) == 0
    assert "2 child processes that run already are not part of this recording" in said and ", ".join(workers) in said, said
    assert ("--follow records those" in said) == ("--follow" in options)


@pytest.mark.parametrize("ends", ["detached", "exits"])
def test_objects_at_the_end_of_the_recording(executable, target, tmp_path, ends):
    """Whether the program ends or runs on."""
    capture = tmp_path / "attached.bin"
    attached = Attached(executable, target.pid, "-o", capture, "--trace-python-allocators", "--objects-at", "end")
    assert target.grow(30) == "done 30\n"
    if ends == "exits":
        target.end()
    attached.end(by=None if ends == "exits" else signal.SIGINT)
    told = json.loads(subprocess.check_output([executable, "objects", "--json", capture], text=True))
    [arrays] = [row for row in told["types"] if row["type"] == "builtins.bytearray"]
    [place] = [place for place in arrays["places"] if place["function"] == "grow"]
    assert place["count"] == 30 and place["own_bytes"] > 3_000_000, place
    if ends == "detached":
        assert target.grow(1) == "done 31\n"
        target.end()


THREADS = """
import sys, threading
# The most that it ever has.
bytearray(80_000_000)
lock, go = threading.Condition(), [0, 0]
def work():
    seen = 0
    while True:
        with lock:
            lock.wait_for(lambda: go[0] > seen)
            seen = go[0]
        kept = [bytearray(700) for _ in range(50)]
        with lock:
            go[1] += 1
            lock.notify_all()
threads = [threading.Thread(target=work, daemon=True) for _ in range(200)]
for thread in threads:
    thread.start()
print("ready", flush=True)
for line in sys.stdin:
    with lock:
        go[0], go[1] = go[0] + 1, 0
        lock.notify_all()
        lock.wait_for(lambda: go[1] == len(threads))
    print("done", flush=True)
"""


def test_what_is_kept_for_threads_is_given_back_at_the_end(executable, tmp_path):
    """It was kept, and grew with each recording."""
    (tmp_path / "program.py").write_text(THREADS)
    command = [sys.executable, tmp_path / "program.py"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def resident():
            lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))

        def work():
            process.stdin.write("go\n")
            process.stdin.flush()
            assert process.stdout.readline() == "done\n"

        assert process.stdout.readline() == "ready\n"
        work()
        plain, afterwards = resident(), []
        for number in range(4):
            capture = tmp_path / f"{number}.bin"
            attached = Attached(executable, process.pid, "--native", "-o", capture)
            work()
            recorded = resident()
            attached.end()
            afterwards.append(resident())
            rss = json.loads(subprocess.check_output([executable, "stats", "--json", capture]))["rss"]
            # What the system counts inexactly, and the program's own memory for its events.
            assert rss["last_bytes"] - plain < (recorded - plain) / 2, (rss, plain, recorded)
            assert 80_000_000 < rss["peak_bytes"] < 80_000_000 + recorded, (rss, plain, recorded)
        # The library, and for each thread a part of what it had.
        assert afterwards[0] - plain < (recorded - plain) / 2, (plain, recorded, afterwards)
        assert afterwards[-1] - afterwards[0] < 2_000_000, afterwards
        process.kill()
