"""Sampled captures: `memtrack run --sample` of programs that know what they have allocated."""

import json
import subprocess

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
        [executable, "run", "-q", "-f", *options, "-o", capture, program], capture_output=True, text=True, timeout=60, check=True
    )
    stats = subprocess.run([executable, "stats", "--json", capture], capture_output=True, text=True, timeout=60, check=True)
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


def test_what_needs_every_allocation_is_refused(executable, tmp_path):
    _, _, capture = sampled(executable, tmp_path, "--sample")
    for command in (["parse"], ["transform", "parquet"], ["transform", "heaptrack"], ["explain"], ["query", "size > 1"]):
        run = subprocess.run([executable, command[0], *command[1:], capture], capture_output=True, text=True, timeout=60)
        assert run.returncode != 0, command
    table = subprocess.run([executable, "table", capture], capture_output=True, text=True, timeout=60, check=True)
    assert "estimates from samples" in table.stderr
    for options in (["--sample=0"], ["--sample=x"], ["--sample", "--aggregate"]):
        run = subprocess.run([executable, "run", *options, "true"], capture_output=True, text=True, timeout=60)
        assert run.returncode == 2, options


def test_a_difference_within_its_interval_is_unchanged_and_fails_no_limit(executable, tmp_path):
    captures = []
    for number in range(2):
        _, _, capture = sampled(executable, tmp_path, "--sample=64KiB")
        captures.append(capture.rename(tmp_path / f"{number}.bin"))
    run = subprocess.run([executable, "diff", "--json", "--leaks", *captures], capture_output=True, text=True, timeout=60, check=True)
    report = json.loads(run.stdout)
    [main] = [row for row in report["rows"] if row["function"] in ("main", "<no stack>")][:1]
    assert main["base"]["own_bytes_low"] < main["base"]["own_bytes"] < main["base"]["own_bytes_high"]
    if report["change_low"] <= 0 <= report["change_high"]:
        assert all(row["status"] == "unchanged" for row in report["rows"])
        run = subprocess.run([executable, "diff", "--leaks", "--fail-over=0", *captures], capture_output=True, timeout=60)
        assert run.returncode == 0
    run = subprocess.run([executable, "diff", "--metric=temporary", *captures], capture_output=True, text=True, timeout=60)
    assert run.returncode == 1 and "samples" in run.stderr
