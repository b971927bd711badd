"""`memtrack objects PID`: the objects of a running program, against what the program says of itself."""

import json
import operator
import pathlib
import subprocess
import time

import pytest

from conftest import FREE_THREADED, OBJECT_VERSIONS, PATIENCE, flat, in_one_of, interpreter_path, until_it_waits

PROGRAM = """
import gc, sys, types
class Plain:
    def __init__(self, number):
        self.number = number
        self.name = "plain %d" % number
class Slots:
    __slots__ = ("held",)
class Session:
    def __init__(self, payload):
        self.payload = payload
module = types.ModuleType("app_cache")
sys.modules["app_cache"] = module
module.SESSIONS = {number: Session(bytes(5000)) for number in range(1000, 1200)}
module.PLAINS = [Plain(number) for number in range(300)]
module.SLOTS = Slots()
class InClosure: pass
class Meta(type):
    __module__ = property(lambda of: None)
module.ODD = Meta("Odd", (), {"__module__": 5})()
def make(held):
    return lambda: held
module.CLOSURE = make(InClosure())
module.SLOTS.held = {(number,): [number] for number in range(50)}
def serve():
    local = Slots()
    class OnlyLocal: pass
    request = OnlyLocal()
    counts, sizes = {}, {}
    # Whatever this makes besides, it makes at the first time; texts and numbers, and dictionaries of them, are not listed.
    for attempt in range(2):
        counts.clear()
        sizes.clear()
        for one in gc.get_objects():
            kind = type(one)
            name = "%s.%s" % (kind.__module__, kind.__qualname__) if isinstance(kind.__module__, str) else "?"
            counts[name] = counts.get(name, 0) + 1
            is_growing = one is counts or one is sizes
            sizes[name] = sizes.get(name, 0) + (0 if is_growing else sys.getsizeof(one))
        sizes["builtins.dict"] += sum(sys.getsizeof(one) for one in (counts, sizes) if gc.is_tracked(one))
        one = kind = None
        text = json.dumps([counts, sizes])
        print(attempt, flush=True)
    print(text, flush=True)
    sys.stdin.readline()
import json
gc.collect()
gc.disable()
serve()
"""


@pytest.fixture(params=OBJECT_VERSIONS)
def program(request, tmp_path):
    script = tmp_path / "app.py"
    script.write_text(PROGRAM)
    command = flat([interpreter_path(request.param), script])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert [process.stdout.readline() for attempt in range(2)] == ["0\n", "1\n"]
        counts = json.loads(process.stdout.readline())
        until_it_waits(process.pid)
        yield process, counts
        # The program goes on, and has no child that it did not start.
        process.stdin.write("\n")
        process.stdin.close()
        assert process.wait(PATIENCE) == 0


def objects(executable, process, *options):
    command = [str(executable), "objects", str(process.pid), "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_counts_and_sizes_are_those_of_the_program(executable, program):
    process, expected = program
    told = objects(executable, process)
    assert told["unreadable"] == 0 and told["consistent"]
    in_one_of(10, lambda: "" if objects(executable, process)["pause_ns"] < 1_000_000_000 else "it stood still for longer")
    found = {}
    for row in told["types"]:
        known = found.get(row["type"], (0, 0, 0))
        found[row["type"]] = tuple(map(sum, zip(known, (row["tracked"], row["count"], row["own_bytes"]))))
    counts, sizes = expected
    counts.pop("?")
    for name, count in counts.items():
        tracked, objects_of_type, own_bytes = found.get(name, (0, 0, 0))
        assert tracked == count, name
        # The collector's list leaves out what has no references to others; sizes are compared where it has all.
        if objects_of_type == count:
            assert own_bytes == sizes[name], name
    assert found["__main__.Session"][:2] == (200, 200)


def test_nothing_is_left_in_the_program(executable, program):
    process, _ = program
    for options in ((), ("--hold",)):
        objects(executable, process, *options)
    children = subprocess.run(["ps", "--ppid", str(process.pid), "-o", "pid="], capture_output=True, text=True, check=False)
    assert children.stdout == ""


def test_paths_are_called_as_in_the_program(executable, program):
    process, _ = program

    def paths(wanted):
        return {path["pattern"]: path for path in objects(executable, process, "--why", wanted)["why"]}

    sessions = paths("Session")
    assert list(sessions) == ["app_cache.SESSIONS[…]"]
    assert sessions["app_cache.SESSIONS[…]"]["count"] == 200
    assert sessions["app_cache.SESSIONS[…]"]["path"].startswith("app_cache.SESSIONS[1")
    assert "app_cache.PLAINS[…]" in paths("__main__.Plain")
    assert "app_cache.SLOTS" in paths("Slots")
    assert any(pattern.startswith("app_cache.CLOSURE.__closure__[…]") for pattern in paths("InClosure"))
    assert any("serve" in pattern and pattern.endswith(".request") for pattern in paths("OnlyLocal"))
    # A module that is no text is not taken for one, nor for none.
    assert paths("Odd").keys() == {"app_cache.ODD"} and len(paths("Meta")) == 1
    assert {row["type"] for row in objects(executable, process)["types"] if row["type"].endswith(("Odd", ".Meta"))} == {"Odd"}


def test_what_a_type_retains_goes_with_it(executable, program):
    process, _ = program
    told = objects(executable, process, "--retained")
    session = next(row for row in told["types"] if row["type"] == "__main__.Session")
    assert 200 * 5033 + session["own_bytes"] <= session["retained_bytes"] <= 200 * 5600
    assert all(row["own_bytes"] <= row["retained_bytes"] for row in told["types"])


def test_what_is_not_there_is_said(executable, program):
    process, _ = program
    done = subprocess.run(
        [str(executable), "objects", str(process.pid), "--why", "NoSuchType"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "NoSuchType" in done.stderr


def test_a_program_without_python_is_refused(executable):
    with subprocess.Popen(["sleep", "60"]) as process:
        # It is told to exist before the system has loaded its program.
        command_line = pathlib.Path(f"/proc/{process.pid}/cmdline")
        while command_line.read_bytes() != b"sleep\x0060\x00":
            time.sleep(0.01)
        done = subprocess.run([str(executable), "objects", str(process.pid)], capture_output=True, text=True, check=False)
        process.kill()
    assert done.returncode == 1 and "CPython" in done.stderr


AT_ONCE = """
import random, sys, threading
class Kept:
    def __init__(self, number):
        self.held = [number]
class Slots:
    __slots__ = ("held",)
class Gone(Kept): pass
KEPT = [[] for number in range(4)]
def fill(into):
    for number in range(5000):
        into.append(Kept(number))
        Gone(number)
        slots = Slots()
        slots.held = (number, [number])
        into.append(slots)
def churn():
    while True:
        some = [Gone(number) for number in range(random.randrange(300))]
        table = {number: [number] for number in range(random.randrange(300))}
        del some[::2]
def end_often():
    while True:
        thread = threading.Thread(target=lambda: len([Gone(number) for number in range(100)]))
        thread.start()
        thread.join()
threads = [threading.Thread(target=fill, args=(into,)) for into in KEPT]
for thread in threads: thread.start()
for thread in threads: thread.join()
KEPT.append((None,) * 2_200_000)
for work in (churn, churn, churn, end_often): threading.Thread(target=work, daemon=True).start()
print("ready", flush=True)
sys.stdin.readline()
import os
os._exit(0)
"""


UNLISTED = """
import array, json, sys
class Array(array.array): pass
class Bytes(bytes): pass
class Float(float): pass
class Number(int): pass
class Room(bytearray): pass
class Text(str): pass
class Table(dict): pass
ALL = [Array("i", range(50)), Bytes(), Bytes(b"abc" * 9), Float(1), Number(0), Number(5), Number(-(10**30)), Room(), Room(b"x" * 999)]
ALL += [Room(5), Text("a"), Text("\\xe9" * 10), Text("\\u20ac" * 10), Text("\\U0001f600" * 7), Table(), Table(a=1, b=2)]
ALL[-5].encode()
ALL[-7].extend(b"x" * 77)
sizes = {}
for one in ALL:
    known = sizes.get(type(one).__name__, (0, 0))
    sizes[type(one).__name__] = (known[0] + 1, known[1] + sys.getsizeof(one))
print(json.dumps(sizes), flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("version", OBJECT_VERSIONS)
def test_sizes_of_texts_numbers_and_bytes(executable, tmp_path, version):
    script = tmp_path / "app.py"
    script.write_text(UNLISTED)
    command = flat([interpreter_path(version), script])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        expected = {f"__main__.{name}": sizes for name, sizes in json.loads(process.stdout.readline()).items()}
        told = objects(executable, process)
        process.stdin.write("\n")
    assert told["unreadable"] == 0
    assert {row["type"]: [row["count"], row["own_bytes"]] for row in told["types"] if row["type"] in expected} == expected


GENERATIONS = """
import gc, json, sys
class Frozen: pass
class Old: pass
class Middle: pass
class Young: pass
KINDS = (Frozen, Old, Middle, Young)
gc.disable()
FROZEN = [Frozen() for number in range(7)]
gc.collect()
gc.freeze()
OLD = [Old() for number in range(30)]
gc.collect()
MIDDLE = [Middle() for number in range(20)]
gc.collect(0)
YOUNG = [Young() for number in range(10)]
MORE = OLD[:10] + OLD[:5]
def told():
    made = {}
    for generation in range(3):
        for one in gc.get_objects(generation=generation):
            if type(one) in KINDS:
                made.setdefault(type(one).__name__, [0, 0, 0])[generation] += 1
        one = None
    return made
print(json.dumps(told()), flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("version", OBJECT_VERSIONS)
def test_generations_and_references_by_type(executable, tmp_path, version):
    script = tmp_path / "app.py"
    script.write_text(GENERATIONS)
    with subprocess.Popen(
        flat([interpreter_path(version), script]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        expected = json.loads(process.stdout.readline())
        told = objects(executable, process)
        text = subprocess.run(
            [str(executable), "objects", str(process.pid), "--generations", "-n0"], capture_output=True, text=True, check=True
        )
        process.stdin.write("\n")
    assert text.stdout.endswith(f"Who keeps them: memtrack objects --why TYPE {process.pid}\n")
    rows = {row["type"].removeprefix("__main__."): row for row in told["types"]}
    made = {name: rows[name] for name in ("Frozen", "Old", "Middle", "Young")}
    assert [row["frozen"] for row in made.values()] == [7, 0, 0, 0]
    assert [row["references"] for row in made.values()] == [7, 30 + 15, 20, 10]
    assert [row["immortal"] for row in made.values()] == [0, 0, 0, 0]
    if version in FREE_THREADED:
        assert all(row["generations"] is None for row in told["types"])
        assert "Listed" in text.stdout and "Gen 0" not in text.stdout
    else:
        assert {name: row["generations"] for name, row in made.items() if name != "Frozen"} == expected
        assert made["Frozen"]["generations"] == [0, 0, 0] and sum(map(sum, expected.values())) == 60
        old = next(line.split() for line in text.stdout.splitlines() if line.endswith("__main__.Old"))
        assert old[-7:] == [*map(str, expected["Old"]), "0", "0", "45", "__main__.Old"]


ARRAYS = """
import json, sys, types
import numpy
class Row: pass
module = types.ModuleType("app_data")
sys.modules["app_data"] = module
module.NUMBERS = numpy.ones((1000, 100))
module.VIEW = module.NUMBERS[::2, 1:]
module.ROWS = numpy.array([Row() for number in range(7)], dtype=object)
module.OTHERS = [numpy.array(5.0), numpy.zeros((3, 0, 5)), numpy.arange(10, dtype="i1"), numpy.asfortranarray(numpy.ones((4, 5, 6)))]
module.OTHERS += [numpy.zeros(3, dtype=[("a", "f4"), ("b", "S9")]), module.NUMBERS.T]
class Kept(numpy.ndarray): pass
module.KEPT = numpy.ones(1000).view(Kept).copy()
every = [module.NUMBERS, module.VIEW, module.ROWS, *module.OTHERS]
print(json.dumps([sys.getsizeof(one) for one in (*every, module.KEPT)]), flush=True)
sys.stdin.readline()
"""


def test_arrays_of_numpy_have_the_block_that_they_own_and_the_objects_in_it(executable, python, tmp_path):
    pytest.importorskip("numpy")
    script = tmp_path / "app.py"
    script.write_text(ARRAYS)
    with subprocess.Popen([python, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        *sizes, kept = json.loads(process.stdout.readline())
        told = objects(executable, process)
        why = {row["pattern"]: row["count"] for row in objects(executable, process, "--why", "__main__.Row")["why"]}
        why_array = objects(executable, process, "--why", "numpy.ndarray")["why"]
        process.stdin.write("\n")
    assert told["unreadable"] == 0
    rows = {row["type"]: row for row in told["types"]}
    # NumPy has some of its own, without data.
    array = rows["numpy.ndarray"]
    others = array["count"] - len(sizes)
    assert sum(sizes) <= array["own_bytes"] <= sum(sizes) + others * 200 and others < 50
    assert rows["__main__.Kept"]["own_bytes"] == kept
    assert why == {"app_data.ROWS[…]": 7}
    # Of holders that are as near, as app_data.OTHERS, one in the program's own module is named.
    assert {"app_data.NUMBERS", "app_data.VIEW", "__main__.every[…]"} <= {row["pattern"] for row in why_array}


GREENLETS = """
import gc, json, sys, gevent, gevent.event
class Held(list): pass
class Inner(list): pass
class InMain: pass
DONE = gevent.event.Event()
def wait(number):
    inner = Inner([number])
    DONE.wait()
def work(number):
    held = Held([number])
    wait(number)
def main():
    local = InMain()
    gevent.sleep(0)
    gc.collect()
    listed = [one for one in gc.get_objects() if type(one) is gevent.Greenlet]
    print(json.dumps(sum(map(sys.getsizeof, listed))), flush=True)
    del listed
    gevent.get_hub().threadpool.apply(sys.stdin.readline)
    DONE.set()
    gevent.joinall(JOBS)
JOBS = [gevent.spawn(work, number) for number in range(1000)]
main()
"""


def test_what_greenlets_that_wait_hold_is_called_by_their_frames(executable, python, tmp_path):
    pytest.importorskip("gevent")
    script = tmp_path / "app.py"
    script.write_text(GREENLETS)
    with subprocess.Popen([python, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        sizes = json.loads(process.stdout.readline())
        until_it_waits(process.pid)
        found = {}
        for name in ("Held", "Inner", "InMain"):
            found[name] = {row["pattern"]: row["count"] for row in objects(executable, process, "--why", f"__main__.{name}")["why"]}
        told = objects(executable, process)
        process.stdin.write("\n")
        process.stdin.close()
        assert process.wait(PATIENCE) == 0
    assert told["unreadable"] == 0
    assert next(row for row in told["types"] if row["type"].endswith("greenlet.Greenlet"))["own_bytes"] == sizes
    assert found["Held"] == {"__main__.JOBS[…].<frame of work in app.py>.held": 1000}
    assert found["Inner"] == {"__main__.JOBS[…].<frame of wait in app.py>.inner": 1000}
    assert len(found["InMain"]) == 1 and next(iter(found["InMain"])).endswith(".<frame of main in app.py>.local")


TABLES = """
import sys
class Meta(type): pass
class Never(metaclass=Meta): pass
class NeverText(str, metaclass=Meta): __slots__ = ()
BOTH = (Never, NeverText)
LISTS = [[None, one] * length for length in range(1, 30) for one in BOTH]
LISTS += [[other, one] for other in (int, str, print, sys, 5, "text", (), LISTS) for one in BOTH]
TABLES = [{one: None for one in (*BOTH, *range(length))} for length in range(30)]
TABLES += [{one: other for one in BOTH for other in BOTH} for length in range(30)]
SETS = [{*BOTH, *range(length)} for length in range(30)]
class Values: pass
VALUES = [Values() for number in range(5)]
for one in VALUES: one.a, one.b, one.c, one.d = None, Never, None, NeverText
print("ready", flush=True)
sys.stdin.readline()
"""
HELD_BY_C = """
import ctypes, json, os, select, sys, threading
forget_decref = ctypes.pythonapi.Py_IncRef
forget_decref.argtypes = [ctypes.py_object]
sizes, lock = {}, threading.Lock()
def forget(one):
    with lock:
        known = sizes.get(type(one).__name__, (0, 0))
        sizes[type(one).__name__] = (known[0] + 1, known[1] + sys.getsizeof(one))
        forget_decref(one)
def wait():
    # What is alive is the same from before the test reads the line until it goes on.
    global told
    told = json.dumps(sizes).encode().ljust(200) + b"\\n"
    os.write(1, told)
    select.select([0], [], [])
    os.read(0, 100)
def forget_some(numbers):
    for number in numbers:
        forget(b"x" * number)
        forget("name %d " % number + "\\u20ac" * number)
        forget(complex(number))
def forget_in_threads(numbers):
    forget_some(numbers)
    freed = [b"y" * number for number in (100_000, 5000, 3000, 1_000_000, 2_000_000)]
    del freed
    threads = [threading.Thread(target=forget_some, args=[numbers]) for _ in range(2)]
    [thread.start() for thread in threads], [thread.join() for thread in threads]
# Of what is larger than the blocks of the interpreter's own allocator some is in the heap, some in those of threads, and
# some mapped for itself.
NUMBERS = [range(10, 100), range(300, 4000, 400), range(4000, 40000, 9000), range(200_000, 900_000, 300_000)]
for _ in range(2):
    forget_in_threads(range(10, 12))
    wait()
[forget_in_threads(numbers) for numbers in NUMBERS]
wait()
"""


@pytest.mark.parametrize("options", [[], ["-X", "dev"]], ids=["plain", "checked"])
@pytest.mark.parametrize("version", OBJECT_VERSIONS)
def test_tables_of_types_are_no_objects(executable, tmp_path, version, options):
    """In the items of a list and the keys of a dictionary an address or a hash stands before the address of a type."""
    script = tmp_path / "app.py"
    script.write_text(TABLES)
    with subprocess.Popen(
        flat([interpreter_path(version), *options, script]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        told = objects(executable, process)
        process.stdin.write("\n")
    counts = {row["type"]: row["count"] for row in told["types"] if row["type"].startswith("__main__.")}
    assert counts == {"__main__.Meta": 2, "__main__.Values": 5}


@pytest.mark.parametrize("options", [[], ["-X", "dev"]], ids=["plain", "checked"])
@pytest.mark.parametrize("version", OBJECT_VERSIONS)
def test_what_a_forgotten_decref_leaves_is_found(executable, tmp_path, version, options):
    """No list of the collector has texts, bytes and numbers, and nothing refers to these."""
    script = tmp_path / "app.py"
    script.write_text(HELD_BY_C)
    forgotten, found = [], []
    with subprocess.Popen(
        flat([interpreter_path(version), *options, script]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        # The first time only makes what the program has once.
        for _ in range(3):
            forgotten.append(json.loads(process.stdout.readline()))
            told = objects(executable, process)
            assert told["unreadable"] == 0
            rows = {row["type"].removeprefix("builtins."): (row["count"], row["own_bytes"]) for row in told["types"]}
            found.append({name: rows[name] for name in forgotten[0]})
            why = objects(executable, process, "--why", "builtins.complex")["why"]
            process.stdin.write("\n")
            process.stdin.flush()
    more = [{name: tuple(map(operator.sub, b[name], a[name])) for name in a} for _, a, b in (forgotten, found)]
    assert more[0] == more[1]
    # To one of them a word may be left somewhere.
    held = [row["count"] for row in why if row["pattern"] == "<complex that C code holds>"]
    assert sum(held) == forgotten[2]["complex"][0]


@pytest.mark.parametrize("options", [[], ["-X", "dev"]], ids=["plain", "checked"])
@pytest.mark.parametrize("version", [version for version in OBJECT_VERSIONS if version in FREE_THREADED])
def test_threads_that_allocate_at_once_leave_nothing_out(executable, tmp_path, version, options):
    """What four threads that have ended made lies between what others make and free while the picture is taken."""
    script = tmp_path / "app.py"
    script.write_text(AT_ONCE)
    command = flat([interpreter_path(version), *options, script])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        for _ in range(8):
            told = objects(executable, process)
            # An object that is just being changed may have parts that make no sense.
            assert told["unreadable"] <= 2 and told["consistent"]
            rows = {row["type"]: row for row in told["types"]}
            counts = [(rows[name]["count"], rows[name]["tracked"]) for name in ("__main__.Kept", "__main__.Slots")]
            assert counts == [(20000, 20000), (20000, 20000)]
            assert rows["builtins.tuple"]["own_bytes"] > 2_200_000 * 8
        process.stdin.write("\n")
        process.stdin.close()
        assert process.wait(PATIENCE) == 0
