"""Blocks that begin as an object would, and have none: each object of a picture is one, and no larger than its block."""

import json
import subprocess

import pytest
from conftest import OBJECT_VERSIONS, flat, interpreter_path

TYPES = ("bool", "bytes", "complex", "float", "int", "object", "str", "NoneType")
# Values of attributes stand in their instance, before it or, where it is gone or shared with a copy, for themselves. Structures
# of C begin with a number and a type here, and what follows are addresses; some are referred to.
PROGRAM = """
import ctypes, sys
TYPES = (bool, bytes, complex, float, int, object, str, type(None))
NAMES = tuple(map(sys.intern, ("name%d" % number for number in range(200))))
class Field:
    def __init__(self, *values): self.first, self.second, self.third = values
allocate = ctypes.pythonapi.PyMem_Malloc
allocate.argtypes, allocate.restype = [ctypes.c_size_t], ctypes.c_void_p
kept = [[] for _ in range(4)]
def make():
    for of in TYPES:
        for name in NAMES:
            kept[0].append(Field(of, name, name))
            kept[1].append(Field(of, name, None).__dict__)
            kept[2].append(Field(name, of, name).__dict__.copy())
        for words in (4, 8, 16, 40, 400):
            structure = (ctypes.c_size_t * words)(1, id(of), *(id(kept) for _ in range(words - 2)))
            if of in (bytes, int, str):
                kept[3].append(structure)
            block = allocate(ctypes.sizeof(structure))
            ctypes.memmove(block, structure, ctypes.sizeof(structure))
print("before", flush=True)
sys.stdin.readline()
make()
print("after", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("options", [[], ["-X", "dev"]], ids=["plain", "checked"])
@pytest.mark.parametrize("version", OBJECT_VERSIONS)
def test_values_and_structures_that_begin_with_a_type_are_no_objects(executable, tmp_path, version, options):
    script = tmp_path / "app.py"
    script.write_text(PROGRAM)
    told = {}
    with subprocess.Popen(
        flat([interpreter_path(version), *options, script]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        for moment in ("before", "after"):
            assert process.stdout.readline() == moment + "\n"
            read = [str(executable), "objects", str(process.pid), "--json"]
            picture = json.loads(subprocess.run(read, capture_output=True, text=True, check=True).stdout)
            assert picture["unreadable"] == 0
            rows = {row["type"].removeprefix("builtins."): row for row in picture["types"]}
            told[moment] = {name: (row["count"], row["own_bytes"]) for name, row in rows.items() if name in TYPES}
            process.stdin.write("\n")
            process.stdin.flush()
    assert told["after"]["bool"][0] == 2 and told["after"]["NoneType"][0] == 1
    more = {name: count - told["before"].get(name, (0, 0))[0] for name, (count, _) in told["after"].items()}
    assert {name: count for name, count in more.items() if count >= 100} == {}
    assert all(size < 4 << 20 for _, size in told["after"].values()), told["after"]
