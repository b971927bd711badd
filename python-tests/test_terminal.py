"""Text on a terminal: no line is wider than it, and colours are there where they are wanted."""

import fcntl
import os
import pty
import re
import struct
import sys
import termios
import unicodedata

import pytest

from conftest import execute

ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
FOLDER = "資料倉庫/a_directory_with_a_long_name_that_no_terminal_has_room_for"
MODULE = '''
import threading

KEPT = []


class 注文管理システムの長い名前のクラス:
    def a_method_whose_name_alone_is_longer_than_what_is_left_beside_the_figures_of_any_report(self, size):
        KEPT.append(bytearray(size)); KEPT.append(bytearray(size // 2))

    def 一度だけ使われるメモリを割り当てる関数(self, size):
        return [bytearray(size) for _ in range(20)] and None


def work():
    orders = 注文管理システムの長い名前のクラス()
    for number in range(5):
        orders.a_method_whose_name_alone_is_longer_than_what_is_left_beside_the_figures_of_any_report(300_000 + number)
        orders.一度だけ使われるメモリを割り当てる関数(70_000)
        KEPT.append([bytearray(30_000) for _ in range(10)])


def run():
    thread = threading.Thread(target=work, name="受注処理スレッド番号一")
    thread.start()
    work()
    thread.join()
'''
SCRIPT = """
import os
import sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "site-packages"))
import subprocess
from a_module_with_a_long_name_of_its_own import run
run()
try:
    bytearray(1 << 62)
except (MemoryError, OverflowError):
    pass
if len(sys.argv) < 3:
    subprocess.run([sys.executable, __file__, "an argument of the child process that goes on and on and on", "x"], check=True)
"""


def on_terminal(command, directory, columns, **environment):
    """What a command writes to a terminal that is so wide, all of it, as lines."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = os.fork()
    if process == 0:
        os.close(ours)
        for descriptor in range(3):
            os.dup2(theirs, descriptor)
        os.chdir(directory)
        kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "CLICOLOR_FORCE")}
        os.execvpe(command[0], [str(word) for word in command], {**kept, "TERM": "xterm-256color", **environment})
    os.close(theirs)
    written = b""
    try:
        while more := os.read(ours, 1 << 16):
            written += more
    except OSError:
        pass
    os.close(ours)
    _, status = os.waitpid(process, 0)
    # Progress bars are drawn over themselves.
    text = re.sub(r"[^\n]*\r(?!\n)|\x1b\[2K", "", written.decode().replace("\r\n", "\n"))
    assert os.waitstatus_to_exitcode(status) == 0, text
    return text.splitlines()


def width(line):
    """The columns that a line takes."""
    plain = ESCAPES.sub("", line)
    assert "\x1b" not in plain, line
    wide = (unicodedata.east_asian_width(char) in "WF" for char in plain if not unicodedata.combining(char))
    return sum(1 + is_wide for is_wide in wide)


@pytest.fixture(scope="module")
def recorded(module_memtrack, tmp_path_factory):
    """A directory with captures of two processes, and what `run` ended with at some widths: {columns: lines}."""
    directory = tmp_path_factory.mktemp("terminal") / FOLDER
    directory.mkdir(parents=True)
    (directory / "a_module_with_a_long_name_of_its_own.py").write_text(MODULE)
    (directory / "program.py").write_text(SCRIPT)
    endings = {}
    for columns in (70, 80, 100, 160):
        command = [module_memtrack.executable, "run", "-f", "--follow", "--native", "-o", "all.bin", "--python", sys.executable]
        endings[columns] = on_terminal([*command, "program.py"], directory, columns)
    execute([module_memtrack.executable, "run", "-q", "-f", "-o", "one.bin", "--python", sys.executable, "program.py", "1", "2"], cwd=directory)
    command = [module_memtrack.executable, "run", "-q", "-f", "--trace-python-allocators", "--objects-at", "end", "-o", "objects.bin"]
    execute([*command, "--python", sys.executable, "program.py", "1", "2"], cwd=directory)
    return directory, endings


REPORTS = [
    "stats {all}",
    "stats --leaks --lifetimes --recording one.bin",
    "summary one.bin",
    "table one.bin",
    "table --leaks --at-exit one.bin",
    "table --allocated --split-threads {all}",
    "table --allocated --split-processes --split-threads {all}",
    "table --all-frames --allocated one.bin",
    "tree --text --allocated --least 0.1 one.bin",
    "tree --text --allocated --inverted --all-frames --least 0.1 one.bin",
    "tree --text --leaks --function a_method {all}",
    "diff one.bin all.bin",
    "diff --by total --metric allocated all.bin one.bin",
    "query bytes>0 {all}",
    "query bytes>0 --by function {all}",
    "query bytes>0 --by stack one.bin",
    "query bytes>0 --by thread --lifetimes one.bin",
    "objects objects.bin",
    "objects --places objects.bin",
]


@pytest.mark.parametrize("report", REPORTS)
def test_no_line_of_a_report_is_wider_than_the_terminal(executable, recorded, report, columns=70):
    directory, _ = recorded
    captures = " ".join(sorted(path.name for path in directory.glob("all*.bin")))
    lines = on_terminal([executable, *report.format(all=captures).split()], directory, columns)
    assert len(lines) > 3
    assert any("\x1b[" in line for line in lines), "colours"
    assert [line for line in lines if width(line) > columns] == []


@pytest.mark.parametrize("columns", [80, 100])
def test_objects_have_the_line_that_made_them_where_there_is_little_room(executable, recorded, columns):
    directory, _ = recorded
    lines = on_terminal([executable, "objects", "objects.bin"], directory, columns)
    rows = [line for line in (ESCAPES.sub("", line) for line in lines) if re.search(r"\d +bytearray ", line)]
    assert len(rows) == 1 and re.search(r"\.py:9$", rows[0]), lines


@pytest.mark.parametrize("columns", [70, 80, 100, 160])
def test_what_run_ends_with_is_no_wider_but_for_what_is_copied(recorded, columns):
    directory, endings = recorded
    lines = endings[columns][endings[columns].index("") :]
    assert any("peak" in line for line in lines) and any("imports" in line for line in lines), lines
    copied = re.compile(r"memtrack (flamegraph|stats|transform speedscope) |memtrack: .* in all\.bin|with a capture each")
    assert [line for line in lines if width(line) > columns and not copied.search(line)] == []


@pytest.mark.parametrize("report", ["stats one.bin", "summary one.bin", "table one.bin", "tree --text one.bin", "query bytes>0 one.bin"])
def test_pipes_get_whole_names_without_colour(executable, recorded, report):
    directory, _ = recorded
    text = execute([executable, *report.split()], cwd=directory).stdout.decode()
    assert "\x1b" not in text
    name = "a_method_whose_name_alone_is_longer_than_what_is_left_beside_the_figures_of_any_report"
    assert f"{name} at a_module_with_a_long_name_of_its_own.py:" in text.replace(".py\n", ".py:\n"), text


@pytest.mark.parametrize(
    "options, environment, colored",
    [
        ([], {}, True),
        (["--color", "never"], {}, False),
        ([], {"NO_COLOR": "1"}, False),
        ([], {"TERM": "dumb"}, False),
        (["--color", "always"], {"NO_COLOR": "1", "TERM": "dumb"}, True),
    ],
)
def test_colours_are_there_where_they_are_wanted(executable, recorded, options, environment, colored):
    directory, _ = recorded
    lines = on_terminal([executable, "table", *options, "one.bin"], directory, 80, **environment)
    assert any("\x1b[" in line for line in lines) == colored, lines


def test_pipes_have_colours_where_they_are_asked_for(executable, recorded, monkeypatch):
    directory, _ = recorded
    always = execute([executable, "table", "--color", "always", "one.bin"], cwd=directory)
    assert b"\x1b[1;36m" in always.stdout
    monkeypatch.setenv("CLICOLOR_FORCE", "1")
    assert execute([executable, "table", "one.bin"], cwd=directory).stdout == always.stdout
