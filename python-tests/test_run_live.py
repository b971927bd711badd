"""`memtrack run --live` on a terminal: the view above, the program's output below, and the terminal for programs that want it."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time

import pytest

from conftest import PATIENCE, in_one_of

LEAVES, ENTERS = b"\x1b[?1049l", b"\x1b[?1049h"
BACK, INTERRUPT = b"\x1d", b"\x03"
#: In a program: waits until the test has seen what it wants, and has made this file.
UNTIL_SEEN = f"import os, time\nend = time.monotonic() + {PATIENCE}\nwhile not os.path.exists('seen') and time.monotonic() < end:\n    time.sleep(0.01)\n"


class Emulator:
    """A terminal in which a command runs."""

    def __init__(self, command, cwd, rows=24, columns=80):
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            # A background job of a shell has it ignored.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.environ["TERM"] = "xterm-256color"
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            os.execv(command[0], [str(word) for word in command])
        self.output = b""

    def read(self, longest):
        """Reads what there is within a time; False at the end."""
        if select.select([self.master], [], [], longest)[0]:
            try:
                read = os.read(self.master, 1 << 16)
            except OSError:
                return False
            self.output += read
            return bool(read)
        return True

    def until(self, what, since=0):
        """Waits until the output has this after a position; gives the position behind it."""
        deadline = time.monotonic() + PATIENCE
        while (found := re.compile(what).search(self.output, since)) is None:
            assert self.read(0.1), f"ended without {what}: {self.output[-2000:]}"
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
                raise AssertionError(f"waits for {what}: {self.output[-2000:]}")
        return found.end()

    def until_shown(self, what):
        """Waits until the screen has this, of which perhaps only the cells that have changed were written."""
        deadline = time.monotonic() + PATIENCE
        while not re.search(what, text := screen(self.output)):
            assert time.monotonic() < deadline and self.read(0.1), text
        return text

    def press(self, keys):
        os.write(self.master, keys)

    def resize(self, rows, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def end(self):
        """Waits for the end; gives the exit status, and what was written outside of the view."""
        deadline = time.monotonic() + PATIENCE
        while self.read(1):
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
                raise AssertionError(f"does not end: {self.output[-2000:]}")
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        direct = re.sub(re.escape(ENTERS) + b".*?" + re.escape(LEAVES), b"", self.output, flags=re.S)
        return status, direct.decode()


def screen(output):
    """What a terminal of 30 lines shows."""
    lines, row, column = [[" "] * 200 for _ in range(30)], 0, 0
    for place, other, char in re.findall("\x1b\\[([0-9;]*)H|(\x1b\\[[0-9;?]*[A-Za-z])|(.)", output.decode(errors="replace"), re.S):
        if char:
            lines[row][min(column, 199)] = char
            column += 1
        elif not other:
            row, column = [int(word or 1) - 1 for word in (place or "1;1").split(";")]
        elif other.endswith("J"):
            lines = [[" "] * 200 for _ in range(30)]
    return "\n".join("".join(line).rstrip() for line in lines)


@pytest.fixture
def live(executable, tmp_path):
    def start(program, *options, **size):
        (tmp_path / "program.py").write_text(program)
        return Emulator([executable, "run", "--live", "-o", "live.bin", *options, sys.executable, "program.py"], tmp_path, **size)

    return start


def test_no_line_is_lost(live, memtrack, tmp_path):
    """More output than pane, pipe and screen hold, and the view in front of it."""
    lines = "for number in range(30000):\n    print(f'line {number:06}', '.' * 60)\nkept = bytearray(5_000_000)\n"
    emulator = live(lines + UNTIL_SEEN + "raise SystemExit(7)")
    emulator.until(re.escape(ENTERS))
    emulator.until(rb"Holders")
    emulator.until_shown(r"live [78]\.\d\d MB")
    (tmp_path / "seen").touch()
    status, direct = emulator.end()
    assert status == 7
    assert re.findall(r"line (\d{6}) \.{60}", direct) == [f"{number:06}" for number in range(30000)]
    assert "in live.bin, recorded in" in direct and "peak" in direct
    assert memtrack("stats", "--json", tmp_path / "live.bin").status == 0


def test_the_program_reads_lines_and_is_interrupted(live):
    program = "import time\nname = input('who? ')\ntry:\n    print('hello', name, flush=True)\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    raise SystemExit(f'stopped {name}')"
    emulator = live(program, "-q")
    emulator.until(rb"who\?")
    emulator.press(b"i")
    left = emulator.until(re.escape(LEAVES))
    at = emulator.until(rb"who\?", left)
    emulator.press(b"Ada\r")
    at = emulator.until(rb"hello Ada", at)
    emulator.press(BACK)
    emulator.until(re.escape(ENTERS), at)
    emulator.press(INTERRUPT)
    status, direct = emulator.end()
    assert status == 1
    assert direct.count("who?") == direct.count("hello Ada") == direct.count("stopped Ada") == 1


@pytest.mark.parametrize("wants", ["tty.setcbreak(0)", "print('\\x1b[?1049h', end='', flush=True)"])
def test_a_program_that_wants_the_terminal_gets_it_and_its_size(live, tmp_path, wants):
    program = f"""
import os, signal, sys, time, tty
kept = bytearray(3_000_000)
{UNTIL_SEEN}
{wants}
while os.get_terminal_size() != (100, 40):
    time.sleep(0.01)
print("size", *os.get_terminal_size(), "key:", flush=True)
print("got", os.read(0, 1), flush=True)
print('\\x1b[?1049l', end='')
"""
    emulator = live(program, "-q", rows=40, columns=100)
    view = emulator.until(re.escape(ENTERS))
    (tmp_path / "seen").touch()
    left = emulator.until(re.escape(LEAVES), view)
    emulator.until(rb"size 100 40 key:", left)
    emulator.press(b"x\r")
    emulator.until(rb"got b'x'", left)
    assert emulator.end()[0] == 0


def test_a_changed_size_reaches_the_program(live):
    program = "import os, time\nwhile os.get_terminal_size().columns != 120:\n    time.sleep(0.01)\nprint('wide')"
    emulator = live(program, "-q")
    emulator.until(rb"Holders")
    emulator.resize(50, 120)
    status, direct = emulator.end()
    assert (status, "wide" in direct) == (0, True)


def test_an_aggregated_recording_is_shown_by_its_sums(live, tmp_path):
    """There are none in the first seconds, which is not said to be nothing."""
    program = "def remember():\n    return [bytearray(1_000_000) for _ in range(9)]\nkept = remember()\n"
    emulator = live(program + UNTIL_SEEN, "-q", "--aggregate")
    shown = emulator.until_shown("remember")
    assert "9.00 MB" in shown and b"nothing" not in emulator.output
    (tmp_path / "seen").touch()
    assert emulator.end()[0] == 0


@pytest.mark.parametrize("has_terminal", [False, True])
def test_a_signal_reaches_the_program_and_the_capture_is_complete(live, memtrack, tmp_path, has_terminal):
    program = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit('terminated'))\nprint('ready', flush=True)\ntime.sleep(60)"
    emulator = live(program, "-q")
    emulator.until(rb"Holders")
    at = emulator.until(rb"ready")
    if has_terminal:
        emulator.press(b"i")
        emulator.until(rb"ready", emulator.until(re.escape(LEAVES), at))
    os.kill(emulator.pid, signal.SIGTERM)
    status, direct = emulator.end()
    assert (status, direct.count("terminated"), direct.count("ready")) == (1, 1, 1)
    assert json.loads(memtrack("stats", "--json", tmp_path / "live.bin").stdout)["capture"]["complete"]


def test_without_a_terminal_it_prints_lines(executable, memtrack, tmp_path):
    program = "import time\nkept = []\nfor _ in range(4):\n    kept.append(bytearray(1_000_000))\n    time.sleep(0.5)"

    def attempt():
        outcome = memtrack("run", "--live", "-f", "-o", tmp_path / "file.bin", sys.executable, "-c", program)
        assert outcome.status == 0 and ENTERS not in outcome.stdout + outcome.stderr
        return "" if b"live" in outcome.stderr else "no line while it ran"

    in_one_of(5, attempt)


def test_the_view_goes_from_process_to_process_and_adds_them_up(executable, memtrack, tmp_path):
    program = (
        "import os, sys, time\n"
        "for number in range(2):\n"
        "    if os.fork() == 0:\n"
        "        kept = [bytearray(300_000) for _ in range(10 * (number + 1))]\n"
        "        time.sleep(100)\n"
        "        os._exit(0)\n"
        "time.sleep(100)\n"
    )
    terminal = Emulator([executable, "run", "--live", "--follow", "-q", "-o", tmp_path / "a.bin", "--", sys.executable, "-c", program], tmp_path, 30, 160)
    terminal.until_shown("1 of 3")
    terminal.press(b"n")
    terminal.until_shown("2 of 3")
    terminal.press(b"n")
    terminal.until_shown("3 of 3")
    terminal.press(b"a")
    terminal.until_shown(r"all processes \(3\)(.|\n)*live 1[0-3]\.\d MB in")
    terminal.press(INTERRUPT)
    status, _ = terminal.end()
    assert status == 130
