"""The magics in a real kernel, through nbclient: what a cell with %%memtrack gives, and that it is the cell it was."""

import base64
import html
import json
import os
import re
import sys
import zlib

import pytest

from conftest import PATIENCE, REPOSITORY

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")


@pytest.fixture
def notebook(executable, tmp_path, monkeypatch):
    """Runs cells in one kernel; gives the outputs of each."""
    monkeypatch.setenv("PATH", f"{executable.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY / "python"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))

    def run(*cells):
        content = nbformat.v4.new_notebook()
        content.cells = [nbformat.v4.new_code_cell(cell) for cell in ("%load_ext memtrack", *cells)]
        content.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
        options = {"timeout": PATIENCE, "startup_timeout": PATIENCE, "allow_errors": True, "resources": {"metadata": {"path": str(tmp_path)}}}
        nbclient.NotebookClient(content, **options).execute()
        outputs = [cell.outputs for cell in content.cells]
        assert outputs[0] == []
        return outputs[1:]

    return run


def page(outputs):
    """The page of a cell."""
    [shown] = [each for each in outputs if "text/html" in each.get("data", {})]
    frame = shown.data["text/html"]
    assert 'sandbox="allow-scripts allow-downloads"' in frame
    return html.unescape(re.search(r'srcdoc="([^"]*)"', frame)[1])


def texts_of_page(content):
    packed = re.search(r'id="data">\n(.*?)</script>', content, re.DOTALL)[1]
    return json.loads(zlib.decompress(base64.b64decode(packed), -15))["strings"]


def error(outputs):
    [failed] = [each for each in outputs if each.output_type == "error"]
    return failed


def value(outputs):
    [result] = [each for each in outputs if each.output_type == "execute_result"]
    return result.data["text/plain"]


def test_a_cell_shows_its_page_and_its_value(notebook, tmp_path):
    cell = "%%memtrack -o kept.bin --height 333\ndef load(n):\n    return [bytearray(1_000_000) for _ in range(n)]\nkept = load(5)\nlen(kept)"
    first, second, third = notebook(cell, "len(kept) + 1", "%%memtrack\nsilent = load(1);")
    assert value(first) == "5" and value(second) == "6"
    assert not [each for each in (*first, *third) if each.output_type in ("stream", "error")]
    content = page(first)
    assert content.lower().startswith("<!doctype html>") and "https://" not in re.sub(r"www\.w3\.org", "", content.split("</head>")[0])
    assert "height:333px" in first[0].data["text/html"]
    # Where no page can be shown.
    table = first[0].data["text/plain"]
    assert table.startswith("High-water mark: 5.00 MB in 5 allocations\n") and "  load" in table
    # As in tracebacks: by its number, and not by the file that the kernel makes up.
    [number] = re.findall(r"load\S* at Cell In\[(\d+)\]:2", table)
    assert f"Cell In[{number}]" in texts_of_page(content)
    assert f"Cell In[{int(number) + 2}]" in texts_of_page(page(third))
    assert page(third) and not [each for each in third if each.output_type == "execute_result"]
    sys.path.insert(0, str(REPOSITORY / "python"))
    import memtrack

    [own] = [each for each in memtrack.Capture(tmp_path / "kept.bin").allocations(own=True) if each.bytes > 1_000_000]
    assert own.bytes >= 5_000_000 and "/ipykernel_" in own.stack[0].file


def test_a_cell_may_be_sampled(notebook):
    one, sized = notebook(
        "%%memtrack --sample\nkept = [bytearray(5_000) for _ in range(2_000)]", "%%memtrack --sample=64KiB -o s.bin\nmore = bytearray(9_000_000)\nlen(more)"
    )
    assert page(one) and page(sized) and value(sized) == "9000000"
    assert not [each for each in (*one, *sized) if each.output_type == "error"]


def test_an_error_is_the_cells_own(notebook):
    failing, wrong, late = notebook(
        "%%memtrack\nbefore = 7\ndef divide():\n    return 1 / 0\ndivide()", "%%memtrack\nx = (1", "before"
    )
    assert error(failing).ename == "ZeroDivisionError" and page(failing)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error(failing).traceback))
    assert "Cell In[2]" in shown, shown
    assert "----> 4 divide()" in shown or "----> 3 " in shown, shown
    assert "_ipython.py" not in shown
    assert error(wrong).ename == "SyntaxError" and value(late) == "7"


def test_what_a_cell_does_to_warnings_lasts(notebook):
    first, second = notebook(
        "%%memtrack\nimport warnings\nwarnings.filterwarnings('error', 'mine')\nlen(warnings.filters)",
        "import warnings\nprint(len(warnings.filters))\nwarnings.warn('mine')",
    )
    assert second[0].text == value(first) + "\n"
    assert error(second).ename == "UserWarning"


def test_what_is_wrong_with_the_page_hides_neither_value_nor_error(notebook):
    failing, succeeding = notebook(
        "%%memtrack --from mark:never\nraise KeyError('own')", "%%memtrack --from mark:never\nkept = bytearray(1_000_000)\nlen(kept)"
    )
    assert error(failing).ename == "KeyError" and value(succeeding) == "1000000"
    for outputs in (failing, succeeding):
        [said] = [each.text for each in outputs if each.output_type == "stream"]
        assert said.startswith("memtrack: error: ") and "never" in said


def test_files_of_similar_names_are_none_of_the_cells(notebook, tmp_path):
    """What lies beside the capture is no child's, whatever it is called."""
    for name in ("run.1.bin", "run.7-1.bin"):
        (tmp_path / name).write_bytes(b"notes")
    [outputs] = notebook("%%memtrack -o run.bin\nkept = bytearray(1_000_000)\nlen(kept)")
    assert value(outputs) == "1000000" and page(outputs)


def test_wrong_options_are_said_before_the_cell_runs(notebook):
    wrong, number, word, line, unknown = notebook(
        "%%memtrack --bogus\nran = 1", "%%memtrack --height tall\nran = 1", "%%memtrack ran = 1\nran = 1", "%memtrack --help", "ran"
    )
    assert error(wrong).ename == "Error" and "unexpected argument '--bogus'" in error(wrong).evalue
    assert "invalid int value: 'tall'" in error(number).evalue and "--height PIXELS" in error(number).evalue
    assert "During handling" not in "".join(error(number).traceback)
    assert "ran: expected options only" in error(word).evalue and error(line).evalue.startswith("%%memtrack [options]")
    assert error(unknown).ename == "NameError"


def test_what_an_expression_leaves(notebook):
    _, leak, of_function, none, once, failing, usage = notebook(
        "kept = []\ndef grab():\n    kept.append(bytes(50_000))",
        "%memtrack_leaks -r 4 kept.append(bytes(100_000))",
        "%memtrack_leaks grab()",
        "%memtrack_leaks [1] * 1000",
        "%memtrack_leaks -r 1 7",
        "%memtrack_leaks kept.disappear()",
        "%memtrack_leaks",
    )
    assert "kept.append(bytes(100_000)): grows by 100 kB with each of 4 runs" in leak[0].text
    assert "<expression>:1" in leak[0].text
    # The kernel's own threads save the history of cells meanwhile.
    assert "history.py" not in leak[0].text
    # As tracebacks call it.
    assert "  grab at Cell In[2], line 3" in of_function[0].text, of_function[0].text
    assert none[0].text == "[1] * 1000: nothing grows in 5 runs\n"
    assert once[0].text == "7: leaves nothing in one run\n"
    assert error(failing).ename == "AttributeError"
    assert "expected an expression" in error(usage).evalue


def test_what_other_threads_leave_meanwhile_is_said_to_be_theirs(notebook):
    _, leak, _ = notebook(
        """
import threading
kept, asked, done = [], threading.Semaphore(0), threading.Semaphore(0)
def collect():
    while asked.acquire() and not kept[:1] == ["end"]:
        kept.append(bytes(50_000))
        done.release()
threading.Thread(target=collect, name="collector").start()
""",
        "%memtrack_leaks (asked.release(), done.acquire())",
        "kept.insert(0, 'end'); asked.release()",
    )
    assert "grows by 50." in leak[0].text and "by threads that are older than the expression: collector (50." in leak[0].text
