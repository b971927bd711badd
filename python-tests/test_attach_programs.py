"""'memtrack attach' goes on in programs that the process starts, or becomes."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from conftest import PATIENCE, until
from test_attach import Attached, figures

STARTS = """
import multiprocessing, os, subprocess, sys
KEEPS = "kept = [bytearray(100_000) for _ in range(20)]"
COMMAND = [sys.executable, "-c", KEEPS]
def keep():
    globals()["kept"] = [bytearray(100_000) for _ in range(20)]
def begin(how):
    if how == "Popen":
        subprocess.run(COMMAND, check=True)
    elif how == "environment":
        subprocess.run(COMMAND, check=True, env={"NAME": "value"})
    elif how == "system":
        assert os.system(f"'{sys.executable}' -c '{KEEPS}'") == 0
    elif how == "posix_spawn":
        os.waitpid(os.posix_spawn(sys.executable, COMMAND, os.environ), 0)
    elif how == "multiprocessing":
        process = multiprocessing.get_context("spawn").Process(target=keep)
        process.start()
        process.join()
    elif how == "fork and exec":
        if not (child := os.fork()):
            os.execv(sys.executable, COMMAND)
        os.waitpid(child, 0)
    elif how == "exec":
        os.execv(sys.executable, [sys.executable, "-c", KEEPS + "; print('done', flush=True); input(); import os; print(*os.environ); input()"])
if __name__ == "__main__":
    print("ready", flush=True)
    begin(input())
    print("done", flush=True)
    input()
"""
HOWS = ("Popen", "environment", "system", "posix_spawn", "multiprocessing", "fork and exec")


@pytest.fixture
def program(tmp_path):
    (tmp_path / "starts.py").write_text(STARTS)
    program = subprocess.Popen(
        [sys.executable, "starts.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, cwd=tmp_path
    )
    assert program.stdout.readline() == "ready\n"
    yield program
    program.kill()
    program.communicate()


def blocks(executable, capture):
    """How many of the blocks that the new program keeps are in the capture."""
    query = [executable, "query", "--json", "bytes >= 100000 and bytes < 100200", "-n", "0", capture]
    return len(json.loads(subprocess.check_output(query))["rows"])


@pytest.mark.parametrize("how", HOWS)
def test_programs_that_are_started_are_recorded(executable, program, tmp_path, how):
    attached = Attached(executable, program.pid, "--follow", "-o", tmp_path / "c.bin")
    program.stdin.write(f"{how}\n")
    assert program.stdout.readline() == "done\n"
    said = attached.end()
    assert "not recorded" not in said
    assert max(blocks(executable, capture) for capture in tmp_path.glob("c.*-*.bin")) == 20, said


@pytest.mark.parametrize("options", [[], ["--follow"]], ids=["alone", "--follow"])
def test_the_program_that_the_process_becomes_is_recorded_and_left_as_it_was(executable, program, tmp_path, options):
    """As autoreloaders do it."""
    capture = tmp_path / "c.bin"
    attached = Attached(executable, program.pid, "-o", capture, *options)
    program.stdin.write("exec\n")
    assert program.stdout.readline() == "done\n"
    marked = subprocess.run([executable, "mark", str(program.pid), "now"], capture_output=True, text=True)
    assert marked.returncode == 0, marked.stderr
    assert "interrupted" not in attached.end()
    program.stdin.write("\n")
    names = program.stdout.readline().split()
    assert "MEMTRACK_SOCKET" not in names and "LD_PRELOAD" not in names
    stats = figures(executable, capture)
    assert stats["capture"]["complete"] and stats["leaked"]["moment"] == "recording-end"
    assert blocks(executable, capture) == 20


def test_programs_that_are_started_later_are_left_alone(executable, program, tmp_path):
    Attached(executable, program.pid, "--follow", "-o", tmp_path / "c.bin").end()
    program.stdin.write("exec\n")
    assert program.stdout.readline() == "done\n"
    until("it is another program", lambda: "-c" in Path(f"/proc/{program.pid}/cmdline").read_text())
    assert "memtrack" not in Path(f"/proc/{program.pid}/maps").read_text()
    assert "MEMTRACK_SOCKET" not in Path(f"/proc/{program.pid}/environ").read_text()


def test_a_program_that_becomes_a_static_one_is_recorded_no_more(executable, tmp_path):
    (tmp_path / "waits.c").write_text("#include <unistd.h>\nint main(void) { char c; return read(0, &c, 1) != 0; }\n")
    compiled = shutil.which("gcc") and subprocess.run(["gcc", "-static", "-o", "waits", "waits.c"], cwd=tmp_path, capture_output=True)
    if not compiled or compiled.returncode:
        pytest.skip("needs a compiler and a static C library")
    code = "import os\nprint('ready', flush=True)\ninput()\nkept = [bytearray(1000) for _ in range(20)]\nos.execv('./waits', ['waits'])\n"
    program = subprocess.Popen([sys.executable, "-uc", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    assert program.stdout.readline() == "ready\n"
    attach = [executable, "attach", str(program.pid), "-o", tmp_path / "c.bin"]
    attached = subprocess.Popen(attach, stderr=subprocess.PIPE, text=True)
    assert "recording process" in attached.stderr.readline()
    program.stdin.write("\n")
    program.stdin.flush()
    said = attached.stderr.readline()
    while "recorded no more" not in said and attached.poll() is None:
        said += attached.stderr.readline()
    assert "/waits, which cannot" in said
    program.communicate(timeout=PATIENCE)
    assert program.returncode == 0
    assert "recording ends at an exec" in " ".join(attached.communicate(timeout=PATIENCE)[1].split())


@pytest.fixture
def of_another_user():
    """A program of another user that starts one when it is told to."""
    if os.getuid() != 0:
        pytest.skip("needs root")
    code = "import os, subprocess, sys\nos.setgroups([])\nos.setgid(65534)\nos.setuid(65534)\nprint('ready', flush=True)\ninput()\n"
    kept = "kept = [bytearray(100_000) for _ in range(20)]; print(7)"
    code += f"print(subprocess.run([sys.executable, '-c', {kept!r}], capture_output=True, text=True), flush=True)\ninput()\n"
    program = subprocess.Popen(["/usr/bin/python3", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, cwd="/")
    assert program.stdout.readline() == "ready\n"
    yield program
    program.kill()
    program.communicate()


def attach_with_a_library_of_roots(executable, program, tmp_path, **environment):
    """To the program of another user, who cannot read what is in the directory for the library."""
    (tmp_path / "library").mkdir(mode=0o700)
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "library"), **environment}
    attach = [executable, "attach", str(program.pid), "--follow", "-o", tmp_path / "c.bin"]
    return subprocess.Popen(attach, stderr=subprocess.PIPE, text=True, env=environment)


def end_both(program, attached, said=""):
    assert "stdout='7\\n', stderr='')" in program.stdout.readline()
    program.communicate("\n", timeout=PATIENCE)
    return " ".join((said + attached.communicate(timeout=PATIENCE)[1]).split())


def test_programs_of_another_user_are_recorded(executable, of_another_user, tmp_path):
    with tempfile.TemporaryDirectory(dir="/tmp") as temporary:
        os.chmod(temporary, 0o711)
        attached = attach_with_a_library_of_roots(executable, of_another_user, tmp_path, TMPDIR=temporary)
        assert "recording process" in attached.stderr.readline()
        [directory] = Path(temporary).iterdir()
        found = {path.name: path.stat() for path in directory.iterdir()}
        owned = {name: (of.st_uid, of.st_mode & 0o777) for name, of in found.items()}
        # Whatever that user changed there would be loaded by programs that may do more than he may.
        assert (directory.stat().st_uid, directory.stat().st_mode & 0o777) == (0, 0o711)
        library = next(name for name in found if name.endswith(".so"))
        assert owned == {"socket": (65534, 0o600), "lock": (0, 0o600), library: (0, 0o444)}
        of_another_user.stdin.write("\n")
        said = end_both(of_another_user, attached)
        assert "not recorded" not in said, said
        assert [blocks(executable, capture) for capture in tmp_path.glob("c.*-*.bin")] == [20]
        assert not directory.exists()


def test_programs_that_cannot_read_the_library_run_without_it(executable, of_another_user, tmp_path):
    """Where no directory for temporary files can be reached by the other user, either."""
    # With a long name, as the test's own directory may have, the socket would be elsewhere.
    with tempfile.TemporaryDirectory(dir="/tmp") as own:
        attached = attach_with_a_library_of_roots(executable, of_another_user, tmp_path, TMPDIR=own)
        said = ""
        while "recording process" not in said:
            said += attached.stderr.readline()
        of_another_user.stdin.write("\n")
        said = end_both(of_another_user, attached, said)
    assert "user 65534 cannot reach " in said and "set TMPDIR to a directory" in said, said
    assert "1 process that was started was not recorded" in said, said
