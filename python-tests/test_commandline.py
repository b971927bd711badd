"""--help, completions, manual pages and the README speak of the same commands."""

import re

import pytest

from conftest import REPOSITORY, execute


def help_of(executable, *words):
    outcome = execute([executable, *words, "--help"])
    assert outcome.status == 0
    return outcome.stdout.decode()


def commands(text):
    """The commands that a help text lists."""
    section = re.search(r"^Commands:\n((?:  .*\n)+)", text, re.MULTILINE)[1]
    return re.findall(r"^  (\S+)", section, re.MULTILINE)


@pytest.fixture(scope="module")
def known(executable):
    """{command: its formats or nothing}."""
    top = commands(help_of(executable))
    return {name: commands(help_of(executable, name)) if name == "transform" else [] for name in top}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions_know_every_command_and_format(executable, known, shell):
    script = execute([executable, "completions", shell]).stdout.decode()
    for name in [*known, *known["transform"]]:
        assert re.search(rf"\b{name}\b", script), name
    for option in ("--aggregate", "--leaks") if shell != "fish" else ("aggregate", "leaks"):
        assert option in script


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_accept_their_completions(executable, shell, tmp_path):
    import shutil

    path = shutil.which(shell) or pytest.skip(f"no {shell}")
    script = tmp_path / "completions"
    script.write_bytes(execute([executable, "completions", shell]).stdout)
    checked = execute([path, "-n", script])
    assert checked.status == 0 and checked.stderr == b""


def test_bash_completes(executable, tmp_path):
    script = tmp_path / "completions"
    script.write_bytes(execute([executable, "completions", "bash"]).stdout)
    code = f"source {script}; COMP_WORDS=(memtrack transform pp); COMP_CWORD=2; _memtrack memtrack pp transform; echo ${{COMPREPLY[@]}}"
    assert execute(["bash", "-c", code]).stdout.decode().split() == ["pprof"]


def test_manual_pages_are_there_for_every_command(executable, known, tmp_path):
    assert execute([executable, "man", tmp_path / "man"]).status == 0
    pages = {path.name for path in (tmp_path / "man").iterdir()}
    expected = {"memtrack.1"} | {f"memtrack-{name}.1" for name in known} | {f"memtrack-transform-{name}.1" for name in known["transform"]}
    assert pages == expected


def test_the_readme_names_every_command_and_format(known):
    text = (REPOSITORY / "README.md").read_text()
    for name in known:
        assert re.search(rf"memtrack {name}\b", text), name
    for name in known["transform"]:
        assert re.search(rf"\b{name}\b", text, re.IGNORECASE), name


def test_wrong_usage_is_status_2(executable):
    for words in (["completions", "tcsh"], ["transform", "svg", "x"], ["stats"], ["transform", "csv", "--leaks", "--temporary", "x"]):
        assert execute([executable, *words]).status == 2, words
