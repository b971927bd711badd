"""memtrack.Tracker where the program has changed what its connection to the recorder uses: timeouts of sockets, numbers of descriptors,
signals; and where another recording does not answer.
"""

import os
import shutil
import signal
import subprocess
import sys

import pytest

from conftest import KEEP, PATIENCE, REPOSITORY, until
from test_tracker import figures, program  # noqa: F401


def blocks(figures):  # noqa: F811
    return figures["allocations"]["bytes"] // 70_002


def test_timeouts_of_the_programs_sockets_are_not_its_own(program, python, figures):  # noqa: F811
    """No request is done in a microsecond."""
    program(
        python,
        """
import socket
socket.setdefaulttimeout(0.000001)
for name in ("a.bin", "b.bin"):
    with memtrack.Tracker(name) as tracker:
        kept = keep(5)
        tracker.mark("here")
        tracker.snapshot("now-" + name)
        with memtrack.Tracker("inner-" + name):
            kept += keep(3)
""",
    )
    expected = {"a.bin": 8, "b.bin": 8, "now-a.bin": 5, "now-b.bin": 5, "inner-a.bin": 3, "inner-b.bin": 3}
    assert {name: blocks(figures(name)) for name in expected} == expected


def test_a_program_with_thousands_of_descriptors(program, python, figures):  # noqa: F811
    program(
        python,
        """
import resource
wanted = 2000
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
if soft < wanted:
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
files = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
for name in ("a.bin", "b.bin", "c.bin"):
    with memtrack.Tracker(name):
        kept = keep(5)
""",
    )
    assert [blocks(figures(name)) for name in ("a.bin", "b.bin", "c.bin")] == [5, 5, 5]


def test_how_many_descriptors_a_recording_needs_is_told(program, python):  # noqa: F811
    """Whichever step of the recorder has none left: that of the file, of its sockets, of a thread's queue."""
    said = program(
        python,
        """
import resource
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
for most in range(8, 15):
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        memtrack.Tracker(f"{most}.bin").start()
    except memtrack.Error as error:
        print(error)
    memtrack._tracker._recorder = None
""",
    )
    assert len(said) > 3 and all("needs about 15 file descriptors" in line and "ulimit -n" in line for line in said), said
    assert not any("TMPDIR" in line for line in said), said


def test_limits_of_the_program_are_told(program, python):  # noqa: F811
    """Neither is an error of Python's: no descriptor for the import of the package's own modules, and no memory file of the library's size."""
    (said,) = program(
        python,
        """
import resource
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, hard))
try:
    memtrack.Tracker("a.bin")
except memtrack.Error as error:
    said = str(error)
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
assert "Too many open files" in said, said
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
try:
    memtrack.Tracker("a.bin").start()
except memtrack.Error as error:
    print(error)
""",
    )
    assert "File too large; it is loaded from memory, which 'ulimit -f' limits, too" in said


def test_what_is_printed_to_a_closed_output_is_no_request(program, python, figures):  # noqa: F811
    program(
        python,
        """
for number in range(3):
    os.close(number)
tracker = memtrack.Tracker("a.bin")
tracker.start()
own = [number for number in range(3) if os.path.exists(f"/proc/self/fd/{number}")]
for number in own:
    os.write(number, b"an error message\\n")
kept = keep(5)
try:
    tracker.snapshot("now.bin")
    tracker.stop()
    os._exit(len(own))
except BaseException:
    os._exit(99)
""",
    )
    assert blocks(figures("a.bin")) == blocks(figures("now.bin")) == 5


KILLED = """
def is_recorder(pid):
    try:
        words = open(f"/proc/{pid}/cmdline", "rb").read().split(bytes(1))
        return words[1:2] == [b"recorder"] and os.readlink(f"/proc/{pid}/cwd") == os.getcwd()
    except OSError:
        return False

signal.signal(signal.SIGPIPE, signal.SIG_DFL)
tracker = memtrack.Tracker("a.bin")
tracker.start()
(recorder,) = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and is_recorder(int(pid))]
os.kill(recorder, 9)
while is_recorder(recorder):
    time.sleep(0.001)
try:
    tracker.stop()
except memtrack.Error as error:
    assert "recorder has ended" in str(error), error
    print("told")
with memtrack.Tracker("b.bin"):
    kept = keep(5)
"""


def test_a_recorder_that_was_killed_ends_no_program_that_pipes_may_end(program, python, figures):  # noqa: F811
    assert program(python, KILLED) == ["told"]
    assert blocks(figures("b.bin")) == 5


def stopped(executable, tmp_path, environment):
    """A recording whose process was stopped, as by Ctrl-Z."""
    command = [executable, "run", "-q", "-o", tmp_path / "other.bin", sys.executable, "-c", "print(1, flush=True); input()"]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    assert other.stdout.readline() == b"1\n"
    directory = os.path.join(environment["XDG_RUNTIME_DIR"], "memtrack")
    until("it has a socket", lambda: os.path.isdir(directory) and any(name.endswith(".sock") for name in os.listdir(directory)))
    other.send_signal(signal.SIGSTOP)
    return other


@pytest.mark.parametrize("which", ["child", "grandchild"])
def test_a_recording_that_was_stopped_holds_up_no_other(memtrack, executable, python, tmp_path, which):
    """It accepts connections, and never answers: what asks it for more than a moment hangs."""
    (tmp_path / "runtime").mkdir(mode=0o700)
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY / "python"),
        "MEMTRACK": str(executable),
        "XDG_RUNTIME_DIR": str(tmp_path / "runtime"),
    }
    other = stopped(executable, tmp_path, environment)
    forked = "child = os.fork() or (os.fork() and os.wait() and os._exit(0)) or 0" if which == "grandchild" else "child = os.fork()"
    code = KEEP + forked + """
if child:
    assert os.waitpid(child, 0)[1] == 0
else:
    memtrack.mark("in the child")
    with memtrack.Tracker("span.bin"):
        kept = keep(3)
    os._exit(0)
"""
    try:
        outcome, capture = memtrack.run(python, "-c", code, options=["--follow"], env=environment)
    finally:
        other.send_signal(signal.SIGCONT)
        other.communicate(b"\n", timeout=PATIENCE)
    assert outcome.status == 0 and not outcome.stderr, outcome.stderr.decode()
    assert [mark["name"] for mark in capture.stats()["capture"]["marks"]] == ["in the child"]


REFUSED = """
with memtrack.Tracker("old.bin", follow_fork=True):
    kept = keep(3)
    if not os.fork():
        kept += keep(4)
        os._exit(0)
    os.wait()
before = {name: open(name, "rb").read() for name in os.listdir(".") if name.endswith(".bin")}
assert len(before) == 2, list(before)

def interrupt(memory, slots):
    raise KeyboardInterrupt

library = memtrack._tracker._library
for attach, kind in (lambda memory, slots: -6, memtrack.Error), (interrupt, KeyboardInterrupt):
    attach, library.attach = library.attach, attach
    try:
        memtrack.Tracker("old.bin", follow_fork=True, overwrite=True).start()
        raise SystemExit("no error")
    except kind:
        pass
    library.attach = attach
    after = {name: open(name, "rb").read() for name in os.listdir(".") if name.endswith(".bin")}
    assert after == before, [(name, len(content)) for name, content in after.items()]
recorder = memtrack._tracker._recorder
exchange = recorder.exchange
def interrupted(request):
    done = exchange(request)
    if b"span_begin" in request:
        raise KeyboardInterrupt
    return done
with memtrack.Tracker("first.bin"):
    recorder.exchange = interrupted
    try:
        memtrack.Tracker("old.bin", overwrite=True).start()
        raise SystemExit("no error")
    except KeyboardInterrupt:
        pass
    recorder.exchange = exchange
os.unlink("first.bin")
after = {name: open(name, "rb").read() for name in os.listdir(".") if name.endswith(".bin")}
assert after == before
with memtrack.Tracker("old.bin", follow_fork=True, overwrite=True):
    kept = keep(5)
assert sorted(name for name in os.listdir(".") if "bin" in name or "memtrack" in name) == ["old.bin"], os.listdir(".")
"""


def test_a_start_that_is_refused_or_interrupted_overwrites_nothing(program, python, figures):  # noqa: F811
    program(python, REFUSED)
    assert blocks(figures("old.bin")) == 5


def test_an_attach_that_is_refused_overwrites_nothing(executable, memtrack, python, tmp_path):
    (tmp_path / "old.bin").write_bytes(b"precious")
    target = subprocess.Popen([python, "-c", "print(1, flush=True); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert target.stdout.readline() == b"1\n"
    command = [executable, "attach", str(target.pid), "-o", tmp_path / "first.bin"]
    first = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert "recording process" in first.stderr.readline()
    try:
        refused = memtrack("attach", str(target.pid), "-f", "-o", tmp_path / "old.bin")
        assert refused.status == 1 and b"is already being recorded" in refused.stderr, refused.stderr
        assert (tmp_path / "old.bin").read_bytes() == b"precious"
        assert sorted(os.listdir(tmp_path)) == ["first.bin", "old.bin"]
    finally:
        target.communicate(b"\n", timeout=PATIENCE)
        first.communicate(timeout=PATIENCE)


def test_a_program_that_cannot_be_started_overwrites_nothing(memtrack, tmp_path):
    (tmp_path / "old.bin").write_bytes(b"precious")
    shutil.copy(shutil.which("true"), tmp_path / "program")
    # The system starts no program that is open for writing.
    with open(tmp_path / "program", "ab"):
        outcome = memtrack("run", "-f", "-o", tmp_path / "old.bin", tmp_path / "program")
    assert outcome.status == 126 and b"cannot be started" in outcome.stderr, outcome.stderr
    assert (tmp_path / "old.bin").read_bytes() == b"precious"
