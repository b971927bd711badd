"""`resident`: what it says to be kept by glibc is what malloc_trim(0) gives back, in Python programs, too."""

import json
import os
import shutil
import subprocess
import sys
import time

import pytest

from conftest import PROGRAMS

PATIENCE = 60
# Blocks of which one in 97 stays; and modules, which the loader allocates for.
PROGRAM = """
import ctypes, decimal, json, sqlite3, ssl, xml.etree.ElementTree
blocks = [bytearray(600 + number % 3000) for number in range(8000)]
kept = blocks[::97]
del blocks
"""


def wait_for(path, process):
    end = time.monotonic() + PATIENCE
    while not path.exists():
        assert process.poll() is None and time.monotonic() < end, path
        time.sleep(0.01)


def anonymous(pid):
    """Bytes of anonymous memory, as the system counts."""
    with open(f"/proc/{pid}/smaps") as smaps:
        return sum(int(line.split()[1]) * 1024 for line in smaps if line.startswith("Anonymous:"))


def child(pid):
    for thread in os.listdir(f"/proc/{pid}/task"):
        for one in open(f"/proc/{pid}/task/{thread}/children").read().split():
            if not os.readlink(f"/proc/{one}/exe").endswith("/memtrack"):
                return int(one)
    raise AssertionError("no program")


@pytest.mark.parametrize("options", [[], ["--trace-python-allocators"], ["--native"]], ids=lambda options: "".join(options) or "plain")
def test_retained_is_what_malloc_trim_gives_back_after_the_interpreters_end(memtrack, tmp_path, options):
    library = tmp_path / "trimmed.so"
    compiler = shutil.which("cc") or pytest.skip("no C compiler")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, PROGRAMS / "trimmed.c"], check=True)
    capture = tmp_path / "capture.bin"
    command = memtrack.command("run", "-q", *options, "-o", capture, sys.executable, "-c", PROGRAM)
    process = subprocess.Popen(command, env={**os.environ, "LD_PRELOAD": str(library), "PROBE": str(tmp_path)})
    wait_for(tmp_path / "ready", process)
    pid = child(process.pid)
    assert memtrack("mark", pid, "here").status == 0
    time.sleep(0.5)
    before = anonymous(pid)
    (tmp_path / "go").touch()
    wait_for(tmp_path / "trimmed", process)
    given_back = before - anonymous(pid)
    (tmp_path / "end").touch()
    assert process.wait(PATIENCE) == 0
    report = json.loads(memtrack("resident", "--json", "--at", "mark:here", capture).stdout)
    [retained] = [row["bytes"] for row in report["classes"] if row["class"] == "retained"]
    assert given_back > 4_000_000
    assert abs(retained - given_back) <= given_back / 50, (retained, given_back)
