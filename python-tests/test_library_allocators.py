"""Libraries with an allocator of their own under other names: reports say that their blocks are not seen."""

import json
import subprocess

import pytest

LIBRARY = """
static char memory[1 << 20];
static long used;
__attribute__((noinline)) LINKAGE void *_rjem_malloc(long size) { used += size; return memory + used % (1 << 19); }
void *use(long size) { return _rjem_malloc(size); }
"""
SAID = "lib/own.so (jemalloc) has an allocator of its own: blocks in it are not seen, only the memory that it takes from the system"


@pytest.mark.parametrize("linkage, is_said", [("static", True), ("", False)], ids=["hidden", "exported"])
def test_a_library_with_a_hidden_allocator_is_named(executable, python, tmp_path, linkage, is_said):
    (tmp_path / "lib").mkdir()
    (tmp_path / "own.c").write_text(LIBRARY.replace("LINKAGE", linkage))
    library = tmp_path / "lib" / "own.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, tmp_path / "own.c"], check=True)
    code = f"import ctypes; ctypes.CDLL({str(library)!r}).use(9)"
    capture = tmp_path / "own.bin"
    ended = subprocess.run([executable, "run", "-o", capture, python, "-c", code], capture_output=True, text=True, check=True)
    assert (SAID in " ".join(ended.stderr.split())) == is_said, ended.stderr
    explained = subprocess.run([executable, "explain", "--json", capture], capture_output=True, text=True, check=True)
    assert (SAID in json.loads(explained.stdout)["not_seen"]) == is_said, explained.stdout
    # The name of the library is one that anonymous captures do not have.
    anonymous = tmp_path / "anonymous.bin"
    subprocess.run([executable, "anonymize", capture, "-o", anonymous], capture_output=True, check=True)
    told = subprocess.run([executable, "explain", "--json", anonymous], capture_output=True, text=True, check=True)
    told = [text for text in json.loads(told.stdout)["not_seen"] if "an allocator of its own" in text]
    assert len(told) == is_said and not any("own.so" in text for text in told), told
