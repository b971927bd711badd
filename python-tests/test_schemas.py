"""The JSON reports and records are as the files in docs/schemas describe them."""

import json
import sys

import pytest

from conftest import PROGRAMS, REPOSITORY

jsonschema = pytest.importorskip("jsonschema")
SCHEMAS = REPOSITORY / "docs" / "schemas"


def validator(name):
    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
    kind = jsonschema.validators.validator_for(schema)
    kind.check_schema(schema)
    return kind(schema)


@pytest.fixture(scope="module", params=[[], ["--allocation-timestamps"], ["--aggregate"]], ids=lambda options: "".join(options) or "plain")
def capture(module_memtrack, request):
    return module_memtrack.record(sys.executable, PROGRAMS / "exports.py", options=request.param)


@pytest.mark.parametrize("options", [[], ["-n", 0], ["--function", "leak"]])
def test_stats(capture, options):
    validator("memtrack-stats-1").validate(json.loads(capture.reading("stats", "--json", *options, capture.path)))


@pytest.mark.parametrize("options", [[], ["--leaks"], ["--temporary"], ["--allocated", "--split-threads"]])
def test_table(capture, options):
    validator("memtrack-table-1").validate(json.loads(capture.reading("table", "--json", *options, capture.path)))


@pytest.mark.parametrize("options", [[], ["--leaks", "--sort", "own"]])
def test_summary(capture, options):
    validator("memtrack-summary-1").validate(json.loads(capture.reading("summary", "--json", *options, capture.path)))


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


def test_every_schema_is_described(capture):
    text = (REPOSITORY / "docs" / "formats.md").read_text()
    for path in SCHEMAS.iterdir():
        assert f"schemas/{path.name}" in text
