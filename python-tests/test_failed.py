"""A MemoryError has its place: the call that failed is counted once, and said at the end."""

import re
import subprocess

import pytest

from conftest import interpreter_path

SIZE = 1_000_000_000
PROGRAM = f"""
import resource
def load():
    return bytearray({SIZE})
resource.setrlimit(resource.RLIMIT_AS, (700_000_000, 700_000_000))
try:
    load()
except MemoryError:
    print("no memory")
"""


@pytest.mark.parametrize("version", ["3.8", "3.11", "3.13"])
@pytest.mark.parametrize("option", ["", "--trace-python-allocators", "--aggregate"])
def test_a_memory_error_is_one_failed_call(memtrack, version, option):
    outcome, capture = memtrack.run(interpreter_path(version), "-c", PROGRAM, options=option.split())
    assert (outcome.status, outcome.stdout) == (0, b"no memory\n")
    failed = capture.stats()["failed_allocations"]
    assert failed["count"] == 1 and SIZE <= failed["bytes"] <= SIZE + 64
    assert (failed["largest"]["function"], failed["largest"]["line"]) == ("load", 4)
    if not option:
        assert "FAILED_ALLOC time_ns=" in capture.text and f" size={failed['bytes']} allocator=malloc stack=" in capture.text


def test_the_last_lines_name_the_call_and_the_limit(memtrack, tmp_path):
    script = tmp_path / "app.py"
    script.write_text(PROGRAM + "raise SystemExit(3)\n")
    command = [memtrack.executable, "run", "-o", tmp_path / "x.bin", script]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 3
    assert re.search(r"^  failed      1\.00 GB in load at \S*app\.py:4(:\d+)?$", ended.stderr, re.M), ended.stderr
    # The limit is the program's own, not memtrack's.
    assert "  limit       address space limit (ulimit -v) 700 MB" in ended.stderr
