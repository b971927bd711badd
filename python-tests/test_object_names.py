"""`memtrack objects PID --why`: what a program has in its modules is called by that, whatever its functions do meanwhile."""

import subprocess

import pytest

from conftest import OBJECT_VERSIONS, flat, interpreter_path, until_it_waits
from test_objects import objects

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
    script = tmp_path / "app.py"
    script.write_text(TASKS)
    with subprocess.Popen(
        flat([interpreter_path(version), script]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        until_it_waits(process.pid)
        found = {}
        for name in ("__main__.User", "__main__.Other", "__main__.Result", "__main__.Failed"):
            found[name] = {row["pattern"]: row["count"] for row in objects(executable, process, "--why", name)["why"]}
        process.stdin.write("\n")
    assert found == {
        "__main__.User": {"__main__.PENDING[…].<context>[request_user]": 10},
        "__main__.Other": {"__main__.PENDING[…].<context>[other]": 10},
        "__main__.Result": {"__main__.DONE[…].<result>": 6},
        "__main__.Failed": {"__main__.DONE[…].<exception>": 3},
    }


# Frames lie where tuples with pointers to the object were, and up to 3.10 do not clear the stack of their `try` blocks.
LEFT_OVER = """
import sys
class Target: pass
HOLDER = {"a": {"b": {"c": [Target()]}}}
def pointers():
    target = HOLDER["a"]["b"]["c"][0]
    return [(target,) * slots for slots in range(40, 56) for number in range(300)]
def wait(number): yield number
FILLED = pointers()
del FILLED
WAITING = [wait(number) for number in range(500)]
for waiting in WAITING: next(waiting)
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("version", OBJECT_VERSIONS)
def test_what_was_in_a_frames_memory_before_is_no_reference(executable, tmp_path, version):
    script = tmp_path / "app.py"
    script.write_text(LEFT_OVER)
    with subprocess.Popen(
        flat([interpreter_path(version), script]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        until_it_waits(process.pid)
        rows = objects(executable, process, "--why", "__main__.Target")["why"]
        process.stdin.write("\n")
    assert {row["pattern"]: row["count"] for row in rows} == {"__main__.HOLDER[…][…][…][…]": 1}
