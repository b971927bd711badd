"""Trackers one after another in a program whose libraries come and go meanwhile: each looks at what is loaded then.

The libraries are as large as each other, so that the loader puts them at the same address, and what they call is in another
order in each. The program counts by itself what it allocates.
"""

import json
import os
import shutil
import subprocess

import pytest

from conftest import REPOSITORY, execute

# Larger than all that Python allocates meanwhile.
SIZE, BLOCKS = 4_000_003, 3

LIBRARY = """
#include <stdlib.h>
#include <string.h>
#include <time.h>
static void others(char *block) { if (!block[0]) { %s } }
void *keep(size_t size) { char *block = %s; memset(block, 1, size); others(block); return block; }
"""
OTHERS = ("abs(rand());", "free(block); time(0); getenv(block);", "block = realloc(block, 9); srand(1); setenv(block, block, 0);")
WAYS = ("malloc(size)", "calloc(1, size)", "malloc(size)")
CXX = "#include <new>\n" 'extern "C" void *keep(unsigned long size) { return operator new(size); }'

PROGRAM = f"""
import _ctypes, ctypes, json, sys
import memtrack
kept, places = [], set()
def keep(path, blocks):
    library = ctypes.CDLL(path)
    library.keep.restype, library.keep.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    places.add(ctypes.cast(library.keep, ctypes.c_void_p).value & ~0xfff)
    return library, [library.keep({SIZE}) for _ in range(blocks)]
rounds = 0
for path in sys.argv[1:] * 3:
    library, _ = keep(path, 0)
    with memtrack.Tracker(f"{{rounds}}.bin"):
        kept += keep(path, {BLOCKS})[1]
    _ctypes.dlclose(library._handle)
    _ctypes.dlclose(library._handle)
    rounds += 1
    if rounds % 2:
        # What was loaded is loaded still, and something else besides.
        library, _ = keep(path, 0)
        with memtrack.Tracker(f"{{rounds}}.bin"):
            kept += [library.keep({SIZE}) for _ in range({BLOCKS})]
        rounds += 1
        _ctypes.dlclose(library._handle)
print(json.dumps([rounds, len(places)]))
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    compiler = shutil.which("cc") or pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("libraries")
    made = []
    for number, way in enumerate(zip(OTHERS, WAYS)):
        source = folder / f"{number}.c"
        source.write_text(LIBRARY % way)
        made.append(str(folder / f"lib{number}.so"))
        subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-w", "-o", made[-1], source], check=True)
    return made


def figures(memtrack, tmp_path, rounds):
    said = [json.loads(memtrack("stats", "--json", str(tmp_path / f"{number}.bin")).stdout) for number in range(rounds)]
    return [one["allocations"]["bytes"] // SIZE for one in said]


def run(interpreter, executable, tmp_path, libraries):
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "python"), "MEMTRACK": str(executable)}
    done = execute([interpreter, "-c", PROGRAM, *libraries], cwd=tmp_path, env=environment)
    assert done.status == 0, done.stderr.decode()
    return json.loads(done.stdout)


def test_each_begins_with_what_is_loaded(any_interpreter, executable, memtrack, libraries, tmp_path):
    rounds, places = run(any_interpreter, executable, tmp_path, libraries)
    assert places < len(libraries), "no two libraries were at the same address"
    assert figures(memtrack, tmp_path, rounds) == [BLOCKS] * rounds


def test_cxx_comes_between_two_trackers(python, executable, memtrack, libraries, tmp_path):
    compiler = shutil.which("c++") or pytest.skip("no C++ compiler")
    source = tmp_path / "new.cpp"
    source.write_text(CXX)
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", tmp_path / "libnew.so", source], check=True)
    rounds, _ = run(python, executable, tmp_path, [libraries[0], str(tmp_path / "libnew.so"), libraries[1]])
    assert figures(memtrack, tmp_path, rounds) == [BLOCKS] * rounds
