"""`memtrack objects PID`: the size of an object is that of `sys.getsizeof`, for types of the whole standard library.

The program makes several objects of each type (nothing in them, little, much), twice: what the second time has more of
each type must be as many objects, and as many bytes, as the program says. Types that a version does not have are left out.
"""

import ast
import json
import subprocess
import sys

import pytest

from conftest import OBJECT_VERSIONS, flat, interpreter_path, until_it_waits

PROGRAM = r"""
import gc, importlib, io, json, os, sys, tempfile
def module(name):
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
names = "abc array ast asyncio bz2 collections contextlib contextvars csv ctypes datetime decimal fractions functools hashlib"
names += " heapq inspect itertools lzma mmap operator pickle queue random re select selectors socket sqlite3 ssl string struct"
names += " threading time types typing uuid weakref xml.etree.ElementTree zlib zoneinfo"
for name in names.split():
    globals()[name.partition(".")[0]] = module(name)
ET = module("xml.etree.ElementTree")
import xml.parsers.expat

class Plain:
    def __init__(self, *args, **named):
        self.__dict__.update(named)
class Slots:
    __slots__ = ("a", "b", "__weakref__")
class ListOf(list): pass
class ListWithSlots(list):
    __slots__ = ("a",)
class TupleOf(tuple): pass
class IntOf(int): pass
class DictOf(dict): pass
class Error(Exception): pass
class Meta(type): pass
if sys.version_info >= (3, 15):
    class FrozenOf(frozendict): pass
class Unpickler(pickle.Unpickler): pass
class Pickler(pickle.Pickler):
    a = 1
def generator(count):
    held = list(range(count))
    yield held
async def coroutine(count):
    held = [count]
async def async_generator(count):
    yield count
def started(count):
    made = generator(count)
    next(made)
    return made
def nested(depth):
    # A class of its own for each, with keys that its instances share.
    made = type("Made%d" % depth, (), {"a%d" % at: at for at in range(depth)})
    one = made()
    for at in range(depth): setattr(one, "b%d" % at, at)
    return made
def buffered(kind, size):
    made = kind(io.FileIO(PATH, "r+"), size)
    if kind is not io.BufferedWriter: made.read(1)
    return made
def buffer(text, much):
    made = io.BytesIO(text)
    made.write(b"x" * much)
    return made
def shared(text):
    made = io.BytesIO(text)
    return [made, made.getvalue()]
def element(children, attributes):
    made = ET.Element("a", {"a%d" % at: "b" for at in range(attributes)})
    for at in range(children): ET.SubElement(made, "b")
    return made
def pickler(kind, count):
    made = kind(io.BytesIO(), 4)
    made.dump([Plain(a=at) for at in range(count)] + ["text" * count])
    return made
def unpickler(kind, count, protocol=4):
    made = kind(io.BytesIO(pickle.dumps([[str(at)] for at in range(count)], protocol)), encoding="latin-1")
    made.load()
    return made
def queued(count):
    made = queue.SimpleQueue()
    for at in range(count): made.put(at)
    return made
def sharing(table, size):
    made = dict.fromkeys(range(size))
    for at in range(size - 3): del made[at]
    return made
def structure(count):
    fields = [("f%d" % at, ctypes.c_int) for at in range(count)]
    return type("Structure%d" % count, (ctypes.Structure,), {"_fields_": fields})
def ctypes_all():
    classes = [structure(count) for count in (0, 1, 30)]
    classes += [ctypes.c_int * 7, ctypes.c_double * 3 * 4, ctypes.POINTER(classes[1]), ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_long)]
    classes += [type("Union", (ctypes.Union,), {"_fields_": [("a", ctypes.c_int), ("b", ctypes.c_char * 90)]})]
    dictionaries = [one for of in classes for one in gc.get_referents(of.__dict__)[:1] if type(one) is not dict]
    return [classes, dictionaries, [of() for of in classes[:4]], classes[-1](), ctypes.create_string_buffer(5000), ctypes.c_double(1)]
def ended():
    try:
        raise Error("text", 5)
    except Error as error:
        return error, error.__traceback__
def local_frame(count):
    held = [count]
    return sys._getframe()
def ordered(count, gone):
    made = collections.OrderedDict.fromkeys(range(count))
    for at in range(gone): del made[at]
    return made
def extended(made, *more):
    for one in more: made.append(one)
    return made
def texts(number):
    text = "text %d " % number
    made = [text, text + "\xe9", text + "\u20ac", text + "\U0001f600" * 9, text * 1000]
    for one in made[1:3]: one.encode()
    made[2].isidentifier()
    return made
def row(statement):
    cursor = CONNECTION.cursor()
    cursor.row_factory = sqlite3.Row
    return [cursor, cursor.execute(statement).fetchone()]
def code(number):
    return compile("def f(a, *b, c=1, **d):\n" + "".join("  x%d = a\n" % at for at in range(number)) + "  return lambda: a", "<made>", "exec")

PATH = tempfile.mktemp()
with open(PATH, "wb") as file: file.write(b"0123456789" * 1000)
ROOM, NUMBERS = bytearray(99), array.array("d", [1] * 9)
CONNECTION = sqlite3 and sqlite3.connect(":memory:")
CASES = [
    lambda: [object(), Plain(), Plain(a=1), Plain(**{"a%d" % at: at for at in range(60)}), Slots(), Error(), Error(1, 2)],
    lambda: [ListOf(), ListOf(range(99)), ListWithSlots(), TupleOf(), TupleOf(range(9)), IntOf(0), IntOf(-5), IntOf(1 << 400)],
    lambda: [DictOf(), DictOf(a=1), DictOf.fromkeys(range(300)), {}, {"a": object()}, dict.fromkeys(range(1000), []), sharing({}, 50)],
    lambda: [[], [1], extended([], 1, 2, 3), list(range(1000)), (1, [2]), tuple([at] for at in range(99))],
    lambda: [set(), {object()}, set(range(5)), set(range(6)), set(range(1000)), frozenset([object()]), frozenset(range(300))],
    lambda: [bytes(range(99)), bytes(5000), bytearray(), bytearray(1), bytearray(b"abc" * 99), extended(bytearray(9), 1)],
    lambda: [texts(number) for number in range(3)],
    lambda: [10 ** power for power in (5, 20, 300)] + [-(10 ** 40), 1.5 * len(CASES), complex(len(CASES), 1)],
    lambda: [memoryview(b"abc"), memoryview(ROOM)[1:], memoryview(NUMBERS), memoryview(bytes(12)).cast("B", (3, 4))],
    lambda: [array.array("b"), array.array("d", [1] * 9), extended(array.array("i"), 1, 2)],
    lambda: [collections.deque(), collections.deque(range(64)), collections.deque(range(1000)), collections.deque(range(99), 5)],
    lambda: [ordered(0, 0), ordered(3, 1), ordered(1000, 0), ordered(200, 190)],
    lambda: [collections.defaultdict(list, a=1), collections.Counter("abcab"), collections.ChainMap({}), collections.UserList([1])],
    lambda: [nested(0), nested(1), nested(25), Meta("Made", (Plain,), {}), collections.namedtuple("Named", "a b")],
    lambda: [generator(3), started(5), (one for one in [1]), coroutine(1), async_generator(2), local_frame(2)],
    lambda: [code(0), code(3), code(200), generator.__get__(5), [].append, len, Plain.__init__, lambda a, b=5: a],
    lambda: [ended(), slice(1, object()), range(5), range(10 ** 30), enumerate([]), zip([], []), map(len, []), filter(None, [])],
    lambda: [iter([]), iter(()), iter({}), iter({}.items()), iter({1}), iter("a"), iter(b"a"), iter(range(3)), reversed([]), iter(int, 5)],
    lambda: [{}.keys(), {}.values(), {}.items(), types.MappingProxyType({}), types.SimpleNamespace(a=1), types.ModuleType("made")],
    lambda: [property(len), staticmethod(len), classmethod(len), super(Slots, Slots()), types.MethodType(len, 5), types.CellType()],
    lambda: [weakref.ref(Plain), weakref.proxy(len(CASES) and Slots), weakref.WeakValueDictionary(), weakref.WeakSet()],
    lambda: [os.stat(PATH), time.localtime(5), sys.version_info[:2], typing.List[int], typing.TypeVar("T"), typing.Optional[Plain]],
    lambda: [buffered(io.BufferedReader, 100), buffered(io.BufferedReader, 70000), buffered(io.BufferedWriter, 5000), buffered(io.BufferedRandom, 999)],
    lambda: [io.BytesIO(), buffer(b"", 1), buffer(b"abc", 5000), io.BytesIO(bytes(99)), shared(bytes(5000)), buffer(b"abc" * 99, 7)],
    lambda: [io.StringIO(), io.StringIO("text" * 99), open(PATH), open(PATH, "rb"), io.TextIOWrapper(io.BytesIO()), io.FileIO(PATH)],
    lambda: [io.BufferedRWPair(io.BytesIO(), io.BytesIO()), io.IncrementalNewlineDecoder(None, True)],
    lambda: [pickler(kind, count) for kind in (pickle.Pickler, Pickler) for count in (0, 5, 3000)],
    lambda: [unpickler(kind, count) for kind in (pickle.Unpickler, Unpickler) for count in (0, 5, 3000)] + [unpickler(pickle.Unpickler, 9, 0)],
    lambda: [element(0, 0), element(0, 3), element(1, 0), element(4, 1), element(5, 0), element(300, 2), ET.TreeBuilder(), ET.XMLParser()],
    lambda: [xml.parsers.expat.ParserCreate(), ET.ElementTree(element(1, 1)), element(2, 0).iter()],
    lambda: [struct.Struct(""), struct.Struct("i"), struct.Struct("<5sH"), struct.Struct("bhilqfd" * 50), struct.iter_unpack("b", b"abc")],
    lambda: [decimal.Decimal(0), decimal.Decimal("1.5"), decimal.Decimal("1" * 76), decimal.Decimal("7" * 77), decimal.Decimal("7" * 5000), decimal.Context()],
    lambda: [itertools.product(), itertools.product("ab", "cd", repeat=9), itertools.combinations("abcde", 0), itertools.combinations("abcde", 5)],
    lambda: [itertools.combinations_with_replacement("abc", 40), itertools.permutations("abcdef"), itertools.permutations("abcdef", 2)],
    lambda: [itertools.count(), itertools.cycle("a"), itertools.repeat(1), itertools.chain("a"), itertools.islice("abc", 2), itertools.groupby("a")],
    lambda: [itertools.tee("abc" * 99), itertools.accumulate("a"), itertools.starmap(len, []), itertools.zip_longest("a", "b"), itertools.compress("a", [1])],
    lambda: [queued(0), queued(1), queued(9), queued(1000), queue.Queue(), threading.Lock(), threading.RLock(), threading.Event()],
    lambda: [functools.partial(len), functools.partial(len, 1, a=2), functools.lru_cache(maxsize=None)(generator), functools.lru_cache(5)(generator)],
    lambda: [functools.cmp_to_key(len)(1), operator.itemgetter(1, 2), operator.attrgetter("a.b"), operator.methodcaller("a", 1)],
    lambda: [re.compile("a+(?P<made>b)*%d" % len(CASES)), re.match("(a)(b)(c)?", "abx"), re.match("a", "a"), re.finditer("a", "aaa"), re.compile("x").scanner("x")],
    lambda: [random.Random(5), random.SystemRandom(), hashlib.sha256(b"a"), hashlib.md5(), hashlib.blake2b(), hashlib.sha3_256(), hashlib.sha1()],
    lambda: [datetime.datetime.now(), datetime.date.today(), datetime.time(5), datetime.timedelta(5), datetime.timezone.utc, datetime.datetime.now(datetime.timezone.utc)],
    lambda: [zlib.compressobj(), zlib.decompressobj(), mmap.mmap(-1, 9999), mmap.mmap(-1, 1), contextvars.ContextVar("made"), contextvars.copy_context()],
    lambda: [asyncio.Future(loop=LOOP), asyncio.Event(), uuid.uuid4(), string.Template("$a"), fractions.Fraction(1, 3), inspect.signature(generator)],
    lambda: [csv.reader([]), csv.writer(io.StringIO()), csv.DictReader(["a"]), select.epoll(), select.poll(), selectors.DefaultSelector()],
    lambda: [socket.socket(), ast.parse("a = b + c * 5; f(x for x in y)")],
    lambda: [CONNECTION.cursor(), row("select 1, 2, 'text'"), sqlite3.connect(":memory:")],
    lambda: [bz2.BZ2Compressor(), bz2.BZ2Decompressor(), lzma.LZMACompressor(), lzma.LZMADecompressor(), ssl.create_default_context(), ssl.MemoryBIO()],
    lambda: [frozendict(), FrozenOf(a=[1]), FrozenOf({at: at for at in range(500)})],
    ctypes_all,
]
LOOP = asyncio.new_event_loop()

def made():
    all = []
    for case in CASES:
        try:
            all.append(case())
        # A version does not have everything, and an interpreter not each module.
        except (AttributeError, NameError, TypeError, ValueError):
            pass
    return all
def name_of(one):
    return "%s.%s" % (type(one).__module__, type(one).__qualname__)
def told(objects):
    counts, sizes = {}, {}
    # Whatever this makes besides, it makes at the first time; texts and numbers, and dictionaries of them, are not listed.
    for attempt in range(2):
        counts.clear()
        sizes.clear()
        for one in objects():
            name = name_of(one)
            counts[name] = counts.get(name, 0) + 1
            sizes[name] = sizes.get(name, 0) + (0 if one is counts or one is sizes else sys.getsizeof(one))
        one = None
        if objects is gc.get_objects:
            sizes["builtins.dict"] += sum(sys.getsizeof(one) for one in (counts, sizes) if gc.is_tracked(one))
        text = json.dumps([counts, sizes])
        print(attempt, flush=True)
    print(text, flush=True)
    sys.stdin.readline()
def untracked():
    rest, found = [MADE[1]], {}
    while rest:
        one = rest.pop()
        rest.extend(one if type(one) in (list, tuple) else getattr(one, "co_consts", ()))
        if not gc.is_tracked(one):
            found[id(one)] = one
    return found.values()
MADE = [made()]
gc.collect()
gc.disable()
told(gc.get_objects)
MADE.append(made())
told(untracked)
"""


@pytest.mark.parametrize("version", OBJECT_VERSIONS)
def test_sizes_are_those_of_the_program(executable, tmp_path, version):
    script = tmp_path / "app.py"
    script.write_text(PROGRAM)
    command = flat([interpreter_path(version), "-W", "ignore", script])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        listed, first = measured(executable, process)
        others, second = measured(executable, process)
    compared = {name: sizes for name, sizes in listed.items() if first.get(name, [0, 0, 0])[:2] == [sizes[0]] * 2}
    assert {name: first[name][1:] for name in compared} == compared
    assert len(compared) > 200
    grown = {name: [now - before for now, before in zip(row, first.get(name, [0] * 3))] for name, row in second.items()}
    # What is made besides, such as texts, is of types that have a test of their own.
    alone = {name: sizes for name, sizes in others.items() if grown.get(name, [0, 0, 0])[:2] == [0, sizes[0]]}
    assert {name: grown[name][1:] for name in alone} == alone
    assert len(alone) > 12


def measured(executable, process):
    """What the program says next, and then the tracked objects, all, and their bytes, by type, as the picture has them."""
    assert [process.stdout.readline() for attempt in range(2)] == ["0\n", "1\n"]
    counts, sizes = json.loads(process.stdout.readline())
    until_it_waits(process.pid)
    done = subprocess.run([str(executable), "objects", str(process.pid), "--json"], capture_output=True, text=True, check=True)
    picture = json.loads(done.stdout)
    process.stdin.write("\n")
    process.stdin.flush()
    assert picture["unreadable"] == 0
    # The syntax trees of 3.8 and 3.9.
    assert {row["type"] for row in picture["types"] if row["size_partial"]} <= {"builtins.parser.st", "parser.st"}
    found = {}
    for row in picture["types"]:
        known = found.get(row["type"], [0, 0, 0])
        found[row["type"]] = list(map(sum, zip(known, (row["tracked"], row["count"], row["own_bytes"]))))
    return {name: [count, sizes[name]] for name, count in counts.items()}, found


OWN_CODE = """
import sys
class Measured:
    def __sizeof__(self):
        return 5000
class Derived(Measured): pass
class Again(dict):
    __sizeof__ = object.__sizeof__
class Plain(list): pass
kept = [Measured(), Derived(), Again(), Plain()]
try:
    import numpy
    class Array(numpy.ndarray): pass
    kept += [numpy.zeros(500).view(Array), numpy.float64(1)]
except ImportError:
    pass
print("numpy" in sys.modules, flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("version", [*OBJECT_VERSIONS, None])
def test_sizes_by_code_that_is_not_known_are_said(executable, tmp_path, version):
    """Classes, and types of extensions: `numpy.float64` has a `__sizeof__`; of arrays it is known. None: this Python, which has numpy."""
    (tmp_path / "app.py").write_text(OWN_CODE)
    python = interpreter_path(version) if version else sys.executable
    with subprocess.Popen(flat([python, tmp_path / "app.py"]), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        has_numpy = process.stdout.readline() == b"True\n"
        command = [str(executable), "objects", "-n", "0"]
        text = subprocess.run([*command, str(process.pid)], capture_output=True, text=True, check=True)
        done = subprocess.run([*command, "--json", str(process.pid)], capture_output=True, text=True, check=True)
        process.stdin.close()
    assert has_numpy or version
    rows = {row["type"]: row["size_partial"] for row in json.loads(done.stdout)["types"]}
    partial = {"__main__.Measured", "__main__.Derived", "__main__.Again", *(["numpy.float64"] if has_numpy else [])}
    exact = {"__main__.Plain", "builtins.dict", "builtins.type", *(["__main__.Array", "numpy.ndarray"] if has_numpy else [])}
    assert {name: rows[name] for name in partial | exact} == {name: name in partial for name in partial | exact}
    said = [line for line in text.stderr.splitlines() if "__sizeof__" in line]
    assert len(said) == 1
    names = set(said[0].rpartition(": ")[2].split(", "))
    assert partial <= names and not names & exact


OWNERS = """
import io, pickle, sys
def written(size):
    made = io.BytesIO()
    made.write(b"x" * size)
    return made
def pickled(size):
    made = pickle.Pickler(io.BytesIO())
    made.dump("t" * size)
    return made
def filled(size):
    made = bytearray()
    made.extend(b"x" * size)
    return made
def wait():
    print(flush=True)
    sys.stdin.readline()
KEPT = [[make(size) for make in (written, pickled, filled)] for size in (9, 9)]
wait()
KEPT += [[make(size) for make in (written, pickled, filled)] for size in (5, 300, 700, 90_000)]
# What others refer to, too, is an object of its own, as before.
shared = io.BytesIO(bytes(50_000))
KEPT += [shared, shared.getvalue()]
wait()
told = {}
for one in [*sum(KEPT[2:-2], []), *KEPT[-2:]]:
    told[type(one).__name__] = told.get(type(one).__name__, 0) + sys.getsizeof(one)
# Each pickler wrote to a file.
buffers = [io.BytesIO() for size in (5, 300, 700, 90_000)]
for size, buffer in zip((5, 300, 700, 90_000), buffers):
    pickle.Pickler(buffer).dump("t" * size)
told["BytesIO"] += sum(map(sys.getsizeof, buffers))
print(told, flush=True)
"""


@pytest.mark.parametrize("version", OBJECT_VERSIONS)
def test_what_an_object_has_for_itself_is_counted_once(executable, tmp_path, version):
    """With it, as `sys.getsizeof` does: the sums are of no more bytes than there are."""
    (tmp_path / "app.py").write_text(OWNERS)
    command = flat([interpreter_path(version), tmp_path / "app.py"])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        pictures = []
        for _ in range(2):
            process.stdout.readline()
            until_it_waits(process.pid)
            words = [str(executable), "objects", "--retained", str(process.pid), "--json"]
            done = subprocess.run(words, capture_output=True, text=True, check=True)
            pictures.append({row["type"].rpartition(".")[2]: row for row in json.loads(done.stdout)["types"]})
            process.stdin.write("\n")
            process.stdin.flush()
        told = ast.literal_eval(process.stdout.readline())
    grown = {name: pictures[1][name]["own_bytes"] - pictures[0][name]["own_bytes"] for name in told}
    assert grown == told
    # A pickler keeps its file besides.
    retained = {name: pictures[1][name]["retained_bytes"] - pictures[0][name]["retained_bytes"] for name in told}
    assert {**retained, "Pickler": None} == {**told, "Pickler": None}


ATTRIBUTES = """
import sys, tracemalloc
tracemalloc.start()
class Plain:
    def __init__(self): self.a = self.b = self.c = self.d = self.e = self.f = self.g = self.h = None
class Looked(Plain): pass
def allocated(make):
    before = tracemalloc.get_traced_memory()[0]
    made = [make() for number in range(20_000)]
    return made, tracemalloc.get_traced_memory()[0] - before - sys.getsizeof(made)
def looked_at():
    made = Looked()
    vars(made)
    return made
allocated(Plain), allocated(looked_at)  # what the interpreter keeps besides is there from then on
(plain, of_plain), (looked, of_looked) = allocated(Plain), allocated(looked_at)
print(of_plain, of_looked, flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("version", OBJECT_VERSIONS)
def test_what_instances_retain_has_the_values_of_their_attributes(executable, tmp_path, version):
    script = tmp_path / "app.py"
    script.write_text(ATTRIBUTES)
    with subprocess.Popen(
        flat([interpreter_path(version), script]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        of_plain, of_looked = map(int, process.stdout.readline().split())
        until_it_waits(process.pid)
        command = [executable, "objects", str(process.pid)]
        told = json.loads(subprocess.run([*command, "--json"], capture_output=True, text=True, check=True).stdout)
        text = subprocess.run([*command, "-n", "3"], capture_output=True, text=True, check=True)
        process.stdin.write("\n")
    types = {row["type"]: row for row in told["types"]}
    plain, looked = types["__main__.Plain"], types["__main__.Looked"]
    assert plain["retained_bytes"] == pytest.approx(of_plain, rel=0.002)
    assert looked["retained_bytes"] == pytest.approx(of_looked, rel=0.002)
    if int(version.split(".")[1].rstrip("t")) >= 11:
        assert plain["own_bytes"] + plain["value_bytes"] == pytest.approx(of_plain, rel=0.002)
        assert "for the attributes of instances" in text.stderr and "of __main__.Plain" in text.stderr
    else:
        assert plain["value_bytes"] == 0 and "attributes of instances" not in text.stderr
