"""What `memtrack transform` writes, read by the programs that it is for: each total must be that of `memtrack stats`.

Readers come from PyPI (requirements.txt), npm and Debian; one that is not there is skipped by name.
"""

import collections
import csv
import gzip
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from conftest import PROGRAMS, REPOSITORY, execute
from readers import processed_profile

VIEWS = {"high-water-mark": (), "leaks": ("--leaks",), "at-exit": ("--leaks", "--at-exit"), "temporary": ("--temporary",), "allocated": ("--allocated",)}


@pytest.fixture(scope="module")
def capture(module_memtrack):
    options = ["--allocation-timestamps"]
    return module_memtrack.record(sys.executable, PROGRAMS / "exports.py", options=options)


@pytest.fixture(scope="module")
def aggregated(module_memtrack):
    return module_memtrack.record(sys.executable, PROGRAMS / "exports.py", options=["--aggregate"])


@pytest.fixture(params=VIEWS)
def view(request):
    return request.param


def exported(capture, name, *options):
    """The bytes of an export."""
    outcome = capture.memtrack("transform", name, capture.path, "-o", "-", *options)
    assert outcome.status == 0, outcome.stderr.decode()
    return outcome.stdout


def total(capture, view):
    """(bytes, count) of a view as stats has it."""
    if view == "at-exit":
        known = capture.speedscope("--leaks", "--at-exit").file["memtrack"]
        return known["total_bytes"], known["total_allocations"]
    stats = capture.stats()
    key = {"high-water-mark": "peak", "leaks": "leaked", "temporary": "temporary", "allocated": "allocations"}[view]
    return stats[key]["bytes"], stats[key].get("count", stats[key].get("allocations"))


def tool(name):
    return shutil.which(name) or pytest.skip(f"no {name}")


def node_module(name):
    """The folder of an npm package, which the test set-up installs below .venv."""
    tool("node")
    roots = [os.environ.get("MEMTRACK_NODE_MODULES") or REPOSITORY / ".venv" / "node_modules"]
    found = [pathlib.Path(root) / name for root in roots if (pathlib.Path(root) / name).is_dir()]
    return found[0] if found else pytest.skip(f"no npm package {name}")


# --- tables and stacks ------------------------------------------------------------------------------------------------


def rows(text):
    return list(csv.DictReader(io.StringIO(text.decode())))


def test_csv_has_the_columns_and_the_totals(capture, view):
    table = rows(exported(capture, "csv", *VIEWS[view]))
    assert list(table[0]) == ["allocator", "num_allocations", "size", "tid", "thread_name", "stack_trace"]
    assert (sum(int(row["size"]) for row in table), sum(int(row["num_allocations"]) for row in table)) == total(capture, view)


def test_csv_names_threads_allocators_and_odd_files(capture):
    table = rows(exported(capture, "csv", "--allocated"))
    assert {"MALLOC", "CALLOC", "REALLOC", "MMAP"} <= {row["allocator"] for row in table}
    assert any(row["size"] == "4322" and row["stack_trace"].startswith('odd;a "quoted", odd; name|.py;2|') for row in table)
    assert all(row["tid"].isdigit() for row in table) and len({row["tid"] for row in table}) == 2


def test_pandas_reads_csv(capture):
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_csv(io.BytesIO(exported(capture, "csv")))
    assert (frame["size"].sum(), frame["num_allocations"].sum()) == total(capture, "high-water-mark")


def test_duckdb_reads_csv_and_jsonl(capture, tmp_path):
    duckdb = pytest.importorskip("duckdb")
    (tmp_path / "a.csv").write_bytes(exported(capture, "csv"))
    (tmp_path / "a.jsonl").write_bytes(exported(capture, "jsonl"))
    size = duckdb.sql(f"select sum(size) from read_csv('{tmp_path}/a.csv')").fetchall()[0][0]
    assert size == total(capture, "high-water-mark")[0]
    query = "select sum(entry.peak.self_bytes) from (select unnest(entries) as entry from read_ndjson('{}') where kind = 'stack')"
    assert duckdb.sql(query.format(tmp_path / "a.jsonl")).fetchall()[0][0] == size


@pytest.mark.parametrize("metric", ["bytes", "allocations"])
def test_collapsed_lines_add_up(capture, view, metric):
    lines = exported(capture, "collapsed", "--metric", metric, *VIEWS[view]).decode().splitlines()
    stacks = dict(line.rsplit(" ", 1) for line in lines)
    assert len(stacks) == len(lines)
    assert sum(map(int, stacks.values())) == total(capture, view)[metric == "allocations"]


@pytest.mark.parametrize("metric", ["bytes", "allocations"])
def test_gprof2dot_reads_it(capture, view, metric, tmp_path):
    gprof2dot = pytest.importorskip("gprof2dot")
    text = exported(capture, "gprof2dot", "--metric", metric, *VIEWS[view]).decode()
    profile = gprof2dot.JsonParser(io.StringIO(text)).parse()
    assert profile[gprof2dot.SAMPLES] == total(capture, view)[metric == "allocations"]
    (tmp_path / "a.json").write_text(text)
    drawn = execute([sys.executable, "-m", "gprof2dot", "-f", "json", "-n0", "-e0", tmp_path / "a.json"])
    assert drawn.status == 0 and b"digraph" in drawn.stdout, drawn.stderr.decode()


# --- pprof ------------------------------------------------------------------------------------------------------------

PPROF = {"allocated": "alloc", "leaks": "inuse", "high-water-mark": "peak", "temporary": "temporary"}


def test_go_tool_pprof_reads_it(capture, view, tmp_path):
    go = tool("go")
    if "GOCACHE" not in os.environ:
        os.environ["GOCACHE"] = str(tmp_path / "go")
    path = tmp_path / "a.pb.gz"
    path.write_bytes(exported(capture, "pprof", *VIEWS[view]))
    kind = PPROF.get(view, "inuse")
    for sample, expected in zip((f"{kind}_space", f"{kind}_objects"), total(capture, view)):
        shown = execute([go, "tool", "pprof", "-raw", f"-sample_index={sample}", path])
        assert shown.status == 0, shown.stderr.decode()
        assert raw_sums(shown.stdout.decode())[sample] == expected
    top = execute([go, "tool", "pprof", "-top", path]).stdout.decode()
    assert f"Type: {kind}_space" in top and "leak" in execute([go, "tool", "pprof", "-top", "-sample_index=alloc_space", path]).stdout.decode()


def test_go_tool_pprof_shows_names_as_they_are(module_memtrack, tmp_path):
    """It demangles names where it takes them for mangled ones: of `<module>` nothing was left."""
    go = tool("go")
    if "GOCACHE" not in os.environ:
        os.environ["GOCACHE"] = str(tmp_path / "go")
    capture = module_memtrack.record(sys.executable, "-c", "make = lambda: bytearray(3_000_000)\nheld = make()\nmore = bytearray(2_000_000)")
    path = tmp_path / "names.pb.gz"
    path.write_bytes(exported(capture, "pprof"))
    top = execute([go, "tool", "pprof", "-top", "-sample_index=peak_space", path]).stdout.decode()
    assert "<lambda>" in top and "<module>" in top, top


def raw_sums(text):
    """The sums of each sample type in what `go tool pprof -raw` prints."""
    lines = text[text.index("Samples:") : text.index("Locations")].splitlines()[1:]
    types = [word.split("/")[0] for word in lines[0].replace("[dflt]", "").split()]
    sums = collections.Counter()
    for line in lines[1:]:
        values = line.partition(": ")[0].split()
        if len(values) == len(types) and all(value.isdigit() for value in values):
            sums.update(dict(zip(types, map(int, values))))
    return sums


def test_pprof_is_a_gzip_stream(capture):
    assert len(gzip.decompress(exported(capture, "pprof"))) > 1000


# --- jsonl ------------------------------------------------------------------------------------------------------------


class Lines:
    """The records of a jsonl file, by type."""

    def __init__(self, text):
        self.records = [json.loads(line) for line in text.splitlines()]
        self.kinds = [record["type"] for record in self.records]

    def entries(self, kind, key):
        chunks = [record[key] for record in self.records if record["type"] == kind or record.get("kind") == kind]
        assert all(len(chunk) == 256 for chunk in chunks[:-1])
        return [entry for chunk in chunks for entry in chunk]


def test_jsonl_is_in_order_whole_and_adds_up(capture):
    lines = Lines(exported(capture, "jsonl"))
    order = ["meta", "string_table", "frame_table", "agg", "snapshot", "end"]
    assert list(dict.fromkeys(lines.kinds)) == order and lines.kinds == sorted(lines.kinds, key=order.index)
    assert lines.records[-1]["records"] == len(lines.records) - 1
    assert {(record["v"], record["run_id"]) for record in lines.records} == {(0, lines.records[0]["run_id"])}
    for kind in ("frame", "stack"):
        entries = lines.entries(kind, "entries")
        assert [entry[f"{kind}_id"] for entry in entries] == list(range(len(entries)))
        for name, view in (("peak", "high-water-mark"), ("leaked", "leaks"), ("allocated", "allocated"), ("temporary", "temporary")):
            sums = tuple(sum(entry[name][key] for entry in entries) for key in ("self_bytes", "self_count"))
            assert sums == total(capture, view)


def test_jsonl_counts_a_recursive_function_once_in_each_stack(capture):
    lines = Lines(exported(capture, "jsonl"))
    strings = {entry["str_id"]: entry["value"] for entry in lines.entries("string_table", "strings")}
    frames = {entry["frame_id"]: entry for entry in lines.entries("frame_table", "frames")}
    recursive = {number for number, frame in frames.items() if strings[frame["func_str_id"]] == "recurse"}
    stacks = [entry for entry in lines.entries("stack", "entries") if recursive & set(entry["frame_ids"])]
    assert max(collections.Counter(entry["frame_ids"])[number] for entry in stacks for number in recursive) == 7
    for entry in lines.entries("frame", "entries"):
        if entry["frame_id"] in recursive:
            having = [stack for stack in stacks if entry["frame_id"] in stack["frame_ids"]]
            assert entry["allocated"]["cumulative_bytes"] == sum(stack["allocated"]["self_bytes"] for stack in having)


# --- viewers ----------------------------------------------------------------------------------------------------------

READERS = pathlib.Path(__file__).parent / "readers"


def speedscope_import(content, name, directory):
    """What speedscope's own importer makes of a file."""
    bundle = next((node_module("speedscope") / "dist" / "release").glob("speedscope-*.js"))
    path = directory / name
    path.write_bytes(content)
    outcome = execute([tool("node"), READERS / "speedscope.js", bundle, path])
    assert outcome.status == 0, outcome.stderr.decode()
    return json.loads(outcome.stdout)["profiles"]


def test_speedscope_imports_its_format(capture, view, tmp_path):
    profiles = speedscope_import(exported(capture, "speedscope", *VIEWS[view]), "a.speedscope.json", tmp_path)
    assert [profile["unit"] for profile in profiles] == ["bytes", "none"]
    assert tuple(profile["total"] for profile in profiles) == total(capture, view)
    assert all(profile["own"] == profile["total"] for profile in profiles)


def test_speedscope_imports_collapsed_stacks_and_pprof(capture, tmp_path):
    size, count = total(capture, "high-water-mark")
    (collapsed,) = speedscope_import(exported(capture, "collapsed"), "a.txt", tmp_path)
    assert collapsed["total"] == size
    profiles = speedscope_import(exported(capture, "pprof"), "a.pb.gz", tmp_path)
    assert size in [profile["total"] for profile in profiles]


@pytest.mark.parametrize("order", ["exact", "snapshot", "capture"])
def test_speedscope_files_satisfy_its_schema(capture, view, order):
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((node_module("speedscope") / "dist" / "release" / "file-format-schema.json").read_text())
    jsonschema.validate(json.loads(exported(capture, "speedscope", "--order", order, *VIEWS[view])), schema)


def test_dhat_opens_in_its_viewer(capture, tmp_path):
    viewer = pathlib.Path("/usr/libexec/valgrind/dh_view.js")
    if not viewer.is_file():
        pytest.skip("no valgrind")
    for end, options in (("leaks", ()), ("at-exit", ("--leaks", "--at-exit"))):
        (tmp_path / "a.json").write_bytes(exported(capture, "dhat", *options))
        outcome = execute([tool("node"), READERS / "dh_view.js", viewer, tmp_path / "a.json"])
        assert outcome.status == 0, outcome.stderr.decode()
        shown = json.loads(outcome.stdout)
        assert tuple(shown["total"]) == total(capture, "allocated")
        assert tuple(shown["peak"]) == total(capture, "high-water-mark")
        assert tuple(shown["end"]) == total(capture, end)
        # The end is the moment of the figures.
        (finalizing,) = [line for line in capture.text.splitlines() if line.startswith("FINALIZING ")]
        moment = int(re.search(r"time_ns=(\d+)", finalizing)[1]) // 1000
        told = json.loads((tmp_path / "a.json").read_text())["te"]
        assert told == moment if end == "leaks" else told > moment
        assert shown["lifetimes"] > 0


def test_dhat_knows_lifetimes_and_maxima(module_memtrack):
    code = """
import time
def held():
    block = bytearray(654_321)
    begun = time.monotonic()
    time.sleep(0.2)
    return begun, time.monotonic()
shortest = longest = 0
for _ in range(2):
    before = time.monotonic()
    begun, end = held()
    shortest, longest = shortest + end - begun, longest + time.monotonic() - before
print(int(shortest * 1e6), int(longest * 1e6) + 1)
"""
    outcome, capture = module_memtrack.run(sys.executable, "-c", code, options=["--allocation-timestamps"])
    shortest, longest = map(int, outcome.stdout.split())
    file = json.loads(exported(capture, "dhat"))
    (point,) = [point for point in file["pps"] if point["tb"] == 2 * 654_322]
    assert (point["tbk"], point["mb"], point["mbk"], point["eb"]) == (2, 654_322, 1, 0)
    # Two lifetimes, each rounded.
    assert 400_000 <= shortest <= point["tl"] + 2 and point["tl"] <= longest + 2 and file["tu"] == "µs"
    assert any("held" in file["ftbl"][frame] for frame in point["fs"])


def test_heaptrack_print_reads_it(capture, tmp_path):
    (tmp_path / "a.gz").write_bytes(exported(capture, "heaptrack"))
    shown = execute([tool("heaptrack_print"), "-f", tmp_path / "a.gz", "-F", tmp_path / "peak", "--flamegraph-cost-type", "peak"])
    assert shown.status == 0, shown.stderr.decode()
    text = shown.stdout.decode()
    size, count = total(capture, "allocated")
    assert f"calls to allocation functions: {count} " in text
    assert "failed to parse" not in text + shown.stderr.decode()
    weights = [int(line.rsplit(" ", 1)[1]) for line in (tmp_path / "peak").read_text().splitlines()]
    assert sum(weights) == total(capture, "high-water-mark")[0]
    execute([tool("heaptrack_print"), "-f", tmp_path / "a.gz", "-F", tmp_path / "leaked", "--flamegraph-cost-type", "leaked"])
    weights = [int(line.rsplit(" ", 1)[1]) for line in (tmp_path / "leaked").read_text().splitlines()]
    assert sum(weights) == total(capture, "at-exit")[0]


def test_heaptrack_takes_filters_and_refuses_sums(capture, aggregated):
    text = gzip.decompress(exported(capture, "heaptrack", "--function", "churn")).decode()
    stats = json.loads(capture.reading("stats", "--json", "--function", "churn", capture.path))
    assert sum(line.startswith("+ ") for line in text.splitlines()) == stats["allocations"]["count"]
    assert sum(line.startswith("- ") for line in text.splitlines()) == stats["deallocations"]["count"]
    for name in ("heaptrack", "dhat"):
        outcome = aggregated.memtrack("transform", name, aggregated.path, "-o", "-")
        assert outcome.status == 1 and b"aggregated" in outcome.stderr and outcome.stdout == b""


def test_firefox_profiles_are_consistent(capture, view):
    profile = json.loads(exported(capture, "firefox", *VIEWS[view]))
    processed_profile.check(profile)
    (thread,) = profile["threads"]
    allocations = thread["nativeAllocations"]
    assert allocations["weightType"] == "bytes" and sum(allocations["weight"]) == total(capture, view)[0]
    markers = thread["markers"]
    names = [thread["stringArray"][name] for name in markers["name"]]
    moments = [time for name, time in zip(names, markers["startTime"]) if name == "Memory snapshot"]
    assert names.count("High-water mark") == 1 and len(moments) == len(profile["counters"][0]["samples"]["count"])
    assert moments == sorted(moments)
    heap, resident = profile["counters"]
    assert (heap["name"], resident["name"]) == ("heap", "resident")
    assert sum(resident["samples"]["count"]) == capture.stats()["rss"]["last_bytes"]


# --- parquet ----------------------------------------------------------------------------------------------------------


TABLES = {"events", "sites", "windows", "snapshots", "stacks", "frames", "threads", "processes"}


@pytest.fixture(scope="module")
def tables(capture):
    """The directory of tables."""
    directory = capture.path.parent / "capture.tables"
    outcome = capture.memtrack("transform", "parquet", "-f", "-o", directory, "--host", "h/1", "--service", "shop", "--window", "1ms", capture.path)
    assert outcome.status == 0, outcome.stderr.decode()
    assert {path.name for path in directory.iterdir()} == TABLES
    return directory


def asking(directory):
    """Answers SQL, with $table for the files of a table."""
    duckdb = pytest.importorskip("duckdb")
    files = lambda match: f"read_parquet('{directory}/{match[1]}/**/*.parquet', hive_partitioning = true)"
    return lambda query: duckdb.sql(re.sub(r"[$]([a-z]+)", files, query)).fetchall()


def test_tables_of_the_same_capture_are_replaced_if_nobody_changed_them(memtrack, tmp_path):
    assert memtrack("run", "-q", "-o", "capture.bin", sys.executable, "-c", "x = bytearray(10**6)", cwd=tmp_path).status == 0
    write = ("transform", "parquet", "-o", "tables", "capture.bin")
    assert [memtrack(*write, cwd=tmp_path).status for _ in range(2)] == [0, 0]
    [sites] = (tmp_path / "tables/sites").rglob("*.parquet")
    whole = sites.read_bytes()
    sites.write_bytes(whole[:-1] + b"x")
    refused = memtrack(*write, cwd=tmp_path)
    assert refused.status == 1 and b"file exists; overwrite it with -f/--force" in refused.stderr
    assert memtrack("transform", "parquet", "-f", "-o", "tables", "capture.bin", cwd=tmp_path).status == 0
    assert sites.read_bytes() == whole


def test_duckdb_reads_parquet(capture, tables):
    ask = asking(tables)
    heap = "from $events where kind = 'alloc' or (kind = 'map' and class = 'heap')"
    assert ask(f"select count(*), sum(size) {heap}") == [total(capture, "allocated")[::-1]]
    assert ask("select count(*) from $events where kind = 'free'")[0][0] >= capture.stats()["deallocations"]["count"] - 10
    leaf = "from $events join $stacks using (stack) join $frames using (frame)"
    ((count, size, line),) = ask(f"select count(*), sum(size), min(line) {leaf} where function = 'churn' and size > 1000")
    assert (count, size, line) == (300, 300 * 2001, 20)
    assert ask(f"select distinct module {leaf} where function = 'churn'") == [("exports",)]
    assert ask("select count(*) from $threads where name = 'worker'") == [(1,)]
    ((rss,),) = ask("select max(rss_bytes) from $snapshots")
    assert rss <= capture.stats()["rss"]["peak_bytes"]
    assert ask("select count(*) from $stacks a where caller is not null and caller not in (select stack from $stacks)") == [(0,)]
    day = capture.stats()["capture"]["start_time"][:10]
    assert ask("select distinct cast(day as varchar), service, host from $sites") == [(day, "shop", "h/1")]


def test_sums_of_the_tables_are_those_of_stats(capture, tables):
    ask, stats = asking(tables), capture.stats()
    sums = "sum(allocated_bytes), sum(allocated_count), sum(peak_bytes), sum(peak_count), sum(leaked_bytes), sum(leaked_count)"
    figures = [stats[name][field] for name, field in (
        ("allocations", "bytes"), ("allocations", "count"), ("peak", "bytes"), ("peak", "allocations"), ("leaked", "bytes"), ("leaked", "allocations"))]
    assert [list(row) for row in ask(f"select {sums} from $sites")] == [figures]
    assert [list(row) for row in ask(f"select {sums.replace('sum(', '(')} from $processes")] == [figures]
    # The windows together are the whole recording, and what the last one holds is live at the very end.
    assert ask("select sum(allocated_bytes), sum(allocated_count) from $windows") == [tuple(figures[:2])]
    last = "(select max(window_number) from $windows)"
    at_exit = ask("select sum(leaked_at_exit_bytes), sum(leaked_at_exit_count) from $sites")
    assert ask(f"select sum(live_bytes), sum(live_count) from $windows where window_number = {last}") == at_exit
    assert ask("select count(*) > 3 from (select distinct window_number from $windows)") == [(True,)]
    live = "sum(allocated_bytes - freed_bytes) over (partition by stack, allocator, tid order by window_number)"
    assert ask(f"select count(*) from (select live_bytes, {live} as held from $windows) where live_bytes != held") == [(0,)]
    own = "select function, line, sum(s.allocated_bytes) from $sites s join $frames f on f.frame = s.own_frame where whose = 'own' group by all"
    assert ("churn", 20, 300 * 2001) in ask(own)


def test_peaks_of_windows_are_those_of_their_events(tables):
    """Of all but mappings, whose parts can end: each event is taken in its order."""
    ask = asking(tables)
    ((length,),) = ask("select min(end_ns - start_ns) from $windows")
    columns = "time_ns // {length}, kind, address, size, stack, allocator, tid".format(length=length)
    blocks, live, peaks, now = {}, {}, {}, 0
    for window, kind, address, size, *group in ask(f"select {columns} from $events where kind in ('alloc', 'free') order by \"order\""):
        if window > now:
            peaks |= {(window, *key): held for key, held in live.items()}
            now = window
        if kind == "alloc":
            blocks[address] = (tuple(group), size)
        elif address not in blocks:
            continue
        key, size = blocks[address] if kind == "alloc" else blocks.pop(address)
        sign = 1 if kind == "alloc" else -1
        held = live[key] = tuple(old + sign * new for old, new in zip(live.get(key, (0, 0)), (size, 1), strict=True))
        if held[0] > peaks.get((now, *key), (0, 0))[0]:
            peaks[now, *key] = held
    columns = "window_number, stack, allocator, tid, peak_bytes, peak_count, live_bytes, live_count, allocated_count, freed_count"
    found = ask(f"select {columns} from $windows where allocator not like 'm%map' and allocator != 'pymalloc_arena'")
    assert len(found) > 100
    for *key, peak, number, held, blocks_held, allocated, freed in found:
        # In a window with a snapshot, but without an event, nothing changes.
        expected = peaks.get(tuple(key)) or (held, blocks_held)
        assert (peak, number) == expected and (tuple(key) in peaks or (allocated, freed) == (0, 0)), key
    assert ask("select count(*) from $windows where peak_bytes < live_bytes or peak_bytes > live_bytes + freed_bytes") == [(0,)]


def test_pyarrow_and_pandas_read_parquet(capture, tables):
    parquet = pytest.importorskip("pyarrow.parquet")
    (path,) = tables.glob("events/day=*/service=shop/host=h%2F1/events-*.parquet")
    events = parquet.read_table(path, partitioning=None)
    assert events.num_rows == len(capture.records.events)
    assert events.column("order").to_pylist() == list(range(events.num_rows))
    metadata = parquet.read_metadata(path).metadata
    about = json.loads(metadata[b"memtrack"])
    assert about["schema"] == "memtrack-parquet" and about["has_allocation_timestamps"]
    assert metadata[b"memtrack.schema_version"] == b"2"
    expected = [(record.time_ns, record.tid) for record in capture.records.events]
    assert list(zip(events.column("time_ns").to_pylist(), events.column("tid").to_pylist())) == expected


def test_columns_are_those_of_the_documents(tables):
    parquet = pytest.importorskip("pyarrow.parquet")
    documented = {}
    for line in (REPOSITORY / "docs" / "tables.md").read_text().splitlines():
        if match := re.fullmatch(r"## `(\w+)`", line):
            columns = documented.setdefault(match[1], [])
        elif match := re.match(r"[|] `(\w+)` [|] (\w+) [|]", line):
            columns.append((match[1], match[2]))
    assert set(documented) == TABLES
    for name, columns in documented.items():
        (path,) = tables.glob(f"{name}/**/*.parquet")
        schema = parquet.read_schema(path)
        assert columns == [(field.name, str(field.type)) for field in schema], name


def test_parquet_takes_filters_and_overwrites_only_its_own(capture, aggregated, tables, tmp_path):
    write = lambda *options: capture.memtrack("transform", "parquet", *options, "-o", tmp_path / "t", capture.path)
    assert write("--function", "churn").status == 0
    stats = json.loads(capture.reading("stats", "--json", "--function", "churn", capture.path))
    allocated = (stats["allocations"]["count"], stats["deallocations"]["count"])
    ask = asking(tmp_path / "t")
    assert ask("select count(*) filter (kind = 'alloc' or kind = 'map'), count(*) filter (kind = 'free') from $events") == [allocated]
    assert ask("select sum(allocated_count) from $sites") == ask("select sum(allocated_count) from $windows") == [allocated[:1]]
    assert write().status == 0, "its own, of the same capture"
    assert write("-f", "--no-events").status == 0 and write("--host", "other").status == 0
    assert len(list((tmp_path / "t").glob("sites/**/*.parquet"))) == 2
    # A process is there once, whatever service it is said to be of.
    outcome = write("--service", "shop", "--no-events")
    assert outcome.status == 1 and b"there already" in outcome.stderr and b"--force" in outcome.stderr
    assert write("-f", "--service", "shop", "--no-events").status == 0
    assert sorted(path.parent.parent.name for path in (tmp_path / "t").glob("sites/**/*.parquet"))[1:] == ["service=shop"]
    assert len(list((tmp_path / "t").glob("sites/**/*.parquet"))) == 2
    (tmp_path / "t" / "mine.txt").write_text("mine")
    outcome = write("-f")
    assert outcome.status == 1 and (tmp_path / "t" / "mine.txt").read_text() == "mine"
    outcome = aggregated.memtrack("transform", "parquet", "-o", tmp_path / "sums", aggregated.path)
    assert outcome.status == 0, outcome.stderr
    assert {path.name for path in (tmp_path / "sums").iterdir()} == TABLES - {"events", "windows", "snapshots"}
    known = aggregated.stats()["allocations"]
    assert asking(tmp_path / "sums")("select sum(allocated_bytes), sum(allocated_count) from $sites") == [(known["bytes"], known["count"])]


# --- captures that hold sums only -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["csv", "collapsed", "gprof2dot", "pprof", "jsonl"])
def test_aggregated_captures_are_exported_too(aggregated, name):
    assert exported(aggregated, name)
    if name == "csv":
        assert sum(int(row["size"]) for row in rows(exported(aggregated, name))) == total(aggregated, "high-water-mark")[0]


def test_files_are_named_after_format_and_capture(capture):
    outcome = capture.memtrack("transform", "pprof", capture.path)
    assert outcome.status == 0 and (capture.path.parent / "memtrack-pprof-capture-1.pb.gz").is_file()
    assert b"go tool pprof" in outcome.stderr and outcome.stdout == b""
