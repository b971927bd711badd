"""The figures of tests in pytest's report for JUnit. Invariant: a test that has such properties already keeps them."""

from typing import TYPE_CHECKING, Any, Dict

import pytest

if TYPE_CHECKING:
    from memtrack._test_figures import Figures


def add_to_junit(config: pytest.Config, figures: "Dict[str, Figures]") -> None:
    """Adds the figures to the report for JUnit, which is complete but not yet written."""
    try:
        from _pytest.junitxml import xml_key

        report = config.stash.get(xml_key, None)
        reporters = list(report.node_reporters_ordered) if report else []
    except (ImportError, AttributeError):  # another version of pytest
        return
    import xml.etree.ElementTree as Tree

    for reporter in reporters:
        case = reporter.to_xml()
        known = _by_junit_name(figures).get((case.get("classname"), case.get("name")))
        if known is None:
            continue
        properties = case.find("properties")
        if properties is None:
            properties = Tree.Element("properties")
            case.insert(0, properties)
        present = {each.get("name") for each in properties}
        for name, value in known.items():
            if f"memtrack_{name}" not in present:
                Tree.SubElement(properties, "property", name=f"memtrack_{name}", value=str(value))


def _by_junit_name(figures: "Dict[str, Figures]") -> "Dict[Any, Figures]":
    from _pytest.junitxml import mangle_test_address

    named = {}
    for name, known in figures.items():
        names = mangle_test_address(name)
        named[(".".join(names[:-1]), names[-1])] = known
    return named
