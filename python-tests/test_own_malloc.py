"""Executables that define malloc themselves: their own calls pass no slot, and that is said."""

import subprocess
import sys

import pytest

from conftest import PATIENCE

ALLOCATOR = r"""
#include <stdlib.h>
#include <string.h>
static char place[1 << 22];
static size_t used;
void *malloc(size_t size) { char *block = place + used; used += (size + 15) & -16; return block; }
void free(void *block) { (void)block; }
void *calloc(size_t count, size_t size) { return memset(malloc(count * size), 0, count * size); }
void *realloc(void *old, size_t size) { void *block = malloc(size); if (old) memmove(block, old, size); return block; }
"""
CALLS = r"""
#include <stdlib.h>
#include <string.h>
void *(*volatile taken)(size_t) = malloc;
int main(void) { for (int i = 0; i < 1000; i++) { char *block = malloc(1000); memset(block, 1, 1000); } return !taken(1); }
"""
SAID = "the executable defines malloc itself"


def built(path, *sources, options=()):
    files = []
    for number, source in enumerate(sources):
        files.append(path.with_suffix(f".{number}.c"))
        files[-1].write_text(source)
    subprocess.run(["gcc", "-O1", "-fno-builtin", *options, "-o", path, *files], check=True)
    return path


def told(executable, capture, *program, **environment):
    run = subprocess.run(
        [executable, "run", "-f", "-o", capture, *program], capture_output=True, text=True, timeout=PATIENCE, env=environment or None
    )
    stats = subprocess.run([executable, "stats", capture], capture_output=True, text=True, timeout=PATIENCE, check=True)
    return [run.stderr.count(SAID), stats.stderr.count(SAID)]


@pytest.mark.parametrize("options", [[], ["-s"], ["-no-pie"]], ids=["pie", "stripped", "no-pie"])
def test_it_is_said_once_at_the_end_and_by_stats(executable, tmp_path, options):
    program = built(tmp_path / "own", ALLOCATOR, CALLS, options=options)
    assert told(executable, tmp_path / "own.bin", program) == [1, 1]


@pytest.mark.parametrize("options", [[], ["-no-pie"], ["-static-libgcc", "-rdynamic"]], ids=["pie", "no-pie", "exports"])
def test_programs_that_call_the_malloc_of_a_library_are_not_meant(executable, tmp_path, options):
    plain = built(tmp_path / "plain", CALLS, options=options)
    assert told(executable, tmp_path / "plain.bin", plain) == [0, 0]
    library = built(tmp_path / "libown.so", ALLOCATOR, options=["-shared", "-fPIC"])
    linked = built(tmp_path / "linked", CALLS, options=[*options, f"-L{tmp_path}", "-Wl,--no-as-needed", "-lown", f"-Wl,-rpath,{tmp_path}"])
    assert told(executable, tmp_path / "linked.bin", linked) == [0, 0]
    assert told(executable, tmp_path / "preloaded.bin", plain, LD_PRELOAD=str(library), PATH="/usr/bin:/bin") == [0, 0]


def test_python_is_not_meant(executable, tmp_path):
    assert told(executable, tmp_path / "python.bin", sys.executable, "-c", "pass") == [0, 0]
