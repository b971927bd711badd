"""`tree` on a terminal of its own: keys, windows that change their size, and a terminal left as it was found."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios

import pytest

from conftest import PATIENCE, PROGRAMS

ALTERNATE, MAIN, SHOW_CURSOR = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25h"


@pytest.fixture(scope="module")
def capture(module_memtrack):
    program = PROGRAMS.parent.parent / "tests" / "browser" / "program.py"
    return module_memtrack.record(sys.executable, program)


class Terminal:
    """A program on a terminal: what it writes, and keys for it."""

    def __init__(self, command, columns=80, rows=24, kind="xterm-256color"):
        ready, begin = os.pipe()
        self.program, self.master = pty.fork()
        if self.program == 0:
            environment = {**os.environ, "TERM": kind}
            os.read(ready, 1)
            os.execvpe(command[0], [str(word) for word in command], environment)
        self.resize(columns, rows)
        self.written = b""
        self.seen = 0
        # The program changes it.
        self.before = termios.tcgetattr(self.master)
        os.write(begin, b"1")
        [os.close(end) for end in (ready, begin)]

    def resize(self, columns, rows):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys):
        os.write(self.master, keys.encode())

    def read(self):
        """What comes next; None when the program has gone."""
        ready, _, _ = select.select([self.master], [], [], PATIENCE)
        assert ready, f"nothing was written for {PATIENCE} s; so far: {self.written[-2000:]!r}"
        try:
            return os.read(self.master, 1 << 16) or None
        except OSError:
            return None

    def until(self, text):
        """Reads until this text was written since the last call, whatever stands between its words."""
        pattern = re.compile(rb"(?:\x1b\[[0-9;?]*[A-Za-z]|\s)*".join(re.escape(word) for word in text.encode().split()))
        while not (found := pattern.search(self.written, self.seen)):
            more = self.read()
            assert more is not None, f"ended before {text!r}: {self.written[-2000:]!r}"
            self.written += more
        self.seen = found.end()

    def end(self):
        """The rest of the output and the status, as os.waitstatus_to_exitcode has it."""
        while (more := self.read()) is not None:
            self.written += more
        _, status = os.waitpid(self.program, 0)
        os.close(self.master)
        return os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)

    def assert_restored(self):
        assert ALTERNATE in self.written
        after = self.written[self.written.rindex(ALTERNATE) :]
        assert MAIN in after and SHOW_CURSOR in after


def tree(capture, *options, **size):
    return Terminal([capture.memtrack.executable, "tree", *options, capture.path], **size)


def test_keys_walk_through_the_tree(capture):
    terminal = tree(capture)
    terminal.until("1 Peak")
    terminal.until("<module>")
    terminal.press("/only_in_b")
    terminal.until("matched 3.00 MB")
    terminal.press("\rp")
    # Cells that already are as they should be are not drawn again.
    terminal.until("1, self 3.00 MB")
    terminal.until("kept.append(bytearray(3_000_000))")
    terminal.press("\x1b[A\x1b[B?")
    terminal.until("any key closes")
    terminal.press("q")
    assert terminal.end() == 0
    terminal.assert_restored()


def test_another_size_is_drawn_anew(capture):
    terminal = tree(capture, columns=160, rows=50)
    terminal.until("Count")
    terminal.resize(60, 15)
    terminal.until("Total▾ Part Call")
    terminal.press("\x03")
    assert terminal.end() == 0
    terminal.assert_restored()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_end_it_with_the_terminal_in_order(capture, number):
    terminal = tree(capture)
    terminal.until("? help")
    while_shown = termios.tcgetattr(terminal.master)
    assert not while_shown[3] & termios.ECHO
    os.kill(terminal.program, number)
    while (more := terminal.read()) is not None:
        terminal.written += more
    _, status = os.waitpid(terminal.program, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == number
    assert termios.tcgetattr(terminal.master)[:4] == terminal.before[:4]
    terminal.assert_restored()


def test_a_suspended_one_leaves_the_terminal_to_the_shell_until_it_goes_on(capture):
    terminal = tree(capture)
    terminal.until("? help")
    terminal.press("\x1a")
    terminal.until(MAIN.decode())
    _, status = os.waitpid(terminal.program, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    assert termios.tcgetattr(terminal.master)[:4] == terminal.before[:4]
    assert SHOW_CURSOR in terminal.written, "the shell has a cursor"
    os.kill(terminal.program, signal.SIGCONT)
    terminal.until(ALTERNATE.decode())
    terminal.until("? help")
    terminal.press("q")
    assert terminal.end() == 0
    terminal.assert_restored()


def test_text_is_printed_where_it_is_asked_for_or_nobody_could_press_keys(capture):
    text = capture.reading("tree", capture.path)
    assert text.startswith("High-water mark: ") and "\x1b[" not in text
    for options, kind in ((("--text",), "xterm-256color"), ((), "dumb")):
        terminal = tree(capture, "--color", "never", *options, kind=kind)
        assert terminal.end() == 0
        assert ALTERNATE not in terminal.written
        assert terminal.written.startswith(b"High-water mark: ")
