"""`memtrack objects PID --why`: what a program has in its modules is called by that, whatever its functions do meanwhile."""

import contextlib
import subprocess

import pytest

from conftest import OBJECT_VERSIONS, flat, interpreter_path, until_it_waits
from test_objects import objects


@contextlib.contextmanager
def waiting(directory, version, text):
    """A script that prints a line and waits: its process, and the line."""
    script = directory / "app.py"
    script.write_text(text)
    with subprocess.Popen(
        flat([interpreter_path(version), script]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        line = process.stdout.readline().strip()
        until_it_waits(process.pid)
        yield process, line
        process.stdin.write("\n")


def held(executable, directory, version, text, names):
    """Who holds the objects of each of these types of a script that waits: how many by path, and by what C code holds."""
    with waiting(directory, version, text) as (process, line):
        assert line == "ready"
        found = {}
        for name in names:
            rows = objects(executable, process, "--why", f"__main__.{name}")["why"]
            found[name] = {(row["pattern"], row["held_by"]): row["count"] for row in rows}
    return found


PACKAGE = {
    "__init__.py": "",
    "cache.py": "class Item: pass\nITEMS = {number: Item() for number in range(20)}\ndef use(callback): callback()\n",
    "cli.py": """
import sys
from shop import cache
class Basket: pass
class InCall: pass
BASKETS = [Basket() for number in range(30)]
def serve(callback, baskets, items):
    request = InCall()
    print("ready", flush=True)
    sys.stdin.readline()
def work():
    # Functions of both modules, and what these have, are variables of a frame.
    used, own = cache.use, serve
    serve(cache.use, BASKETS, cache.ITEMS)
work()
""",
}


@pytest.mark.parametrize("version", OBJECT_VERSIONS)
@pytest.mark.parametrize("how", ["module", "script"])
def test_what_a_module_has_is_called_by_it(executable, tmp_path, version, how):
    package = tmp_path / "shop"
    package.mkdir()
    for name, text in PACKAGE.items():
        (package / name).write_text(text)
    if how == "script":
        (tmp_path / "app.py").write_text("import shop.cli\n")
    command = flat([interpreter_path(version), *(["-m", "shop.cli"] if how == "module" else ["app.py"])])
    with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        until_it_waits(process.pid)
        found = {}
        for name in ("Basket", "Item", "InCall"):
            found[name] = {row["pattern"]: row["count"] for row in objects(executable, process, "--why", name)["why"]}
        process.stdin.write("\n")
    module = "__main__" if how == "module" else "shop.cli"
    assert found["Basket"] == {f"{module}.BASKETS[…]": 30}
    assert found["Item"] == {"shop.cache.ITEMS[…]": 20}
    assert found["InCall"] == {"<frame of serve in cli.py>.request": 1}


TASKS = """
import asyncio, contextvars, sys
class User: pass
class Other: pass
class Result: pass
class Failed(Exception): pass
USER = contextvars.ContextVar("request_user")
OTHER = contextvars.ContextVar("other")
MANY = [contextvars.ContextVar("number %d" % number) for number in range(40)]
PENDING, DONE = [], []
async def wait(): await asyncio.Event().wait()
async def handle(number):
    USER.set(User())
    OTHER.set(Other())
    # With few variables the tree has one part.
    for one in MANY if number % 2 else []: one.set(number)
    PENDING.append(asyncio.ensure_future(wait()))
async def give(): return Result()
async def fail(): raise Failed()
async def main():
    for number in range(10): await asyncio.ensure_future(handle(number))
    for number in range(6): DONE.append(asyncio.ensure_future(give()))
    for number in range(3): DONE.append(asyncio.ensure_future(fail()))
    await asyncio.sleep(0.01)
    print("ready", flush=True)
    sys.stdin.readline()
asyncio.run(main())
"""


@pytest.mark.parametrize("version", OBJECT_VERSIONS)
def test_what_tasks_have_is_called_by_its_variable(executable, tmp_path, version):
    assert held(executable, tmp_path, version, TASKS, ("User", "Other", "Result", "Failed")) == {
        "User": {("__main__.PENDING[…].<context>[request_user]", None): 10},
        "Other": {("__main__.PENDING[…].<context>[other]", None): 10},
        "Result": {("__main__.DONE[…].<result>", None): 6},
        "Failed": {("__main__.DONE[…].<exception>", None): 3},
    }


# Objects lie where tuples and lists with pointers to another object were. C code of these does not set all of their memory: frames up
# to 3.10 not the stack of their `try` blocks, a date without a time zone not even has room for that, and so on.
LEFT_OVER = """
import ctypes, datetime, operator, re, sys, threading, zlib
def wait(number): yield number
def waiting(number):
    made = wait(number)
    next(made)
    return made
MAKE = {
    "generator": waiting,
    "match": lambda number: re.match("(a)(b)?", "ab"),
    "date": lambda number: datetime.datetime(2020, 1, 1 + number % 28),
    "time": lambda number: datetime.time(number % 24),
    "argument": lambda number: ctypes.byref(ctypes.c_int(number)),
    "compressor": lambda number: zlib.compressobj() if number < 20 else None,
    "decompressor": lambda number: zlib.decompressobj() if number < 20 else None,
    "lock": lambda number: threading.Lock(),
    "caller": lambda number: operator.methodcaller("name", number),
}
HOLDER = {"a": {"b": {"c": {}}}}
def leave_pointers(target):
    filled = [(target,) * slots for slots in range(1, 62) for number in range(100)]
    filled += [[target] * slots for slots in range(1, 64) for number in range(60)]
    del filled[::2]
    return filled[::50]
for kind, make in MAKE.items():
    target = type("Target_" + kind, (), {})()
    HOLDER["a"]["b"]["c"][kind] = {"target": target}
    made = globals()["MADE_" + kind] = [None] * 300
    some = leave_pointers(target)
    for number in range(300): made[number] = make(number)
    del some, target
print("ready", flush=True)
sys.stdin.readline()
"""
KINDS = ("generator", "match", "date", "time", "argument", "compressor", "decompressor", "lock", "caller")


@pytest.mark.parametrize("version", OBJECT_VERSIONS)
def test_what_was_in_an_objects_memory_before_is_no_reference(executable, tmp_path, version):
    names = [f"Target_{kind}" for kind in KINDS]
    found = held(executable, tmp_path, version, LEFT_OVER, names)
    assert found == {name: {("__main__.HOLDER[…][…]…[…]", None): 1} for name in names}


# The name of a class is characters, with what was in memory before behind them: here the address of a type.
NAMES_OF_CLASSES = """
import gc, struct, sys
# Where the characters of a short name are, and the word after them.
before = 0 if sys.version_info < (3, 12) else id(set)
filled = [struct.pack("QQQQ", 0, 0, before, id(set))[:31] for number in range(3000)]
del filled[::2]
CLASSES = [type("c%d" % number, (), {}) for number in range(900)]
del filled
print(sum(type(one) is set for one in gc.get_objects()), flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("version", OBJECT_VERSIONS)
def test_what_is_behind_the_name_of_a_class_is_no_object(executable, tmp_path, version):
    with waiting(tmp_path, version, NAMES_OF_CLASSES) as (process, count):
        found = objects(executable, process)
    assert found["unreadable"] == 0
    assert {of["type"]: of["count"] for of in found["types"]}["builtins.set"] == int(count)


# A function that has ended keeps an exception, whose frame has the functions that called it.
CALLERS = """
import gc, sys
gc.disable()
class Request: pass
class Ring: pass
ERRORS = []
def validate():
    try: raise ValueError
    except ValueError as error: ERRORS.append(error)
def handle():
    request = Request()
    validate()
def forget():
    # The exception is a variable of the frame that it has.
    ring = Ring()
    try: raise ValueError
    except ValueError as error: kept = error
for number in range(20):
    handle()
    forget()
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("version", OBJECT_VERSIONS)
def test_what_callers_of_a_kept_exceptions_frame_hold_is_called_by_it(executable, tmp_path, version):
    found = held(executable, tmp_path, version, CALLERS, ("Request", "Ring"))
    assert found["Request"] == {("__main__.ERRORS[…].__traceback__.tb_frame.f_back.request", None): 20}
    assert {held_by for _, held_by in found["Ring"]} == {None}
    assert all("in a ring that only holds itself" in pattern for pattern, _ in found["Ring"])
