"""100 leaks of 20 kinds, and 100 caches of 20 kinds that stop growing: limit_leaks fails the first and passes the others."""

import array
import asyncio
import atexit
import collections
import contextvars
import ctypes
import datetime
import decimal
import enum
import functools
import gc
import importlib
import json
import linecache
import logging
import random
import re
import struct
import sys
import tempfile
import threading
import typing
import weakref

import pytest

KEEP = []
D = {}


class Holder:
    items = []


def default(x, kept=[]):
    kept.append(x)


@functools.lru_cache(None)
def cached(n, size):
    return bytearray(size)


class Node:
    pass


N = [0]


def nxt():
    N[0] += 1
    return N[0]


stop = threading.Event()


def l_list(s):
    KEEP.append(bytearray(s))


def l_dict(s):
    D[nxt()] = b"x" * s


def l_closure(s):
    d = bytearray(s)
    KEEP.append(lambda: d)


def l_cycle(s):
    n = Node()
    n.me = n
    n.p = bytearray(s)
    KEEP.append(weakref.ref(n))
    Holder.items.append(n)


def l_array(s):
    KEEP.append(array.array("b", bytes(s)))


def l_thread(s):
    def w(b):
        stop.wait()

    t = threading.Thread(target=w, args=(bytearray(s),), daemon=True)
    t.start()


def l_task(s):
    async def w(b):
        await asyncio.sleep(0)

    KEEP.append(w(bytearray(s)))


def l_class(s):
    Holder.items.append(bytearray(s))


def l_default(s):
    default(bytearray(s))


def l_lru(s):
    cached(nxt(), s)


def l_log(s):
    h = logging.NullHandler()
    h.buf = bytearray(s)
    logging.getLogger("leak").addHandler(h)


def l_weak(s):
    n = Node()
    b = bytearray(s)
    KEEP.append((n, weakref.ref(n, lambda r, b=b: None)))


def l_gen(s):
    def g(b):
        yield b

    x = g(bytearray(s))
    next(x)
    KEEP.append(x)


def l_tb(s):
    b = bytearray(s)
    try:
        raise ValueError
    except ValueError as e:
        KEEP.append(e)


def l_ctx(s):
    v = contextvars.ContextVar("v%d" % nxt())
    v.set(bytearray(s))
    KEEP.append(v)


def l_sub(s):
    KEEP.append(type("T%d" % nxt(), (), {"b": bytearray(s)}))


def l_atexit(s):
    atexit.register(lambda b=bytearray(s): None)


def l_partial(s):
    KEEP.append(functools.partial(print, bytearray(s)))


def l_c(s):
    KEEP.append(ctypes.create_string_buffer(s))


def l_deque(s):
    KEEP.append(collections.deque([bytes(s)]))


LEAKS = [
    l_list,
    l_dict,
    l_closure,
    l_cycle,
    l_array,
    l_thread,
    l_task,
    l_class,
    l_default,
    l_lru,
    l_log,
    l_weak,
    l_gen,
    l_tb,
    l_ctx,
    l_sub,
    l_atexit,
    l_partial,
    l_c,
    l_deque,
]


@pytest.mark.limit_leaks("10 kB", repeat=5)
@pytest.mark.parametrize("size", [20_000, 50_000, 100_000, 300_000, 1_000_000])
@pytest.mark.parametrize("kind", LEAKS, ids=lambda f: f.__name__)
def test_leaks(kind, size):
    kind(size)


def c_re(n):
    for i in range(n):
        re.match("a%d+b" % i, "x")


@functools.lru_cache(maxsize=64)
def small(i):
    return bytearray(2000)


def c_lru(n):
    for i in range(n * 20):
        small(i)


def c_linecache(n):
    for f in list(sys.modules.values())[: n * 3]:
        if str(getattr(f, "__file__", None)).endswith(".py"):
            linecache.getlines(f.__file__)


def c_logging(n):
    for i in range(n):
        logging.getLogger("fixed%d" % i).debug("x")


def c_struct(n):
    for i in range(n):
        struct.pack("%di" % i, *range(i))


def c_strptime(n):
    for i in range(n):
        datetime.datetime.strptime("2020-01-%02d" % (i % 28 + 1), "%Y-%m-%d")


def c_json(n):
    json.loads(json.dumps([{"a": i} for i in range(n * 50)]))


ring = collections.deque(maxlen=50)


def c_ring(n):
    for i in range(n * 10):
        ring.append(bytearray(3000))


F = {}


def c_fixed(n):
    for i in range(n):
        F.setdefault(i, bytearray(5000))


def c_import(n):
    for m in [
        "xml.dom.minidom",
        "email.mime.text",
        "http.client",
        "sqlite3",
        "csv",
        "fractions",
        "statistics",
        "difflib",
        "pprint",
        "zipfile",
    ][:n]:
        importlib.import_module(m)


def c_typing(n):
    for i in range(n):
        typing.Dict[str, typing.List[int]]


def c_enum(n):
    E = enum.Enum("E", {("m%d" % i): i for i in range(n)})
    del E
    gc.collect()


def c_decimal(n):
    for i in range(n):
        decimal.Decimal(i) / 7


def c_threads(n):
    ts = [threading.Thread(target=lambda: bytearray(10000)) for _ in range(n)]
    [t.start() for t in ts]
    [t.join() for t in ts]


def c_async(n):
    async def w():
        await asyncio.sleep(0)
        return bytearray(10000)

    async def m():
        await asyncio.gather(*[w() for _ in range(n)])

    asyncio.run(m())


def c_file(n):
    for _ in range(n):
        with tempfile.TemporaryFile() as f:
            f.write(b"x" * 10000)


def c_cycle(n):
    for i in range(n * 5):
        x = Node()
        x.me = x
        x.p = bytearray(5000)


def c_intern(n):
    for i in range(n):
        sys.intern("name%d" % i)


def c_exc(n):
    for i in range(n):
        try:
            int("x")
        except ValueError as e:
            str(e)


def c_sort(n):
    sorted([random.random() for _ in range(n * 500)])


CACHES = [
    c_re,
    c_lru,
    c_linecache,
    c_logging,
    c_struct,
    c_strptime,
    c_json,
    c_ring,
    c_fixed,
    c_import,
    c_typing,
    c_enum,
    c_decimal,
    c_threads,
    c_async,
    c_file,
    c_cycle,
    c_intern,
    c_exc,
    c_sort,
]


@pytest.mark.limit_leaks("10 kB", repeat=5)
@pytest.mark.parametrize("n", [3, 5, 8, 20, 40])
@pytest.mark.parametrize("kind", CACHES, ids=lambda f: f.__name__)
def test_caches(kind, n):
    kind(n)
