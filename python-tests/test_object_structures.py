"""`memtrack objects PID`: structures of C code that look like objects are none, where programs have low addresses, too."""

import json
import subprocess

import pytest

from conftest import FREE_THREADED, OBJECT_VERSIONS, flat, interpreter_path, until_it_waits
from test_objects import objects

# The state of each of these modules begins with two types.
MODULES = """
import gc, json, operator, re, select, sys
def serve():
    # Whatever this makes besides, it makes at the first time.
    for attempt in range(2):
        counts = {}
        gc.collect()
        for one in gc.get_objects():
            kind = type(one)
            name = "%s.%s" % (kind.__module__, kind.__qualname__)
            counts[name] = counts.get(name, 0) + 1
        one = kind = None
        text = json.dumps(counts)
    print(text, flush=True)
    sys.stdin.readline()
gc.disable()
serve()
"""

# Three words that an object of ctypes refers to: a count, or the address of an object, then a type, and a number of items.
STRUCTURES = """
import ctypes, re, sys
def words(*some):
    # More than an object of ctypes has within itself.
    return (ctypes.c_void_p * 8)(*some)
class Never: pass
HELD = [Never]
STRUCTURES = [words(id(HELD), id(Never)), words(id(HELD), id(re.Match), 2), words(5, id(tuple), 1 << 28), words(5, id(re.Match), 1 << 28)]
print("ready", flush=True)
sys.stdin.readline()
"""


def read(executable, tmp_path, version, text):
    script = tmp_path / "app.py"
    script.write_text(text)
    # Packages that begin with the interpreter have such objects of their own.
    command = flat([interpreter_path(version), "-S", script])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        told = process.stdout.readline()
        until_it_waits(process.pid)
        found = objects(executable, process)
        process.stdin.write("\n")
    return told, found


@pytest.mark.parametrize("version", ["system", *OBJECT_VERSIONS])
def test_what_modules_of_c_keep_is_no_object(executable, tmp_path, version):
    told, found = read(executable, tmp_path, version, MODULES)
    expected = json.loads(told)
    assert found["unreadable"] == 0 and found["own_bytes"] < 64 << 20
    tracked = {}
    for row in found["types"]:
        tracked[row["type"]] = tracked.get(row["type"], 0) + row["tracked"]
    # What has counted them is, or has, a few of its own.
    assert {name: count for name, count in expected.items() if abs(tracked.get(name, 0) - count) > 2} == {}
    counts = {row["type"]: row["count"] for row in found["types"]}
    assert not counts.keys() & {"re.Match", "_sre.Match", "select.poll", "operator.attrgetter"}


@pytest.mark.parametrize("version", ["system", *(one for one in OBJECT_VERSIONS if one not in FREE_THREADED)])
def test_addresses_of_objects_are_no_counts_and_items_are_in_memory(executable, tmp_path, version):
    _, found = read(executable, tmp_path, version, STRUCTURES)
    assert found["unreadable"] == 0 and found["own_bytes"] < 64 << 20
    assert not {row["type"] for row in found["types"]} & {"__main__.Never", "re.Match", "_sre.Match"}
