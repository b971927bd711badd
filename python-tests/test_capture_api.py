"""memtrack.Capture: what it gives is what the command line says of the same capture, view and filters."""

import collections
import copy
import doctest
import gc
import importlib
import json
import os
import pickle
import subprocess
import sys
import tracemalloc

import pytest

from conftest import PROGRAMS, REPOSITORY, execute

import memtrack as api

VIEWS = {"high-water-mark": [], "leaks": ["--leaks"], "leaks-at-exit": ["--at-exit"], "temporary": ["--temporary"],
         "allocated": ["--allocated"]}  # fmt: skip
FILTERS = [
    ({"own": True}, ["--own"]),
    ({"own": True, "stdlib": True}, ["--own", "--stdlib"]),
    ({"function": "remember"}, ["--function", "remember"]),
    ({"function": ["remember", "load"], "min_bytes": "10kB"}, ["--function", "remember", "--function", "load", "--min-bytes", "10kB"]),
    ({"allocator": ("calloc", "realloc"), "min_bytes": 100}, ["--allocator", "calloc", "--allocator", "realloc", "--min-bytes", "100"]),
    ({"from_": 0.01, "to": "90%"}, ["--from", "0.01s", "--to", "90%"]),
    ({"file": "demo.py", "libraries": False, "imports": None}, ["--file", "demo.py"]),
]  # fmt: skip


@pytest.fixture(autouse=True)
def program_on_path(executable, monkeypatch):
    monkeypatch.setenv("PATH", f"{executable.parent}:{os.environ['PATH']}")


@pytest.fixture(scope="module")
def recorded(module_memtrack):
    """The example, whose numbers its first lines promise."""
    return module_memtrack.record(
        sys.executable, REPOSITORY / "examples" / "demo.py", options=["--allocation-timestamps"]
    )


@pytest.fixture
def capture(recorded):
    return api.Capture(recorded.path)


@pytest.fixture(scope="module")
def large(module_memtrack):
    """200,000 events of many sizes, in several blocks of the file."""
    code = "for m in range(20): [bytearray(600 + n * m % 9973) for n in range(5000)]"
    return module_memtrack.record(sys.executable, "-c", code)


def table(recorded, *options):
    """{(function, file, line, allocator, thread): (bytes, count)} by `table --json`."""
    known = json.loads(recorded.reading("table", "--json", "--split-threads", recorded.path, *options))
    rows = collections.Counter(), collections.Counter()
    for row in known["rows"]:
        key = row["function"], row["file"] or "", row["line"] or 0, row["allocator"], row["thread"]["tid"] if isinstance(row["thread"], dict) else row["thread"]
        rows[0][key] += row["bytes"]
        rows[1][key] += row["count"]
    return rows


def summed(allocations):
    rows = collections.Counter(), collections.Counter()
    for allocation in allocations:
        frame = allocation.stack[0] if allocation.stack else api.Frame("<no stack>", "", 0, 0)
        key = frame.function, frame.file, frame.line, allocation.allocator, allocation.thread
        rows[0][key] += allocation.bytes
        rows[1][key] += allocation.count
    return rows


@pytest.mark.parametrize("view", VIEWS)
def test_each_view_is_what_the_table_has(recorded, capture, view):
    given = summed(capture.allocations(view))
    assert given == table(recorded, *VIEWS[view]) and sum(given[1].values()) > 0


def test_options_are_named_as_keywords_but_not_within_paths():
    from memtrack._keywords import OF_TRACKER, in_keywords

    for text, said in {
        "--sample and --follow: at most one": "sample and follow_fork=True: at most one",
        "/srv/no--follow-dir/q: there is no directory /srv/--follow": "/srv/no--follow-dir/q: there is no directory /srv/--follow",
        "invalid value '--native' for '--sample[=BYTES]': not a size": "sample=--native: not a size",
        "--sampled": "--sampled",
    }.items():
        assert in_keywords(text, OF_TRACKER) == said



@pytest.mark.parametrize("keywords, options", FILTERS, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_filters_are_those_of_the_command_line(recorded, capture, keywords, options):
    given = summed(capture.allocations("allocated", **keywords))
    assert given == table(recorded, "--allocated", *options) and given[0]
    stats = recorded.stats(*options)
    assert capture.stats(**keywords)["allocations"] == stats["allocations"]
    kinds = collections.Counter(event.kind for event in capture.events(**keywords))
    assert kinds["alloc"] + kinds["map"] >= stats["allocations"]["count"] > 0


@pytest.mark.parametrize("number", [5e-05, 0, 1, 123456789.5, "float64", "int64"])
def test_times_are_numbers_of_any_kind(recorded, capture, number):
    if isinstance(number, str):
        number = getattr(pytest.importorskip("numpy"), number)(0)
    options = ["--from", f"{float(number):.9f}s"]
    assert capture.stats(from_=number)["allocations"] == recorded.stats(*options)["allocations"]


def test_stacks_are_whole_and_innermost_first(capture):
    [load] = [each for each in capture.allocations(function="load") if each.bytes > 40_000_000]
    assert [frame.function for frame in load.stack][-3:] == ["load", "main", "<module>"]
    assert load.stack[-1].file.endswith("examples/demo.py") and load.stack[-1].line > 0
    assert load.count == 40 and load.allocator == "malloc" and load.thread > 0
    # By memray's names.
    assert (load.size, load.n_allocations, load.tid) == (load.bytes, load.count, load.thread)
    assert load.stack_trace(1) == [load.stack[0][:3]] and len(load.stack_trace()) == len(load.stack)


def test_rows_can_be_copied_and_sent_to_other_processes(capture):
    rows = list(capture.allocations())
    for again in (pickle.loads(pickle.dumps(rows)), copy.deepcopy(rows), [copy.copy(row) for row in rows]):
        assert again == rows and again is not rows
    assert any(row.stack for row in again)


def test_events_are_those_that_parse_prints(recorded, capture):
    given = list(capture.events())
    printed = recorded.records.events
    assert [(each.kind, each.time_ns, each.thread) for each in given] == [
        (each.kind.lower(), each.time_ns, each.tid) for each in printed
    ]
    for event, record in zip(given, printed):
        if event.kind in ("alloc", "map"):
            assert (event.address, event.size, event.allocator) == (record.address, record.size, record.allocator)
            frames = [(frame.function, frame.file, frame.line) for frame in reversed(event.stack)]
            assert frames == [(frame.name, frame.file, frame.line) for frame in recorded.records.stack(record.stack)]


def test_a_free_has_the_size_and_the_stack_of_its_block(capture):
    live, freed = {}, 0
    for event in capture.events():
        if event.kind == "alloc":
            live[event.address] = event
        elif event.kind == "free":
            block = live.pop(event.address, None)
            if block:
                freed += 1
                assert (event.size, event.allocator) == (block.size, block.allocator)
                assert event.stack is block.stack
    assert freed > 5000
    # What filters leave is whole: nothing is freed that was not allocated.
    counts = collections.Counter(event.kind for event in capture.events(function="load"))
    assert counts["alloc"] >= counts["free"] >= 40


def test_snapshots_reach_the_peak(recorded, capture):
    snapshots = list(capture.snapshots())
    assert [each.time_ns for each in snapshots] == sorted(each.time_ns for each in snapshots)
    stats = recorded.stats()
    assert 0 < max(each.live_bytes for each in snapshots) <= stats["peak"]["bytes"]
    # The peak of resident memory is the kernel's, or a snapshot's.
    assert 0 < max(each.rss_bytes for each in snapshots) <= stats["rss"]["peak_bytes"]


def test_numbers_are_those_of_stats(recorded, capture):
    assert capture.stats() == recorded.stats()


def test_memrays_names(recorded, capture):
    with api.Capture(recorded.path) as reader:
        about, stats = reader.metadata, recorded.stats()
        assert about.peak_memory == stats["peak"]["bytes"] and about.pid == stats["capture"]["pid"]
        assert about.total_allocations == stats["allocations"]["count"] and about.start_time < about.end_time
        peak = list(reader.get_high_watermark_allocation_records())
        assert sum(record.size for record in peak) == stats["peak"]["bytes"]
        assert len({(record.stack, record.allocator) for record in peak}) == len(peak)
        leaked = sum(record.size for record in reader.get_leaked_allocation_records(merge_threads=False))
        assert leaked == recorded.stats()["leaked"]["bytes"] or leaked > 0
        most = [sum(1 for _ in reader.get_temporary_allocation_records(threshold=threshold)) for threshold in (1, 50)]
        assert most[0] <= most[1]
        single = list(reader.get_allocation_records())
        assert {record.n_allocations for record in single} == {1} and len(single) >= about.total_allocations
        assert len(list(reader.get_memory_snapshots())) == len(list(capture.snapshots()))


def test_several_files_are_one_process_tree(memtrack, python):
    outcome = memtrack("run", "-q", "--no-native", "--follow", "-o", "tree.bin", "--", python, PROGRAMS / "forks.py")
    assert outcome.status == 0
    files = sorted(memtrack.directory.glob("tree*.bin*"))
    assert len(files) > 1
    capture = api.Capture(*files)
    whole = json.loads(memtrack("stats", "--json", *files).stdout)
    assert capture.stats()["peak"] == whole["peak"]
    assert sum(each.bytes for each in capture.allocations()) == whole["peak"]["bytes"]
    assert len({event.pid for event in capture.events()}) == len(files)


def test_errors_have_the_words_of_the_command_line(recorded, capture, memtrack, tmp_path, monkeypatch):
    missing = tmp_path / "missing.bin"
    for ask in (
        lambda: api.Capture(missing).stats(),
        lambda: next(api.Capture(missing).allocations()),
        lambda: next(api.Capture(missing).events()),
        lambda: next(api.Capture(missing).snapshots()),
    ):
        with pytest.raises(api.Error) as raised:
            ask()
        assert f"error: {raised.value}\n" == memtrack("stats", missing).stderr.decode()
    with pytest.raises(api.Error, match="unknown allocator; expected one of malloc"):
        next(capture.allocations(allocator="alloca"))
    with pytest.raises(ValueError, match="expected one of high-water-mark, leaks"):
        capture.allocations("peak")
    for filters, expected in (({"min_bytes": "x"}, "min_bytes=x: not a size"), ({"from_": "soon"}, "from_=soon: not a time"), ({"allocator": "heap"}, "allocator=heap: unknown")):
        for read in (capture.allocations, capture.events, capture.stats):
            with pytest.raises(api.Error, match=f"^{expected}"):
                list(read(**filters))
    with pytest.raises(TypeError, match="'min_size' is no filter; expected one of allocator"):
        capture.events(min_size=3)
    aggregated = memtrack.record(sys.executable, "-c", "x = bytearray(10**6)", options=["--aggregate"])
    assert sum(each.bytes for each in api.Capture(aggregated.path).allocations("allocated")) > 10**6
    with pytest.raises(api.Error, match="an aggregated capture holds no events"):
        next(api.Capture(aggregated.path).events())
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("MEMTRACK", raising=False)
    with pytest.raises(api.Error, match="the program memtrack is neither on PATH nor in any of"):
        capture.stats()


def test_what_is_missing_is_a_warning_at_the_callers_line(recorded, tmp_path):
    damaged = tmp_path / "damaged.bin"
    content = bytearray(recorded.path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 64] = bytes(64)
    damaged.write_bytes(content)
    with pytest.warns(api.CaptureWarning, match="could not be decoded") as warned:
        list(api.Capture(damaged).allocations())
    assert {warning.filename for warning in warned} == {__file__}
    told = execute([recorded.memtrack.executable, "table", damaged]).stderr.decode()
    assert all(f"warning: {warning.message}\n" in told for warning in warned)


def test_an_iterator_that_is_dropped_ends_its_program(recorded):
    """So that nothing is left of a search that has found what it looked for."""

    def children():
        listed = subprocess.run(["ps", "-o", "pid=,comm=", "--ppid", str(os.getpid())], capture_output=True, text=True)
        return [line for line in listed.stdout.splitlines() if "memtrack" in line]

    before = set(children())  # of other tests of this process
    events = api.Capture(recorded.path).events()
    next(events)
    assert set(children()) - before
    del events
    gc.collect()
    assert not set(children()) - before


def test_events_of_any_number_need_little_memory(large):
    capture = api.Capture(large.path)
    next(capture.events())
    tracemalloc.start()
    try:
        number = sum(1 for _ in capture.events())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert number > 200_000 and peak < 8_000_000


def test_arrow_and_pandas_have_the_tables_of_parquet(recorded, capture):
    pytest.importorskip("pyarrow")
    pytest.importorskip("pandas")
    events = capture.to_arrow()
    assert events.num_rows == len(recorded.records.events)
    known = recorded.stats(*["--function", "remember"])["allocations"]
    frame = capture.to_pandas(function="remember")
    assert int(frame[frame.kind == "alloc"]["size"].sum()) == known["bytes"]
    assert set(capture.to_pandas("frames").columns) >= {"frame", "function", "file", "line"}
    with pytest.raises(ValueError, match="expected one of events, frames, processes"):
        capture.to_arrow("blocks")


def test_pandas_keeps_every_bit_of_keys(capture):
    """Of columns with missing values, too: the outermost frames have no caller, and some events no call stack."""
    pytest.importorskip("pyarrow")
    pandas = pytest.importorskip("pandas")
    stacks, events = capture.to_pandas("stacks"), capture.to_pandas()
    assert stacks["caller"].isna().any() and list(stacks.columns) == capture.to_arrow("stacks").column_names
    known = set(stacks["stack"])
    assert set(stacks["caller"].dropna()) < known and set(events["stack"].dropna()) <= known
    assert all(key in stacks.set_index("stack").index for key in events["stack"].dropna().head(20))
    # What was freed has a size that counts against the others.
    assert (-events["size"]).min() == -events["size"].max() < -1_000_000
    for table in ("events", "sites", "stacks", "frames"):
        arrow, frame = capture.to_arrow(table), capture.to_pandas(table)
        for name, column in zip(arrow.column_names, arrow.columns):
            if "int" in str(column.type):
                assert pandas.api.types.is_integer_dtype(frame[name]), (table, name)
                assert [None if value is pandas.NA else value for value in frame[name]] == column.to_pylist()


def test_equal_stacks_are_equal_in_every_answer(capture):
    """Those of events are written before it is known which lines have several calls."""
    made = ("alloc", "map")
    of_events = collections.Counter(event.stack for event in capture.events() if event.kind in made)
    of_sums = collections.Counter()
    for allocation in capture.allocations("allocated"):
        of_sums[allocation.stack] += allocation.count
    assert of_events == of_sums and len(of_sums) > 3
    peak = {allocation.stack for allocation in capture.allocations()}
    assert peak <= of_events.keys()
    if sys.version_info >= (3, 11):
        assert all(frame.column > 0 for stack in peak for frame in stack if frame.file.endswith("demo.py"))


def test_events_of_several_captures_have_one_clock(module_memtrack):
    code = "import os, time\ntime.sleep(0.2)\nif os.fork() == 0: block = bytearray(7_000_000); os._exit(0)\nos.wait()"
    parent = module_memtrack.record(sys.executable, "-c", code, options=["--follow", "--allocation-timestamps"])
    [child] = parent.path.parent.glob(f"{parent.path.stem}.*-1.bin")
    both = api.Capture(parent.path, child)
    [block] = [event for event in both.events(min_bytes=7_000_000) if event.kind in ("alloc", "map")]
    [row] = json.loads(parent.reading("query", "--json", "bytes >= 7MB", parent.path, child))["rows"]
    assert block.time_ns == row["time_ns"] > 150_000_000
    assert all(event.time_ns >= 150_000_000 for event in both.events(from_=0.15) if event.kind in ("alloc", "map"))
    [alone] = [event for event in api.Capture(child).events(min_bytes=7_000_000) if event.kind in ("alloc", "map")]
    assert alone.time_ns < block.time_ns


def test_tables_that_sums_do_not_have(module_memtrack):
    code = "import os\nif os.fork() == 0: os._exit(0)\nos.wait()"
    sums = module_memtrack.record(sys.executable, "-c", code, options=["--aggregate", "--follow"])
    [child] = sums.path.parent.glob(f"{sums.path.stem}.*-1.bin")
    capture = api.Capture(sums.path)
    pytest.importorskip("pyarrow")
    assert capture.to_arrow("sites").num_rows > 0
    for table in ("windows", "snapshots"):
        with pytest.raises(api.Error, match="aggregated captures have windows only of"):
            capture.to_arrow(table)
    # At one moment, of several, it is not known.
    assert capture.metadata.peak_memory > 0 and api.Capture(sums.path, child).metadata.peak_memory is None


@pytest.mark.parametrize("name", ["_capture", "_sizes"])
def test_examples_of_the_docstrings(recorded, tmp_path, monkeypatch, name):
    """Where pyarrow is missing, those of parquet are left out."""
    (tmp_path / "app.bin").write_bytes(recorded.path.read_bytes())
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(f"memtrack.{name}")
    tested = 0
    for test in doctest.DocTestFinder().find(module, extraglobs={"Capture": api.Capture}):
        if test.name.endswith(("to_arrow", "to_pandas")):
            try:
                api.Capture("app.bin").to_arrow()
            except api.Error:
                continue
        results = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test)
        assert results.failed == 0, test.name
        tested += results.attempted
    assert tested >= 2


def test_types(tmp_path):
    """mypy --strict and pyright have nothing to say of the package, nor of a use of it."""
    use = tmp_path / "use.py"
    use.write_text(
        "import memtrack\n"
        "capture = memtrack.Capture('a.bin')\n"
        "size: int = sum(each.bytes for each in capture.allocations('leaks', own=True, from_=1.5))\n"
        "names: list[str] = [frame.function for each in capture.events(thread=['a']) for frame in each.stack]\n"
    )
    for checker in (["mypy", "--strict", "memtrack", use], ["pyright", "--pythonpath", sys.executable, "memtrack"]):
        pytest.importorskip(checker[0])
        outcome = execute([sys.executable, "-m", *checker], cwd=REPOSITORY / "python")
        assert outcome.status == 0, outcome.stdout.decode()


@pytest.mark.parametrize("version", ["3.8", "3.13", "3.14t", "3.15t"])
def test_on_other_interpreters(recorded, version, tmp_path):
    from conftest import interpreter_path

    code = (
        "import memtrack, sys; c = memtrack.Capture(sys.argv[1]);"
        "print(sum(a.bytes for a in c.allocations()), c.stats()['peak']['bytes'], sum(1 for e in c.events()))"
    )
    outcome = execute(
        [interpreter_path(version), "-c", code, recorded.path],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "python")},
    )
    assert outcome.status == 0, outcome.stderr.decode()
    shown, peak, events = map(int, outcome.stdout.split())
    assert shown == peak == recorded.stats()["peak"]["bytes"] and events == len(recorded.records.events)


def test_importing_the_package_imports_nothing_else():
    code = "import sys; before = set(sys.modules); import memtrack; print(*sorted(set(sys.modules) - before))"
    outcome = execute([sys.executable, "-Ic", f"import sys; sys.path.insert(0, {str(REPOSITORY / 'python')!r}); {code}"])
    added = set(outcome.stdout.decode().split())
    assert not added & {"json", "subprocess", "memtrack._capture"}
