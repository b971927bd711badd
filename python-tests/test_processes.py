"""Trees of Python processes: each worker's figures are exact and in a capture of its own.

Worker n of programs/tree.py keeps n blocks of 100,000 + n bytes, which no other process allocates.
"""

import csv
import io
import json
import platform
import subprocess
import sys

import pytest

from conftest import Capture, execute, with_names

FOLLOW = ("--follow",)


def recorded(memtrack, *command, options=FOLLOW):
    """The captures of a run, the first process's first."""
    outcome, capture = memtrack.run(*command, options=options)
    assert outcome.status == 0, outcome
    assert outcome.stderr == b"", outcome
    return outcome, sorted(capture.path.parent.glob(f"{capture.path.stem}*.bin"), key=lambda path: len(path.name))


def workers(memtrack, captures):
    """{number of the worker: number of captures with exactly its blocks}, from rows of one place each. (bytes is calloc's.)"""
    found = {}
    for path in captures:
        table = json.loads(memtrack("table", "--allocated", "--json", path).stdout)
        for row in table["rows"]:
            if (row["file"] or "").endswith("tree.py") and row["allocator"].endswith("calloc") and row["bytes"] > 100_000:
                number = row["count"]
                # The header of a bytes object is a few words, in all versions the same for all of them.
                each = row["bytes"] // number
                assert 100_000 < each - number < 100_100, row
                found[number] = found.get(number, 0) + 1
    return found


def is_whole(memtrack, captures):
    for path in captures:
        capture = json.loads(memtrack("stats", "--json", path).stdout)["capture"]
        assert capture["complete"], capture
        assert (capture["unmatched_frees"], capture["lost_blocks"]) == (0, 0), capture


@pytest.mark.parametrize("way", ["fork", "spawn", "forkserver", "forks", "from_thread", "prefork"])
def test_workers(memtrack, python, programs, way):
    _, captures = recorded(memtrack, python, programs / "tree.py", way)
    assert workers(memtrack, captures) == dict.fromkeys(range(1, 6), 1)
    is_whole(memtrack, captures)


def blocks(memtrack, path):
    """Bytes of blocks, mappings apart, allocated and live at exit: replayed from the records alone."""
    allocated, live = 0, {}
    for line in memtrack("parse", path).stdout.decode().splitlines():
        kind, _, rest = line.partition(" ")
        if kind in ("ALLOC", "FREE"):
            fields = dict(field.split("=", 1) for field in rest.split())
            live.pop(fields["address"], None)
            if kind == "ALLOC":
                live[fields["address"]] = int(fields["size"])
                allocated += int(fields["size"])
        assert "UNDO" not in kind, "a call that failed is not replayed here"
    return allocated, sum(live.values())


@pytest.mark.parametrize("way", ["fork", "subprocesses", "prefork", "shell"])
def test_allocated_is_freed_and_live_at_exit(memtrack, python, programs, way):
    _, captures = recorded(memtrack, python, programs / "tree.py", way)
    each = []
    for path in captures:
        stats = json.loads(memtrack("stats", "--json", path).stdout)
        each.append(stats)
        rows = [
            json.loads(memtrack("table", "--json", view, path).stdout)["rows"] for view in ("--allocated", "--at-exit")
        ]
        is_block = lambda row: row["allocator"] not in ("mmap", "mremap", "pymalloc_arena")
        assert tuple(sum(row["bytes"] for row in part if is_block(row)) for part in rows) == blocks(memtrack, path)
        assert sum(row["bytes"] for row in rows[1]) == stats["live_at_exit"]["bytes"]
    whole = json.loads(memtrack("stats", "--json", *captures).stdout)
    for key in ("count", "bytes"):
        for stats in [*each, whole]:
            assert stats["allocations"][key] == stats["freed"][key] + stats["live_at_exit"][key], key
        for part in ("allocations", "freed", "live_at_exit"):
            assert whole[part][key] == sum(stats[part][key] for stats in each), (part, key)
    for stats in [*each, whole]:
        parts = stats["leaked"]["parts"].values()
        for key in ("bytes", "allocations"):
            assert stats["leaked"][key] == sum(part[key] for part in parts)
    # Children that end by _exit do not finalize.
    moments = {stats["leaked"]["moment"] for stats in each}
    assert whole["leaked"]["moment"] == (moments.pop() if len(moments) == 1 else "finalization-or-exit")


@pytest.mark.parametrize("way", ["subprocesses", "shell"])
def test_programs(memtrack, python, programs, way):
    _, captures = recorded(memtrack, python, programs / "tree.py", way)
    assert workers(memtrack, captures) == dict.fromkeys(range(1, 6), 1)
    is_whole(memtrack, captures)


def test_every_interpreter(memtrack, interpreter, programs):
    _, captures = recorded(memtrack, interpreter, programs / "tree.py", "forks")
    assert workers(memtrack, captures) == dict.fromkeys(range(1, 6), 1)
    assert len(captures) == 6


def test_fifty(memtrack, python, programs):
    _, captures = recorded(memtrack, python, programs / "tree.py", "many")
    assert workers(memtrack, captures) == dict.fromkeys(range(1, 51), 1)
    assert len(captures) == 51
    stats = json.loads(memtrack("stats", "--json", *captures).stdout)
    assert len(stats["processes"]) == 51
    rows = stats["processes"]
    assert stats["peak"]["sum_of_peaks"] == sum(row["peak"]["bytes"] for row in rows)
    assert stats["peak"]["bytes"] == sum(row["at_peak"]["bytes"] for row in rows)
    assert max(row["peak"]["bytes"] for row in rows) <= stats["peak"]["bytes"] <= stats["peak"]["sum_of_peaks"]


@pytest.mark.parametrize("options", [("--aggregate",), ("--trace-python-allocators",), ("--allocation-timestamps",)])
def test_with_other_options(memtrack, python, programs, options):
    _, captures = recorded(memtrack, python, programs / "tree.py", "forks", options=(*FOLLOW, *options))
    assert workers(memtrack, captures) == dict.fromkeys(range(1, 6), 1)
    is_whole(memtrack, captures)


def test_a_process_that_replaces_itself_has_one_capture(memtrack, python, programs):
    for options in (FOLLOW, ()):
        _, captures = recorded(memtrack, python, programs / "tree.py", "replaces", options=(*options, "-f"))
        assert len(captures) == 1
        sizes = [record.size for record in Capture(memtrack, captures[0]).allocations() if record.allocator == "calloc"]
        header = min(size for size in sizes if size > 100_000) - 100_001
        assert [sizes.count(100_000 + header + number) for number in range(1, 6)] == [1, 2, 3, 4, 5]


def test_stacks_of_children_begin_where_the_parent_was(memtrack, python, programs):
    _, captures = recorded(memtrack, python, programs / "tree.py", "forks")
    for path in captures[1:]:
        text = memtrack("transform", "collapsed", "--allocated", "-o", "-", path).stdout.decode()
        stacks = [line.rsplit(" ", 1)[0].split(";") for line in text.splitlines()]
        made = [stack for stack in stacks if any(frame.startswith("work") for frame in stack)]
        assert made and all(stack[0].startswith("<module>") for stack in made), stacks


@pytest.mark.parametrize("options", [(), FOLLOW])
def test_children_find_what_they_would_without_memtrack(memtrack, plain, python, programs, options):
    command = (python, programs / "tree.py", "surroundings")
    outcome, _ = memtrack.run(*command, options=options)
    assert outcome.stdout == plain(*command).stdout


def span(memtrack, path, folder):
    """When a recording began, by the wall clock, and for how long its process is known to have lived after that, in nanoseconds."""
    parquet = pytest.importorskip("pyarrow.parquet")
    memtrack("transform", "parquet", "--no-events", "-o", folder, path)
    (table,) = (folder / "processes").rglob("*.parquet")
    (process,) = parquet.read_table(table, partitioning=None).to_pylist()
    return process["start_ns"], process["alive_ns"]


def events(memtrack, path, folder):
    """What `parse` prints of a capture: (time, (address, size)) of each event, 0 where memory is given back, and its end."""
    began, lived = span(memtrack, path, folder)
    last, found = began, []
    for line in memtrack("parse", path).stdout.decode().splitlines():
        kind, _, rest = line.partition(" ")
        if kind in ("ALLOC", "FREE", "MAP", "UNMAP"):
            fields = dict(part.split("=", 1) for part in rest.split())
            last = began + int(fields["time_ns"])
            heap = kind == "ALLOC" or fields.get("class") == "heap"
            size = int(fields["size"]) if heap else 0
            found.append((last, (int(fields["address"], 16), size)))
    return [*found, (max(last, began + lived), None)]


def merged_peak(memtrack, captures, folder):
    """The largest sum of what is live in all processes, and the number of blocks, with their events in the order of time."""
    processes = [events(memtrack, path, folder / f"tables-{path.name}") for path in captures]
    order = [(time, n, change) for n, changes in enumerate(processes) for time, change in changes]
    order.sort(key=lambda event: event[0])
    live = [{} for _ in captures]
    total, peak = 0, (0, 0)
    for _, n, change in order:
        if change is None:
            total -= sum(live[n].values())
            live[n].clear()
            continue
        address, size = change
        total += size - live[n].pop(address, 0)
        if size:
            live[n][address] = size
        if total > peak[0]:
            peak = (total, sum(map(len, live)))
    return peak


@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_the_peak_of_a_tree_is_that_of_its_events_merged_by_time(memtrack, python, programs, way, tmp_path):
    _, captures = recorded(memtrack, python, programs / "tree.py", way, options=(*FOLLOW, "--allocation-timestamps"))
    size, number = merged_peak(memtrack, captures, tmp_path)
    peak = json.loads(memtrack("stats", "--json", *captures).stdout)["peak"]
    assert (peak["bytes"], peak["allocations"]) == (size, number)
    rows = json.loads(memtrack("table", "--json", *captures).stdout)["rows"]
    assert (sum(row["bytes"] for row in rows), sum(row["count"] for row in rows)) == (size, number)
    tree = json.loads(memtrack("tree", "--json", *captures).stdout)
    assert tree["total"] == {"bytes": size, "count": number}
    flame = json.loads(memtrack("flamegraph", "--json", "-o", "-", *captures).stdout)
    assert [tree["total"] for tree in flame["trees"]] == [{"bytes": size, "count": number}]
    assert sum(call["own"]["bytes"] for tree in flame["trees"] for call in tree["calls"]) == size


LATE_CHILD = """
import subprocess, sys, time

def early():
    return bytearray(9_000_000)

def child():
    return bytearray(16_000_000)

if len(sys.argv) > 1:
    kept = child()
    time.sleep(0.05)
else:
    block = early()
    del block
    time.sleep(0.5)
    subprocess.run([sys.executable, __file__, "child"], check=True)
"""
LATE_NS = 500_000_000  # the child begins later


@pytest.fixture
def late_child(memtrack, python):
    """The captures of a program and of a child that it starts half a second later, and those in one file."""
    program = memtrack.directory / "late.py"
    program.write_text(LATE_CHILD)
    _, captures = recorded(memtrack, python, program, options=(*FOLLOW, "--allocation-timestamps"))
    merged = memtrack.directory / "merged.bin"
    assert memtrack("merge", "-o", merged, *captures).status == 0
    assert len(captures) == 2
    return captures, [merged]


def test_times_of_several_captures_count_from_the_earliest_start(memtrack, late_child):
    captures, merged = late_child

    def bytes_of(*words):
        """What the child's function allocated, by every report that filters by time."""
        words = ["--function", "child", *words]
        rows = json.loads(memtrack("table", "--json", "--allocated", *words).stdout)["rows"]
        table = sum(row["bytes"] for row in rows)
        assert json.loads(memtrack("tree", "--json", "--allocated", *words).stdout)["total"]["bytes"] == table
        flame = json.loads(memtrack("flamegraph", "--json", "--allocated", "-o", "-", *words).stdout)
        assert sum(tree["total"]["bytes"] for tree in flame["trees"]) == table
        exported = memtrack("transform", "csv", "--allocated", "-o", "-", *words).stdout.decode()
        assert sum(int(row["size"]) for row in csv.DictReader(io.StringIO(exported))) == table
        assert json.loads(memtrack("stats", "--json", *words).stdout)["allocations"]["bytes"] == table
        return table

    for paths in captures, merged:
        assert bytes_of("--from", "400ms", *paths) == bytes_of(*paths) >= 16_000_000
        assert bytes_of("--to", "400ms", *paths) == bytes_of("--to", "30%", *paths) == 0
        assert bytes_of("--from", "30%", "--to", "100%", *paths) == bytes_of(*paths)
        found = json.loads(memtrack("query", "--json", "time > 400ms and time > 30% and function = child", *paths).stdout)
        times = {row["time_ns"] for row in found["rows"] if row["bytes"] > 1_000_000}
        assert len(times) == 1 and min(times) > LATE_NS, times
        assert not json.loads(memtrack("query", "--json", "time < 400ms and function = child", *paths).stdout)["rows"]
        refused = memtrack("table", "--from", "300ms", "--to", "200ms", *paths)
        assert b"--from is 300 ms after the start, later than --to, 200 ms" in refused.stderr, refused
    # One capture counts from its own start.
    assert bytes_of("--to", "400ms", captures[1]) == bytes_of(captures[1]) >= 16_000_000


def test_queries_for_the_peak_mean_that_of_all_processes(memtrack, late_child):
    for paths in late_child:
        peak = json.loads(memtrack("stats", "--json", *paths).stdout)["peak"]
        table = json.loads(memtrack("table", "--json", *paths).stdout)["rows"]
        expected = {"bytes": peak["bytes"], "count": peak["allocations"]}
        for by in [], ["--by", "function"]:
            answer = json.loads(memtrack("query", "--json", *by, "peak", *paths).stdout)
            assert answer["matched"] == expected, by
            assert sum(row["bytes"] for row in answer["rows"]) == peak["bytes"]
            assert any(row["function"] == "child" for row in answer["rows"])
            # The parent has freed it before the child begins.
            assert not any(row["function"] == "early" for row in answer["rows"])
        rows = json.loads(memtrack("query", "--json", "bytes >= 1", *paths).stdout)["rows"]
        assert sum(row["bytes"] for row in rows if row["peak"]) == peak["bytes"] == sum(row["bytes"] for row in table)
        assert f"{peak['allocations']:,} of " in memtrack("query", "peak", *paths).stdout.decode()


def test_the_end_of_run_names_lines_of_native_children(memtrack, tmp_path):
    source, program = tmp_path / "child.c", tmp_path / "child"
    source.write_text("#include <stdlib.h>\nint main(void) {\n    return !malloc(7000000);\n}\n")
    subprocess.run(["gcc", "-g", "-O0", "-o", program, source], check=True)
    code = f"import subprocess; subprocess.run([{str(program)!r}], check=True)"
    text = with_names(lambda: memtrack("run", "--follow", "-f", "-o", "c.bin", sys.executable, "-c", code))
    assert "main at child.c:3" in text, text


@pytest.mark.parametrize("options", [FOLLOW, (*FOLLOW, "--allocation-timestamps")])
def test_processes_one_after_the_other_have_no_memory_together(memtrack, tmp_path, options):
    """However soon the next one begins, and whether they end by themselves or are killed. By hundreds of megabytes: the kernel takes
    longer to give those back than the next one to start."""
    source, program = tmp_path / "hold.c", tmp_path / "hold"
    source.write_text(
        "#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n#include <signal.h>\n"
        "int main(int count, char **words) {\n    char *held = malloc(200000000);\n    memset(held, 1, 200000000);\n"
        "    if (count > 1) kill(getpid(), SIGKILL);\n    return held[5] - 1;\n}\n"
    )
    subprocess.run(["gcc", "-g", "-O0", "-fno-builtin", "-o", program, source], check=True)
    code = f"import subprocess\nfor word in ([], [], ['killed'], [], ['killed'], []): subprocess.run([{str(program)!r}, *word])"
    _, captures = recorded(memtrack, sys.executable, "-c", code, options=options)
    assert len(captures) == 7
    rows = json.loads(memtrack("table", "--json", *captures).stdout)["rows"]
    assert [row["bytes"] // 200_000_000 for row in rows if row["bytes"] >= 200_000_000] == [1]


HEADERS = """
import ctypes, os, time
PAGES = 129  # the control page, and the headers of 4096 slots
def in_memory():
    lines = [line.split() for line in open("/proc/self/maps") if "memfd:memtrack" in line]
    start = next(int(line[0].split("-")[0], 16) for line in lines if int(line[2], 16) == 0)
    pages = (ctypes.c_ubyte * PAGES)()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(start), ctypes.c_size_t(PAGES * 4096), pages) == 0
    return sum(page & 1 for page in pages)
child = os.fork()
blocks = [bytes(1000) for _ in range(1000)]
time.sleep(0.3)  # longer than all intervals of the collector
os.write(1, b"%d " % in_memory())
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
"""


def test_slots_that_no_thread_has_take_no_memory(memtrack, python):
    # The collector does not look at them: that would make their pages, for each child anew, and take a quarter of its time.
    outcome, captures = recorded(memtrack, python, "-c", HEADERS)
    assert len(captures) == 2
    pages = [int(word) for word in outcome.stdout.split()]
    assert len(pages) == 2 and all(0 < number < 20 for number in pages), pages


ENDS = """
import os, signal
ready, told = os.pipe()
def child(number):
    held = bytearray(3_000_000)
    os.write(told, b".")
    os._exit(7) if number == 0 else signal.pause()
children = [os.fork() or child(number) for number in range(3)]
[os.read(ready, 1) for _ in children]
os.kill(children[1], signal.SIGKILL)
os.kill(children[2], signal.SIGTERM)
[os.waitpid(child, 0) for child in children]
"""


@pytest.mark.skipif(tuple(map(int, platform.release().split(".")[:2])) < (6, 15), reason="the kernel tells nobody but the parent")
def test_how_children_ended(memtrack, tmp_path):
    """Whoever waits for them, with whatever the end was: that of a kill is a finding."""
    script = tmp_path / "ends.py"
    script.write_text(ENDS)
    _, captures = recorded(memtrack, sys.executable, script)
    ends, killed = [], []
    for path in captures:
        lines = [line.split(maxsplit=1) for line in memtrack("stats", path).stdout.decode().splitlines() if " " in line]
        end = " ".join(line[1] for line in lines if line[0] == "Ended").partition(":")[0]
        ends.append(end)
        findings = json.loads(memtrack("explain", "--json", path).stdout)["findings"]
        killed += [end for finding in findings if finding["id"] == "killed"]
    assert sorted(ends) == ["", "by signal 15 (SIGTERM)", "by signal 9 (SIGKILL", "with status 7"]
    assert killed == ["by signal 9 (SIGKILL"]
    findings = json.loads(memtrack("explain", "--json", *captures).stdout)["findings"]
    assert [finding["title"].partition(":")[0] for finding in findings if finding["id"] == "killed"] == ["1 of 4 processes"]


UNRECORDED = """
import ctypes, os, struct, sys, threading
def data(): return int(next(line for line in open("/proc/self/status") if line.startswith("VmData")).split()[1])
stop = threading.Event()
threads = [threading.Thread(target=lambda: (bytearray(1000), stop.wait())) for _ in range(100)]
for thread in threads: thread.start()
libc = ctypes.CDLL(None, use_errno=True)
def restricted():
    # A filter that kills whatever is not listed: clone3, wait4, exit_group.
    numbers = [435, 61, 231]
    code = [(0x20, 0, 0, 0)] + [(0x15, len(numbers) - at, 0, number) for at, number in enumerate(numbers)]
    code += [(0x06, 0, 0, 0x80000000), (0x06, 0, 0, 0x7FFF0000)]
    program = b"".join(struct.pack("HBBI", *each) for each in code)
    text = ctypes.create_string_buffer(program)
    filter = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(code), ctypes.addressof(text)))
    arguments = ctypes.create_string_buffer(struct.pack("5Q", 0, 0, 0, 0, 17) + bytes(48))
    status = ctypes.c_int(-1)
    fork, wait, end = libc.syscall, libc.waitpid, libc._exit
    assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, filter) == 0
    child = fork(435, arguments, 88)
    if child == 0: end(0)
    wait(child, ctypes.byref(status), 0)
    end(status.value != 0)
before = data()
child = os.fork()
if child == 0:
    print(data() - before, flush=True)
    if "x86_64" in os.uname().machine: restricted()
    os._exit(0)
print(os.waitpid(child, 0)[1])
stop.set()
"""


def test_a_child_that_is_not_recorded_has_all_that_it_had_without_memtrack(memtrack, tmp_path):
    """Its limit of data is not used up by what it has instead of its parent's memory, and no call is made that a filter of its own forbids."""
    script = tmp_path / "unrecorded.py"
    script.write_text(UNRECORDED)
    outcome = memtrack("run", "-q", "-o", tmp_path / "c.bin", sys.executable, script)
    more, status = map(int, outcome.stdout.split())
    assert more < 1000 and status == 0
