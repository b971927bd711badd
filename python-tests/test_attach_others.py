"""'memtrack attach' and 'detach' beside a recorder that cannot be seen from here, and one that is interrupted."""

import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from conftest import PATIENCE, until
from test_attach import Attached, figures, target  # noqa: F401

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="programs are attached to on x86-64 only")

# Its only thread is in the dynamic loader, where nothing may be called, until it reads a line.
IN_LOADER = """
import ctypes, sys
@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
def visit(*_):
    print("ready", flush=True)
    sys.stdin.readline()
    return 1
ctypes.CDLL(None).dl_iterate_phdr(visit, None)
print("through", flush=True)
sys.stdin.readline()
"""


def assert_refused(command):
    refused = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    said = " ".join(refused.stderr.split())
    assert refused.returncode == 1 and "nothing was changed" in said, refused.stderr


def test_a_recorder_that_cannot_be_seen_goes_on(executable, target, tmp_path):  # noqa: F811
    # As short as a socket's path must be.
    private = Path(tempfile.mkdtemp(prefix="mt"))
    hidden = private.with_name(private.name + "-hidden")
    try:
        with pytest.MonkeyPatch.context() as environment:
            for variable in ("TMPDIR", "XDG_RUNTIME_DIR"):
                environment.setenv(variable, str(private))
            attached = Attached(executable, target.pid, "-o", tmp_path / "a.bin")
        target.grow(3)
        # As in a container, or with the directory of another user.
        private.rename(hidden)
        for command in (["detach", str(target.pid)], ["attach", str(target.pid), "-o", tmp_path / "b.bin"]):
            assert_refused([executable, *command])
        # Its process is there, and drains nothing.
        attached.process.send_signal(signal.SIGSTOP)
        try:
            assert_refused([executable, "detach", str(target.pid)])
        finally:
            attached.process.send_signal(signal.SIGCONT)
        target.grow(4)
        hidden.rename(private)
        attached.end()
        assert figures(executable, tmp_path / "a.bin")["allocations"]["bytes"] > 7 * 100_000
        assert not (tmp_path / "b.bin").exists()
        target.end()
    finally:
        for directory in (private, hidden):
            shutil.rmtree(directory, ignore_errors=True)


def test_what_is_interrupted_before_it_records_does_not_record(executable, memtrack, tmp_path):
    (tmp_path / "program.py").write_text(IN_LOADER)
    program = subprocess.Popen([sys.executable, tmp_path / "program.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert program.stdout.readline() == "ready\n"
        command = [executable, "attach", str(program.pid), "--detached", "-o", tmp_path / "a.bin"]
        attach = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        in_background = lambda: Path(f"/proc/{attach.pid}/task/{attach.pid}/children").read_text().split()
        recorder = int(until("memtrack is in the background", in_background)[0])
        until("it looks for a safe point", lambda: (tmp_path / "a.bin").exists())
        attach.send_signal(signal.SIGINT)
        print("go on", file=program.stdin, flush=True)
        assert program.stdout.readline() == "through\n"
        said = attach.communicate(timeout=PATIENCE)[1]
        assert "in the background" not in said, said
        until("it has ended", lambda: not os.path.exists(f"/proc/{recorder}"))
        assert program.pid not in [process["pid"] for process in memtrack.processes()]
        print(file=program.stdin, flush=True)
        assert program.wait(PATIENCE) == 0
    finally:
        program.kill()
        program.wait()
