"""The commands that the README begins with do what it says."""

import re
import shlex

from conftest import REPOSITORY, execute


def first_command():
    """The words of each command in the README's first block."""
    block = re.search(r"^ {4}(\S.*)$", (REPOSITORY / "README.md").read_text(), re.MULTILINE)
    return [shlex.split(command) for command in block[1].split("&&")]


def test_the_first_command_records_the_demo_and_shows_its_numbers(executable, tmp_path):
    build, record, stats = first_command()
    assert build[:2] == ["cargo", "build"]
    assert record[0] == stats[0] == "target/release/memtrack"
    (tmp_path / "examples").symlink_to(REPOSITORY / "examples")
    recorded = execute([executable, *record[1:]], cwd=tmp_path)
    assert recorded.status == 0, recorded.stderr.decode()
    shown = execute([executable, *stats[1:]], cwd=tmp_path)
    assert shown.status == 0, shown.stderr.decode()
    assert b"examples/demo.py" in shown.stdout and b"Peak" in shown.stdout


# Options in the README that are cargo's and the scripts'.
OF_SCRIPTS = ("--release", "--workspace", "--all-pythons", "--whole", "--build", "--features", "--path")


def test_commands_of_the_readme_exist(executable):
    text = (REPOSITORY / "README.md").read_text()
    commands = set(re.findall(r"^ {4}memtrack (\w+)", text, re.MULTILINE))
    assert {"run", "stats", "transform", "parse"} <= commands
    for command in commands:
        assert execute([executable, command, "--help"]).status == 0, command
    options = set(re.findall(r"(?<![\w-])--[a-z][\w-]+", text))
    help_text = b"".join(
        execute([executable, *words, "--help"]).stdout
        for words in (*([command] for command in commands), ["transform", "speedscope"])
    ).decode()
    ours = {option for option in options if option not in OF_SCRIPTS}
    assert not [option for option in ours if option not in help_text]
