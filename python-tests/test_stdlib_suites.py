"""Parts of the standard library's own tests fare under memtrack as they do without."""

import re

import pytest

from conftest import execute, interpreter_path

SUITES = {
    "code": ["test_generators", "test_coroutines", "test_asyncgen", "test_contextlib", "test_functools", "test_code"],
    "data": ["test_json", "test_memoryio", "test_array", "test_mmap"],
    "native": ["test_ctypes", "test_zlib"],
    "system": ["test_thread", "test_threading_local", "test_posix"],
}


@pytest.fixture(scope="module")
def suites_python():
    path = interpreter_path("3.11")
    if execute([path, "-c", "import test.test_json"]).status:
        pytest.skip(f"{path} comes without its tests")
    return path


def verdicts(outcome):
    """{test: verdict}, and how many ran."""
    text = outcome.stderr.decode(errors="replace")
    found = dict(re.findall(r"^(test\w+ \([\w.]+\)).*? \.\.\. (\w+)", text, re.MULTILINE))
    return found, re.findall(r"^Ran (\d+) tests?", text, re.MULTILINE)


@pytest.mark.parametrize("part", SUITES)
def test_same_verdicts(memtrack, plain, suites_python, tmp_path, part):
    command = [suites_python, "-m", "unittest", "-v", *(f"test.{name}" for name in SUITES[part])]
    outcome, capture = memtrack.run(*command)
    alone = plain(*command)
    assert verdicts(outcome) == verdicts(alone)
    assert outcome.status == alone.status
    assert verdicts(alone)[1]
    assert capture.stats()["capture"]["lost_blocks"] == 0
