"""`run --embed-sources`: a capture that has the source lines of its frames, whatever becomes of the files."""

import base64
import json
import re
import subprocess
import sys
import zlib

import pytest

from conftest import PATIENCE, Capture, kill_in_time

KEPT = "KEPT.append(bytearray(3_000_000))  # stays"
PROGRAM = """\
import os, sys
KEPT = []

def keep():
    KEPT.append(bytearray(3_000_000))  # stays

def wait():
    print(os.getpid(), flush=True)
    sys.stdin.readline()

keep()
if os.fork() == 0:
    keep()
    wait()
    os._exit(0)
os.wait()
wait()
os.remove(__file__)
"""


def recorded(memtrack, *options):
    """A capture of a program that removes its own file."""
    path = memtrack.directory / "vanishing.py"
    path.write_text(PROGRAM)
    capture = waited_for(memtrack, path, options, ["--follow" in options, True])
    assert not path.exists()
    return capture


def waited_for(memtrack, path, options, are_recorded):
    """A capture of a program whose processes, recorded or not, one after another print their ids and wait until their files were read."""
    capture = Capture(memtrack, path.with_suffix(".bin"))
    command = memtrack.command("run", "--no-native", "-q", "-o", capture.path, *options, "--", sys.executable, path)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=memtrack.directory, **pipes) as process:
        kill_in_time(process)
        for is_recorded in are_recorded:
            pid = int(process.stdout.readline())
            # Whoever reads them has no claim on the processor, and answers behind it.
            if is_recorded:
                memtrack.mark(pid, "read")
                assert memtrack("snapshot", "-f", "-o", "read.bin", pid).status == 0
            process.stdin.write(b"\n")
            process.stdin.flush()
        complaints = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 0, complaints.decode()
    return capture


def page(capture, *options):
    html = capture.reading("flamegraph", "-o", "-", *options, capture.path)
    packed = re.search(r'id="data">\n(.*?)</script>', html, re.DOTALL)[1]
    data = json.loads(zlib.decompress(base64.b64decode(packed), -15))
    return data["strings"], " ".join(data["notes"])


@pytest.mark.parametrize("how", [[], ["--aggregate"], ["--live"], ["--compress", "zstd:9"], ["--follow"]])
def test_lines_are_there_when_the_file_is_gone(memtrack, how):
    capture = recorded(memtrack, "--embed-sources", *how)
    strings, notes = page(capture, "--embed-sources")
    assert any(KEPT in text for text in strings)
    assert "while the program ran" in notes
    assert not any(KEPT in text for text in page(capture)[0]), "a page has them only if it is asked for"
    children = list(capture.path.parent.glob(f"{capture.path.stem}.*.bin"))
    assert len(children) == how.count("--follow")
    for child in children:
        assert any(KEPT in text for text in page(Capture(memtrack, child), "--embed-sources")[0])


@pytest.mark.parametrize("how", [[], ["--aggregate"]])
def test_a_module_is_read_while_the_program_runs(memtrack, how):
    (memtrack.directory / "late.py").write_text("KEPT = [bytearray(1_000_000)]  # late\n")
    (memtrack.directory / "main.py").write_text(
        "import late, os, sys\nprint(os.getpid(), flush=True)\nsys.stdin.readline()\nlate.KEPT.append(b'')\nos.remove(late.__file__)\n"
    )
    capture = waited_for(memtrack, memtrack.directory / "main.py", ["--embed-sources", *how], [True])
    assert not (memtrack.directory / "late.py").exists()
    assert any("# late" in text for text in page(capture, "--embed-sources")[0])


def test_lines_are_those_of_the_recording(memtrack):
    capture = recorded(memtrack, "--embed-sources")
    (memtrack.directory / "vanishing.py").write_text("changed = True\n" * 20)
    strings, _ = page(capture, "--embed-sources")
    assert any(KEPT in text for text in strings) and not any("changed = True" in text for text in strings)


def test_no_source_is_stored_unasked(memtrack):
    capture = recorded(memtrack, "--compress", "none")
    assert b"# stays" not in capture.path.read_bytes()
    strings, notes = page(capture, "--embed-sources")
    assert not any(KEPT in text for text in strings) and "while the program ran" not in notes


def test_the_page_that_run_makes_has_them(memtrack):
    (memtrack.directory / "app.py").write_text("KEPT = bytearray(3_000_000)  # stays\n")
    outcome = memtrack("run", "--embed-sources", "--flamegraph", "-o", "app.bin", "app.py")
    assert outcome.status == 0, outcome.stderr.decode()
    (made,) = memtrack.directory.glob("*.html")
    packed = re.search(r'id="data">\n(.*?)</script>', made.read_text(), re.DOTALL)[1]
    strings = json.loads(zlib.decompress(base64.b64decode(packed), -15))["strings"]
    assert any("# stays" in text for text in strings)


@pytest.mark.parametrize("how", [[], ["--aggregate"]])
def test_sources_of_captures_made_of_captures(memtrack, how):
    capture = recorded(memtrack, "--embed-sources", "--compress", "none", *how)
    assert b"# stays" in capture.path.read_bytes()

    def made(command, *words):
        path = memtrack.directory / f"{command}.bin"
        assert memtrack(command, "-f", "-o", path, *words).status == 0
        return Capture(memtrack, path)

    merged = made("merge", capture.path, capture.path)
    assert any(KEPT in text for text in page(merged, "--embed-sources")[0])
    anonymous = made("anonymize", capture.path)
    strings, notes = page(anonymous, "--embed-sources")
    assert not any("stays" in text for text in strings) and "while the program ran" not in notes
    if not how:
        stripped = made("strip", "--lived-less", "1s", capture.path)
        assert any(KEPT in text for text in page(stripped, "--embed-sources")[0])
