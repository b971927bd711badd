"""The JSON reports and records are as the files in docs/schemas describe them."""

import json
import os
import socket
import subprocess
import sys
import time

import pytest

from conftest import PROGRAMS, REPOSITORY, until

jsonschema = pytest.importorskip("jsonschema")
SCHEMAS = REPOSITORY / "docs" / "schemas"


def validator(name):
    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
    kind = jsonschema.validators.validator_for(schema)
    kind.check_schema(schema)
    return kind(schema)


@pytest.fixture(scope="module", params=[[], ["--allocation-timestamps"], ["--aggregate"], ["--sample=4KiB"], ["--sample=4KiB", "--aggregate"]], ids=lambda options: "".join(options) or "plain")
def capture(module_memtrack, request):
    return module_memtrack.record(sys.executable, PROGRAMS / "exports.py", options=request.param)


def report(capture, *command):
    """The report, or None where samples are not enough for it."""
    outcome = capture.memtrack(*command, capture.path)
    if outcome.status and b"sample" in outcome.stderr:
        return None
    assert outcome.status == 0, outcome.stderr
    return json.loads(outcome.stdout)


@pytest.mark.parametrize("options", [[], ["-n", 0], ["--function", "leak"]])
def test_stats(capture, options):
    validator("memtrack-stats-1").validate(json.loads(capture.reading("stats", "--json", *options, capture.path)))


@pytest.mark.parametrize("options", [[], ["--budget", 0]])
def test_explain(capture, options):
    if told := report(capture, "explain", "--json", *options):
        validator("memtrack-explain-1").validate(told)
        # JSON holds everything, unless it was asked to be short.
        assert options or told["left_out"] == 0


@pytest.mark.parametrize("at", ["peak", "end"])
def test_resident(module_memtrack, at):
    capture = module_memtrack.record(sys.executable, PROGRAMS / "exports.py")
    report = json.loads(capture.reading("resident", "--json", "--at", at, capture.path))
    validator("memtrack-resident-1").validate(report)
    resident = [row["bytes"] for row in report["classes"] if row["class"] not in ("untouched", "swapped")]
    assert sum(resident) == sum(report["rss"].values()) > 0


@pytest.mark.parametrize("options", [[], ["--leaks"], ["--temporary"], ["--allocated", "--split-threads"]])
def test_table(capture, options):
    if told := report(capture, "table", "--json", *options):
        validator("memtrack-table-1").validate(told)


@pytest.mark.parametrize("options", [[], ["--leaks", "--sort", "own"]])
def test_summary(capture, options):
    validator("memtrack-summary-1").validate(json.loads(capture.reading("summary", "--json", *options, capture.path)))


@pytest.mark.parametrize("options", [[], ["--leaks", "--inverted"]])
def test_tree(capture, options):
    validator("memtrack-tree-1").validate(json.loads(capture.reading("tree", "--json", *options, capture.path)))


@pytest.mark.parametrize("options", [[], ["--allocated", "--split-threads"]])
def test_flamegraph(capture, options):
    report = json.loads(capture.reading("flamegraph", "--json", "-o", "-", *options, capture.path))
    validator("memtrack-flamegraph-1").validate(report)
    assert len(report["trees"]) == (2 if "--split-threads" in options else 1)


def test_windows(capture):
    outcome = capture.memtrack("live", "--jsonl", capture.path)
    if outcome.status == 0:
        check = validator("memtrack-jsonl-0")
        for line in outcome.stdout.splitlines():
            check.validate(json.loads(line))
    else:
        assert b"aggregated" in outcome.stderr


@pytest.mark.parametrize("by", [None, "function", "file", "module", "thread", "allocator", "size", "stack"])
def test_query(capture, by):
    options = ["--by", by] if by else []
    outcome = capture.memtrack("query", "--json", *options, "not function = none", capture.path)
    if outcome.status == 0:
        report = json.loads(outcome.stdout)
        validator("memtrack-query-1").validate(report)
        assert report["rows"]
    else:
        # Sums are of no single allocations and no sizes.
        assert b"sample" in outcome.stderr or b"aggregated" in outcome.stderr and by in (None, "size")


def test_lifetimes(capture):
    outcome = capture.memtrack("stats", "--json", "--lifetimes", capture.path)
    if outcome.status == 0:
        report = json.loads(outcome.stdout)
        assert report["lifetimes"]["functions"]
        validator("memtrack-stats-1").validate(report)
    else:
        assert b"aggregated" in outcome.stderr or b"sample" in outcome.stderr


def test_every_json_report_has_a_schema_of_its_name(capture):
    commands = [["stats", "--json"], ["summary", "--json"], ["table", "--json"], ["tree", "--json"], ["flamegraph", "--json", "-o", "-"]]
    commands.append(["query", "--json", "--by", "module", "function ~ ''"])
    for command in commands:
        told = report(capture, *command)
        if told is None:
            continue
        assert told["schema"] == f"memtrack-{command[0]}" and told["version"] == 1
        assert (SCHEMAS / f"{told['schema']}-1.schema.json").is_file()


def test_diff(capture, module_memtrack):
    other = module_memtrack.record(sys.executable, "-c", "block = bytearray(1_000_000)")
    validator("memtrack-diff-1").validate(json.loads(capture.reading("diff", "--json", other.path, capture.path)))


def test_jsonl(capture):
    check = validator("memtrack-jsonl-0")
    for line in capture.reading("transform", "jsonl", capture.path, "-o", "-").splitlines():
        check.validate(json.loads(line))


def test_a_capture_that_was_cut_satisfies_the_schema_too(capture, tmp_path):
    cut = tmp_path / "cut.bin"
    cut.write_bytes(capture.path.read_bytes()[: capture.path.stat().st_size * 2 // 3])
    outcome = capture.memtrack("stats", "--json", cut)
    if outcome.status == 0:
        validator("memtrack-stats-1").validate(json.loads(outcome.stdout))
    else:
        assert outcome.status == 1 and outcome.stderr.startswith(b"error: ")


def test_ps_and_the_control_socket(executable, tmp_path):
    command = [executable, "run", "-q", "-o", tmp_path / "c.bin", sys.executable, "-c", "print('started', flush=True); input()"]
    running = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert running.stdout.readline() == b"started\n"
        path = str((tmp_path / "c.bin").resolve())

        def own():
            listed = json.loads(subprocess.check_output([executable, "ps", "--json"]))
            validator("memtrack-ps-1").validate(listed)
            return [process["pid"] for process in listed["processes"] if process["capture"] == path]

        (pid,) = until("it is known", own)
        check = validator("memtrack-control-1")
        requests = [{"id": 1, "command": "status"}, {"id": 2, "command": "mark", "name": "here"}, {"id": 3, "command": "snapshot"}, {"id": 4, "command": "fly"}]
        span, copy = str(tmp_path / "span.bin"), str(tmp_path / "copy.bin")
        requests += [
            {"id": 5, "command": "begin", "output": span, "needs": []},
            {"id": 6, "command": "copy", "span": span, "output": copy},
            {"id": 7, "command": "end", "span": span},
            {"id": 8, "command": "count"},
        ]
        with socket.socket(socket.AF_UNIX) as client:
            runtime = os.environ.get("XDG_RUNTIME_DIR")
            places = ([f"{runtime}/memtrack"] if runtime else []) + [f"/tmp/memtrack-{os.geteuid()}"]
            client.connect(next(path for place in places if os.path.exists(path := f"{place}/{pid}.sock")))
            lines = client.makefile("rw")
            check.validate(json.loads(lines.readline()))
            for request in requests:
                if request["command"] != "fly":
                    check.validate(request)
                lines.write(json.dumps(request) + "\n")
                lines.flush()
                answer = json.loads(lines.readline())
                check.validate(answer)
                assert answer["id"] == request["id"] and ("ok" in answer) == (request["command"] != "fly")
            # The recording process counts by itself from "count" on, and 'ps' need not read the capture.
            for number in range(9, 600):
                lines.write(json.dumps({"id": number, "command": "status"}) + "\n")
                lines.flush()
                [process] = json.loads(lines.readline())["ok"]["processes"]
                if process["events"]:
                    break
                time.sleep(0.05)
            assert process["events"] > 0 and process["peak_bytes"] >= process["live_bytes"] > 0
    finally:
        running.communicate(b"\n")


def test_every_schema_is_described(capture):
    text = (REPOSITORY / "docs" / "formats.md").read_text()
    for path in SCHEMAS.iterdir():
        assert f"schemas/{path.name}" in text
