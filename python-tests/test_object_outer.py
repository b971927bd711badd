"""`memtrack objects PID`: references that types of the standard library, and NumPy's arrays, have outside of their objects."""

import ast
import json
import subprocess
import sys

import pytest

from conftest import OBJECT_VERSIONS, PATIENCE, flat, interpreter_path

#: Each holder is a global variable of its own, and what it holds is held by nothing else.
HOLDERS = """
import cProfile, functools, io, pickle, queue, sys, xml.etree.ElementTree as ET, xml.parsers.expat
class Leak: pass
class Own(ET.Element): pass
def element(children, name="a"):
    made = ET.Element(name)
    for number in range(children): ET.SubElement(made, "child")
    return made
def joined():
    builder = ET.TreeBuilder()
    builder.start("a", {})
    # Texts that come in pieces are a list until somebody asks for them.
    builder.data(Leak())
    builder.data("b")
    builder.start("b", {})
    builder.end("b")
    builder.data("c")
    builder.data(Leak())
    builder.end("a")
    return builder.close()
def iterator():
    made = element(2, Leak()).iter()
    next(made)
    next(made)
    return made
def turned():
    # Eight places, of which the ring's end and its begin are taken.
    made = queue.SimpleQueue()
    for number in range(7): made.put(number)
    for number in range(6): made.get()
    for one in (1, 2, 3, Leak(), 5): made.put(one)
    return made
def pickler():
    made = pickle.Pickler(io.BytesIO())
    made.dump([[number] for number in range(100)] + [Leak()])
    return made
def unpickler():
    made = pickle.Unpickler(io.BytesIO(pickle.dumps([[number] for number in range(100)] + [Leak()])))
    made.load()
    return made
def broken():
    made = pickle.Unpickler(io.BytesIO(b"\\x80\\x02NNc__main__\\nLeak\\n)\\x81\\xff."))
    try: made.load()
    except pickle.UnpicklingError: pass
    return made
def parser():
    made = xml.parsers.expat.ParserCreate(intern={"name": Leak()})
    made.StartElementHandler = functools.partial(print, Leak())
    made.SkippedEntityHandler = functools.partial(print, Leak())
    return made
def connection():
    import sqlite3
    made = sqlite3.connect(":memory:")
    made.set_trace_callback(functools.partial(print, Leak()))
    made.set_progress_handler(functools.partial(print, Leak()), 1000)
    made.set_authorizer(functools.partial(print, Leak()))
    return made
def profiler():
    def called(): pass
    called.__code__ = called.__code__.replace(co_consts=called.__code__.co_consts + (Leak(),))
    made = cProfile.Profile()
    made.runcall(called)
    return made
ROOT, FEW, DERIVED, JOINED, ITERATOR = element(9), element(2), Own("a"), joined(), iterator()
ROOT[3].set("key", Leak())
ROOT[8].text, ROOT[8].tail = Leak(), Leak()
FEW[1].tag = Leak()
DERIVED.append(Own("b"))
DERIVED[0].attribute = Leak()
QUEUE, PICKLER, UNPICKLER, BROKEN, PARSER, PROFILER = turned(), pickler(), unpickler(), broken(), parser(), profiler()
try: CONNECTION = connection()
except ImportError: CONNECTION = None
print(sys.version_info[:2], CONNECTION is not None, flush=True)
sys.stdin.readline()
"""


def why(executable, process, name):
    command = [str(executable), "objects", "--json", "--why", name, str(process.pid)]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


@pytest.mark.parametrize("version", OBJECT_VERSIONS)
def test_what_is_outside_of_an_object_has_its_holder(executable, tmp_path, version):
    (tmp_path / "app.py").write_text(HOLDERS)
    command = flat([interpreter_path(version), tmp_path / "app.py"])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        number, _, has_connection = process.stdout.readline().rpartition(" ")
        told = why(executable, process, "Leak")
        process.stdin.write("\n")
    number, has_connection = ast.literal_eval(number), has_connection == "True\n"
    found = {row["path"].replace("__main__.", ""): row["count"] for row in told["why"]}
    expected = {
        "ROOT[3].attrib['key']": 1,
        "ROOT[8].text": 1,
        "ROOT[8].tail": 1,
        "FEW[1].tag": 1,
        "DERIVED[0].attribute": 1,
        "JOINED.text[0]": 1,
        "JOINED[0].tail[1]": 1,
        "ITERATOR.<parents>.tag": 1,
        "PICKLER.memo": 1,
        "UNPICKLER.memo": 1,
        "BROKEN.<stack>[2]": 1,
        "PARSER.intern['name']": 1,
        "PARSER.StartElementHandler.args[0]": 1,
        "PARSER.SkippedEntityHandler.args[0]": 1,
        "QUEUE[4]" if number >= (3, 13) else "QUEUE.<items>[4]": 1,
    }
    assert {path: found.get(path) for path in expected} == expected
    rest = found.keys() - expected.keys()
    assert any(path.startswith("PROFILER.<functions>.co_consts[") for path in rest)
    if has_connection:
        of_connection = {path for path in rest if path.startswith("CONNECTION.")}
        names = {f"CONNECTION.<{name}>.args[0]" for name in ("trace callback", "progress handler", "authorizer")}
        # Before 3.11 they are fields without a name.
        assert of_connection == names if number >= (3, 11) else len(of_connection) == 3
    assert len(rest) == (4 if has_connection else 1)


#: What goes with all objects of a class is what cannot be reached without them.
OWNERS = """
import functools, gc, io, pickle, queue, sys, xml.etree.ElementTree as ET, xml.parsers.expat
class Held:
    __slots__ = ("data",)
    def __init__(self, size): self.data = bytes(size)
class Owner: __slots__ = ("held",)
class OfElements(Owner): __slots__ = ()
class OfQueues(Owner): __slots__ = ()
class OfPicklers(Owner): __slots__ = ()
class OfParsers(Owner): __slots__ = ()
def owner(kind, held):
    made = kind()
    made.held = held
    return made
def document(children):
    rows = "".join('<row key="value &amp; %d of %d">text &lt; %d<part/>tail%d</row>' % (at, children, at, at) for at in range(children))
    return ET.fromstring("<rows%d>%s</rows%d>" % (children, rows, children))
def filled(before, count):
    made = queue.SimpleQueue()
    for number in range(before): made.put(None)
    for number in range(before): made.get()
    for number in range(count): made.put(Held(300 + number))
    return made
def pickler(count):
    made = pickle.Pickler(Sink(), 4)
    made.dump([Held(700 + number) for number in range(count)])
    return made
def parser(size):
    made = xml.parsers.expat.ParserCreate()
    made.StartElementHandler = functools.partial(print, Held(size))
    made.CommentHandler = functools.partial(print, Held(size + 1))
    return made
class Sink:
    __slots__ = ()
    def write(self, text): pass
# The interpreter keeps texts of a single letter.
LETTERS = ("<", "&")
KEPT = [owner(OfElements, document(children)) for children in (1, 4, 5, 300)]
KEPT += [owner(OfQueues, filled(*counts)) for counts in ((0, 0), (0, 5), (6, 6), (13, 900))]
KEPT += [owner(OfPicklers, pickler(count)) for count in (0, 5, 900)]
KEPT += [owner(OfParsers, parser(size)) for size in (900, 5000)]
def referents(one):
    yield from gc.get_referents(one)
    # Texts are no business of the collector; which versions show it the others differs.
    if type(one) is dict: yield from one
    if type(one) is pickle.Pickler: yield from (seen for number, seen in one.memo.copy().values())
    if type(one) is xml.parsers.expat.XMLParserType: yield one.intern
def reach(kind):
    seen, rest, found = {}, [sys.modules], 0
    while rest:
        one = rest.pop()
        if id(one) not in seen and type(one) is not kind and one is not seen and one is not rest:
            # What is made for the question, such as a pickler's table, stays until the end.
            seen[id(one)] = one
            found += sys.getsizeof(one)
            rest.extend(referents(one))
    return found
gc.collect()
print({kind.__name__: reach(None) - reach(kind) for kind in Owner.__subclasses__()}, flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("version", OBJECT_VERSIONS)
def test_what_is_outside_of_an_object_goes_with_it(executable, tmp_path, version):
    (tmp_path / "app.py").write_text(OWNERS)
    command = flat([interpreter_path(version), tmp_path / "app.py"])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        told = ast.literal_eval(process.stdout.readline())
        words = [str(executable), "objects", "--retained", str(process.pid), "--json", "-n", "0"]
        done = subprocess.run(words, capture_output=True, check=True)
        process.stdin.write("\n")
    types = {row["type"].rpartition(".")[2]: row for row in json.loads(done.stdout)["types"]}
    assert {name: types[name]["retained_bytes"] for name in told} == told
    assert all(size > 10_000 for size in told.values())


NUMPY = """
import sys, numpy
class Leak: pass
class Held: __slots__ = ("data", "__weakref__")
class Table: __slots__ = ("rows",)
def held(number):
    made = Held()
    made.data = bytes(number)
    return made
OBJECTS = numpy.zeros((30, 20), object)
OBJECTS[29, 3] = Leak()
# Offsets that are no multiples of 8; a structure within one, an array of structures, an array of objects; a title.
PART = numpy.dtype([("a", "i4"), ("b", "O", (3,))])
ROWS = numpy.zeros((4, 5), [("a", "i1"), (("title", "b"), PART, (2, 2)), ("c", PART), ("d", "O")])
NESTED, INNER, OUTER = ROWS.copy(), ROWS.copy(), ROWS.copy()
NESTED["b"]["b"][1, 2, 1, 0, 2], INNER["c"]["b"][2, 3, 1], OUTER["d"][3, 4] = Leak(), Leak(), Leak()
ALIGNED = numpy.zeros(300_000, numpy.dtype([("a", "i4"), ("b", "O"), ("c", "f8")], align=True))
ALIGNED["b"][299_999] = Leak()
TABLE = Table()
TABLE.rows = numpy.zeros(1000, [("number", "i8"), ("held", "O")])
for number in range(1000): TABLE.rows["held"][number] = held(500 + number)
# What is no object is none, and a view has none of its own.
PLAIN = numpy.full(1000, id(TABLE), "u8").view([("a", "u8")]).copy()
VIEW = OUTER[1:]
expected = sys.getsizeof(TABLE) + sys.getsizeof(TABLE.rows) + sys.getsizeof(TABLE.rows.dtype)
expected += sum(sys.getsizeof(one) + sys.getsizeof(one.data) for one in TABLE.rows["held"])
print(expected, flush=True)
sys.stdin.readline()
"""


def test_objects_in_structures_of_numpy(executable, tmp_path):
    (tmp_path / "app.py").write_text(NUMPY)
    with subprocess.Popen([sys.executable, tmp_path / "app.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        expected = int(process.stdout.readline())
        paths = {row["path"]: row["count"] for row in why(executable, process, "Leak")["why"]}
        words = [str(executable), "objects", "--retained", str(process.pid), "--json", "-n", "0"]
        told = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
        process.stdin.write("\n")
    assert paths == {
        "__main__.OBJECTS[583]": 1,
        "__main__.NESTED[7]": 1,
        "__main__.INNER[13]": 1,
        "__main__.OUTER[19]": 1,
        "__main__.ALIGNED[299999]": 1,
    }
    types = {row["type"]: row for row in told["types"]}
    # The data type has its names and fields besides.
    assert expected < types["__main__.Table"]["retained_bytes"] < expected + 2000
    assert types["__main__.Held"]["count"] == 1000 and told["unreadable"] == 0


#: Data types of which each field is the data type itself, and one whose offsets are outside of the item.
LYING = """
import gc, sys, numpy
class Leak: pass
CASES = [
    lambda of: {"a": (of, 0)},
    lambda of: {str(number): (of, 0) for number in range(60)},
    lambda of: {"a": (numpy.dtype("O"), 1 << 40)},
    lambda of: {"a": (numpy.dtype("O"), -8)},
    lambda of: {"a": (of.names, of)},
    lambda of: {str(number): (numpy.dtype("O"), number) for number in range(8)},
]
KEPT = []
for case in CASES: KEPT.append(numpy.zeros(1000, [("a", "O"), ("b", "i8")]))
for made, case in zip(KEPT, CASES):
    # Not before the array is made: NumPy believes it.
    (table,) = gc.get_referents(made.dtype.fields)
    table.update(case(made.dtype))
HELD = [Leak()]
print(len(KEPT), flush=True)
sys.stdin.readline()
import os
os._exit(0)
"""


def test_data_types_that_lie_are_read_within_bounds(executable, tmp_path):
    (tmp_path / "app.py").write_text(LYING)
    with subprocess.Popen([sys.executable, tmp_path / "app.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        count = int(process.stdout.readline())
        command = ["prlimit", "--as=2000000000", "--cpu=20", str(executable), "objects", "--json", "--why", "Leak", str(process.pid)]
        told = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=PATIENCE).stdout)
        process.stdin.write("\n")
    assert [row["path"] for row in told["why"]] == ["__main__.HELD[0]"]
    assert told["unreadable"] == count
