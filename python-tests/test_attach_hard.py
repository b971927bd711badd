"""'memtrack attach' where the program is hard to reach: with filters of system calls, threads that do not stop, or many at places where
nothing may be called; and where it ends meanwhile."""

import contextlib
import json
import os
import platform
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import PATIENCE, PROGRAMS, shows_calls, state_of, until

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="programs are attached to on x86-64 only")

# Of x86-64.
CALLS = {
    "getpid": 39,
    "madvise": 28,
    "memfd_create": 319,
    "membarrier": 324,
    "mprotect": 10,
    "mremap": 25,
    "gettid": 186,
    "process_vm_readv": 310,
    "statx": 332,
    "tgkill": 234,
}
AT_ENTRY = 9


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Compiles a program of the directory of programs."""
    compiler = shutil.which("cc") or pytest.skip("there is no C compiler")
    directory = tmp_path_factory.mktemp("hard")

    def program(name):
        subprocess.run([compiler, "-O1", "-pthread", "-o", directory / name, PROGRAMS / f"{name}.c"], check=True)
        return directory / name

    return program


def started(*command, **how):
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **how)


def step(program):
    program.stdin.write("x\n")
    program.stdin.flush()
    return program.stdout.readline()


@pytest.mark.parametrize("call", CALLS)
def test_a_filter_ends_no_program_that_is_attached_to(executable, compiled, tmp_path, call):
    program = started(compiled("attach_filter"), str(CALLS[call]))
    if program.stdout.readline() != "ready\n" or step(program) != "done\n":
        pytest.skip("this C library needs the call itself, or there are no filters")
    command = [executable, "attach", str(program.pid), "-o", tmp_path / "a.bin"]
    attached = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    line = attached.stderr.readline()
    assert "recording process" in line or ("seccomp" in line and call in line), line
    assert step(program) == "done\n" and step(program) == "done\n"
    attached.send_signal(signal.SIGINT)
    attached.stderr.read()
    assert attached.wait(PATIENCE) == (0 if "recording" in line else 1)
    assert step(program) == "done\n"
    program.communicate()
    assert program.returncode == 0


@shows_calls
def test_no_wait_of_a_refused_program_is_interrupted(executable, compiled, tmp_path):
    program = started(compiled("attach_filter"), str(CALLS["mprotect"]), "wait")
    assert program.stdout.readline() == "ready\n"
    until("it waits", lambda: Path(f"/proc/{program.pid}/syscall").read_text().split()[0] in ("232", "281"))
    refused = subprocess.run([executable, "attach", str(program.pid)], capture_output=True, text=True, cwd=tmp_path)
    assert refused.returncode == 1 and "seccomp" in refused.stderr, refused.stderr
    # Who has read the filter is not told that root may.
    has_read = "a filter)" in refused.stderr
    assert has_read or os.geteuid() != 0, refused.stderr
    assert ("as root" in refused.stderr) != has_read, refused.stderr
    program.communicate("x")
    assert program.returncode == 0, os.strerror(program.returncode)


def system_call(pid, tid):
    return Path(f"/proc/{pid}/task/{tid}/syscall").read_text().split()[0]


def is_traced(pid, tid):
    return "TracerPid:\t0\n" not in Path(f"/proc/{pid}/task/{tid}/status").read_text()


@shows_calls
def test_a_thread_that_stops_late_goes_on_with_the_lock_that_is_waited_for(executable, compiled, tmp_path):
    ours, theirs = os.pipe()
    program = started(compiled("late_lock"), str(ours), pass_fds=[ours])
    assert program.stdout.read(1) == "h"
    (other,) = [int(tid) for tid in os.listdir(f"/proc/{program.pid}/task") if int(tid) != program.pid]
    until("it waits for room", lambda: system_call(program.pid, other) == "1")
    command = [executable, "attach", str(program.pid), "-o", tmp_path / "a.bin", "--duration", "10ms"]
    attached = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    # What is called in the other thread waits for the lock.
    until("the lock is waited for", lambda: is_traced(program.pid, other) and system_call(program.pid, other) == "202")
    assert is_traced(program.pid, program.pid)
    os.write(theirs, b"x")
    text = attached.communicate(timeout=PATIENCE)[1]
    assert attached.returncode == 0 and "recording process" in text, text
    assert program.wait(PATIENCE) == 0
    os.close(ours), os.close(theirs)


@shows_calls
def test_many_threads_at_unsafe_places_do_not_hide_the_others(executable, compiled, tmp_path):
    number = 20
    program = started(compiled("unusable_threads"), str(number))
    assert program.stdout.readline() == "ready\n"
    tids = lambda: [int(tid) for tid in os.listdir(f"/proc/{program.pid}/task")]
    until("all wait", lambda: [system_call(program.pid, tid) for tid in tids()].count("34") == number)
    command = [executable, "attach", "-q", "-o", tmp_path / "a.bin", "--duration", "10ms", str(program.pid)]
    attached = subprocess.run(command, capture_output=True, text=True)
    assert attached.returncode == 0 and attached.stderr == "", attached.stderr
    program.communicate("x", timeout=PATIENCE)
    assert program.returncode == 0


def ask(program, what):
    """What the program says: its process id, and the address of malloc that it calls."""
    program.stdin.write(f"{what}\n")
    program.stdin.flush()
    return program.stdout.readline().split()


def test_a_child_that_inherits_a_recording_is_put_back_by_detach(executable, compiled, tmp_path):
    program = started(compiled("hooked_address"))
    assert program.stdout.readline() == "ready\n"
    _, own = ask(program, "m")
    command = [executable, "attach", str(program.pid), "-o", tmp_path / "a.bin"]
    attached = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert "recording process" in attached.stderr.readline()
    child, inherited = ask(program, "f")
    assert inherited != own and int(child) != program.pid
    detached = subprocess.run([executable, "detach", child], capture_output=True, text=True)
    assert detached.returncode == 0 and "is as it was before" in detached.stderr, detached.stderr
    assert ask(program, "m") == [child, own]
    program.communicate(timeout=PATIENCE)
    attached.communicate(timeout=PATIENCE)
    assert program.returncode == attached.returncode == 0


def test_the_code_of_a_child_that_was_forked_during_a_call_is_put_back(executable, compiled, tmp_path):
    """Such a child has the instructions of the call in its copy of the code."""
    program = started(compiled("attach_filter"), "100000")
    assert program.stdout.readline() == "ready\n"
    entries = struct.iter_unpack("QQ", Path(f"/proc/{program.pid}/auxv").read_bytes())
    entry = next(value for key, value in entries if key == AT_ENTRY)
    with open(f"/proc/{program.pid}/mem", "r+b", buffering=0) as memory:

        def code():
            memory.seek(entry)
            return memory.read(6)

        own = code()
        memory.seek(entry)
        memory.write(bytes.fromhex("ffd0cc0f05cc"))
        command = [executable, "attach", "-q", "-o", tmp_path / "a.bin", "--duration", "10ms", str(program.pid)]
        ended = subprocess.run(command, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        assert code() == own
    assert step(program) == "done\n"
    program.communicate()
    assert program.returncode == 0


VARIED = """
import random, sys
print("ready", flush=True)
for line in sys.stdin:
    kept = []
    for _ in range(int(line)):
        kept.append(bytes(random.randrange(600, 60_000)))
        if len(kept) > 1000:
            kept[random.randrange(1000)] = kept.pop()
    print("done", flush=True)
"""


def test_what_stop_completes_is_complete_although_the_program_ends(executable, tmp_path):
    (tmp_path / "captures").mkdir()
    capture = tmp_path / "captures" / "a.bin"
    options = ["--dormant", "-q", "--compress", "zstd:19", "-o", capture]
    command = [executable, "run", *options, sys.executable, "-c", VARIED]
    recorder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert recorder.stdout.readline() == "ready\n"
    children = Path(f"/proc/{recorder.pid}/task/{recorder.pid}/children").read_text().split()
    is_recorded_now = lambda pid: subprocess.run([executable, "start", "-q", pid], capture_output=True).returncode == 0
    pid = until("one is recorded", lambda: next(filter(is_recorded_now, children), None))
    print(400_000, file=recorder.stdin, flush=True)
    assert recorder.stdout.readline() == "done\n"
    stop = subprocess.Popen([executable, "stop", pid], stderr=subprocess.PIPE, text=True)
    # It is being packed: in a file beside it.
    while len(list(capture.parent.iterdir())) < 2 and stop.poll() is None:
        time.sleep(0.001)
    recorder.stdin.close()
    assert recorder.wait(PATIENCE) == 0
    told = stop.communicate(timeout=PATIENCE)[1]
    assert stop.returncode == 0 and str(capture) in told, told
    assert [path.name for path in capture.parent.iterdir()] == ["a.bin"]
    stats = subprocess.run([executable, "stats", "--json", capture], capture_output=True, text=True, check=True)
    assert json.loads(stats.stdout)["capture"]["complete"] is True


OUTLIVED = """
import os, sys
print("ready", flush=True)
sys.stdin.readline()
(waits, goes), kept = os.pipe(), []
if os.fork() == 0:
    kept += [bytearray(100_000) for _ in range(6)]
    print("child", os.getpid(), flush=True)
    # Not before: the program reads its line from the same pipe.
    os.read(waits, 1)
    sys.stdin.read()
    os._exit(0)
sys.stdin.readline()
os.write(goes, b"x")
os._exit(0)
"""


@pytest.mark.parametrize("begun", ["attach", "start"])
def test_the_capture_of_a_child_that_outlives_the_program_is_complete(executable, begun, tmp_path):
    """It is put back as it was, and runs on."""
    (tmp_path / "outlived.py").write_text(OUTLIVED)
    capture = tmp_path / "c.bin"
    recorded = [executable, "run", "--dormant", "--follow", "-q"] if begun == "start" else []
    program = started(*recorded, sys.executable, "outlived.py", cwd=tmp_path)
    assert program.stdout.readline() == "ready\n"
    pid = str(program.pid)
    if begun == "start":
        listed = lambda: json.loads(subprocess.check_output([executable, "ps", "--json"]))["processes"]
        runs_here = lambda one: Path(f"/proc/{one['pid']}/cwd").resolve() == tmp_path.resolve()
        (pid,) = until("it is known", lambda: [str(one["pid"]) for one in listed() if runs_here(one)])
        subprocess.run([executable, "start", pid, "-o", capture], check=True)
    else:
        attached = subprocess.Popen([executable, "attach", pid, "--follow", "-o", capture], stderr=subprocess.PIPE, text=True)
        assert "recording process" in attached.stderr.readline()
    child = int(step(program).split()[1])
    program.stdin.write("x\n")
    program.stdin.flush()
    assert program.wait(PATIENCE) == 0
    said = "" if begun == "start" else attached.communicate(timeout=PATIENCE)[1]
    assert "interrupted" not in said
    assert state_of(child) in "RS"
    (of_child,) = tmp_path.glob("c.*-*.bin")
    stats = json.loads(subprocess.check_output([executable, "stats", "--json", of_child]))
    assert stats["capture"]["complete"] and stats["leaked"]["moment"] == "recording-end"
    assert stats["leaked"]["bytes"] >= 6 * 100_000
    program.stdin.close()


ENDLESS = """
import itertools
print("ready", flush=True)
kept = []
for size in itertools.count(1):
    kept.append(bytearray(size % 997))
    del kept[:-100]
"""


def recorder_of(pid):
    """The memtrack that records the process in the background."""

    def words(process):
        with contextlib.suppress(OSError):
            return (process / "cmdline").read_bytes().split(b"\0")
        return []

    found = [path.name for path in Path("/proc").glob("[0-9]*") if {b"--background", pid.encode()} <= set(words(path))]
    return int(found[0])


@pytest.mark.parametrize("detached", [False, True], ids=["", "--detached"])
def test_a_capture_that_cannot_be_written_ends_the_recording(executable, tmp_path, detached):
    """As on a full disk."""
    program = started(sys.executable, "-c", ENDLESS)
    assert program.stdout.readline() == "ready\n"
    pid = str(program.pid)
    attach = [executable, "attach", pid, "--trace-python-allocators", "--compress", "none", "-o", tmp_path / "c.bin"]
    attached = subprocess.Popen([*attach, *(["--detached"] if detached else [])], stderr=subprocess.PIPE, text=True)
    assert "recording process" in attached.stderr.readline()
    resource.prlimit(recorder_of(pid) if detached else attached.pid, resource.RLIMIT_FSIZE, (300_000, 300_000))
    if detached:
        listed = lambda: json.loads(subprocess.check_output([executable, "ps", "--json"]))["processes"]
        until("it has ended", lambda: [one for one in listed() if str(one["pid"]) == pid and one["state"] == "ended"])
        attached = subprocess.Popen([executable, "detach", pid], stderr=subprocess.PIPE, text=True)
    assert "writing the capture failed" in attached.stderr.read()
    assert attached.wait(PATIENCE) == int(detached) and program.poll() is None
    assert "memfd:memtrack" not in Path(f"/proc/{pid}/maps").read_text()
    program.kill()
    program.communicate()
