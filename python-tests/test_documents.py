"""The documents: every link leads somewhere, and the README stays short."""

import re
import sys

import pytest

from conftest import REPOSITORY, execute

DOCUMENTS = [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").glob("*.md")]


def anchors(path):
    """The anchors of a document's headings, as the usual renderers make them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document):
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        path = (document.parent / name).resolve() if name else document
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(target)
    assert not broken
    # Paths of the tree that stand as code.
    for name in re.findall(r"`((?:cli|collector|docs|format|reader|scripts|shim|tests|transport)/[\w./-]+)`", document.read_text()):
        assert (REPOSITORY / name).exists() or document.name == "CHANGELOG.md", name


def test_the_reference_of_the_python_package_is_current():
    outcome = execute([sys.executable, REPOSITORY / "scripts" / "python-reference", "--check"])
    assert outcome.status == 0, outcome.stderr.decode()
