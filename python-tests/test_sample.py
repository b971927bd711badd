"""Sampled captures: `memtrack run --sample` of programs that know what they have allocated."""

import csv
import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import PATIENCE, REPOSITORY, until

PROGRAM = r"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
static uint64_t state = 88172645463325252ull;
static uint64_t next(void) { state ^= state << 13; state ^= state >> 7; state ^= state << 17; return state; }
enum { PLACES = 1 << 14 };
static void *blocks[PLACES];
static uint64_t sizes[PLACES];
int main(void) {
    uint64_t count = 0, bytes = 0, live_count = 0, live = 0;
    for (int i = 0; i < 400000; i++) {
        int place = next() % PLACES;
        if (blocks[place]) { free(blocks[place]); live -= sizes[place]; live_count--; }
        uint64_t size = 16 + next() % 4000;
        blocks[place] = malloc(size); sizes[place] = size;
        count++; bytes += size; live += size; live_count++;
    }
    fprintf(stderr, "%lu %lu %lu %lu\n", count, bytes, live_count, live);
    return 0;
}
"""


def sampled(executable, tmp_path, *options):
    source, program, capture = tmp_path / "p.c", tmp_path / "p", tmp_path / "s.bin"
    if not program.exists():
        source.write_text(PROGRAM)
        subprocess.run(["gcc", "-O1", "-g", "-o", program, source], check=True)
    run = subprocess.run(
        [executable, "run", "-q", "-f", *options, "-o", capture, program], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    stats = subprocess.run([executable, "stats", "--json", capture], capture_output=True, text=True, timeout=PATIENCE, check=True)
    return [int(word) for word in run.stderr.split()], json.loads(stats.stdout), capture


def test_counts_are_exact_and_intervals_cover_the_truth(executable, tmp_path):
    covered, rounds = 0, 12
    for _ in range(rounds):
        (count, size, live_count, live), stats, _ = sampled(executable, tmp_path, "--sample=64KiB")
        assert stats["capture"]["sample_bytes"] == 65536
        # What the C library itself allocates comes in addition.
        assert 0 <= stats["allocations"]["count"] - count < 10
        assert 0 <= stats["allocations"]["bytes"] - size < 100_000
        [thread] = stats["threads"]
        assert (thread["count"], thread["bytes"]) == (stats["allocations"]["count"], stats["allocations"]["bytes"])
        at_exit = stats["live_at_exit"]
        assert at_exit["bytes_low"] < at_exit["bytes"] < at_exit["bytes_high"]
        covered += at_exit["bytes_low"] <= live <= at_exit["bytes_high"]
        covered += at_exit["count_low"] <= live_count <= at_exit["count_high"]
    # Of 24 intervals of 95 %, with a probability below 1e-6, fewer than 16 cover.
    assert covered >= 16


def test_text_has_intervals_of_sizes_and_whole_shares_of_threads(executable, tmp_path):
    _, stats, capture = sampled(executable, tmp_path, "--sample=64KiB")
    text = subprocess.run([executable, "stats", capture], capture_output=True, text=True, timeout=PATIENCE, check=True).stdout
    _, threads, sizes = text.split("\n\n")[-3:]
    assert " 100 % " in threads
    lines = [line for line in sizes.splitlines() if line.startswith(" ")]
    assert len(lines) == len(stats["size_histogram"])
    for line, size in zip(lines, stats["size_histogram"], strict=True):
        number = f"{size['count']:,}"
        half = max(size["count"] - size["count_low"], size["count_high"] - size["count"])
        assert f" {number}{f' ± {half:,}' if half else ''} " in line + " " or f" {number} ({size['count_low']:,} to {size['count_high']:,})" in line


BESIDE_LARGE_ONES = r"""
#include <stdlib.h>
static void *kept[20000];
int main(void) {
    for (int i = 0; i < 10200; i++) kept[i] = malloc(i < 200 ? 100000 : 1);
    for (int i = 0; i < 10000; i += 2) free(kept[200 + i]);
}
"""


def test_small_blocks_without_samples_beside_large_ones_are_in_the_intervals(executable, tmp_path):
    source, program = tmp_path / "p.c", tmp_path / "p"
    source.write_text(BESIDE_LARGE_ONES)
    subprocess.run(["gcc", "-O0", "-g", "-o", program, source], check=True)
    covered, rounds = 0, 12

    def report(*words):
        return json.loads(subprocess.run([executable, *words], capture_output=True, timeout=PATIENCE, check=True).stdout)

    for number in range(rounds):
        capture = tmp_path / f"{number}.bin"
        subprocess.run([executable, "run", "-q", "--sample=64KiB", "-o", capture, program], timeout=PATIENCE, check=True)
        stats = report("stats", "--json", capture)
        [site] = [row for row in report("table", "--allocated", "--json", capture)["rows"] if row["function"] == "main"]
        covered += site["count_low"] <= 10_200 <= site["count_high"]
        covered += stats["live_at_exit"]["count_low"] <= 5200 <= stats["live_at_exit"]["count_high"]
        covered += stats["freed"]["count_low"] <= 5000 <= stats["freed"]["count_high"]
    # Of 36 intervals of 95 %, with a probability below 1e-6, fewer than 25 cover; by the samples alone, 1 to 3 do.
    assert covered >= 25


def test_what_was_counted_is_added_to_what_another_process_recorded_whole(executable, tmp_path):
    source, program = tmp_path / "p.c", tmp_path / "p"
    source.write_text(BESIDE_LARGE_ONES)
    subprocess.run(["gcc", "-O0", "-o", program, source], check=True)
    names = [tmp_path / name for name in ("samples.bin", "all.bin", "both.bin")]
    for options, name in ((["--sample=64KiB"], names[0]), ([], names[1])):
        subprocess.run([executable, "run", "-q", *options, "-o", name, program], timeout=PATIENCE, check=True)
    subprocess.run([executable, "merge", "-o", names[2], *names[:2]], timeout=PATIENCE, check=True, capture_output=True)
    figures = []
    for name in names:
        stats = subprocess.run([executable, "stats", "--json", name], capture_output=True, timeout=PATIENCE, check=True)
        figures.append(json.loads(stats.stdout))
    one, other, both = [known["allocations"] for known in figures]
    assert both == {name: one[name] + other[name] for name in ("count", "bytes")}
    assert [thread["count"] for thread in figures[2]["threads"]] == [one["count"], other["count"]]


CXX_PROGRAM = r"""
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <thread>
static uint64_t counts[2], sums[2];
static void work(int number) {
    uint64_t state = number + 88172645463325252u;
    auto next = [&] { return (state = state * 6364136223846793005u + 1442695040888963407u) >> 33; };
    void *blocks[500] = {};
    int kinds[500] = {};
    for (int i = 0; i < 100000; i++) {
        int place = next() % 500, kind = next() % 4;
        if (kinds[place] == 1) operator delete(blocks[place]);
        else if (kinds[place] == 2) operator delete[](blocks[place]);
        else free(blocks[place]);
        size_t size = next() % 700;
        blocks[place] = kind == 0 ? malloc(size) : kind == 1 ? operator new(size) : kind == 2 ? operator new[](size) : calloc(1, size);
        kinds[place] = kind;
        counts[number]++, sums[number] += size;
    }
}
int main() {
    std::thread first(work, 0), second(work, 1);
    first.join(), second.join();
    for (int i = 0; i < 2; i++) fprintf(stderr, "%lu %lu\n", counts[i], sums[i]);
}
"""


def sampled_cxx(executable, tmp_path, text, option):
    """What a C++ program says on its standard error, and what `stats` says of its samples."""
    source, program, capture = tmp_path / "p.cc", tmp_path / "p", tmp_path / "s.bin"
    source.write_text(text)
    subprocess.run(["g++", "-O1", "-fno-builtin", "-pthread", "-o", program, source], check=True)
    command = [executable, "run", "-q", option, "-o", capture, program]
    run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    stats = subprocess.run([executable, "stats", "--json", capture], capture_output=True, text=True, timeout=PATIENCE, check=True)
    return run.stderr, json.loads(stats.stdout)


def test_counts_are_exact_by_thread_where_operator_new_calls_malloc(executable, tmp_path):
    told, stats = sampled_cxx(executable, tmp_path, CXX_PROGRAM, "--sample=64KiB")
    expected = {tuple(map(int, line.split())) for line in told.splitlines()}
    found = {(thread["count"], thread["bytes"]) for thread in stats["threads"]}
    assert expected <= found and len(found) == 3
    # The samples are of the functions that the program calls: half of all are of operator new.
    by_allocator = {row["allocator"]: row["bytes"] for row in stats["allocators"]}
    total = sum(size for _, size in expected)
    assert abs(by_allocator["operator_new"] - total / 2) < total / 8
    assert abs(by_allocator["malloc"] - total / 4) < total / 10


FAILING_PROGRAM = r"""
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
static unsigned long count, bytes, failed;
static void *note(void *block, size_t size) {
    if (block) count++, bytes += size;
    else failed++;
    return block;
}
static void allocate(int number, size_t size) {
    void *block = nullptr, *old;
    switch (number % 4) {
    case 0: block = note(malloc(size), size); break;
    case 1: block = note(calloc(2, size / 2), size); break;
    case 2:
        old = note(malloc(16), 16);
        block = note(realloc(old, size), size);
        if (!block) free(old);
        break;
    default:
        try { note(block = operator new(size), size); } catch (std::bad_alloc &) { failed++; }
    }
    free(block);
}
int main() {
    rlimit all, none;
    getrlimit(RLIMIT_AS, &all);
    for (int i = 0; i < 1000; i++) allocate(i, 16 + i);
    // A child is not recorded, and counts nothing in what it shares with its parent.
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < 1000; i++) allocate(i, 16 + i);
        _exit(0);
    }
    waitpid(child, nullptr, 0);
    none = all, none.rlim_cur = 0;
    setrlimit(RLIMIT_AS, &none);
    // More than the heap has left. Most are far below the distance of samples, and some above it.
    for (int i = 0; i < 400; i++) allocate(i, i < 380 ? 300000 : 300000000);
    setrlimit(RLIMIT_AS, &all);
    for (int i = 0; i < 1000; i++) allocate(i, 16 + i);
    fprintf(stderr, "%lu %lu %lu\n", count, bytes, failed);
}
"""


def test_what_fails_is_not_counted(executable, tmp_path):
    told, stats = sampled_cxx(executable, tmp_path, FAILING_PROGRAM, "--sample=8MiB")
    count, size, failed = map(int, told.split())
    assert failed == 400
    # The C++ library throws an object of its own, from the memory that it keeps for that where there is none.
    assert 0 <= stats["allocations"]["count"] - count < 10 + failed / 4
    assert 0 <= stats["allocations"]["bytes"] - size < 200_000
    assert stats["failed_allocations"]["count"] == failed


def test_what_needs_every_allocation_is_refused(executable, tmp_path):
    _, _, capture = sampled(executable, tmp_path, "--sample")
    for command in (["parse"], ["transform", "heaptrack"], ["query", "size > 1"]):
        run = subprocess.run([executable, command[0], *command[1:], capture], capture_output=True, text=True, timeout=PATIENCE)
        assert run.returncode != 0, command
    # Several processes are no exception.
    (tmp_path / "other").mkdir()
    _, _, other = sampled(executable, tmp_path / "other", "--sample")
    both = tmp_path / "both.bin"
    subprocess.run([executable, "merge", "-o", both, capture, other], capture_output=True, check=True)
    # What all captures of a report share is said once.
    table = subprocess.run([executable, "table", both], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert table.stderr.count("estimates from samples") == 1, table.stderr
    table = subprocess.run([executable, "table", capture], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert "estimates from samples" in table.stderr
    for options in (["--sample=0"], ["--sample=x"], ["--sample=auto:0"], ["--sample=auto:"]):
        run = subprocess.run([executable, "run", *options, "true"], capture_output=True, text=True, timeout=PATIENCE)
        assert run.returncode == 2, options


def test_tables_have_the_figures_of_stats_with_their_variances(executable, tmp_path):
    duckdb = pytest.importorskip("duckdb")
    _, _, capture = sampled(executable, tmp_path, "--sample=16KiB")
    tables = tmp_path / "tables"
    subprocess.run([executable, "transform", "parquet", "-o", tables, capture], capture_output=True, timeout=PATIENCE, check=True)
    assert not (tables / "events").exists()
    stats = json.loads(subprocess.run([executable, "stats", "--json", capture], capture_output=True, timeout=PATIENCE, check=True).stdout)
    sums = duckdb.connect().execute(
        f"select sum(peak_bytes), sqrt(sum(peak_bytes_variance)), sum(peak_count) from read_parquet('{tables}/sites/**/*.parquet')"
    )
    bytes, deviation, count = sums.fetchone()
    peak = stats["peak"]
    assert (bytes, count) == (peak["bytes"], peak["allocations"])
    assert 1.96 * deviation == pytest.approx(peak["bytes"] - peak["bytes_low"], rel=0.2)
    [(live, from_windows)] = duckdb.connect().execute(
        f"select sum(live_bytes), sqrt(sum(live_bytes_variance)) from read_parquet('{tables}/windows/**/*.parquet')"
    ).fetchall()
    assert live == stats["live_at_exit"]["bytes"] and 0 < from_windows < live


GROWING = """
import time
cache = []
def remember():
    cache.append(bytearray(20_000))
def scratch():
    return [bytes(1000) for _ in range(50)]
for request in range(400):
    remember()
    scratch()
    time.sleep(0.004)
"""


@pytest.mark.parametrize("options", [["--sample=16KiB"], ["--sample=16KiB", "--window", "100ms"]], ids=["events", "windows"])
def test_explain_names_what_grows_by_samples_with_intervals(executable, tmp_path, options):
    jsonschema = pytest.importorskip("jsonschema")
    (tmp_path / "server.py").write_text(GROWING)
    capture = tmp_path / "s.bin"
    subprocess.run([executable, "run", "-q", *options, "-o", capture, sys.executable, tmp_path / "server.py"], timeout=PATIENCE, check=True)
    run = subprocess.run([executable, "explain", "--json", capture], capture_output=True, text=True, timeout=PATIENCE, check=True)
    report = json.loads(run.stdout)
    schema = json.loads((REPOSITORY / "docs/schemas/memtrack-explain-1.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(report)
    first = report["findings"][0]
    assert (first["id"], first["title"].split(" at ")[0]) == ("growth", "remember") and " ± " in first["title"], first["title"]
    [evidence] = first["evidence"]
    noise = max(evidence["bytes_high"] - evidence["bytes"], evidence["bytes"] - evidence["bytes_low"])
    # Three times the interval.
    assert 0 < noise < 2_000_000 and abs(evidence["bytes"] - 400 * 20_000) < 3 * noise + 100_000
    text = subprocess.run([executable, "explain", capture], capture_output=True, text=True, timeout=PATIENCE, check=True).stdout
    assert "what is too small for samples" in text and "return [bytes" not in text


def test_a_difference_within_its_interval_is_unchanged_and_fails_no_limit(executable, tmp_path):
    captures = []
    for number in range(2):
        _, _, capture = sampled(executable, tmp_path, "--sample=64KiB")
        captures.append(capture.rename(tmp_path / f"{number}.bin"))
    run = subprocess.run([executable, "diff", "--json", "--leaks", *captures], capture_output=True, text=True, timeout=PATIENCE, check=True)
    report = json.loads(run.stdout)
    [main] = [row for row in report["rows"] if row["function"] in ("main", "<no stack>")][:1]
    assert main["base"]["own_bytes_low"] < main["base"]["own_bytes"] < main["base"]["own_bytes_high"]
    if report["change_low"] <= 0 <= report["change_high"]:
        assert all(row["status"] == "unchanged" for row in report["rows"])
        run = subprocess.run([executable, "diff", "--leaks", "--fail-over=0", *captures], capture_output=True, timeout=PATIENCE)
        assert run.returncode == 0
    run = subprocess.run([executable, "diff", "--metric=temporary", *captures], capture_output=True, text=True, timeout=PATIENCE)
    assert run.returncode == 1 and "samples" in run.stderr


def test_exports_have_the_ends_of_intervals(executable, tmp_path):
    _, stats, capture = sampled(executable, tmp_path, "--sample=64KiB")

    def transform(name):
        output = tmp_path / f"out.{name}"
        subprocess.run([executable, "transform", name, "-f", capture, "-o", output], capture_output=True, timeout=PATIENCE, check=True)
        return output

    rows = list(csv.DictReader(transform("csv").open()))
    assert rows and all(int(row["size_low"]) <= int(row["size"]) <= int(row["size_high"]) for row in rows)
    assert any(int(row["num_allocations_low"]) < int(row["num_allocations"]) < int(row["num_allocations_high"]) for row in rows)
    told = json.loads(transform("speedscope").read_text())["memtrack"]
    assert told["sample_bytes"] == 65536 and told["total_bytes_low"] < told["total_bytes"] < told["total_bytes_high"]
    assert told["total_bytes"] == stats["peak"]["bytes"] and len(told["bytes_low"]) == len(told["bytes_high"])
    profile = gzip.decompress(transform("pprof").read_bytes())
    assert b"inuse_space_high" in profile and b"unseen: at most" in profile
    records = [json.loads(line) for line in transform("jsonl").read_text().splitlines()]
    assert records[0]["unseen_bytes"] == 3 * 65536
    total = next(record for record in records if record["type"] == "agg")["totals"]["peak"]
    assert total["bytes_low"] < total["bytes"] < total["bytes_high"]


LOOP = """
import time
held = [bytearray(100_000) for _ in range(200)]
for _ in range(60):
    held.append(bytearray(1000))
    bytes(500_000)
    time.sleep(0.05)
"""


def test_windows_have_the_ends_of_intervals(executable, tmp_path):
    script, capture = tmp_path / "loop.py", tmp_path / "loop.bin"
    script.write_text(LOOP)
    with subprocess.Popen([executable, "run", "-q", "--sample=64KiB", "-o", capture, sys.executable, script]) as run:
        until("the recording begins", lambda: capture.exists() and capture.stat().st_size)
        live = [executable, "live", "--jsonl", "--every=500ms", capture]
        live = subprocess.run(live, capture_output=True, text=True, timeout=PATIENCE, check=True)
        assert run.wait(timeout=PATIENCE) == 0
    after = subprocess.run([executable, "live", "--jsonl", "--every=500ms", capture], capture_output=True, text=True, timeout=PATIENCE, check=True)
    for output in (live.stdout, after.stdout):
        records = [json.loads(line) for line in output.splitlines()]
        assert records[0]["sample_bytes"] == 65536 and records[0]["unseen_bytes"] == 3 * 65536
        windows = [record for record in records if record["type"] == "window"]
        # The first window may end before the program holds them, the last after.
        held = max((window["live"] for window in windows), key=lambda live: live["bytes"])
        assert held["bytes_low"] < held["bytes"] < held["bytes_high"]
        assert held["bytes_low"] <= 20_060_000 + 6_000_000 and held["bytes_high"] >= 20_000_000
        entries = [entry for record in records if record["type"] == "agg" for entry in record["entries"]]
        assert all(entry["live"]["self_bytes_low"] <= entry["live"]["self_bytes_high"] for entry in entries)


PHASES = r"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
static uint64_t state = 88172645463325252ull;
static uint64_t next(void) { state ^= state << 13; state ^= state >> 7; state ^= state << 17; return state; }
enum { PLACES = 1 << 13 };
static void *first[PLACES], *second[PLACES];
static uint64_t held[2];
__attribute__((noinline)) static void put(void **place, uint64_t *sizes, uint64_t size, int which) {
    int at = next() % PLACES;
    if (place[at]) { free(place[at]); held[which] -= sizes[at]; }
    place[at] = malloc(size); sizes[at] = size; held[which] += size;
}
static uint64_t first_sizes[PLACES], second_sizes[PLACES];
int main(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    state ^= now.tv_nsec * 0x9e3779b97f4a7c15ull;
    for (int i = 0; i < 20000; i++) put(first, first_sizes, 16 + next() % 3000, 0);
    for (int i = 0; i < 300000; i++) put(second, second_sizes, 16 + next() % 20000, 1);
    for (int i = 0; i < 20000; i++) put(first, first_sizes, 16 + next() % 3000, 0);
    fprintf(stderr, "%lu\n", held[0] + held[1]);
    return 0;
}
"""


def test_each_sample_has_the_weight_of_its_rate(executable, tmp_path):
    source, program, capture = tmp_path / "phases.c", tmp_path / "phases", tmp_path / "phases.bin"
    source.write_text(PHASES)
    subprocess.run(["gcc", "-O1", "-g", "-o", program, source], check=True)
    covered, distances = 0, set()
    for _ in range(12):
        run = [executable, "run", "-q", "-f", "--sample=auto:5000", "-o", capture, program]
        truth = int(subprocess.run(run, capture_output=True, text=True, timeout=PATIENCE, check=True).stderr)
        stats = subprocess.run([executable, "stats", "--json", capture], capture_output=True, text=True, timeout=PATIENCE, check=True)
        stats = json.loads(stats.stdout)
        assert stats["capture"]["sample_rate"] == 5000
        distances.add(stats["capture"]["sample_bytes"])
        at_exit = stats["live_at_exit"]
        covered += at_exit["bytes_low"] <= truth <= at_exit["bytes_high"]
    # Of 12 intervals of 95 %, with a probability below 1e-5, fewer than 7 cover.
    assert covered >= 7 and max(distances) > 512 << 10


def test_sums_of_samples_have_intervals(executable, tmp_path):
    (count, size, live_count, live), stats, _ = sampled(executable, tmp_path, "--sample=64KiB", "--aggregate")
    assert 0 <= stats["allocations"]["count"] - count < 10 and 0 <= stats["allocations"]["bytes"] - size < 100_000
    assert stats["live_at_exit"]["bytes_low"] < stats["live_at_exit"]["bytes"] < stats["live_at_exit"]["bytes_high"]
    assert stats["peak"]["bytes_low"] < stats["peak"]["bytes"] < stats["peak"]["bytes_high"]


GROWS = """
import sys
blocks = []
for line in sys.stdin:
    blocks += [bytearray(100_001) for _ in range(int(line))]
    print("done", flush=True)
"""


def test_start_of_a_dormant_program_takes_it_for_this_recording(executable, tmp_path):
    command = [executable, "run", "-q", "--dormant", sys.executable, "-c", GROWS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as run:

        def grow():
            run.stdin.write("400\n")
            run.stdin.flush()
            assert run.stdout.readline() == "done\n"

        grow()
        children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
        control = lambda name, *options: subprocess.run(
            [executable, name, *options, children[0]], capture_output=True, text=True, timeout=PATIENCE
        )
        for name, options in (("s", ["--sample"]), ("all", []), ("auto", ["--sample=auto:7"]), ("own", ["--sample=64KiB"])):
            started = control("start", "-o", tmp_path / f"{name}.bin", *options)
            assert started.returncode == 0, started.stderr
            grow()
            assert control("stop").returncode == 0
        # What is there is not overwritten without being told, and what is wrong is said before anything is asked.
        refused = control("start", "-o", tmp_path / "s.bin")
        assert refused.returncode == 1 and "overwrite it with -f/--force" in refused.stderr
        assert control("start", "--sample=0").returncode == 2
        run.stdin.close()
    about = {}
    for name in ("s", "all", "auto", "own"):
        stats = subprocess.run([executable, "stats", "--json", f"{name}.bin"], capture_output=True, text=True, cwd=tmp_path, check=True)
        known = json.loads(stats.stdout)
        about[name] = known["capture"].get("sample_bytes"), known["capture"].get("sample_rate")
        # Samples do not tell the frees of what was there before from others.
        assert (known["capture"]["frees_of_earlier_blocks"] is None) == (name != "all")
        peak = known["peak"]
        # Three times as wide as the intervals of 95 %, which one recording in seven of three leaves.
        low, high = (peak["bytes"] + 3 * (peak.get(end, peak["bytes"]) - peak["bytes"]) for end in ("bytes_low", "bytes_high"))
        assert low <= 400 * 100_058 * 1.02 and high >= 400 * 100_001, (name, peak)
        # What was allocated is counted, not estimated.
        assert 400 <= known["allocations"]["count"] < 430, (name, known["allocations"])
        assert 400 * 100_001 <= known["allocations"]["bytes"] < 400 * 100_058 * 1.001, (name, known["allocations"])
    assert about == {"s": (1 << 19, None), "all": (None, None), "auto": (about["auto"][0], 7), "own": (1 << 16, None)}


def test_the_python_package_has_estimates_with_their_intervals(executable, tmp_path, monkeypatch):
    monkeypatch.setenv("MEMTRACK", str(executable))
    monkeypatch.syspath_prepend(str(REPOSITORY / "python"))
    import memtrack

    (_, truth, _, live), _, capture = sampled(executable, tmp_path, "--sample=64KiB")
    of = memtrack.Capture(capture)
    for view, expected in (("allocated", truth), ("leaks", live)):
        (main,) = [found for found in of.allocations(view, function="main") if found.allocator == "malloc"]
        assert main.bytes_low < main.bytes < main.bytes_high and main.count_low < main.count < main.count_high
        # Twice the interval: one in 15,000 misses that.
        assert abs(main.bytes - expected) < 2 * (main.bytes_high - main.bytes_low), view
        rows = csv.DictReader(
            subprocess.run(
                [executable, "transform", "csv", f"--{view}", "--function", "main", "-o", "-", capture],
                capture_output=True,
                text=True,
                check=True,
            ).stdout.splitlines()
        )
        ends = [tuple(int(row[name]) for name in ("size_low", "size_high", "num_allocations_low", "num_allocations_high")) for row in rows]
        assert tuple(main.interval) in ends
    merged = [found for found in of.get_leaked_allocation_records() if found.allocator == "malloc"]
    assert all(found.bytes_low <= found.bytes <= found.bytes_high for found in merged) and merged
    assert [each.live_bytes for each in of.snapshots()] and all(each.rss_bytes > 0 for each in of.snapshots())
    for needs_all in (of.events, lambda: of.allocations("temporary")):
        with pytest.raises(memtrack.Error, match="samples of allocations"):
            list(needs_all())
    # Where all were recorded, a figure is its own interval.
    subprocess.run([executable, "run", "-q", "-o", tmp_path / "all.bin", tmp_path / "p"], capture_output=True, check=True)
    exact = list(memtrack.Capture(tmp_path / "all.bin").allocations())
    assert exact and all(
        found.interval is None and (found.bytes_low, found.bytes_high, found.count_low, found.count_high)
        == (found.bytes, found.bytes, found.count, found.count)
        for found in exact
    )


def test_windows_of_sums_have_the_ends_of_intervals(executable, tmp_path):
    script, capture = tmp_path / "held.py", tmp_path / "held.bin"
    script.write_text("held = [bytearray(100_000) for _ in range(200)]\n")
    run = [executable, "run", "-q", "--sample=64KiB", "--aggregate", "-o", capture, sys.executable, script]
    subprocess.run(run, timeout=PATIENCE, check=True)
    live = [executable, "live", "--jsonl", capture]
    live = subprocess.run(live, capture_output=True, text=True, timeout=PATIENCE, check=True)
    window = [record for record in map(json.loads, live.stdout.splitlines()) if record["type"] == "window"][-1]
    allocated = window["allocated"]
    assert allocated["bytes_low"] < allocated["bytes"] < allocated["bytes_high"]
    table = [executable, "table", "--allocated", "--json", capture]
    rows = json.loads(subprocess.run(table, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout)["rows"]
    assert allocated["bytes"] == sum(row["bytes"] for row in rows)


def test_exports_do_not_say_which_samples_were_temporary(executable, tmp_path):
    """It is not known: neither 0 nor an interval around that."""
    source, program, capture = tmp_path / "p.c", tmp_path / "p", tmp_path / "p.bin"
    source.write_text("#include <stdlib.h>\nint main(void) { for (int i = 0; i < 20; i++) free(malloc(1000000)); }\n")
    subprocess.run(["gcc", "-O0", "-o", program, source], check=True)
    subprocess.run([executable, "run", "-q", "--sample=20000", "-o", capture, program], timeout=PATIENCE, check=True)

    def exported(name):
        path = tmp_path / name
        transform = [executable, "transform", name, "-o", path, capture]
        subprocess.run(transform, capture_output=True, timeout=PATIENCE, check=True)
        return path

    records = [json.loads(line) for line in exported("jsonl").read_text().splitlines()]
    aggregates = [record for record in records if record["type"] == "agg"]
    assert aggregates and all(record["totals"].keys() == {"peak", "leaked", "allocated"} for record in aggregates)
    assert not any("temporary" in entry for record in aggregates for entry in record["entries"])
    profile = gzip.decompress(exported("pprof").read_bytes())
    assert b"peak_space" in profile and b"temporary" not in profile
    parquet = pytest.importorskip("pyarrow.parquet")
    tables = exported("parquet")
    [sites] = [parquet.ParquetFile(path).read() for path in (tables / "sites").glob("**/*.parquet")]
    assert sites.num_rows > 0 and sum(sites["allocated_bytes"].to_pylist()) > 0
    assert set(sites["temporary_bytes"].to_pylist() + sites["temporary_count"].to_pylist()) == {None}


@pytest.mark.parametrize("program", ["one", "many"])
def test_a_total_has_one_interval_in_every_report(executable, tmp_path, program):
    if program == "one":
        source, capture = tmp_path / "one.c", tmp_path / "one.bin"
        source.write_text("#include <stdlib.h>\nint main(void) { return malloc(77) == 0; }\n")
        subprocess.run(["gcc", "-O0", "-o", tmp_path / "one", source], check=True)
        run = [executable, "run", "-q", "--sample=100000", "-o", capture, tmp_path / "one"]
        subprocess.run(run, timeout=PATIENCE, check=True)
    else:
        capture = sampled(executable, tmp_path, "--sample=64KiB")[2]

    def report(*words):
        return subprocess.run([executable, *words, capture], capture_output=True, text=True, timeout=PATIENCE, check=True).stdout

    stats = json.loads(report("stats", "--json"))
    records = [json.loads(line) for line in report("transform", "jsonl", "-o", "-").splitlines()]
    aggregates = [record for record in records if record["type"] == "agg"]
    assert {record["kind"] for record in aggregates} == {"frame", "stack"}
    for view, options, known in (("peak", [], stats["peak"]), ("leaked", ["--leaks"], stats["leaked"])):
        expected = [known[f"{name}_{end}"] for name in ("bytes", "allocations") for end in ("low", "high")]
        assert expected[0] <= known["bytes"] < expected[1] and expected[3] > known["allocations"]
        told = json.loads(report("transform", "speedscope", *options, "-o", "-"))["memtrack"]
        assert [told[f"total_{name}_{end}"] for name in ("bytes", "allocations") for end in ("low", "high")] == expected, view
        for record in aggregates:
            total = record["totals"][view]
            assert [total[f"{name}_{end}"] for name in ("bytes", "count") for end in ("low", "high")] == expected, view
    # What was counted and what the rows add up to are both in the interval of the rows.
    told = json.loads(report("transform", "speedscope", "--allocated", "-o", "-"))["memtrack"]
    for figure in (stats["allocations"]["bytes"], told["total_bytes"]):
        assert told["total_bytes_low"] <= figure <= told["total_bytes_high"]
    [leaked] = [line for line in report("stats").splitlines() if line.startswith("Leaked ")]
    # Of a number that may be much larger, as chance has it, both ends are told.
    assert leaked.count(" ± ") + leaked.count(" to ") == 2, leaked


@pytest.mark.parametrize("options", [[], ["--aggregate"]], ids=["", "aggregate"])
def test_samples_are_anonymized_and_symbolized(executable, tmp_path, options):
    _, stats, capture = sampled(executable, tmp_path, "--sample=64KiB", "--native", *options)

    def figures(path):
        run = [executable, "stats", "--json", path]
        known = json.loads(subprocess.run(run, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout)
        threads = [{name: value for name, value in row.items() if name != "name"} for row in known["threads"]]
        names = ("allocations", "deallocations", "freed", "live_at_exit", "peak", "leaked", "temporary")
        return [known[name] for name in names], threads

    for command in ("anonymize", "symbolize"):
        written = tmp_path / f"{command}.bin"
        run = subprocess.run([executable, command, "-o", written, capture], capture_output=True, text=True, timeout=PATIENCE)
        assert run.returncode == 0, run.stderr
        assert figures(written) == figures(capture), command
    assert "temporary" in stats and stats["allocations"]["count"] > 0
    # To know which to drop needs all of them.
    strip = [executable, "strip", "-o", tmp_path / "strip.bin", capture]
    strip = subprocess.run(strip, capture_output=True, text=True, timeout=PATIENCE)
    assert strip.returncode != 0 and "samples of allocations only" in strip.stderr


def test_what_leaked_without_a_sample_has_an_interval_everywhere(executable, tmp_path):
    """And no part of it has more than the whole."""
    script = tmp_path / "keeps.py"
    script.write_text("import sys\nkept = [bytearray(2_000) for _ in range(150)]\nsys.stdout.flush()\n")
    captures = {}
    for name, options in (("exact", []), ("sampled", ["--sample=1000000000"])):
        captures[name] = tmp_path / f"{name}.bin"
        run = [executable, "run", *options, "-o", captures[name], "--python", sys.executable, script]
        run = subprocess.run(run, capture_output=True, text=True, timeout=PATIENCE, check=True)

    def report(*words):
        words = [executable, *words]
        return subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout

    [leaked] = [line.split(maxsplit=1)[1] for line in run.stderr.splitlines() if line.startswith("  leaked ")]
    assert " ± " in leaked and " to " in leaked, run.stderr
    stats = json.loads(report("stats", "--json", captures["sampled"]))
    truth = json.loads(report("stats", "--json", captures["exact"]))
    own, whole = stats["leaked"]["parts"]["own"], stats["leaked"]
    assert truth["leaked"]["parts"]["own"]["bytes"] >= 300_000
    assert own["bytes_low"] <= truth["leaked"]["parts"]["own"]["bytes"] <= own["bytes_high"] <= whole["bytes_high"]
    for part in stats["leaked"]["parts"].values():
        assert part["allocations_high"] <= max(part["allocations"], whole["allocations_high"])
    for words in (["table"], ["tree", "--text"], ["summary"]):
        for view in ([], ["--leaks"]):
            headline = report(*words, *view, captures["sampled"]).splitlines()[0]
            assert " ± " in headline, (words, view, headline)


def test_call_stacks_are_new_or_vanished_by_more_than_chance(executable, tmp_path):
    [_, _, exact] = sampled(executable, tmp_path)
    exact = exact.rename(tmp_path / "exact.bin")
    nothing = sampled(executable, tmp_path, "--sample=1000000000000")[2].rename(tmp_path / "nothing.bin")
    found = sampled(executable, tmp_path, "--sample=64KiB")[2]

    def stacks(*captures):
        words = [executable, "diff", "--json", *captures]
        report = json.loads(subprocess.run(words, capture_output=True, timeout=PATIENCE, check=True).stdout)
        return report["new_stacks"], report["vanished_stacks"]

    # Of so few samples all of the program may have escaped; a thousand samples do not by chance.
    assert stacks(exact, nothing) == (0, 0) == stacks(nothing, exact)
    empty = tmp_path / "empty.bin"
    subprocess.run([executable, "run", "-q", "--no-native", "--sample=64KiB", "-o", empty, "true"], timeout=PATIENCE, check=True)
    assert stacks(empty, found)[0] > 0 and stacks(found, empty)[1] > 0
