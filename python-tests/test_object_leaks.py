"""`memtrack objects --why` on planted leaks: the path is the one in the program, on every interpreter that is here."""

import json
import re
import subprocess
import textwrap

import pytest

from conftest import FREE_THREADED, OBJECT_VERSIONS, flat, interpreter_path

# Each plants one object of the class Leak. What --why says of it; several where interpreters differ, or where two paths are
# equally short.
LEAKS = {
    "module_cache": ("CACHE = {}\nCACHE['user', 7] = Leak()", ["__main__.CACHE[…]"]),
    "module_of_a_package": (
        "import types\nsys.modules['shop.cart'] = cart = types.ModuleType('shop.cart')\ncart.OPEN = [Leak()]\ndel cart",
        ["shop.cart.OPEN[…]"],
    ),
    "class_attribute": ("class Registry:\n    seen = []\nRegistry.seen.append(Leak())", ["__main__.Registry.seen[…]"]),
    "attribute_of_a_singleton": (
        "class App: pass\nAPP = App()\nAPP.state = App()\nAPP.state.last = Leak()",
        ["__main__.APP.state.last"],
    ),
    "slot": ("class Node:\n    __slots__ = ('next', 'value')\nHEAD = Node()\nHEAD.next = Node()\nHEAD.next.value = Leak()", ["__main__.HEAD.next.value"]),
    "closure": (
        "def make():\n    held = Leak()\n    return lambda: held\nCALLBACK = make()",
        ["__main__.CALLBACK.__closure__[…].cell_contents"],
    ),
    "default_argument": ("def add(item, into=[]): into.append(item)\nadd(Leak())", ["__main__.add.__defaults__[…][…]"]),
    "keyword_default": ("def add(*, into=Leak()): pass", ["__main__.add.__kwdefaults__[…]"]),
    "function_attribute": ("def run(): pass\nrun.last = Leak()", ["__main__.run.last"]),
    "bound_method": ("class Handler(Leak):\n    def on(self): pass\nON = Handler().on\nLeak = Handler", ["__main__.ON.__self__"]),
    "partial": ("import functools\nCALL = functools.partial(print, Leak())", ["__main__.CALL.args[…]"]),
    "global_list_in_list": ("ROWS = [[], [[Leak()]]]", ["__main__.ROWS[…][…][…]"]),
    "deque": ("import collections\nLOG = collections.deque(maxlen=5)\nLOG.extend([1, 2, Leak()])", ["__main__.LOG[…]"]),
    "default_dictionary": ("import collections\nBY = collections.defaultdict(list)\nBY[7].append(Leak())", ["__main__.BY[…][…]"]),
    "ordered_dictionary": ("import collections\nBY = collections.OrderedDict(a=Leak())", ["__main__.BY[…]"]),
    "set_member": ("SEEN = {Leak()}", ["__main__.SEEN (a member)"]),
    "dictionary_key": ("BY = {Leak(): 1}", ["__main__.BY (a key)"]),
    "named_tuple": ("import collections\nPair = collections.namedtuple('Pair', 'a b')\nPAIR = Pair(1, Leak())", ["__main__.PAIR[…]"]),
    "data_class": ("import dataclasses\n@dataclasses.dataclass\nclass Order:\n    item: object\nORDER = Order(Leak())", ["__main__.ORDER.item"]),
    "property_of_a_class": ("class Lazy:\n    _value = None\nLazy._value = Leak()", ["__main__.Lazy._value"]),
    "metaclass": ("class Meta(type): pass\nclass Model(metaclass=Meta): pass\nMeta.registry = {'m': Leak()}", ["__main__.Meta.registry[…]"]),
    "suspended_generator": (
        "def work():\n    held = Leak()\n    yield 1\n    print(held)\nJOB = work()\nnext(JOB)",
        ["__main__.JOB.held", "__main__.JOB.gi_frame.held"],
    ),
    "exception_with_traceback": (
        "def fail():\n    held = Leak()\n    raise ValueError\ntry:\n    fail()\nexcept ValueError as error:\n    LAST = error",
        ["__main__.LAST.__traceback__.tb_next.tb_frame.held"],
    ),
    "exception_argument": ("LAST = ValueError(Leak())", ["__main__.LAST.args[…]"]),
    "local_of_a_running_function": ("def serve():\n    request = Leak()\n    stop()\nRUN = serve", ["<frame of serve in app.py>.request"]),
    "argument_of_a_caller": (
        "def handle(request): inner()\ndef inner(): stop()\ndef RUN(): handle(Leak())",
        ["<frame of handle in app.py>.request"],
    ),
    # How far the value stack goes is known of frames that have called Python code, from 3.11 on, and of all from 3.14 on. From
    # 3.15 on a loop over a list has no iterator.
    "iterator_of_a_loop": (
        "def serve():\n    for row in [Leak()]:\n        del row\n        stop()\nRUN = serve",
        [
            "<frame of serve in app.py>.<value stack, perhaps>.<iterated>[…]",
            "<frame of serve in app.py>.<value stack>.<iterated>[…]",
            "<frame of serve in app.py>.<value stack>[…]",
        ],
    ),
    "argument_of_c_code": (
        "def RUN():\n    list(map(lambda row: stop(), [0, Leak()]))",
        [
            "<frame of RUN in app.py>.<value stack, perhaps>.<iterated>[…].<iterated>[…]",
            "<frame of RUN in app.py>.<value stack>.<iterated>[…].<iterated>[…]",
        ],
    ),
    "generator_of_a_loop": (
        "def rows():\n    for row in [Leak()]:\n        del row\n        yield\ndef RUN():\n    for _ in rows(): stop()",
        [
            "<frame of RUN in app.py>.<value stack, perhaps>.gi_frame.<value stack>.<iterated>[…]",
            "<frame of RUN in app.py>.<value stack>.<value stack>.<iterated>[…]",
            "<frame of RUN in app.py>.<value stack>.<value stack>[…]",
        ],
    ),
    "cache_of_a_library_that_is_as_near": (
        "import sys, types\nlibrary = sys.modules['library'] = types.ModuleType('library')\nlibrary.CACHE = {1: Leak()}\n"
        "VALUES = dict(library.CACHE)\ndel library",
        ["__main__.VALUES[…]"],
    ),
    "iterator_that_has_borrowed": (
        "import itertools\ndef walk():\n    rows = itertools.groupby([1, 2])\n    for key, group in rows: break\n"
        "    return rows\nROWS = walk()\nREAL = [[Leak()]]",
        ["__main__.REAL[…][…]"],
    ),
    "variable_of_a_context": (
        "import contextvars\nREQUEST = contextvars.ContextVar('request')\nKEPT = []\ndef handle():\n"
        "    context = contextvars.Context()\n    context.run(REQUEST.set, Leak())\n    KEPT.append(context)\nhandle()",
        ["__main__.KEPT[…][request]"],
    ),
    "logging_handler": (
        "import logging\nclass Keeping(logging.Handler):\n    def emit(self, record): self.last = record\n"
        "logging.getLogger('shop').addHandler(Keeping())\nlogging.getLogger('shop').warning('%s', Leak)\n"
        "logging.getLogger('shop').handlers[0].extra = Leak()",
        ["logging.root.manager.loggerDict[…].handlers[…].extra", "logging._handlerList[…]", "logging.Logger.manager.loggerDict[…].handlers[…].extra",
         "logging.Logger.root.manager.loggerDict[…].handlers[…].extra", "logging.RootLogger.manager.loggerDict[…].handlers[…].extra"],
    ),
    "atexit_callback": ("import atexit\natexit.register(print, Leak())", ["<tuple that C code holds>[…]", "<list that C code holds>[…][…][…]"]),
    "weak_reference_callback": (
        "import weakref\nclass Target: pass\nTARGET = Target()\ndef gone(reference, held=Leak()): pass\nREFERENCE = weakref.ref(TARGET, gone)\ndel gone",
        ["__main__.REFERENCE.__callback__.__defaults__[…]"],
    ),
    "finalizer": (
        "import weakref\nclass Target: pass\nTARGET = Target()\nweakref.finalize(TARGET, print, Leak())",
        ["weakref.finalize._registry[…].args[…]"],
    ),
    "signal_handler": (
        "import signal, functools\nsignal.signal(signal.SIGUSR1, functools.partial(print, Leak()))",
        ["<functools.partial that C code holds>.args[…]"],
    ),
    "thread_target": (
        "import threading\nstarted = threading.Event()\ndef work(item):\n    started.set()\n    threading.Event().wait()\n"
        "threading.Thread(target=work, args=(Leak(),), daemon=True).start()\nstarted.wait()",
        ["<frame of work in app.py>.item"],
    ),
    "context_variable": ("import contextvars\nREQUEST = contextvars.ContextVar('request')\nREQUEST.set(Leak())", ["<value of the context variable request>", "<_contextvars.Context that C code holds>[request]"]),
    "thread_local": ("import threading\nLOCAL = threading.local()\nLOCAL.held = Leak()", ["__main__.LOCAL.<threads>[…][…]"]),
    "cached_function": ("import functools\n@functools.lru_cache(None)\ndef load(key): return Leak()\nload(1)", ["__main__.load.<cache>[…]"]),
    "bounded_cached_function": ("import functools\n@functools.lru_cache(5)\ndef load(key): return Leak()\nload(1)", ["__main__.load.<cache>[…].<result>"]),
    "cached_property": (
        "import functools\nclass Page:\n    @functools.cached_property\n    def body(self): return Leak()\nPAGE = Page()\nPAGE.body",
        ["__main__.PAGE.body"],
    ),
    "task_that_waits": (
        "import asyncio\nasync def wait(item): await asyncio.get_running_loop().create_future()\n"
        "async def main():\n    global TASK\n    TASK = asyncio.ensure_future(wait(Leak()))\n    await asyncio.sleep(0)\n    stop()\n"
        "def RUN(): asyncio.new_event_loop().run_until_complete(main())",
        ["__main__.TASK.get_coro().cr_frame.item", "__main__.TASK.get_coro().item"],
    ),
    # The coroutine that waits is a local variable of the event loop's callers, and has this module's globals.
    "module_of_a_server_that_waits": (
        "import asyncio\nLOG = []\nasync def serve():\n    LOG.append([Leak()])\n    await asyncio.sleep(0)\n    asyncio.get_running_loop().call_soon(stop)\n"
        "    await asyncio.get_running_loop().create_future()\ndef start(coroutine): asyncio.new_event_loop().run_until_complete(coroutine)\n"
        "def RUN(): start(serve())",
        ["__main__.LOG[…][…]"],
    ),
    "result_of_a_future": ("import asyncio\nDONE = asyncio.Future(loop=asyncio.new_event_loop())\nDONE.set_result(Leak())", ["__main__.DONE.<result>"]),
    "callback_of_a_future": (
        "import asyncio, functools\nLATER = asyncio.Future(loop=asyncio.new_event_loop())\n"
        "LATER.add_done_callback(functools.partial(print))\nLATER.add_done_callback(functools.partial(print, Leak()))",
        ["__main__.LATER.<callbacks>[…][…].args[…]"],
    ),
    "what_a_task_waits_for": (
        "import asyncio\nclass Leak(asyncio.Future): pass\nasync def wait(): await Leak()\n"
        "async def main():\n    global TASK\n    TASK = asyncio.ensure_future(wait())\n    await asyncio.sleep(0)\n    stop()\n"
        "def RUN(): asyncio.new_event_loop().run_until_complete(main())",
        ["__main__.TASK._fut_waiter"],
    ),
    "variable_of_a_task": (
        "import asyncio, contextvars\nVAR = contextvars.ContextVar('VAR')\n"
        "async def wait():\n    VAR.set(Leak())\n    await asyncio.get_running_loop().create_future()\n"
        "async def main():\n    global TASK\n    TASK = asyncio.ensure_future(wait())\n    await asyncio.sleep(0)\n    stop()\n"
        "def RUN(): asyncio.new_event_loop().run_until_complete(main())",
        ["__main__.TASK.<context>[VAR]"],
    ),
    # 3.8 takes no message.
    "message_of_a_cancelled_future": (
        "import asyncio\nLATER = asyncio.Future(loop=asyncio.new_event_loop())\n"
        "try: LATER.cancel(msg=Leak())\nexcept TypeError: OLDER = Leak()",
        ["__main__.LATER._cancel_message", "__main__.OLDER"],
    ),
    "value_before_a_token": (
        "import contextvars\nVAR = contextvars.ContextVar('VAR')\nVAR.set(Leak())\nTOKEN = VAR.set(None)",
        ["__main__.TOKEN.old_value"],
    ),
    # An attribute as any other before 3.12.
    "type_parameter_of_a_function": ("def one(): pass\none.__type_params__ = (Leak(),)", ["__main__.one.__type_params__[…]", "__main__.one.__dict__['__type_params__'][…]"]),
    "bound_of_a_type_variable": (
        "import typing\nclass Leak(type): pass\nONE = typing.TypeVar('ONE', bound=Leak('Bound', (), {}))",
        ["__main__.ONE.__bound__"],
    ),
    "zip_and_map": ("ROWS = zip(map(str, [1]), filter(None, [Leak()]))", ["__main__.ROWS.<iterated>[…].<iterated>.<iterated>[…]"]),
    "queue": ("import queue\nQUEUE = queue.Queue()\nQUEUE.put(Leak())", ["__main__.QUEUE.queue[…]"]),
    "iterator": ("ITERATOR = iter([1, Leak()])\nnext(ITERATOR)", ["__main__.ITERATOR.<iterated>[…]"]),
    "exit_stack": ("import contextlib\nSTACK = contextlib.ExitStack()\nSTACK.callback(print, Leak())", ["__main__.STACK._exit_callbacks[…][…].__closure__[…].cell_contents[…]"]),
    "user_dictionary": ("import collections\nDATA = collections.UserDict(a=Leak())", ["__main__.DATA.data[…]"]),
    "chain_map": ("import collections\nDATA = collections.ChainMap({}, {'a': Leak()})", ["__main__.DATA.maps[…][…]"]),
    "path_hook_cache": ("sys.path_importer_cache['/nowhere'] = Leak()", ["sys.path_importer_cache[…]"]),
    "builtins": ("import builtins\nbuiltins.held = Leak()", ["builtins.held"]),
    "observer_list": (
        "class Subject:\n    def __init__(self): self.observers = []\nclass View:\n    def __init__(self, item): self.item = item\n    def update(self): pass\n"
        "SUBJECT = Subject()\nSUBJECT.observers.append(View(Leak()).update)",
        ["__main__.SUBJECT.observers[…].__self__.item"],
    ),
    "parent_of_a_child": (
        "class Child: pass\nCHILDREN = [Child()]\nCHILDREN[0].parent = Leak()",
        ["__main__.CHILDREN[…].parent"],
    ),
    "ring": ("class Ring: pass\nring = Ring()\nring.own = ring\nring.held = Leak()\ndel ring", ["<__main__.Ring in a ring that only holds itself>.held", "<dict in a ring that only holds itself>[…]", "<__main__.Ring in a ring that only holds itself>.__dict__.held"]),
    "memory_view": ("class Bytes(bytearray): pass\nLeak = type('Leak', (bytearray,), {})\nVIEW = memoryview(Leak(10))", ["__main__.VIEW.obj"]),
    # A view's block has room for numbers that stay as the block was before: here the addresses of what is held by others.
    "words_that_a_memory_view_never_sets": (
        "import struct\nclass Held: pass\nHOLDER = [[[Leak()]]]\nfor size in range(100, 260, 8):\n"
        "    stale = [struct.pack('Q', id(HOLDER[0][0][0])) * (size // 8) for _ in range(4)]\n    del stale\n"
        "    globals()['VIEW%d' % size] = [memoryview(b'data') for _ in range(4)]",
        ["__main__.HOLDER[…][…][…]"],
    ),
    "words_that_tees_and_numbers_never_set": (
        "import struct, itertools, decimal\nHOLDER = [[[Leak()]]]\nfor size in range(64, 510, 8):\n"
        "    stale = [struct.pack('Q', id(HOLDER[0][0][0])) * (size // 8) for _ in range(4)]\n    del stale\n"
        "    globals()['NUMBER%d' % size] = [decimal.Decimal(5) for _ in range(4)]\n"
        "    stale = [struct.pack('Q', id(HOLDER[0][0][0])) * (size // 8) for _ in range(4)]\n    del stale\n"
        "    globals()['TEE%d' % size] = [itertools.tee([1, 2]) for _ in range(2)]\n    next(globals()['TEE%d' % size][0][0])",
        ["__main__.HOLDER[…][…][…]"],
    ),
    # What a generator held is let go of without clearing the words: others are at these addresses by now.
    "words_that_a_generator_leaves_at_its_end": (
        "def rows():\n    held = [Leak() for _ in range(9)]\n    yield\nENDED = [rows() for _ in range(3)]\n[list(one) for one in ENDED]\n"
        "class Store: pass\nSTORE = Store()\nSTORE.one = Store()\nSTORE.one.two = [Leak()]",
        ["__main__.STORE.one.two[…]"],
    ),
    "words_that_a_coroutine_leaves_at_its_end": (
        "async def work():\n    held = [Leak() for _ in range(9)]\nENDED = [work() for _ in range(3)]\n"
        "for one in ENDED:\n    try: one.send(None)\n    except StopIteration: pass\n"
        "class Store: pass\nSTORE = Store()\nSTORE.one = Store()\nSTORE.one.two = [Leak()]",
        ["__main__.STORE.one.two[…]"],
    ),
    "object_of_a_released_memory_view": (
        "class Leak(bytes): pass\nENDED = []\nfor _ in range(9):\n    ENDED.append(memoryview(Leak(b'x' * 20)))\n    ENDED[-1].release()\n"
        "class Store: pass\nSTORE = Store()\nSTORE.one = Store()\nSTORE.one.two = [Leak(b'y' * 20)]",
        ["__main__.STORE.one.two[…]"],
    ),
    "what_a_tee_keeps": ("import itertools\nTEE = itertools.tee([1, Leak(), 3])\nnext(TEE[0]); next(TEE[0])", ["__main__.TEE[…].<values>[…]"]),
    "subclass_of_dictionary": ("class Store(dict): pass\nSTORE = Store(a=Leak())", ["__main__.STORE[…]"]),
    "attribute_of_a_list_subclass": ("class Rows(list): pass\nROWS = Rows()\nROWS.source = Leak()", ["__main__.ROWS.source"]),
    "mapping_proxy": ("import types\nVIEW = types.MappingProxyType({'a': Leak()})", ["__main__.VIEW.<mapping>[…]"]),
}
BEGIN = """
import sys
class Leak: pass
def stop():
    print("ready", flush=True)
    sys.stdin.readline()
"""
END = """
(RUN if "RUN" in globals() else stop)()
"""


@pytest.fixture(scope="module", params=OBJECT_VERSIONS)
def all_paths(request, executable, tmp_path_factory):
    """What --why says of each leak, each of them in a program of its own."""
    directory = tmp_path_factory.mktemp("leaks")
    python = interpreter_path(request.param)
    programs = {}
    for name, (text, _) in LEAKS.items():
        (directory / name).mkdir()
        script = directory / name / "app.py"
        script.write_text(BEGIN + textwrap.dedent(text) + END)
        programs[name] = subprocess.Popen(flat([python, script]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    found = {}
    for name, process in programs.items():
        assert process.stdout.readline() == "ready\n", name
        command = [str(executable), "objects", str(process.pid), "--json", "--why", "Leak" if name != "bound_method" else "Handler"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found[name] = json.loads(done.stdout)["why"] if done.returncode == 0 else done.stderr
    for process in programs.values():
        process.kill()
        process.communicate()
    return request.param, found


@pytest.mark.parametrize("name", LEAKS)
def test_the_path_of_a_planted_leak(all_paths, name):
    version, found = all_paths
    paths = found[name]
    assert isinstance(paths, list), paths
    (path,) = paths
    assert path["count"] == 1
    expected = LEAKS[name][1]
    if version in FREE_THREADED:
        # Fields without a name are called by their offsets, and the heads of objects are larger.
        expected = [re.sub(r"\+(\d+)>", lambda offset: f"+{int(offset[1]) + 16}>", pattern) for pattern in expected]
    assert path["pattern"] in expected, (version, path)


#: Each leaves rings of objects in which `held` is, and nothing else that holds them.
RINGS = """
import collections, contextlib, ctypes, functools, gc, itertools, sys, types, weakref
gc.disable()
class Held: pass
class Node: pass
class Slots: __slots__ = ("own", "held", "__weakref__")
def instance(held): one = Node(); one.own, one.held = one, held
def two(held): one, other = Node(), Node(); one.next, other.next, other.held = other, one, held
def slots(held): one = Slots(); one.own, one.held = one, held
def a_list(held): one = [held]; one.append(one)
def a_dict(held): one = {"held": held}; one["own"] = one
def a_set(held):
    class Hashed(set): __hash__ = object.__hash__
    one = Hashed([held]); one.add(one)
def a_deque(held): one = collections.deque([held]); one.append(one)
def ordered(held): one = collections.OrderedDict(held=held); one["own"] = one
def default(held): one = collections.defaultdict(list, held=held); one["own"] = one
def closure(held):
    def again(): return again, held
def method(held): one = Node(); one.call = types.MethodType(lambda own: held, one)
def bound(held):
    class Bound:
        def call(self): pass
    one = Bound(); one.call, one.held = one.call, held
def a_class(held):
    class Local: kept = held
def subclass(held):
    class Base: pass
    class Local(Base): kept = held
    Local.one = Local()
def generator(held):
    def make():
        own = yield
        yield own, held
    one = make(); next(one); one.send(one)
def coroutine(held):
    async def make(box, held): await Never(box, held)
    class Never:
        def __init__(self, box, held): self.box, self.held = box, held
        def __await__(self): yield self
    box = []; one = make(box, held); box.append(one); one.send(None)
def traceback(held):
    try: raise ValueError(held)
    except ValueError as error: kept = error
def partial(held): one = Node(); one.call, one.held = functools.partial(print, one), held
def simple(held): one = types.SimpleNamespace(held=held); one.own = one
def module(held): one = types.ModuleType("gone"); one.own, one.held = one, held
def a_property(held): one = Node(); one.own = property(lambda own: (one, held))
def cell(held): one = types.CellType() if hasattr(types, "CellType") else None; one.cell_contents = [one, held]
def chain(held): box = [held]; one = itertools.chain(box, box); box.append(one); next(one)
def weak(held): one = Slots(); one.held = [one, held, weakref.ref(one, held.__eq__)]
def stack(held): one = contextlib.ExitStack(); one.callback(print, one, held)
def cached(held):
    @functools.lru_cache(maxsize=None)
    def find(key): return find, held
    find(1)
ALL = [one for name, one in list(globals().items()) if isinstance(one, types.FunctionType)]
KEPT = range(3)
for make in ALL:
    make(Held())
for held in [Held() for make in KEPT]:
    one = Node(); one.own, one.held = one, held
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))
one = held = make = None
print(len(ALL), flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("version", OBJECT_VERSIONS)
def test_rings_that_only_hold_themselves_and_those_that_c_code_holds(executable, tmp_path, version):
    """Of the latter an object has more references than objects have to it, as after a forgotten decref."""
    script = tmp_path / "app.py"
    script.write_text(RINGS)
    with subprocess.Popen(
        flat([interpreter_path(version), script]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        count = int(process.stdout.readline())
        command = [str(executable), "objects", str(process.pid), "--json", "--why", "Held"]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["why"]
        process.stdin.write("\n")
    by_c = {path["pattern"]: path["count"] for path in found if " in a ring that only holds itself>" not in path["pattern"]}
    assert by_c == {"<__main__.Node that C code holds>.held": 3}
    assert sum(path["count"] for path in found) == count + 3


def paths(executable, process, wanted):
    """The objects of a type by their paths."""
    command = [str(executable), "objects", str(process.pid), "--json", "--why", wanted]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["why"]
    return {path["pattern"]: path["count"] for path in found}


STATIC_TYPES = """
import datetime, json, operator, sys
def resolve(path):
    # Modules have dots in their names.
    names = path.split(".")
    known = max((".".join(names[:count]) for count in range(1, len(names)) if ".".join(names[:count]) in sys.modules), key=len)
    found = sys.modules[known]
    for name in names[known.count(".") + 1:]:
        found = getattr(found, "__dict__", {}).get(name) or getattr(found, name)
    return path if type(found).__name__ != "method_descriptor" else ""
print("ready", flush=True)
print(json.dumps([resolve(path) for path in json.loads(sys.stdin.readline())]), flush=True)
sys.stdin.readline()
"""
SUBINTERPRETER = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
kept = interpreters.create()
"""


@pytest.mark.parametrize("version", OBJECT_VERSIONS)
def test_what_static_types_have_is_called_by_them(executable, tmp_path, version):
    """From 3.12 on the interpreter has it, and not the type."""
    script = tmp_path / "app.py"
    script.write_text(STATIC_TYPES)
    with subprocess.Popen(
        flat([interpreter_path(version), script]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        methods = paths(executable, process, "builtins.method_descriptor")
        texts = paths(executable, process, "builtins.str")
        process.stdin.write(json.dumps(plain := [path for path in methods if re.fullmatch(r"[\w.]+", path)]) + "\n")
        process.stdin.flush()
        resolved = json.loads(process.stdout.readline())
        process.stdin.write("\n")
    assert all(any(path.endswith(name) for path in plain) for name in (".upper", ".datetime.isoformat"))
    assert len(plain) > 300 and set(resolved) == {""}
    assert not any("dict that C code holds" in path for path in methods)
    assert "<immortal str>" not in texts and texts.get("<dict that C code holds> (a key)", 0) < 60
    # Before 3.11 what holds each of them is known.
    is_old = version in ("3.8", "3.9", "3.10")
    assert is_old or texts["<interned strings>[…]"] > 0
    assert not (is_old or version == "3.11") or any(path.startswith("<static type ") for path in methods)


@pytest.mark.parametrize("version", [version for version in OBJECT_VERSIONS if version not in ("3.8", "3.9", "3.10", "3.11")])
def test_static_types_have_a_dictionary_in_each_interpreter(executable, tmp_path, version):
    script = tmp_path / "app.py"
    script.write_text(SUBINTERPRETER + "print('ready', flush=True)\ninput()\ninterpreters.destroy(kept)\n")
    with subprocess.Popen(
        flat([interpreter_path(version), script]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        found = paths(executable, process, "builtins.dict")
        process.stdin.write("\n")
    assert {"builtins.str.__dict__", "builtins.float.__dict__"} <= set(found)
    assert sum(count for path, count in found.items() if "<in a subinterpreter>" in path) > 100
    # What remains are its own: of the interpreter, its threads and its codecs.
    assert found.get("<dict that C code holds>", 0) < 30
