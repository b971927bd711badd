"""memtrack.h and memtrack_limit.h: warnings are errors, marks and snapshots are in captures, limits fail."""

import json
import os
import shutil

import pytest

from conftest import REPOSITORY, execute

COMPILERS = [
    ["gcc", "-std=c99"],
    ["gcc", "-std=gnu17", "-no-pie"],
    ["g++", "-x", "c++", "-std=c++11"],
    ["g++", "-x", "c++", "-std=c++20", "-O2"],
    ["clang", "-std=c99"],
    ["clang++", "-x", "c++", "-std=c++17"],
]

PROGRAM = r"""
#include "memtrack_limit.h"
#include "memtrack.h"

static char *volatile kept[40];

static void keep(int from, size_t size) {
    int at;
    for (at = from; at < from + 10; at++)
        kept[at] = (char *)malloc(size);
}

int main(int count, char **words) {
    struct memtrack_span span;
    long long peak;
    int mark, odd, snapshot, again, start, stop;
    keep(0, 1000);
    errno = 7;
    mark = memtrack_mark("warm \"x\"");
    odd = memtrack_mark("a\nb");
    snapshot = memtrack_snapshot("now.bin");
    again = memtrack_snapshot("now.bin");
    start = memtrack_start("phase.bin");
    keep(10, 2000);
    stop = memtrack_stop();
    mark = errno == 7 ? mark : 99;
    span = memtrack_span_begin();
    keep(20, count > 1 ? 500000 : 3000);
    peak = memtrack_span_peak(span);
    printf("[%d, %d, %d, %d, %d, %d, %lld]\n", mark, odd, snapshot, again, start, stop, peak);
    return words[0] == NULL || peak >= 1000000;
}
"""


@pytest.fixture(params=COMPILERS, ids=" ".join)
def program(request, tmp_path):
    if not shutil.which(request.param[0]):
        pytest.skip(f"no {request.param[0]}")
    (tmp_path / "program.c").write_text(PROGRAM)
    strict = ["-Wall", "-Wextra", "-pedantic", "-Werror", "-I", REPOSITORY / "include"]
    built = execute([*request.param, *strict, "-o", tmp_path / "program", tmp_path / "program.c"])
    assert built.status == 0, built.stderr.decode()
    return tmp_path / "program"


def test_without_memtrack_nothing_is_done(program, tmp_path):
    told = execute([program], cwd=tmp_path)
    assert (told.status, json.loads(told.stdout)) == (0, [-1] * 7)
    assert list(tmp_path.glob("*.bin")) == []


def test_marks_snapshots_and_limits(memtrack, program, tmp_path, monkeypatch):
    monkeypatch.setenv("MEMTRACK", memtrack.executable)
    outcome, capture = memtrack.run(program, options=["--allocation-timestamps"])
    *results, peak = json.loads(outcome.stdout)
    # No second snapshot into the same file; start and stop are of dormant programs.
    assert (outcome.status, results) == (0, [0, -2, 0, -3, -2, -2])
    assert 30_000 <= peak < 40_000
    assert [mark["name"] for mark in capture.stats()["capture"]["marks"]] == ['warm "x"']
    now = json.loads(memtrack("stats", "--json", tmp_path / "now.bin").stdout)
    assert now["capture"]["complete"] and 10_000 <= now["live_at_exit"]["bytes"] < 100_000
    outcome, _ = memtrack.run(program, "more", options=["--allocation-timestamps"])
    assert outcome.status == 1 and json.loads(outcome.stdout)[-1] >= 5_000_000


FITS = r"""
#include "memtrack_limit.h"

static void *volatile kept;

int main(int count, char **words) {
    memtrack_span span = memtrack_span_begin();
    kept = malloc(count > 1 ? 5000000 : 3000);
    printf("[%lld, %d]\n", memtrack_span_peak(span), memtrack_span_fits(span, 1000000));
    return words[0] == NULL;
}
"""


def test_a_span_that_cannot_be_measured_does_not_fit(memtrack, tmp_path, monkeypatch):
    if not shutil.which("gcc"):
        pytest.skip("no gcc")
    monkeypatch.setenv("MEMTRACK", str(memtrack.executable))
    (tmp_path / "fits.c").write_text(FITS)
    built = execute(["gcc", "-std=c11", "-Wall", "-Wextra", "-pedantic", "-Werror", "-I", REPOSITORY / "include", "-o", tmp_path / "fits", tmp_path / "fits.c"])
    assert built.status == 0, built.stderr.decode()
    outcome = execute([tmp_path / "fits"])
    assert json.loads(outcome.stdout) == [-1, 0] and outcome.stderr.count(b"--allocation-timestamps") == 1
    # A short span had nothing, or nearly.
    outcome, _ = memtrack.run(tmp_path / "fits", "more", options=[])
    assert json.loads(outcome.stdout) == [-1, 0]
    said = outcome.stderr.decode().splitlines()
    assert [("--allocation-timestamps" in line, "could not be measured" in line) for line in said] == [(True, False), (False, True), (True, False)], said
    for arguments, fits in (((), 1), (("more",), 0)):
        outcome, _ = memtrack.run(tmp_path / "fits", *arguments, options=["--allocation-timestamps"])
        peak, fitted = json.loads(outcome.stdout)
        assert fitted == fits and peak >= (3000 if fits else 5_000_000)
        assert (b"its limit is 1000000" in outcome.stderr) != fits, outcome.stderr


def test_a_phase_of_a_dormant_program(memtrack, program, tmp_path):
    outcome = memtrack("run", "-q", "--dormant", program)
    assert json.loads(outcome.stdout) == [-1, -1, -1, -1, 0, 0, -1], outcome.stderr
    phase = json.loads(memtrack("stats", "--json", tmp_path / "phase.bin").stdout)
    assert (phase["allocations"]["count"], phase["allocations"]["bytes"]) == (10, 20_000)


def test_a_start_that_was_refused_is_said_at_the_end(memtrack, program, tmp_path):
    """The program may not look at what it returns."""
    (tmp_path / "phase.bin").write_bytes(b"another's")
    outcome = memtrack("run", "--dormant", program)
    assert json.loads(outcome.stdout) == [-1, -1, -1, -1, -2, -1, -1]
    assert b"nothing was recorded: a start was refused: " in outcome.stderr and b"phase.bin" in outcome.stderr, outcome.stderr


def test_a_limit_in_cargo_test(memtrack, tmp_path):
    if not shutil.which("cargo"):
        pytest.skip("no cargo")
    command = ["cargo", "test", "--offline", "--quiet", "-p", "memtrack-marks", "--test", "limit"]
    recorded = memtrack.command("run", "-q", "--no-native", "--allocation-timestamps", "--follow", "-o", tmp_path / "tests.bin")
    for number, passes in ((1000, True), (100_000, False)):
        variables = ["env", f"MEMTRACK={memtrack.executable}", f"MEMTRACK_EXAMPLE_NUMBER={number}"]
        outcome = execute([*variables, *recorded, "-f", *command], cwd=REPOSITORY)
        assert (outcome.status == 0) == passes, outcome.stdout + outcome.stderr
        assert passes or b"bytes at its peak" in outcome.stdout
    # Without exact times it is not known.
    recorded.remove("--allocation-timestamps")
    outcome = execute(["env", f"MEMTRACK={memtrack.executable}", *recorded, "-f", *command], cwd=REPOSITORY)
    assert outcome.status != 0 and b"record with --allocation-timestamps" in outcome.stdout + outcome.stderr, outcome


FRAMEWORKS = {
    "googletest": (
        ["-lgtest", "-lgtest_main", "-lpthread"],
        """
#include <gtest/gtest.h>
#include <memtrack_limit.h>
PARSE
TEST(Parser, fits) { memtrack_span span = memtrack_span_begin(); parse(400000); EXPECT_TRUE(memtrack_span_fits(span, 1000000)); }
TEST(Parser, large) { memtrack_span span = memtrack_span_begin(); parse(3000000); EXPECT_TRUE(memtrack_span_fits(span, 1000000)); }
""",
        ["[       OK ] Parser.fits", "[  FAILED  ] Parser.large"],
    ),
    "catch2": (
        [],
        """
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
#include <memtrack_limit.h>
PARSE
TEST_CASE("fits") { memtrack_span span = memtrack_span_begin(); parse(400000); CHECK(memtrack_span_fits(span, 1000000)); }
TEST_CASE("large") { memtrack_span span = memtrack_span_begin(); parse(3000000); CHECK(memtrack_span_fits(span, 1000000)); }
""",
        ["test cases: 2 | 1 passed | 1 failed"],
    ),
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_limit_fails_the_test_of_a_framework(memtrack, executable, tmp_path, framework):
    libraries, code, expected = FRAMEWORKS[framework]
    parse = "static char *volatile kept;\nstatic void parse(size_t size) { kept = new char[size]; kept[0] = 1; }"
    (tmp_path / "tests.cc").write_text(code.replace("PARSE", parse))
    include = next(line for line in code.splitlines() if line.startswith("#include"))
    if not shutil.which("g++") or execute(["g++", "-E", "-x", "c++", "-"], input=include.encode()).status:
        pytest.skip(f"no {framework} (libgtest-dev, catch2 of version 2)")
    command = ["g++", "-g", "-I", REPOSITORY / "include", tmp_path / "tests.cc", "-o", tmp_path / "tests", *libraries]
    built = execute(command)
    assert built.status == 0, built.stderr.decode()
    options = ["--allocation-timestamps", "--follow", "--native"]
    environment = {**os.environ, "MEMTRACK": str(executable)}
    outcome, capture = memtrack.run(tmp_path / "tests", options=options, env=environment)
    said = outcome.stdout.decode()
    assert outcome.status == 1 and all(text in said for text in expected), said
    assert b"had 3000000 bytes at its peak, its limit is 1000000" in outcome.stderr
    # The capture has who allocated it.
    assert "parse at " in capture.reading("table", capture.path)
