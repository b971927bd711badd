"""`memtrack objects PID`: types of one name are one row, and classes that are their own class are types."""

import subprocess

import pytest

from conftest import OBJECT_VERSIONS, flat, interpreter_path, until_it_waits
from test_objects import objects

CLASSES = """
import sys
SHARED = []
def rows():
    class Row:
        def __init__(self): self.shared = SHARED[0]
    return [Row() for number in range(50)]
SHARED.append(bytes(100_000))
ROWS = [rows() for number in range(40)]
SHARED.clear()
class Kept: pass
class Sentinel(type): pass
def make(name):
    made = Sentinel(name, (Sentinel,), {})
    made.__class__ = made
    made.held = Kept()
    return made
SENTINELS = [make("SENTINEL%d" % number) for number in range(15)]
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.fixture(scope="module", params=OBJECT_VERSIONS)
def program(request, tmp_path_factory):
    script = tmp_path_factory.mktemp("types") / "app.py"
    script.write_text(CLASSES)
    command = flat([interpreter_path(request.param), script])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        until_it_waits(process.pid)
        yield process
        process.stdin.write("\n")


def test_types_of_one_name_are_one_row_with_what_all_of_them_retain(executable, program):
    told = objects(executable, program)
    names = [row["type"] for row in told["types"]]
    assert len(names) == len(set(names))
    row = next(row for row in told["types"] if row["type"].endswith(".Row"))
    assert (row["count"], row["classes"]) == (2000, 40)
    # All of them together hold it, and each class alone does not.
    assert row["retained_bytes"] >= row["own_bytes"] + 100_000
    text = subprocess.run([str(executable), "objects", str(program.pid), "-n0"], capture_output=True, text=True, check=True)
    assert [line for line in text.stdout.splitlines() if line.endswith("2,000  __main__.rows.<locals>.Row, 40 classes")]


def test_a_class_may_be_its_own_class(executable, program):
    told = objects(executable, program)
    assert told["unreadable"] == 0
    assert {row["type"]: row["count"] for row in told["types"] if "SENTINEL" in row["type"]} == {
        f"__main__.SENTINEL{number}": 1 for number in range(15)
    }
    held = {row["pattern"]: row["count"] for row in objects(executable, program, "--why", "Kept")["why"]}
    assert held == {"__main__.SENTINELS[…].held": 15}


MODULES = """
import sys, types
for name, many in (("frames", 20), ("others", 5)):
    module = sys.modules[name] = types.ModuleType(name)
    exec("class DataFrame: pass\\nFRAMES = [DataFrame() for number in range(%d)]" % many, module.__dict__)
print("ready", flush=True)
sys.stdin.readline()
"""


def test_a_name_of_types_of_several_modules_says_which(executable, python, tmp_path):
    script = tmp_path / "app.py"
    script.write_text(MODULES)
    with subprocess.Popen([python, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        until_it_waits(process.pid)
        told = objects(executable, process, "--why", "DataFrame")
        command = [str(executable), "objects", str(process.pid), "--why"]
        both, one = (
            subprocess.run([*command, name], capture_output=True, text=True, check=True) for name in ("DataFrame", "frames.DataFrame")
        )
        process.stdin.write("\n")
    assert told["why_types"] == [{"type": "frames.DataFrame", "count": 20}, {"type": "others.DataFrame", "count": 5}]
    assert "objects of 2 types: frames.DataFrame 20, others.DataFrame 5" in both.stderr and "types" not in one.stderr
