"""Interpreters inside the interpreter, in other programs, of other kinds: right frames, or none and a word why."""

import json
import os
import pathlib
import shutil
import sys

import pytest

from conftest import FREE_THREADED, Records, execute, in_one_of, interpreter_path, pyenv_versions

WITHOUT_GIL = 4_000_000  # as in interpreters.py
SMALLEST = 2_999_000  # bytes; nothing else in the programs comes near
PROOF_SINCE = (3, 10)  # before, a thread that loses the GIL at once cannot be proven to run another interpreter
CONTENDED = range(3_000_000, WITHOUT_GIL)
OWN_SLOT_SINCE = (3, 12)  # from here on a thread's slot holds the state that it runs


def stacks_by_size(capture):
    """{size: {((function, line), ...), ...}} of the big blocks."""
    found = {}
    for record in capture.allocations():
        if record.size >= SMALLEST:
            frames = capture.records.stack(record.stack)
            found.setdefault(record.size, set()).add(tuple((frame.name, frame.line) for frame in frames))
    return found


@pytest.mark.parametrize(
    "version", ["3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "system", "sid-3.14", "sid-3.15", *FREE_THREADED]
)
def test_interpreters_in_the_interpreter(memtrack, version, programs):
    options = ("--trace-python-allocators",) if version in FREE_THREADED else ()

    def attempt():
        outcome, capture = memtrack.run(interpreter_path(version), programs / "interpreters.py", options=options)
        assert outcome.status == 0, outcome.stderr
        expected = {
            int(size): {tuple((name, line) for name, line in stack)} for size, stack in json.loads(outcome.stdout).items()
        }
        found = stacks_by_size(capture)
        number = tuple(map(int, capture.stats()["capture"]["python_version"].split(".")[:2]))
        if number < PROOF_SINCE:
            for size in [size for size in expected if size in CONTENDED]:
                assert found.pop(size) - {()} <= expected.pop(size)
            # It has the GIL to itself, but on a busy machine may lose it as it begins: then it has no frames at all.
            alone = max(expected)
            assert found[alone] in ({()}, expected[alone])
            if found.pop(alone) != expected.pop(alone):
                return "the thread that has the GIL to itself has no frames"
        if number < OWN_SLOT_SINCE:
            assert found.pop(WITHOUT_GIL) - {()} <= expected.pop(WITHOUT_GIL)
        assert found == expected
        return ""

    in_one_of(5, attempt)


def compiled(source, directory, *options):
    if not shutil.which("cc"):
        pytest.skip("no C compiler")
    program = directory / "program"
    built = execute(["cc", "-O1", "-o", program, *options, source])
    assert built.status == 0, built.stderr
    return program


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10", "3.11", "3.12", "3.13"])
def test_interpreter_in_a_library_for_its_opener_alone(memtrack, version, programs, tmp_path):
    python = pathlib.Path(pyenv_versions().get(version) or pytest.skip(f"no Python {version} (pyenv)"))
    library = python.parent.parent / "lib" / f"libpython{version}.so.1.0"
    if not library.exists():
        pytest.skip(f"no {library}")
    program = compiled(programs / "embedding.c", tmp_path, "-ldl")
    code = "def leaf():\n    return bytearray(3000000)\n\n\ndef branch():\n    return leaf()\n\n\nblock = branch()\n"
    capture = memtrack.record(program, library, code)
    assert list(stacks_by_size(capture).values()) == [{(("<module>", 9), ("branch", 6), ("leaf", 2))}]
    assert capture.stats()["capture"]["python_version"].startswith(f"{version}.")


def test_greenlets_of_gevent_have_stacks_of_their_own(memtrack, programs):
    pytest.importorskip("gevent")
    capture = memtrack.record(sys.executable, programs / "hub.py")
    found = {stack for stacks in stacks_by_size(capture).values() for stack in stacks}
    assert {tuple(name for name, _ in stack) for stack in found} == {
        ("worker", "nested", "nested", "nested", "keep"),
        ("worker", "keep"),
        ("<module>", "keep"),
    }


# --- what is not read -------------------------------------------------------------------------------------------------


def refused(memtrack, *command, word, **process):
    """Records a program that must run well, without Python frames, and be told why."""
    outcome = memtrack("run", "-o", "refused.bin", "--", *command, **process)
    assert outcome.status == 0, outcome.stderr
    assert f"no Python frames: {word}".encode() in outcome.stderr
    statistics = memtrack("stats", "refused.bin")
    assert f"no Python frames: {word}".encode() in statistics.stdout + statistics.stderr
    assert json.loads(memtrack("stats", "--json", "refused.bin").stdout)["allocations"]["count"] > 0


def test_free_threaded_builds_have_every_object(memtrack, free_threaded):
    code = (
        "import threading\nheld = []\ndef work(size):\n    held.extend(bytearray(size) for _ in range(1000))\n"
        "threads = [threading.Thread(target=work, args=(5000 + n,)) for n in range(8)]\n"
        "for thread in threads: thread.start()\nfor thread in threads: thread.join()\n"
        "print(bytearray(1000).__sizeof__() - bytearray().__sizeof__() - 1000)"
    )
    outcome, capture = memtrack.run(free_threaded, "-c", code, options=("--trace-python-allocators",))
    assert outcome.status == 0, outcome.stderr
    stats = capture.stats()
    assert stats["capture"]["unmatched_frees"] == 0
    leaked = stats["leaked"]
    own = leaked["bytes"] - leaked["interpreter"]["bytes"] - leaked["imports"]["bytes"]
    assert 8 * 1000 * 5000 < own < 8 * 1000 * 5000 + 2_000_000
    records = Records(capture.reading("parse", "--min-bytes", 5000, capture.path))
    sizes = [event.size for event in records.events if event.domain]
    more = int(outcome.stdout)  # what a block is longer than the array
    assert [sizes.count(5000 + number + more) for number in range(8)] == [1000] * 8


def test_unknown_versions_are_refused(memtrack):
    python = pyenv_versions().get("3.7") or pytest.skip("no Python 3.7 (pyenv)")
    refused(memtrack, python, "-c", "blocks = [bytes(3_000_000)]", word="unsupported Python version (supported: 3.8 to 3.")


@pytest.mark.parametrize(
    ("name", "code", "word"),
    [
        ("pypy3", "void pypy_main_startup(void) {}", "PyPy is not supported, only CPython"),
        ("python3", "", "the program is named python but exports no CPython symbols"),
    ],
)
def test_what_is_no_cpython_is_refused(memtrack, tmp_path, name, code, word):
    """A stand-in that exports what PyPy does, and one that exports nothing."""
    source = tmp_path / "program.c"
    source.write_text(f"#include <stdlib.h>\n{code}\nint main(void) {{ return malloc(1000) == NULL; }}\n")
    program = compiled(source, tmp_path, "-rdynamic", "-O0").rename(tmp_path / name)
    refused(memtrack, program, word=word)
