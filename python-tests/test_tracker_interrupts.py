"""memtrack.Tracker where a signal handler raises amid its start or end, and where the program closes descriptors that are not its own.

Whenever the signal comes: the handler's exception reaches the program, no file of the program is touched, and the next
Tracker's file is right.
"""

import os
import subprocess

import pytest

from conftest import PATIENCE, REPOSITORY

BEGINNING = """
import os, signal, sys, memtrack, memtrack._tracker
kind = {"KeyboardInterrupt": KeyboardInterrupt, "TimeoutError": TimeoutError}[sys.argv[1]]
def handle(*_):
    raise kind
signal.signal(signal.SIGALRM, handle)
CONTENT = b"precious" * 1000
with open("precious", "wb") as file:
    file.write(CONTENT)

def check(delay, where):
    # Gets the number of what was closed.
    with open("precious", "rb") as file:
        assert not memtrack.is_recording() or where == "before", (delay, where)
        with memtrack.Tracker("next.bin", overwrite=True):
            kept = bytearray(3_000_000)
        assert os.fstat(file.fileno()).st_size == len(CONTENT), (delay, where)
        assert file.read() == CONTENT, (delay, where)
    peak = memtrack.Capture("next.bin").stats()["peak"]["bytes"]
    assert 3_000_000 <= peak < 3_100_000, (delay, where, peak)

def settle(tracker, error):
    # Python runs handlers before the first instruction of __exit__, too, where nothing can be done about it: it is called again.
    place, names = error.__traceback__, []
    while place:
        names.append(place.tb_frame.f_code.co_name)
        place = place.tb_next
    if names[-2:-1] == ["__exit__"] and (tracker in memtrack._tracker._spans or tracker is memtrack._tracker._active):
        tracker.stop()

def strike(delay):
    # Whether the handler ran amid the start or the end of a Tracker.
    tracker = memtrack.Tracker("interrupted.bin", overwrite=True)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, delay)
            with tracker:
                pass
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except kind as error:
        settle(tracker, error)
        return True
    return False

delays = [0.0001 * number for number in range(1, 11)] + [0.0005 * number for number in range(3, 13)]
with memtrack.Tracker("first.bin", overwrite=True):
    pass
"""

STARTS = """
struck = 0
for delay in delays:
    struck += strike(delay)
    check(delay, "start")
assert struck, "the signal came too late each time"
print(len(os.listdir("/proc/self/fd")))
"""

STOPS = """
struck = 0
for delay in [0.00001 * number for number in range(2, 22)]:
    tracker = memtrack.Tracker("interrupted.bin", overwrite=True)
    tracker.start()
    kept = bytearray(1_000_000)
    where = "before"
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, delay)
            where = "stop"
            tracker.stop()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except kind:
        struck += 1
    if memtrack.is_recording():
        tracker.stop()
        where = "before"
    peak = memtrack.Capture("interrupted.bin").stats()["peak"]["bytes"]
    assert 1_000_000 <= peak < 1_100_000, (delay, peak)
    check(delay, where)
assert struck, "the signal came too late each time"
"""

SPANS = """
struck = 0
with memtrack.Tracker("outer.bin", overwrite=True):
    kept = bytearray(1_000_000)
    for delay in [0.00005 * number for number in range(1, 40)]:
        struck += strike(delay)
        with memtrack.Tracker("next.bin", overwrite=True):
            more = bytearray(2_000_000)
        peak = memtrack.Capture("next.bin").stats()["peak"]["bytes"]
        assert 2_000_000 <= peak < 2_100_000, (delay, peak)
        del more
assert struck, "the signal came too late each time"
assert not memtrack.is_recording()
stats = memtrack.Capture("outer.bin").stats()
assert stats["capture"]["complete"] and stats["peak"]["bytes"] >= 3_000_000, stats
"""

CLOSED = """
import os, socket, memtrack
with memtrack.Tracker("first.bin"):
    pass
os.closerange(3, 256)
near, far = socket.socketpair()
log = open("log", "w")
for name in ("second.bin", "third.bin"):
    with memtrack.Tracker(name):
        kept = bytearray(1_000_000)
    assert memtrack.Capture(name).stats()["peak"]["bytes"] >= 1_000_000
far.setblocking(False)
try:
    raise AssertionError(far.recv(4096))
except BlockingIOError:
    pass
near.send(b"own")
assert far.recv(4096) == b"own"
log.write("line")
log.close()
assert open("log").read() == "line"
"""

CLOSED_WITHIN = """
import os, socket, warnings, memtrack
tracker = memtrack.Tracker("first.bin")
tracker.start()
kept = bytearray(1_000_000)
os.closerange(3, 256)
near, far = socket.socketpair()
try:
    tracker.stop()
    raise SystemExit("no error")
except memtrack.Error as error:
    assert "closed the connection" in str(error), error
far.setblocking(False)
try:
    raise AssertionError(far.recv(4096))
except BlockingIOError:
    pass
assert not memtrack.is_recording()
with memtrack.Tracker("second.bin"):
    more = bytearray(2_000_000)
assert memtrack.Capture("second.bin").stats()["peak"]["bytes"] >= 2_000_000
"""

AGAIN = """
import memtrack
failing = memtrack.Tracker("missing/x.bin")
def fails():
    try:
        failing.start()
    except memtrack.Error:
        return
    raise SystemExit("no error")
fails()
with memtrack.Tracker("first.bin"):
    kept = bytearray(1_000_000)
    fails()
    assert memtrack.is_recording()
    more = bytearray(1_000_000)
assert memtrack.Capture("first.bin").stats()["peak"]["bytes"] >= 2_000_000
"""


def run(python, program, executable, directory, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "python"), "MEMTRACK": str(executable)}
    done = subprocess.run([*([python] if isinstance(python, str) else python), "-c", program, *arguments], cwd=directory, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("kind", ["KeyboardInterrupt", "TimeoutError"])
@pytest.mark.parametrize("program", [STARTS, STOPS, SPANS], ids=["starts", "stops", "spans"])
def test_what_a_handler_raises_amid_a_tracker_reaches_the_program_and_nothing_else(interpreter, program, kind, executable, tmp_path):
    run(interpreter, BEGINNING + program, executable, tmp_path, kind)


@pytest.mark.parametrize("program", [CLOSED, CLOSED_WITHIN], ids=["between", "within"])
def test_a_descriptor_that_the_program_uses_for_something_else_is_left_alone(interpreter, program, executable, tmp_path):
    run(interpreter, program, executable, tmp_path)


def test_a_start_that_failed_and_fails_again_ends_no_other_recording(interpreter, executable, tmp_path):
    run(interpreter, AGAIN, executable, tmp_path)
