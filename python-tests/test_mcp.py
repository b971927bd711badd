"""`memtrack mcp` with the official client of the Model Context Protocol."""

import asyncio
import os
import shutil
import sys

import pytest

from conftest import PATIENCE, PROGRAMS

mcp = pytest.importorskip("mcp")
from mcp.client.stdio import stdio_client  # noqa: E402


@pytest.fixture(scope="module")
def directory(module_memtrack, tmp_path_factory):
    """Two captures, one in a directory below, and what is no capture."""
    root = tmp_path_factory.mktemp("mcp")
    inside = root / "captures"
    (inside / "nightly").mkdir(parents=True)
    capture = module_memtrack.record(sys.executable, PROGRAMS / "exports.py")
    shutil.copy(capture.path, inside / "a.bin")
    shutil.copy(capture.path, inside / "nightly" / "b.bin")
    shutil.copy(capture.path, root / "outside.bin")
    (inside / "notes.txt").write_text("no capture")
    os.symlink("../outside.bin", inside / "link.bin")
    return inside


@pytest.fixture
def session(executable, directory):
    """Runs a coroutine with a connected client."""

    def run(use):
        async def connected():
            server = mcp.StdioServerParameters(command=str(executable), args=["mcp", str(directory)])
            async with stdio_client(server) as streams, mcp.ClientSession(*streams) as client:
                known = await client.initialize()
                assert known.serverInfo.name == "memtrack" and "never instructions" in known.instructions
                return await use(client)

        return asyncio.run(asyncio.wait_for(connected(), PATIENCE))

    return run


def called(session, name, **arguments):
    result = session(lambda client: client.call_tool(name, arguments))
    (content,) = result.content
    return result.isError, content.text


def test_captures_below_the_directory_are_listed(session):
    tools = session(lambda client: client.list_tools()).tools
    assert [tool.name for tool in tools] == ["captures", "explain", "stats", "table", "tree", "query", "resident", "diff"]
    is_error, text = called(session, "captures")
    assert not is_error and {line.split("\t")[0] for line in text.splitlines()} == {'"a.bin"', '"nightly/b.bin"'}


@pytest.mark.parametrize(
    "name, arguments, expected",
    [
        ("explain", {"capture": "a.bin"}, "Not seen"),
        ("stats", {"capture": "nightly/b.bin", "limit": 3}, "Peak"),
        ("table", {"capture": "a.bin", "view": "allocated", "limit": 1, "function": "churn"}, "churn at "),
        ("tree", {"capture": "a.bin", "view": "leaks", "least_percent": 5}, "Call"),
        ("query", {"capture": "a.bin", "expression": "function = churn and bytes > 1000", "by": "function"}, "300 of "),
        ("resident", {"capture": "a.bin", "at": "end"}, "Resident "),
        ("diff", {"before": "a.bin", "after": "nightly/b.bin"}, "+0 B"),
    ],
)
def test_a_tool_answers_with_its_report(session, name, arguments, expected):
    is_error, text = called(session, name, **arguments)
    assert not is_error and expected in text and "\x1b" not in text


@pytest.mark.parametrize(
    "name, arguments, expected",
    [
        ("stats", {"capture": "../outside.bin"}, "no such capture"),
        ("stats", {"capture": "link.bin"}, "no such capture"),
        ("stats", {"capture": "notes.txt"}, "notes.txt"),
        ("stats", {"capture": "a.bin", "limit": 0}, "limit"),
        ("stats", {"capture": "a.bin", "output": "/tmp/x"}, "no argument"),
        ("query", {"capture": "a.bin", "expression": "bytes >"}, "column"),
        ("table", {"capture": "a.bin", "from": "mark:nothing"}, "no mark"),
    ],
)
def test_what_cannot_be_answered_is_said(session, name, arguments, expected):
    is_error, text = called(session, name, **arguments)
    assert is_error and expected in text


def test_files_that_a_capture_names_are_not_read(session, module_memtrack, directory, tmp_path):
    """A capture may name any file as source; what it brings itself is shown."""
    program = tmp_path / "hog.py"
    program.write_text("kept = [bytearray(1_000_000) for secret_name in range(50)]\n")
    for name, options in {"plain.bin": [], "embedded.bin": ["--embed-sources"]}.items():
        shutil.copy(module_memtrack.record(sys.executable, program, options=options).path, directory / name)
    assert "secret_name" not in called(session, "explain", capture="plain.bin")[1]
    assert "secret_name" in called(session, "explain", capture="embedded.bin")[1]
    for name in ("plain.bin", "embedded.bin"):
        (directory / name).unlink()


def test_answers_are_bounded(session):
    is_error, text = called(session, "query", capture="a.bin", expression="bytes > 0", limit=500)
    assert not is_error and len(text) < 61_000
