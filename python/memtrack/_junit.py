"""The figures of tests in pytest's report for JUnit.

A part of the report does not say whose it is once it is complete: it may have any name, and is asked before. Invariant: a test
that has such properties already keeps them.
"""

import xml.etree.ElementTree as Tree
from typing import TYPE_CHECKING, Any, Dict, List, Tuple

import pytest

if TYPE_CHECKING:
    from memtrack._test_figures import Figures


class JunitProperties:
    """The parts of the report for JUnit, if there is one."""

    def __init__(self, config: pytest.Config) -> None:
        try:
            from _pytest.junitxml import xml_key

            self._log: Any = config.stash.get(xml_key, None)
        except (ImportError, AttributeError):  # another version of pytest
            self._log = None
        self._parts: List[Tuple[Any, str]] = []
        """Each part, and the test whose it is."""

    def note(self, report: pytest.TestReport) -> None:
        """Notes the part of a test that has ended, before it is complete."""
        if report.when == "teardown" and hasattr(self._log, "node_reporter"):
            self._parts.append((self._log.node_reporter(report), report.nodeid))

    def add(self, figures: "Dict[str, Figures]") -> None:
        """Adds the figures to the report, which is complete but not yet written."""
        for part, name in self._parts:
            if name in figures:
                _add(part.to_xml(), figures[name])


def _add(case: Tree.Element, figures: "Figures") -> None:
    properties = case.find("properties")
    if properties is None:
        properties = Tree.Element("properties")
        case.insert(0, properties)
    present = {each.get("name") for each in properties}
    for name, value in figures.items():
        if f"memtrack_{name}" not in present:
            Tree.SubElement(properties, "property", name=f"memtrack_{name}", value=str(value))
