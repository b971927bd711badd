"""Allocates blocks of unique sizes in every kind of Python frame and says what stack each must have.

Usage: stacks.py EXPECTED. Writes one JSON object a line to the file EXPECTED:
    {"case": name, "size": bytes of the block, "stack": [[function, file, line], ...], "qualified": [name, ...]}   root first
A capture of this program must hold one allocation of each size, with that stack; "qualified" are its functions by
qualified name, where the interpreter knows it (3.11). Lone surrogates are written as U+FFFD.
"""
import asyncio
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import sys
import tempfile
import threading
import traceback
import weakref

FIRST_SIZE = 3000017
LIBC = ctypes.CDLL(None)  # releases the GIL around a call
HELD = ctypes.PyDLL(None)  # keeps it
for library in (LIBC, HELD):
    library.malloc.argtypes, library.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    library.free.argtypes, library.free.restype = [ctypes.c_void_p], None

expected = []
lock = threading.Lock()
current = threading.local()
serial = 0


def text(value):
    return "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in value)


def record(size):
    """Notes the stack of the caller of the marker's, in the caller's present line."""
    stack = [
        [text(frame.f_code.co_name), text(frame.f_code.co_filename), line]
        for frame, line in traceback.walk_stack(sys._getframe(1))
    ]
    qualified = [
        text(getattr(frame.f_code, "co_qualname", frame.f_code.co_name)) for frame, _ in traceback.walk_stack(sys._getframe(1))
    ]
    entry = {"case": getattr(current, "case", ""), "size": size, "stack": stack[::-1], "qualified": qualified[::-1]}
    with lock:
        expected.append(entry)


def block_size(length):
    """What bytearray(length) asks the allocator for: a little more than its length, differently in each version."""
    return bytearray(1000).__sizeof__() - bytearray().__sizeof__() + length - 1000


def next_size():
    global serial
    with lock:
        serial += 1
        return FIRST_SIZE + serial * 64


def mark():
    """One block of a size of its own, allocated in the line that notes the stack."""
    length = next_size()
    size = block_size(length)
    return record(size), bytearray(length)


def mark_native(library):
    size = next_size()
    _, address = record(size), library.malloc(size)
    library.free(address)


def churn():
    """An allocation that nobody looks at: it makes the tracker see the stack."""
    return bytearray(700)


# --- cases ------------------------------------------------------------------------------------------------------------


def case_plain():
    mark()
    for _ in range(3):
        churn()
        mark()


def leaf():
    return mark()


def middle():
    return leaf()


def case_same_newest_frames():
    middle()
    middle()
    if True:
        middle()


def countdown(count):
    while count:
        mark()
        yield count
        churn()
        count -= 1


def case_generator():
    for _ in countdown(3):
        churn()
    generator = countdown(3)
    next(generator)
    list(generator)


def delegating(count):
    mark()
    result = yield from countdown(count)
    mark()
    return result


def twice_delegating():
    yield from delegating(2)
    yield from delegating(1)


def case_yield_from():
    for _ in twice_delegating():
        mark()


def resume(generator):
    return next(generator)


def resume_elsewhere(generator):
    churn()
    return next(generator)


def case_generator_of_several_callers():
    generator = countdown(4)
    resume(generator)
    resume_elsewhere(generator)
    next(generator)
    resume(generator)


def case_generator_closed():
    def cleaning():
        try:
            yield churn()
        finally:
            mark()

    generator = cleaning()
    next(generator)
    generator.close()
    generator = cleaning()
    next(generator)
    with contextlib.suppress(ValueError):
        generator.throw(ValueError("thrown in"))


async def nap(times):
    for _ in range(times):
        mark()
        await asyncio.sleep(0)
        churn()


async def outer_nap(times):
    await nap(times)
    mark()


class Resource:
    async def __aenter__(self):
        mark()
        await asyncio.sleep(0)

    async def __aexit__(self, *error):
        await asyncio.sleep(0)
        mark()

    async def __aiter__(self):
        for item in range(2):
            mark()
            yield item
            await asyncio.sleep(0)


async def use_resource():
    resource = Resource()
    async with resource:
        async for _ in resource:
            mark()
    return [mark() async for _ in resource]


def case_coroutines():
    async def everything():
        await outer_nap(1)
        await asyncio.gather(outer_nap(2), outer_nap(3), use_resource())

    asyncio.run(everything())


def case_coroutine_by_hand():
    coroutine = outer_nap(0)
    with contextlib.suppress(StopIteration):
        coroutine.send(None)


def fails(depth):
    if depth == 0:
        mark()
        raise KeyError("deep")
    try:
        fails(depth - 1)
    finally:
        mark()


def case_exceptions():
    try:
        fails(4)
    except KeyError:
        mark()
    else:
        mark()
    mark()
    try:
        try:
            fails(0)
        except KeyError as error:
            mark()
            raise ValueError from error
    except ValueError:
        mark()


def decorated(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        mark()
        return function(*args, **kwargs)

    return wrapper


@decorated
@decorated
def add(first, second=0):
    mark()
    return first + second


def case_decorators():
    add(1, second=2)
    add(3)


class Attributes:
    def __init__(self):
        mark()

    @property
    def value(self):
        mark()
        return 1

    @value.setter
    def value(self, value):
        mark()

    def __getattr__(self, name):
        mark()
        return name

    def __getitem__(self, key):
        mark()
        return key

    def __setitem__(self, key, value):
        mark()

    def __call__(self, *args):
        mark()

    def __lt__(self, other):
        mark()
        return False

    def __eq__(self, other):
        mark()
        return self is other

    def __hash__(self):
        mark()
        return 1

    def __len__(self):
        mark()
        return 1

    def __contains__(self, item):
        mark()
        return True

    def __repr__(self):
        mark()
        return "attributes"

    def __add__(self, other):
        mark()
        return self

    def __enter__(self):
        mark()

    def __exit__(self, *error):
        mark()

    @staticmethod
    def static():
        mark()

    @classmethod
    def by_class(cls):
        mark()


def case_special_methods():
    thing, other = Attributes(), Attributes()
    thing.value
    thing.value = 2
    thing.missing
    thing[1]
    thing[1] = 2
    thing()
    thing < other
    thing == other
    {thing: 1}
    len(thing)
    1 in thing
    f"{thing!r}"
    thing + other
    with thing:
        mark()
    thing.static()
    thing.by_class()
    bool(thing)


class Mortal:
    def __del__(self):
        mark()


def case_destructors():
    mortal = Mortal()
    del mortal
    Mortal()
    cycle = Mortal()
    cycle.itself = cycle
    del cycle
    gc.collect()
    mortal = Mortal()
    reference = weakref.ref(mortal, lambda _: mark())
    mortal = None
    return reference


def key(value):
    churn()
    mark()
    return -value


def case_callbacks():
    sorted([1, 2, 3], key=key)
    max([1, 2], key=lambda value: mark() and value or value)
    list(map(key, [1, 2]))
    list(filter(key, [1]))
    functools.reduce(lambda total, value: key(value), [1, 2, 3])
    sorted([Attributes(), Attributes()])


@functools.lru_cache(maxsize=None)
def cached(value):
    mark()
    return cached(value - 1) + 1 if value else 0


@functools.singledispatch
def dispatched(value):
    mark()


@dispatched.register(int)
def dispatched_int(value):
    mark()


def case_functools():
    functools.partial(add, 1, second=2)()
    functools.partial(leaf)()
    cached(3)
    cached(3)
    dispatched("text")
    dispatched(1)


@contextlib.contextmanager
def managed():
    mark()
    try:
        yield
    finally:
        mark()


def case_context_managers():
    with managed(), managed():
        mark()
    with contextlib.ExitStack() as stack:
        stack.enter_context(managed())
        stack.callback(mark)


def case_comprehensions():
    [mark() for _ in range(2)]
    {index: mark() for index in range(2)}
    {mark() and index for index in range(2)}
    list(mark() for _ in range(2))
    [[mark() for _ in range(1)] for _ in range(2)]
    [leaf() for _ in range(2)]


def case_lambda():
    function = lambda: mark()  # noqa: E731
    function()
    (lambda inner: inner())(function)


def case_class_body():
    class Meta(type):
        def __new__(cls, *args):
            mark()
            return super().__new__(cls, *args)

    class Made(metaclass=Meta):
        mark()

        def __init_subclass__(cls):
            mark()

    class Derived(Made):
        mark()

    return Derived


def case_closure():
    cell = 1

    def inner(argument):
        nonlocal cell
        mark()

        def innermost():
            mark()
            return cell + argument

        return innermost()

    inner(1)


class Point:
    def __init__(self, markit):
        self.block = mark() if markit else churn()


class Derived(Point):
    def __init__(self, markit):
        super().__init__(markit)
        self.other = churn()


def case_hot_instantiation():
    for kind in (Point, Derived):
        for count in range(400):
            kind(count % 80 == 79)


def case_hot_calls():
    def inner(count):
        return mark() if count % 100 == 99 else churn()

    for count in range(500):
        inner(count)
        churn()


def case_executed_code():
    exec("mark()\n\nmark()", {"mark": mark})
    eval("mark()", {"mark": mark})
    exec(compile("def generated():\n    return mark()\n\n\ngenerated()\n", "<generated>", "exec"), {"mark": mark})


def case_code_at_one_address():
    for number in range(200):
        name = f"made_{number}"
        source = "\n" * (number % 7) + f"def {name}():\n" + "    churn()\n" * (number % 3) + "    return mark()\n"
        names = {"mark": mark, "churn": churn}
        exec(compile(source, f"<made {number}>", "exec"), names)
        names.pop(name)()
        names.clear()


def case_known_stacks_of_code_at_one_address():
    """Each function is called in turn with another, until their stacks are known, and makes room for the next."""

    def other():
        return mark()

    for number in range(60):
        name = f"turn_{number}"
        names = {"mark": mark}
        exec(compile(f"def {name}():\n    return mark()\n", f"<turn {number}>", "exec"), names)
        for _ in range(6):
            names[name]()
            other()
        names.clear()


def case_names_beyond_ascii():
    for name, file in (
        ("naïve", "<Latin-1 é>"),
        ("функция", "<UCS-2 文>"),
        ("名前", "<UCS-4 \U0001f600>"),
        ("surrogate", "<lone \udc80>"),
    ):
        names = {"mark": mark}
        exec(compile(f"def {name}():\n    mark()\n\n{name}()\n", file, "exec"), names)


def descend(depth):
    churn()
    if depth % 60 == 0:
        mark()
    if depth:
        descend(depth - 1)
    churn()
    if depth % 60 == 30:
        mark()


def case_recursion():
    descend(900)
    mark()
    descend(900)


def even(number):
    churn()
    if number == 0:
        return mark()
    return odd(number - 1)


def odd(number):
    if number % 10 == 1:
        mark()
    return even(number - 1)


def case_mutual_recursion():
    even(50)


def recursion_through_c(depth):
    churn()
    if depth % 10 == 0:
        mark()
    if depth:
        list(map(recursion_through_c, [depth - 1]))
    if depth % 10 == 5:
        mark()


def case_recursion_through_c():
    recursion_through_c(60)


def case_native():
    for library in (LIBC, HELD):
        mark_native(library)
        for _ in countdown(1):
            mark_native(library)
        functools.partial(mark_native, library)()


def case_callback_from_c():
    callback_type = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    comparison = callback_type(lambda first, second: mark() and 0)
    numbers = (ctypes.c_int * 3)(3, 1, 2)
    LIBC.qsort(numbers, ctypes.c_size_t(3), ctypes.c_size_t(4), comparison)


def case_import():
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "stacks_imported.py"), "w") as file:
            file.write("import stacks_second\nfrom __main__ import mark\n\nmark()\n")
        with open(os.path.join(folder, "stacks_second.py"), "w") as file:
            file.write("from __main__ import mark\nmark()\n\n\ndef late():\n    mark()\n")
        sys.path.insert(0, folder)
        try:
            importlib.import_module("stacks_imported")
            sys.modules["stacks_second"].late()
        finally:
            sys.path.remove(folder)


def case_trace_function():
    def tracer(frame, event, argument):
        if frame.f_code is leaf.__code__ and event in ("call", "line"):
            mark()
        return tracer

    sys.settrace(tracer)
    try:
        leaf()
    finally:
        sys.settrace(None)


def worker(number, barrier):
    current.case = f"thread {number}"
    barrier.wait()
    for _ in range(10):
        middle()
        for _ in countdown(2):
            mark_native(LIBC)
        descend(20 + number)
        mark()


def case_threads():
    barrier = threading.Barrier(3)
    threads = [threading.Thread(target=worker, args=(number, barrier)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def case_thread_after_thread():
    for number in range(5):
        thread = threading.Thread(target=worker, args=(number, threading.Barrier(1)))
        thread.start()
        thread.join()


def main():
    sys.setrecursionlimit(5000)
    cases = [(name, function) for name, function in sorted(globals().items()) if name.startswith("case_")]
    for name, function in cases:
        current.case = name[len("case_") :]
        function()
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        for entry in expected:
            file.write(json.dumps(entry) + "\n")


if __name__ == "__main__":
    main()
