"""Whatever form the target has, the program sees what it would see without memtrack."""

import fcntl
import os
import pathlib
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
import zipapp

import pytest

from conftest import PATIENCE, interpreter_path

ARGUMENTS = ("-o", "of the program", "--", "-f", "--allocation-timestamps", "", "ünï", os.fsdecode(b"\xff"))


@pytest.fixture
def environment(programs):
    """Without what would let the two runs differ by themselves."""
    ours = ("PYTEST", "MEMTRACK", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**kept, "PYTHONPATH": str(programs), "PYTHONDONTWRITEBYTECODE": "1"}


ENVIRONMENT_ORDER = re.compile(rb' "environment_(of_children|order)": ("[^\n]*"|\[[^\]]*\]),\n')


def without_order(outcome):
    """A version manager's script gives its program the variables in an order of its own, another in each run."""
    return outcome.status, ENVIRONMENT_ORDER.sub(b"", outcome.stdout), outcome.stderr


@pytest.fixture
def same(memtrack, plain, environment):
    """Runs what memtrack is given and what is the same without it; both must see the same. Gives the output."""

    def check(target, without, options=(), seen=lambda outcome: outcome, **process):
        process = {"env": environment, **process}
        outcome, capture = memtrack.run(*target, options=options, **process)
        assert seen(outcome) == seen(plain(*without, **process))
        if outcome.status == 0:
            assert capture.stats()["allocations"]["count"] > 10
        return outcome

    return check


@pytest.mark.parametrize("version", ["3.8", "3.11", "3.13", "system"])
def test_script(same, programs, version):
    python, script = interpreter_path(version), programs / "surroundings.py"
    outcome = same([script, *ARGUMENTS], [python, script, *ARGUMENTS], options=["--python", python])
    assert outcome.status == 0, outcome.stderr


@pytest.mark.parametrize("python", ["default", "chosen"])
def test_module(same, programs, python):
    options, python = ([], "python3") if python == "default" else (["--python", sys.executable], sys.executable)
    target = ["-m", "package", *ARGUMENTS]
    outcome = same(target, [python, *target], options=options, cwd=programs, seen=without_order)
    assert outcome.stdout.startswith(b"__main__ package ["), outcome.stderr


def test_code(same):
    code = "import surroundings"
    assert same(["-c", code, *ARGUMENTS], ["python3", "-c", code, *ARGUMENTS], seen=without_order).status == 0


def test_program_from_standard_input(same):
    command = ["python3", "-", *ARGUMENTS]
    code = b"import sys, surroundings; print(__name__, sys.argv)"
    assert same(command, command, seen=without_order, input=code).status == 0
    assert same(command[1:], command, seen=without_order, input=code).status == 0


@pytest.mark.parametrize("form", ["directory", "archive"])
def test_directories_and_archives(same, programs, tmp_path, form):
    application = tmp_path / "application"
    application.mkdir()
    shutil.copy(programs / "surroundings.py", application / "__main__.py")
    if form == "archive":
        zipapp.create_archive(application, tmp_path / "application.pyz")
        application = tmp_path / "application.pyz"
    command = [sys.executable, application, *ARGUMENTS]
    assert same(command[1:], command, options=["--python", sys.executable]).status == 0


def test_name_beyond_ascii(same, programs, tmp_path):
    script = tmp_path / "sкрипт 名.py"
    shutil.copy(programs / "surroundings.py", script)
    assert same([script], [sys.executable, script], options=["--python", sys.executable]).status == 0


def test_options_behind_the_target_are_the_programs(memtrack, plain, programs, environment):
    script = [programs / "surroundings.py", "-f", "--quiet", "--", "--help"]
    outcome = memtrack("run", "-q", "-o", "capture.bin", "--python", sys.executable, *script, env=environment)
    assert outcome == plain(sys.executable, *script, env=environment)


@pytest.mark.parametrize("allocator", ["malloc", "debug", "pymalloc_debug"])
def test_python_allocators(same, environment, programs, allocator):
    command = [interpreter_path("3.11"), programs / "surroundings.py"]
    assert same(command, command, env={**environment, "PYTHONMALLOC": allocator}).status == 0


def test_interpreter_from_the_path(same, programs):
    """Also where it is a version manager's script."""
    command = ["python3", programs / "surroundings.py", *ARGUMENTS]
    assert same(command, command, seen=without_order).status == 0


@pytest.mark.parametrize("options", [["-I"], ["-P"], ["-X", "dev"], ["-OO", "-B"], ["-E", "-s"]], ids=" ".join)
def test_interpreter_with_options(same, programs, options):
    command = [interpreter_path("3.11"), *options, programs / "surroundings.py", "argument"]
    assert same(command, command).status == 0


@pytest.mark.parametrize("shebang", ["/usr/bin/env python3", "direct", "direct -I", "/bin/sh"])
def test_shebang(same, programs, tmp_path, shebang):
    script = tmp_path / "tool"
    body = (programs / "surroundings.py").read_text()
    if shebang == "/bin/sh":
        body = f'exec "{sys.executable}" "{programs / "surroundings.py"}" "$0" "$@"\n'
    script.write_text(f"#!{shebang.replace('direct', sys.executable)}\n{body}")
    script.chmod(0o755)
    seen = without_order if "env" in shebang else lambda outcome: outcome
    assert same([script, *ARGUMENTS], [script, *ARGUMENTS], seen=seen).status == 0
    assert same(["./tool"], ["./tool"], seen=seen).status == 0


def test_program_that_is_not_python(same):
    same(["/bin/ls", "-d", "/"], ["/bin/ls", "-d", "/"], options=["--snapshot-interval", "5"])


@pytest.mark.parametrize("preload", [None, "", "libc.so.6"])
def test_preload_is_as_it_was(same, environment, programs, preload):
    if preload is not None:
        environment["LD_PRELOAD"] = preload
    command = [sys.executable, programs / "surroundings.py"]
    outcome = same(command, command, env=environment)
    assert (b'"LD_PRELOAD"' in outcome.stdout) == (preload is not None)


def test_input_is_the_programs(same, programs):
    command = [sys.executable, programs / "surroundings.py"]
    assert b"input: a line\nand more" in same(command, command, input=b"a line\nand more").stdout


def test_working_directory_is_the_programs(same, programs, tmp_path):
    directory = tmp_path / "elsewhere"
    directory.mkdir()
    command = [sys.executable, os.path.relpath(programs / "surroundings.py", directory)]
    assert b"elsewhere" in same(command, command, cwd=directory).stdout


def on_a_terminal(command, typed=(), **options):
    """Runs a command on a terminal of its own, types each text when its cue was printed; (status, what was printed)."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))
    process = subprocess.Popen(
        [str(word) for word in command],
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0), **options,
    )  # fmt: skip
    os.close(theirs)
    printed, typed = b"", list(typed)
    while chunk := read(ours):
        printed += chunk
        while typed and typed[0][0] in printed:
            os.write(ours, typed.pop(0)[1])
    os.close(ours)
    return process.wait(PATIENCE), printed


def read(descriptor):
    try:
        return os.read(descriptor, 65536)
    except OSError:  # everybody at the other end has gone
        return b""


def test_terminal(memtrack, environment, programs, tmp_path):
    command = [sys.executable, programs / "surroundings.py"]
    where = {"env": environment, "cwd": tmp_path}
    status, printed = on_a_terminal(memtrack.command("run", "-q", "-o", "capture.bin", *command), **where)
    alone_status, alone = on_a_terminal(command, **where)
    assert status == alone_status == 0
    assert b"input: terminal" in printed
    # The terminal's owner leads the session only where nobody stands between.
    assert printed == alone.replace(b'"session_leader": true', b'"session_leader": false')


def test_interrupts_from_the_terminal_reach_the_program_once(memtrack, programs, tmp_path):
    typed = [(cue, b"\x03") for cue in (b"ready\r\n", b"interrupt 1\r\n", b"interrupt 2\r\n")]
    command = memtrack.command("run", "-q", "-o", "capture.bin", sys.executable, programs / "interrupted.py")
    status, printed = on_a_terminal(command, typed, cwd=tmp_path)
    lines = printed.replace(b"^C", b"").decode().split("\r\n")
    assert [line for line in lines if line] == ["ready", "interrupt 1", "interrupt 2", "interrupt 3", "had 3"]
    assert status == 5
    assert memtrack("stats", "capture.bin").status == 0


# --- what does not exist ----------------------------------------------------------------------------------------------


def test_script_unknown_to_the_interpreter(same):
    outcome = same(["python3", "missing.py"], ["python3", "missing.py"])
    assert outcome.status == 2 and b"can't open file" in outcome.stderr


def test_unknown_module(same):
    outcome = same(["-m", "no_such_module"], ["python3", "-m", "no_such_module"])
    assert outcome.status == 1 and b"No module named no_such_module" in outcome.stderr


def test_unknown_interpreter(memtrack, programs):
    outcome, _ = memtrack.run(programs / "surroundings.py", options=["--python", "/no/such/python"])
    assert outcome.status == 127 and b"/no/such/python" in outcome.stderr


# --- the capture's file -----------------------------------------------------------------------------------------------


def test_name_of_the_capture(memtrack, tmp_path):
    (tmp_path / "app.py").write_text("import os\nprint(os.getpid())\n")
    outcome = memtrack("run", "--python", sys.executable, "app.py")
    pid = outcome.stdout.decode().strip()
    assert (tmp_path / f"memtrack-app.py.{pid}.bin").is_file()
    assert f"memtrack-app.py.{pid}.bin".encode() in outcome.stderr


def test_virtual_environment_of_the_shell(memtrack, environment, tmp_path):
    directory = pathlib.Path(sys.executable).parent.parent
    if not (directory / "pyvenv.cfg").exists():
        pytest.skip("the tests do not run in a virtual environment")
    (tmp_path / "where.py").write_text("import sys\nprint(sys.prefix)\n")
    outcome, _ = memtrack.run("where.py", env={**environment, "VIRTUAL_ENV": str(directory)})
    assert outcome.stdout.decode().strip() == str(directory)


@pytest.mark.parametrize("options", [(), ("--follow",), ("--dormant",)], ids=" ".join)
def test_a_service_manager_names_the_program(executable, tmp_path, options):
    """Sockets of systemd are for the process whose id stands beside them."""
    code = "import os; print(os.getpid(), os.environ['LISTEN_PID'], os.environ['WATCHDOG_PID'], os.environ['LISTEN_FDS'], flush=True)"
    child = f"{code}; import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"
    script = 'LISTEN_FDS=1 WATCHDOG_PID=1 LISTEN_PID=$$ exec "$@"'
    command = [executable, "run", "-q", *options, "-o", tmp_path / "c.bin", sys.executable, "-c", child]
    said = subprocess.run(["sh", "-c", script, "sh", *command], capture_output=True, text=True, check=True, timeout=PATIENCE)
    [pid, *named], [_, *inherited] = (line.split() for line in said.stdout.splitlines())
    assert named == inherited == [pid, "1", "1"]
