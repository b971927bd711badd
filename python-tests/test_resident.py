"""`resident`: what it says to be kept by glibc is what malloc_trim(0) gives back, in Python programs, too; of jemalloc likewise."""

import ctypes.util
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


def given_back(memtrack, tmp_path, options, environment):
    """What the allocator gives back when it is asked at the end of PROGRAM; a capture, with a mark before it."""
    library = tmp_path / "trimmed.so"
    compiler = shutil.which("cc") or pytest.skip("no C compiler")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, PROGRAMS / "trimmed.c"], check=True)
    capture = tmp_path / "capture.bin"
    command = memtrack.command("run", "-q", *options, "-o", capture, sys.executable, "-c", PROGRAM)
    preload = f"{library} {environment.pop('LD_PRELOAD', '')}"
    process = subprocess.Popen(command, env={**os.environ, **environment, "LD_PRELOAD": preload, "PROBE": str(tmp_path)})
    wait_for(tmp_path / "ready", process)
    pid = child(process.pid)
    assert memtrack("mark", pid, "here").status == 0
    time.sleep(0.5)
    before = anonymous(pid)
    (tmp_path / "go").touch()
    wait_for(tmp_path / "trimmed", process)
    bytes = before - anonymous(pid)
    (tmp_path / "end").touch()
    assert process.wait(PATIENCE) == 0
    return bytes, capture


@pytest.mark.parametrize("options", [[], ["--trace-python-allocators"], ["--native"]], ids=lambda options: "".join(options) or "plain")
def test_retained_is_what_malloc_trim_gives_back_after_the_interpreters_end(memtrack, tmp_path, options):
    trimmed, capture = given_back(memtrack, tmp_path, options, {})
    report = json.loads(memtrack("resident", "--json", "--at", "mark:here", capture).stdout)
    [retained] = [row["bytes"] for row in report["classes"] if row["class"] == "retained"]
    assert trimmed > 4_000_000
    assert abs(retained - trimmed) <= trimmed / 50, (retained, trimmed)


def test_what_jemalloc_gives_back_is_advised(memtrack, tmp_path):
    jemalloc = ctypes.util.find_library("jemalloc") or pytest.skip("jemalloc is not installed")
    # Free memory goes back with time, too.
    environment = {"LD_PRELOAD": jemalloc, "MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1"}
    purged, capture = given_back(memtrack, tmp_path, [], environment)
    report = json.loads(memtrack("resident", "--json", "--at", "mark:here", capture).stdout)
    [advised] = [advice["bytes"] for advice in report["advice"] if "jemalloc" in advice["text"]]
    assert purged > 4_000_000
    assert abs(advised - purged) <= purged / 50, (advised, purged)
    classes = {row["class"]: row["bytes"] for row in report["classes"]}
    beside = classes.pop("untouched") + classes.pop("swapped")
    assert beside >= 0 and sum(classes.values()) == sum(report["rss"].values())
    assert classes["unexplained"] < 1_000_000
