"""`memtrack run --objects-at` and `memtrack objects CAPTURE`: pictures of objects, joined with the stacks that made them."""

import json
import signal
import subprocess
import sys
import time

import pytest

from conftest import FREE_THREADED, OBJECT_VERSIONS, PATIENCE, in_one_of, interpreter_path, kill_in_time, until_it_waits
from test_schemas import validator

END = """
import sys, types
class Session:
    def __init__(self, number):
        self.number = number
        self.payload = bytes(1000 + number)
module = types.ModuleType("app_cache")
sys.modules["app_cache"] = module
def fill():
    module.SESSIONS = {number: Session(number) for number in range(500, 900)}
fill()
class Gone: pass
gone = [Gone() for number in range(100)]
del gone
"""
STEPS = """
import os, sys, time
class Item:
    def __init__(self, number):
        self.text = "item %d" % (number + 1000000)
kept = []
def grow(count):
    for number in range(count):
        kept.append(Item(number))
grow(100)
print(os.getpid(), flush=True)
sys.stdin.readline()
grow(250)
print(os.getpid(), flush=True)
sys.stdin.readline()
begun = time.monotonic()
large = [bytes(2000 + number) for number in range(20000)]
# Whoever reads pictures of it is given as little of the machine as this process.
time.sleep(max(0.5, 6 * (time.monotonic() - begun)))
del large
"""
THREADS = """
import threading, time
class Item:
    def __init__(self, number):
        self.text = "item %d" % (number + 1000000)
kept = []
def grow(count):
    kept.extend([Item(number) for number in range(count)])
for name, count in (("first", 100), ("second", 200)):
    if kept:
        time.sleep(1.1)
    thread = threading.Thread(target=grow, args=(count,), name=name)
    thread.start()
    thread.join()
"""
SESSION_LINE = 10
SESSIONS = "__main__.Session objects"
PAYLOAD_LINE = 6
ITEM_LINE = 9


@pytest.fixture
def recorded(memtrack, tmp_path):
    def record(text, *options, version=None, **process):
        script = tmp_path / "app.py"
        script.write_text(text)
        target = (interpreter_path(version), script) if version else (script,)
        return memtrack.record(*target, options=options, **process).path

    return record


@pytest.fixture
def objects(executable, tmp_path):
    def read(*words, status=0):
        command = [str(executable), "objects", *map(str, words), *(["--json"] if status == 0 else [])]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == status, done.stderr
        if status:
            return done.stderr
        told = json.loads(done.stdout)
        validator("memtrack-objects-1").validate(told)
        return told

    return read


def row(told, name):
    (found,) = [of for of in told["types"] if of["type"] == name]
    return found


@pytest.mark.parametrize("version", OBJECT_VERSIONS)
def test_objects_of_the_end_have_the_places_that_made_them(recorded, objects, version):
    capture = recorded(END, "--trace-python-allocators", "--objects-at", "end", version=version)
    told = objects(capture)
    assert told["consistent"] and told["unreadable"] == 0 and told["placed"]["exact"]
    session = row(told, "__main__.Session")
    assert session["count"] == 400
    (place,) = session["places"]
    assert (place["line"], place["count"], place["own_bytes"]) == (SESSION_LINE, 400, session["own_bytes"])
    assert place["file"].endswith("app.py") and "fill" in place["function"] or place["function"] == "<dictcomp>"
    payloads = [place for place in row(told, "builtins.bytes")["places"] if place["file"].endswith("app.py")]
    assert [(place["line"], place["count"]) for place in payloads] == [(PAYLOAD_LINE, 400)]
    # Each is its header of 33 bytes (49 where there are two counts) and what is in it.
    header = 49 if version in FREE_THREADED else 33
    assert payloads[0]["own_bytes"] == sum(header + 1000 + number for number in range(500, 900))
    # What was gone is not there.
    assert not [of for of in told["types"] if of["type"] == "__main__.Gone"]
    assert session["retained_bytes"] >= payloads[0]["own_bytes"]
    (path,) = objects(capture, "--why", "Session")["why"]
    assert path["pattern"] == "app_cache.SESSIONS[…]" and path["count"] == 400 and path["known"]
    assert path["path"] in {f"app_cache.SESSIONS[{number}]" for number in range(500, 900)}


def test_types_stand_below_the_stacks_that_made_their_objects(memtrack, objects, tmp_path):
    """The view `objects` of reports has the sums of `memtrack objects`, and whole stacks."""
    script = tmp_path / "app.py"
    script.write_text(END)
    capture = memtrack.record(script, options=("--trace-python-allocators", "--objects-at", "end"))
    told = objects(capture.path)

    def report(name):
        read = json.loads(capture.reading(name, "--objects", "--json", capture.path))
        validator(f"memtrack-{name}-1").validate(read)
        assert read["view"] == "objects"
        return read

    by_name = {}
    for of in told["types"]:
        sums = by_name.setdefault(of["type"].removeprefix("builtins.") + " objects", [0, 0])
        sums[0] += of["own_bytes"]
        sums[1] += of["count"]
    functions = [row for row in report("summary")["rows"] if row["function"] in by_name]
    assert {row["function"]: [row["own_bytes"], row["own_count"]] for row in functions} == by_name
    tree = report("tree")
    assert tree["total"] == {"bytes": told["own_bytes"], "count": told["count"]}
    calls = {call["id"]: call for call in tree["calls"]}
    session = max(tree["calls"], key=lambda call: call["total"]["count"] * (call["function"] == SESSIONS))
    assert session["own"] == session["total"] == {"bytes": by_name[SESSIONS][0], "count": 400}
    path = [session]
    while path[-1]["caller"] is not None:
        path.append(calls[path[-1]["caller"]])
    lines = [(call["function"], call["line"]) for call in reversed(path)]
    assert lines[0] == ("<module>", 11) and ("fill", SESSION_LINE) in lines and lines[-1] == (SESSIONS, None)
    (row,) = [row for row in report("table")["rows"] if row["function"] == SESSIONS]
    assert [row["bytes"], row["count"]] == by_name[SESSIONS]


def test_threads_and_ages_of_objects(recorded, objects):
    """A class's objects are made in two threads, one a second after the other."""

    def attempt():
        told = objects(recorded(THREADS, "--trace-python-allocators", "--objects-at", "end"))
        item = row(told, "__main__.Item")
        assert [(thread["name"], thread["count"]) for thread in item["threads"]] == [("second", 200), ("first", 100)]
        assert len({thread["thread"] for thread in item["threads"]}) == 2
        for parts in ("threads", "ages"):
            for of in told["types"]:
                assert sum(part["count"] for part in of[parts]) <= of["count"]
                assert sum(part["own_bytes"] for part in of[parts]) <= of["own_bytes"]
        ages = {age["min_ms"]: age["count"] for age in item["ages"]}
        assert sum(ages.values()) == 300 and all(age["max_ms"] == 10_000 for age in item["ages"] if age["min_ms"] == 1000)
        # The younger ones are less than a second old, unless the end of the program is that slow.
        return "" if ages.get(1000) == 100 and all(low <= 1000 for low in ages) else str(ages)

    in_one_of(5, attempt)


def test_without_python_allocators_only_blocks_of_malloc_have_places(recorded, objects):
    told = objects(recorded(END, "--objects-at", "end"))
    assert not told["placed"]["exact"] and 0 < told["placed"]["count"] < told["count"] // 2
    payloads = [place for place in row(told, "builtins.bytes")["places"] if place["file"].endswith("app.py")]
    # Larger than what pymalloc serves.
    assert [(place["line"], place["count"]) for place in payloads] == [(PAYLOAD_LINE, 400)]


CONTENTS = """
import array, collections
def lists():
    return [[None] * (200 + number) for number in range(30)]
def grown():
    made = []
    for number in range(30):
        one = collections.deque()
        one.extend(range(500))
        made.append(one)
    return made
def others():
    return [
        (
            bytearray(3000 + number),
            array.array("d", [0.0] * 300),
            dict.fromkeys(range(100)),
            collections.OrderedDict.fromkeys(range(100)),
            set(range(100)),
        )
        for number in range(30)
    ]
def small():
    return [[None] * 3 for number in range(30)], [dict.fromkeys(range(3)) for number in range(30)]
def short():
    for number in range(200):
        gone = collections.deque(range(2000))
    return [collections.deque(range(10)) for number in range(30)]
kept = lists(), grown(), others(), small(), short()
"""


@pytest.mark.parametrize("version", OBJECT_VERSIONS)
def test_objects_whose_contents_are_in_a_block_of_malloc_have_its_place(recorded, objects, version):
    told = objects(recorded(CONTENTS, "--objects-at", "end", version=version))
    assert not told["placed"]["exact"]
    expected = {
        "builtins.list": "lists",
        "builtins.bytearray": "others",
        "array.array": "others",
        "builtins.dict": "others",
        "collections.OrderedDict": "others",
        "builtins.set": "others",
    }
    deques = [place for place in row(told, "collections.deque")["places"] if place["file"].endswith("app.py")]
    grown = sum(place["count"] for place in deques if "grown" in place["function"])
    # Those of one block, too; before 3.11 that may be one of an earlier deque, which CPython kept.
    assert version in FREE_THREADED or (grown, sum(place["count"] for place in deques)) == (30, 60), deques
    for name, function in expected.items():
        places = [place for place in row(told, name)["places"] if place["file"].endswith("app.py")]
        if version in FREE_THREADED:
            # Its allocator takes no blocks of malloc.
            assert places == []
            continue
        made = [place for place in places if function in place["function"] or place["function"] == "<listcomp>"]
        assert sum(place["count"] for place in made) == 30, (name, places)
        assert sum(place["count"] for place in places) <= 32, (name, places)


def test_arrays_have_the_place_that_allocated_their_items(memtrack, objects, tmp_path):
    pytest.importorskip("numpy")
    script = tmp_path / "app.py"
    code = "import numpy\ndef make():\n    return [numpy.zeros(4000 + number) for number in range(30)]\nkept = make()\nviews = [one[1:] for one in kept]\n"
    script.write_text(code)
    capture = memtrack.record(sys.executable, script, options=("--objects-at", "end")).path
    places = row(objects(capture), "numpy.ndarray")["places"]
    made = [place for place in places if place["file"].endswith("app.py")]
    # Views own no items.
    assert sum(place["count"] for place in made) == 30 and {place["line"] for place in made} == {3}


KEPT = """
class Session:
    def __init__(self, size):
        self.buffer = bytearray(size)
CACHE = []
def load(count):
    for number in range(count):
        CACHE.append(Session(20000 + number))
load(400)
"""


@pytest.mark.parametrize("options", [(), ("--trace-python-allocators",)])
def test_explain_names_who_holds_the_objects_of_the_lines_that_it_names(memtrack, recorded, options):
    told = json.loads(memtrack("explain", "--json", recorded(KEPT, "--objects-at", "end", *options)).stdout)
    (held,) = [finding for finding in told["findings"] if finding["id"] == "held"]
    assert "__init__" in held["title"]
    (objects,) = [one for one in held["evidence"] if "bytearray objects" in one["text"]]
    assert objects["count"] == 400
    # A bytearray's fields, its bytes and their end.
    assert objects["bytes"] == sum(sys.getsizeof(bytearray(20000 + number)) for number in range(400))
    assert "400 bytearray objects, held by __main__.CACHE[" in objects["text"] and objects["text"].endswith("].buffer")
    # It is told behind the line whose blocks they are in.
    line = held["evidence"].index(objects) - 1
    assert "__init__" in held["evidence"][line]["text"] and objects["text"].startswith("in its blocks at the end")


def marked(memtrack, *options):
    (memtrack.directory / "app.py").write_text(STEPS)
    command = memtrack.command("run", "-q", "-o", "steps.bin", *options, "--python", sys.executable, "app.py")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": memtrack.directory}
    with subprocess.Popen(command, **pipes) as process:
        kill_in_time(process)
        for name in ("one", "two"):
            pid = process.stdout.readline().strip()
            memtrack.mark(pid, name)
            process.stdin.write("\n")
            process.stdin.flush()
        assert process.wait(PATIENCE) == 0
    return memtrack.directory / "steps.bin"


def test_marks_and_the_peak_have_pictures_and_what_grew_between_two_is_told(memtrack, executable, objects, tmp_path):
    moments = "mark:one,mark:two,peak,end"
    capture = marked(memtrack, "--trace-python-allocators", "--objects-at", moments)
    counts = {at: row(objects(capture, "--at", at), "__main__.Item")["count"] for at in moments.split(",")}
    assert counts == {"mark:one": 100, "mark:two": 350, "peak": 350, "end": 350}
    large = [of for of in objects(capture, "--at", "peak")["types"] if of["type"] == "builtins.bytes"]
    # Pictures of peaks are taken as long as reading them takes at most half of the time: on a busy machine the last one is earlier.
    assert large[0]["count"] > 5000
    grown = objects("--diff", capture, capture, "--at", "mark:one", "--at", "mark:two")
    item = row(grown, "__main__.Item")
    assert (item["count"], item["before"]["count"], item["after"]["count"]) == (250, 100, 350)
    (place,) = item["places"]
    assert (place["line"], place["count"], place["own_bytes"]) == (ITEM_LINE, 250, item["own_bytes"])
    assert "there are: mark:one, mark:two" in objects(capture, "--at", "mark:three", status=1)
    same = [str(executable), "objects", "--diff", capture, capture]
    for options in ([], ["--places"]):
        told = subprocess.run([*same, *options], capture_output=True, text=True, check=True)
        assert told.stdout.startswith("nothing has changed: ") and told.stdout.count("\n") == 1


@pytest.mark.parametrize("hold", [[], ["--hold"]], ids=["copied", "held"])
def test_a_program_that_is_being_recorded_has_places(memtrack, executable, objects, tmp_path, hold):
    (tmp_path / "app.py").write_text(STEPS)
    command = [str(executable), "run", "-q", "-o", "steps.bin", "--trace-python-allocators", "--python", sys.executable, "app.py"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        for count in (100, 350):
            told = objects(process.stdout.readline().strip(), *hold)
            assert told["placed"]["exact"] and told["placed"]["count"] > count
            (place,) = row(told, "__main__.Item")["places"]
            assert (place["line"], place["count"]) == (ITEM_LINE, count)
            process.stdin.write("\n")
            process.stdin.flush()
        assert process.wait(PATIENCE) == 0


def test_a_program_that_is_not_recorded_has_no_places(objects):
    command = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "\n"
        until_it_waits(process.pid)
        told = objects(process.pid)
        assert told["placed"] is None and all(of["places"] == [] for of in told["types"])
        for option in ("--places", "--threads", "--ages"):
            assert "is not being recorded" in objects(process.pid, option, status=1)
        assert "--at is for captures" in objects(process.pid, "--at", "end", status=1)
        process.communicate("\n")


def test_a_program_that_does_not_finalize_has_its_end(recorded, objects):
    text = "import os\nclass Last: pass\nkept = [Last() for number in range(12)]\nos._exit(0)\n"
    assert row(objects(recorded(text, "--objects-at", "end")), "__main__.Last")["count"] == 12


ENDINGS = {
    "raise_signal": ("signal.raise_signal(signal.SIGTERM)", 128 + signal.SIGTERM),
    "kill": ("os.kill(os.getpid(), signal.SIGUSR1)", 128 + signal.SIGUSR1),
    "kill_for_good": ("os.kill(os.getpid(), signal.SIGKILL)", 128 + signal.SIGKILL),
    # As servers do: the handler's own signal again, once all is shut down.
    "again": (
        "signal.signal(15, lambda *given: None); signal.raise_signal(15); kept.pop()\n"
        "signal.signal(15, signal.SIG_DFL); signal.raise_signal(15)",
        128 + signal.SIGTERM,
    ),
    # The C library raises the signal from within.
    "aborts": ("os.abort()", 128 + signal.SIGABRT),
    "aborts_though_ignored": ("signal.signal(6, signal.SIG_IGN); os.abort()", 128 + signal.SIGABRT),
    "interrupted": ("kept.pop(); raise KeyboardInterrupt", 128 + signal.SIGINT),
    "goes_on": (
        "os.kill(os.getpid(), 0); signal.raise_signal(signal.SIGWINCH)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [15]); signal.raise_signal(15); kept.pop()",
        0,
    ),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_a_program_that_sends_itself_a_signal_has_its_end(memtrack, plain, objects, tmp_path, name):
    text, status = ENDINGS[name]
    (tmp_path / "app.py").write_text(
        f"import os, signal\nclass Last: pass\nkept = [Last() for number in range(12)]\n{text}\n"
    )
    command = (sys.executable, tmp_path / "app.py")
    outcome, capture = memtrack.run(*command, options=("--objects-at", "end"))
    assert outcome == plain(*command) and outcome.status == status
    assert row(objects(capture.path), "__main__.Last")["count"] == (11 if "pop" in text else 12)


def test_children_have_their_own(recorded, objects):
    text = "import os\nclass Own: pass\npid = os.fork()\nkept = [Own() for number in range(7 if pid else 11)]\npid and os.wait()\n"
    capture = recorded(text, "--follow", "--objects-at", "end")
    (child,) = capture.parent.glob(f"{capture.stem}.*-1.bin")
    assert [row(objects(path), "__main__.Own")["count"] for path in (capture, child)] == [7, 11]


def test_what_cannot_hold_is_refused_or_said(memtrack, objects, executable, tmp_path):
    run = [str(executable), "run"]
    for options, reason in (
        (["--aggregate", "--objects-at", "end"], "--aggregate cannot be combined with --objects-at"),
        (["--dormant", "--objects-at", "end"], "--objects-at cannot be combined with --dormant"),
        (["--objects-at", "begin"], "mark:NAME"),
    ):
        done = subprocess.run([*run, *options, "true"], capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 2 and reason in done.stderr
    native = subprocess.run([*run, "-o", "n.bin", "--objects-at", "end,peak", "ls"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert native.returncode == 0 and "only Python programs have objects" in native.stderr
    # Nothing is advised that was done.
    told = objects("n.bin", status=1)
    assert "though it was asked for: " in told and "only Python programs have objects" in told and "--objects-at" not in told
    subprocess.run([*run, "-q", "-o", "m.bin", "--objects-at", "mark:ready", sys.executable, "-c", ""], check=True, cwd=tmp_path)
    assert "no mark 'ready' was set" in objects("m.bin", status=1)
    subprocess.run([*run, "-q", "-f", "-o", "m.bin", sys.executable, "-c", ""], check=True, cwd=tmp_path)
    assert "--objects-at end" in objects("m.bin", status=1)
    assert "--hold is for running programs" in objects("n.bin", "--hold", status=1)


def test_a_picture_with_damage_is_none(recorded, objects, tmp_path):
    capture = recorded(END, "--objects-at", "end", "--compress", "none")
    content = bytearray(capture.read_bytes())
    at = content.index(b"__main__.Session")
    content[at : at + 4] = b"\xff\x00\xff\x00"
    damaged = tmp_path / "damaged.bin"
    damaged.write_bytes(content)
    assert "objects" in objects(damaged, status=1)


@pytest.mark.parametrize("end", ["", "import os; os._exit(0)"], ids=["finalizes", "at_once"])
def test_a_peak_shortly_before_the_end_is_found_and_costs_no_wait(recorded, objects, end):
    text = "class Row:\n    def __init__(self): self.text = bytearray(500)\nkept = []\nfor number in range(100000): kept.append(Row())\n"

    def attempt():
        begun = time.monotonic()
        recorded(text + end, "--objects-at", "end")
        between = time.monotonic()
        capture = recorded(text + end, "--objects-at", "peak,end")
        reference, took = between - begun, time.monotonic() - between
        for at in ("peak", "end"):
            found = row(objects(capture, "--at", at), "__main__.Row")["count"]
            assert found == 100000 if at == "end" else found > 80000, at
        # The wait would be one of 10 s and more.
        return "" if took < max(9, reference + 8) else f"{took} s, without a peak {reference} s"

    in_one_of(3, attempt)


def test_a_picture_that_is_not_there_yet_or_was_cut_off_is_told_so(executable, tmp_path):
    capture = tmp_path / "app.bin"
    (tmp_path / "app.py").write_text("import os, sys\nprint(os.getpid(), flush=True)\nsys.stdin.readline()\n")
    command = [str(executable), "run", "-q", "-o", str(capture), "--objects-at", "mark:later", "app.py"]
    process = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    kill_in_time(process)

    def told():
        done = subprocess.run([str(executable), "objects", str(capture)], capture_output=True, text=True, check=False, timeout=PATIENCE)
        assert done.returncode == 1, done.stdout
        return done.stderr

    until_it_waits(int(process.stdout.readline()))
    assert "no picture of objects in it yet: it is still being recorded" in told()
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=PATIENCE)
    assert "no picture of objects in it: the recording was cut off" in told()
    # The program, which goes on, ends by the end of its input.
    process.communicate(timeout=PATIENCE)
