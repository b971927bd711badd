"""What 'memtrack attach' says of code whose file has been deleted."""

import subprocess
import sys

import pytest

from conftest import PATIENCE

LIBRARY = """
#include <stdlib.h>
void *NAME(size_t size) { void *volatile block = malloc(size); return block; }
"""

PROGRAM = """
import ctypes, sys
allocate = ctypes.CDLL(sys.argv[1]).the_loaded_one
allocate.restype, allocate.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
print("ready", flush=True)
sys.stdin.read(1)
for _ in range(10):
    allocate(100_000)
print("done", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("is_replaced", [True, False])
def test_a_library_without_a_build_id_has_no_names_of_another_file(executable, tmp_path, is_replaced):
    library = tmp_path / "plain.so"

    def build(name):
        (tmp_path / "library.c").write_text(LIBRARY)
        options = ["-g", "-O0", "-shared", "-fPIC", "-Wl,--build-id=none", f"-DNAME={name}"]
        subprocess.run(["cc", *options, "-o", library, tmp_path / "library.c"], check=True)

    build("the_loaded_one")
    command = [sys.executable, "-c", PROGRAM, library]
    program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert program.stdout.readline() == "ready\n"
    if is_replaced:
        library.unlink()
        build("another_one")
    recorder = subprocess.Popen(
        [executable, "attach", str(program.pid), "--native", "-o", tmp_path / "a.bin"], stderr=subprocess.PIPE, text=True
    )
    assert "recording process" in recorder.stderr.readline()
    program.stdin.write("x")
    program.stdin.flush()
    assert program.stdout.readline() == "done\n"
    program.stdin.close()
    recorder.communicate()
    assert program.wait(PATIENCE) == 0
    table = subprocess.run([executable, "table", "--leaks", tmp_path / "a.bin"], capture_output=True, text=True, check=True).stdout
    if is_replaced:
        assert "another_one" not in table and "plain.so (deleted)" in table, table
    else:
        assert "the_loaded_one" in table, table
