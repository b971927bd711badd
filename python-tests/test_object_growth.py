"""Types whose objects become more from picture to picture: `explain` names them, and `objects --diff` compares captures and programs."""

import json
import subprocess
import sys

from conftest import PATIENCE, kill_in_time
from test_objects_recorded import objects, recorded, row  # noqa: F401
from test_schemas import validator


LEAKS = """
import os, sys
class Session:
    def __init__(self, number):
        self.number = number
        self.payload = [number, "payload %d" % number]
class Cached:
    pass
SESSIONS, cache = {}, []
for step in range(3):
    for number in range(3000):
        SESSIONS[step, number] = Session(number)
    cache[:] = [Cached() for number in range(5000)]
    print(os.getpid(), flush=True)
    sys.stdin.readline()
"""


def test_explain_names_types_that_grow_in_three_pictures_and_diff_takes_running_programs(
    recorded, objects, memtrack, executable, tmp_path
):
    (tmp_path / "app.py").write_text(LEAKS)
    command = [str(executable), "run", "-q", "-o", "leaks.bin", "--objects-at", "mark:step,end", "--python", sys.executable, "app.py"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        kill_in_time(process)
        for _ in range(3):
            pid = process.stdout.readline().strip()
            memtrack.mark(pid, "step")
            process.stdin.write("\n")
            process.stdin.flush()
        assert process.wait(PATIENCE) == 0
    explained = subprocess.run(
        [str(executable), "explain", "--json", "leaks.bin"], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    with_end = json.loads(explained.stdout)
    validator("memtrack-explain-1").validate(with_end)
    counts = [row(objects("leaks.bin", "--at", f"mark:step#{number}"), "__main__.Session")["count"] for number in (1, 2, 3)]
    assert counts == [3000, 6000, 9000]
    assert row(objects("leaks.bin", "--at", "mark:step"), "__main__.Session")["count"] == 9000
    grown = objects("--diff", "leaks.bin", "leaks.bin", "--at", "mark:step#1", "--at", "mark:step#2")
    assert row(grown, "__main__.Session")["count"] == 3000
    missing = objects("leaks.bin", "--at", "mark:step#4", status=1)
    assert "there are: mark:step#1, mark:step#2, mark:step#3, end" in missing

    command[command.index("mark:step,end")] = "mark:step"
    command[command.index("leaks.bin")] = "marks.bin"
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        kill_in_time(process)
        for step in range(3):
            pid = process.stdout.readline().strip()
            if step == 0:
                # From a capture to the program as it is now: other sessions of another run, as many as before.
                grown = objects("--diff", "leaks.bin", pid, "--at", "end")
                assert row(grown, "__main__.Session")["count"] == -6000
                assert not [of for of in grown["types"] if of["type"] == "__main__.Cached"]
            memtrack.mark(pid, "step")
            process.stdin.write("\n")
            process.stdin.flush()
        assert process.wait(PATIENCE) == 0
    explained = subprocess.run(
        [str(executable), "explain", "--json", "marks.bin"], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    # The end is one more picture, in which nothing has grown since the third mark: those at the mark are compared.
    for told in (with_end, json.loads(explained.stdout)):
        found = [of for of in told["findings"] if "from picture to picture" in of["title"]]
        assert_sessions_leak(found)


def assert_sessions_leak(found):
    assert found[0]["title"].startswith("objects of __main__.Session become more") and found[0]["id"] == "growth"
    texts = [evidence["text"] for evidence in found[0]["evidence"]]
    assert texts[0].startswith("3,000, 6,000 and 9,000 objects in the last three pictures at the mark 'step'")
    assert any(text.startswith("9,000 objects held by __main__.SESSIONS[") for text in texts)
    assert any(text.endswith("more of list in them") for text in texts)
    assert not [of for of in found if "Cached" in of["title"]]
    assert found[0]["command"].endswith("--at mark:step --why __main__.Session")


GROWING = """
import os, sys
CONSTANT = [{"number": number} for number in range(30_000)]
ENTRIES, KEPT = [], []
for step in range(3):
    for number in range(2000):
        ENTRIES.append({"number": number})
        KEPT.append(sys.intern("interned %d %d" % (step, number)))
    print(os.getpid(), flush=True)
    sys.stdin.readline()
"""


def test_explain_names_what_holds_more_and_not_what_holds_most(memtrack, executable, tmp_path):
    (tmp_path / "app.py").write_text(GROWING)
    command = [str(executable), "run", "-q", "-o", "grown.bin", "--objects-at", "mark:step", "--python", sys.executable, "app.py"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        kill_in_time(process)
        for _ in range(3):
            memtrack.mark(process.stdout.readline().strip(), "step")
            process.stdin.write("\n")
            process.stdin.flush()
        assert process.wait(PATIENCE) == 0
    explained = subprocess.run(
        [str(executable), "explain", "--json", "grown.bin"], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    found = [of for of in json.loads(explained.stdout)["findings"] if "from picture to picture" in of["title"]]
    held = {of["title"].split()[2]: [one["text"] for one in of["evidence"] if " held by " in one["text"]] for of in found}
    assert len(held["dict"]) == 1 and held["dict"][0].startswith("6,000 objects held by __main__.ENTRIES[")
    assert held["str"][0].startswith("6,000 objects held by __main__.KEPT[")
    assert not [text for texts in held.values() for text in texts if "interned strings" in text or "CONSTANT" in text]


SEVERAL = """
import os, sys
class User: __slots__ = ("age",)
class Session:
    __slots__ = ("user", "user_name", "number")
    def __init__(self, number):
        self.user, self.user_name, self.number = User(), "user %d " % number * 20, number
class Item:
    def __init__(self, number): self.number, self.first, self.second = number, None, None
class Basket:
    def __init__(self, number): self.items = [Item(number), Item(number)]
STATE = {"sessions": [], "log": [], "baskets": []}
for step in range(3):
    for number in range(2000):
        STATE["sessions"].append(Session(number))
        STATE["baskets"].append(Basket(number))
        STATE["log"].append(("line", "text %d " % number * 100))
    print(os.getpid(), flush=True)
    sys.stdin.readline()
"""


def test_explain_tells_what_grows_with_the_objects_that_it_hangs_on(memtrack, executable, tmp_path):
    """By objects: paths that are called alike may lead to what is not alike."""
    (tmp_path / "app.py").write_text(SEVERAL)
    command = [str(executable), "run", "-q", "-o", "several.bin", "--objects-at", "mark:step", "--python", sys.executable, "app.py"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        kill_in_time(process)
        for _ in range(3):
            memtrack.mark(process.stdout.readline().strip(), "step")
            process.stdin.write("\n")
            process.stdin.flush()
        assert process.wait(PATIENCE) == 0
    explained = subprocess.run(
        [str(executable), "explain", "--json", "several.bin"], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    found = [of for of in json.loads(explained.stdout)["findings"] if "from picture to picture" in of["title"]]
    told = {of["title"].split()[2]: [one["text"] for one in of["evidence"]] for of in found}
    assert list(told) == ["tuple", "__main__.Session", "__main__.Basket"]
    # 4,000 more strings of 1 kB in the log; 300 bytes in each of 4,000 more sessions.
    assert found[0]["bytes"] > 4_000 * 900 and any(text.startswith("6,000 objects held by __main__.STATE['log']") for text in told["tuple"])
    assert 4_000 * 300 < found[1]["bytes"] < 4_000 * 600 and "str in them" in told["__main__.Session"][1]
    assert "more of __main__.Item in them" in told["__main__.Basket"][1]
    assert not any("more are in objects of which other findings tell" in text for text in told["__main__.Session"])
