"""`--trace-python-allocators`: each block of Python's allocators once, whatever the allocators are."""

import collections
import os
import re

import pytest

from test_leaks import Heap

TRACED = ("--trace-python-allocators",)
SETTINGS = {
    "default": {},
    "malloc": {"PYTHONMALLOC": "malloc"},
    "debug": {"PYTHONMALLOC": "debug"},
    "development": {"PYTHONDEVMODE": "1"},
    "debug and tracemalloc": {"PYTHONMALLOC": "debug", "PYTHONTRACEMALLOC": "3"},
    # Here the interpreter sets its allocators anew in the middle of its start, and then asks them for a block at once.
    "debug in the C locale": {"PYTHONMALLOC": "debug", "LC_ALL": "C"},
    "development in UTF-8 mode": {"PYTHONDEVMODE": "1", "PYTHONUTF8": "1"},
}
DOMAINS = ("raw", "mem", "obj")
BASES, OBJECTS, THREADS, ROUNDS = (331, 337, 347), 1000, 4, 100  # as in the program
ARENAS = (256 << 10, 1 << 20)  # what pymalloc maps at a time: up to 3.9, and later


def environment(setting):
    return {**os.environ, **SETTINGS[setting]}


@pytest.fixture(params=SETTINGS)
def setting(request):
    return request.param


def made_in(capture, function):
    """What that function itself allocated: (allocator, size) and how often."""
    frames, nodes = capture.records.frames, capture.records.nodes
    stacks = {number for number, (frame, _) in nodes.items() if frames[frame].name == function}
    events = [event for event in capture.allocations() if event.stack in stacks]
    return collections.Counter((event.allocator, event.size) for event in events)


def expected():
    """The calls of the program's three rounds: each block once, though the large ones pass malloc or mmap, too."""
    sizes = collections.Counter()
    for base in BASES:
        sizes["pymalloc_malloc", base] = 3
        sizes["pymalloc_calloc", 7 * base] = 3
        sizes["pymalloc_realloc", base + 2] = 3
        sizes["pymalloc_realloc", base + 4] = 3
        sizes["pymalloc_malloc", 100_000 + base] = 3
        sizes["pymalloc_malloc", 2_000_000 + base] = 3
    return sizes


def test_every_block_once_whatever_the_allocators_are(memtrack, plain, interpreter, programs, setting):
    # Without the site module, whose imports differ from machine to machine.
    command = (interpreter, "-S", programs / "python_allocators.py")
    outcome, capture = memtrack.run(*command, options=TRACED, env=environment(setting))
    assert outcome == plain(*command, env=environment(setting))
    assert outcome.status == 0, outcome.stderr.decode()
    each_call_is_recorded_once(capture)
    what_is_freed_is_gone(capture)
    the_raw_domain_needs_no_gil(capture)
    stats = capture.stats()["capture"]
    assert (stats["traces_python_allocators"], stats["unmatched_frees"], stats["truncated_stacks"]) == (True, 0, 0)


def each_call_is_recorded_once(capture):
    found = made_in(capture, "call")
    assert {key: found[key] for key in expected()} == dict(expected())
    # No second record of a block from beneath, be it with the bytes that debug hooks put around it.
    assert not [key for key in found if key not in expected() and key[1] > 90_000]
    assert made_in(capture, "make")["pymalloc_malloc", 16] >= OBJECTS
    assert not [event for event in capture.allocations() if event.kind == "MAP" and event.size in ARENAS]
    domains = collections.Counter((event.size, event.domain) for event in capture.allocations())
    for base, domain in zip(BASES, DOMAINS):
        assert domains[100_000 + base, domain] == domains[2_000_000 + base, domain] == 3


def what_is_freed_is_gone(capture):
    # It asserts that no block begins where another one is live. Those of 100,000 bytes survive a realloc that fails.
    heap = Heap(capture.records.events)
    held = collections.Counter(event.size for event, _ in heap.live.values())
    assert [held[100_000 + base] for base in BASES] == [3, 3, 3]
    assert not [size for size in held if size > 2_000_000]


def the_raw_domain_needs_no_gil(capture):
    found = made_in(capture, "without_gil")
    raw = [event for event in capture.allocations() if event.domain == "raw"]
    for size in range(5_001, 5_001 + 2 * THREADS, 2):
        assert found["pymalloc_malloc", size] == found["pymalloc_realloc", size + 1] == ROUNDS
        assert len({event.tid for event in raw if event.size in (size, size + 1)}) == 1


def test_off_unless_asked_for(memtrack, interpreter, programs):
    stats = memtrack.record(interpreter, "-S", programs / "python_allocators.py").stats()
    assert stats["capture"]["traces_python_allocators"] is False
    assert not [row for row in stats["allocators"] if re.match("pymalloc_.*alloc$", row["allocator"])]


def test_aggregated(memtrack, interpreter, programs):
    options = (*TRACED, "--aggregate")
    stats = memtrack.record(interpreter, "-S", programs / "python_allocators.py", options=options).stats()
    assert stats["capture"]["traces_python_allocators"] is True
    assert stats["capture"]["unmatched_frees"] == 0
    rows = {row["allocator"]: row["count"] for row in stats["allocators"]}
    assert rows["pymalloc_realloc"] >= THREADS * ROUNDS and rows["pymalloc_malloc"] >= OBJECTS
    for row in stats["allocators"]:
        parts = row.get("domains", {})
        assert set(parts) == set(DOMAINS if row["allocator"].startswith("pymalloc") else ())
        for key in ("count", "bytes") if parts else ():
            assert sum(part[key] for part in parts.values()) == row[key]


def test_a_filter_takes_what_the_row_of_that_name_has(memtrack, python):
    code = "import json\nheld = [bytearray(1000) for _ in range(1000)]"
    _, capture = memtrack.run(python, "-c", code, options=TRACED)
    rows = capture.stats()["allocators"]
    names = ["pymalloc_malloc", "pymalloc_calloc", "pymalloc_realloc"]
    for row in [row for row in rows if row["allocator"] in names]:
        kept = capture.stats("--allocator", row["allocator"])["allocations"]
        assert (kept["count"], kept["bytes"]) == (row["count"], row["bytes"])


def test_children_of_a_fork_are_left_alone(memtrack, python):
    code = (
        "import os\nchild = os.fork()\nheld = [object() for _ in range(100_000)]\n"
        "if child: os.waitpid(child, 0)\nprint(len(held), flush=True)"
    )
    outcome, capture = memtrack.run(python, "-c", code, options=TRACED)
    assert (outcome.status, outcome.stdout) == (0, b"100000\n100000\n")
    assert capture.stats()["capture"]["unmatched_frees"] == 0


@pytest.mark.parametrize("options", [TRACED, (*TRACED, "--native")])
def test_the_interpreters_own_blocks_are_told_apart(memtrack, interpreter, options):
    capture = memtrack.record(interpreter, "-S", "-c", "held = [object() for _ in range(50_000)]", options=options)
    leaked = capture.stats()["leaked"]
    own, imports = leaked["interpreter"]["allocations"], leaked["imports"]["allocations"]
    assert own >= 3000 and 50_000 <= leaked["allocations"] - own - imports < 55_000, leaked
    text = capture.reading("stats", capture.path)
    rest = re.search(r"^(?:Leaked|  leaked) +.* in ([\d,]+) allocations.*; .* by Python itself$", text, re.MULTILINE)
    assert int(rest[1].replace(",", "")) == leaked["allocations"] - imports, text


def test_the_code_of_imported_modules_is_told_apart(memtrack, interpreter, tmp_path):
    """Ten thousand names that a module mentions: interned strings, held by its code as long as there is the module."""
    names = "\n".join(f"    name_{number}.attribute_{number}" for number in range(5_000))
    (tmp_path / "large.py").write_text(f"def never_called():\n{names}\n")
    program = tmp_path / "program.py"
    program.write_text("import large\nheld = [object() for _ in range(20_000)]\n")
    for run in ("compiled", "from its cache"):
        leaked = memtrack.record(interpreter, "-S", program, options=TRACED).stats()["leaked"]
        rest = leaked["allocations"] - leaked["interpreter"]["allocations"] - leaked["imports"]["allocations"]
        assert leaked["imports"]["allocations"] >= 10_000, run
        assert 20_000 <= rest < 25_000, run
