"""The tutorial's commands do what it says: the first row names the culprit."""

import re
import shlex

import pytest

from conftest import REPOSITORY, execute

TUTORIAL = (REPOSITORY / "docs" / "tutorial.md").read_text()


@pytest.fixture(scope="module")
def said(executable, tmp_path_factory):
    """What each of the tutorial's commands prints: {command: text}."""
    directory = tmp_path_factory.mktemp("tutorial")
    for program in (REPOSITORY / "examples").glob("*.py"):
        (directory / program.name).write_text(program.read_text())
    outputs = {}
    for command in re.findall(r"^ {4}memtrack (.+)$", TUTORIAL, re.MULTILINE):
        if command[0].isdigit():
            continue  # the line that `run` ends with
        outcome = execute([executable, *shlex.split(command)], cwd=directory)
        assert outcome.status == 0, outcome.stderr.decode()
        outputs[command] = (outcome.stdout + outcome.stderr).decode()
    return outputs


def first_row(text):
    return next(line for line in text.splitlines() if re.search(r"%\s", line))


@pytest.mark.parametrize(
    "command, culprit",
    [
        ("table peak.bin", "count at peak.py:13"),
        ("table --leaks --from 50% after.bin", "note at growth.py:14"),
        ("diff before.bin after.bin", "note at"),
    ],
)
def test_the_first_row_names_the_culprit(said, command, culprit):
    rows = said[command].split("by self figures)")[-1] if command.startswith("diff") else said[command]
    assert culprit in first_row(rows), said[command]


def test_run_ends_with_the_culprit(said):
    leaked = said["run -f -o leak.bin leak.py"].split("leaked")[1].splitlines()
    assert "parse at leak.py:9" in leaked[1]


def test_the_tree_names_the_callers(said):
    lines = said["tree --text --leaks leak.bin"].splitlines()
    assert any("handle at leak.py:17" in line for line in lines[:8])
