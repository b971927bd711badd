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
