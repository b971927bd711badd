"""What libraries allocate while they are being opened: seen, with the Python code that opened them."""

import importlib.util
import pathlib
import shutil
import sys

import pytest

from conftest import execute

SOURCE = pathlib.Path(__file__).parent.parent / "tests" / "fixtures" / "constructs.c"
BASE = 10_000_000  # more than an interpreter allocates


@pytest.fixture
def library(tmp_path):
    compiler = shutil.which("cc") or pytest.skip("no C compiler")
    path = tmp_path / "libconstructs.so"
    options = ["-shared", "-fPIC", "-pthread", "-O1", "-fno-builtin", f"-DBASE={BASE}ul"]
    built = execute([compiler, *options, "-o", path, SOURCE])
    assert built.status == 0, built.stderr
    return path


def test_a_library_that_ctypes_opens(memtrack, interpreter, programs, library):
    outcome, capture = memtrack.run(interpreter, programs / "constructed.py", library)
    assert outcome.status == 0, outcome.stderr.decode()
    sizes = [BASE + number for number in range(10)] + [2 * BASE, 3 * BASE, 5 * BASE, 16 * BASE]
    found = [record for record in capture.allocations() if record.size in sizes]
    assert sorted(record.size for record in found) == sorted([*sizes, BASE])  # one grows from BASE to 3 * BASE
    own = [record for record in found if record.size != 5 * BASE]  # that one is a thread's without Python
    stacks = [[frame.name for frame in capture.records.stack(record.stack)] for record in own]
    assert all("load" in {name.split(".")[-1] for name in stack} for stack in stacks), stacks
    # What its destructor has freed is not held any more.
    assert not [size for _, size, _ in capture.speedscope("--leaks").samples() if size >= BASE]


@pytest.mark.parametrize("module", ["numpy", "pandas", "pyarrow", "ssl", "sqlite3"])
def test_modules_whose_libraries_have_constructors(memtrack, programs, library, module):
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"no {module}")
    outcome, capture = memtrack.run(sys.executable, programs / "constructed.py", library, module)
    assert outcome.status == 0, outcome.stderr.decode()
    stats = capture.stats()["capture"]
    assert (stats["unmatched_frees"], stats["lost_blocks"]) == (0, 0)
