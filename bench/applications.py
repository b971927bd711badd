"""Real programs, on fixed work: Python applications, and programs in C and C++."""

import os
import pathlib
import shutil
import subprocess
import time

from .loads import DEFAULT, NATIVE, OBJECTS, PROGRAMS, TIMESTAMPS, Command, Load, Missing, processor_of_children

PYTHON = "Python applications"
COMPILED = "Programs in C and C++"
MODES = (DEFAULT, (NATIVE,), (OBJECTS,))
ALL_MODES = (*MODES, (OBJECTS, NATIVE), (OBJECTS, TIMESTAMPS))

TEST_FILE = '''
import pytest


class Basket:
    def __init__(self):
        self.items = {}

    def add(self, name, price):
        self.items.setdefault(name, []).append(price)

    def total(self):
        return sum(map(sum, self.items.values()))


@pytest.fixture
def basket(tmp_path, request):
    made = Basket()
    (tmp_path / "name").write_text(request.node.name)
    yield made
    assert made.total() >= 0


@pytest.mark.parametrize("count", range(40))
@pytest.mark.parametrize("price", [1, 2.5, 10])
def test_total(basket, count, price):
    for number in range(count):
        basket.add(f"thing {number % 7}", price)
    assert basket.total() == count * price


@pytest.mark.parametrize("name", ["a", "b", "c", "d"] * 10)
def test_message(basket, name, capsys):
    basket.add(name, 1)
    print(basket.items)
    assert name in capsys.readouterr().out
'''
PAGE = '''
Chapter {number}
================

Words about :mod:`{module}`, *emphasis*, ``code`` and a `link <https://example.org/{number}>`_.

.. automodule:: {module}
   :members:

==== ====
A    B
==== ====
1    2
3    4
==== ====

.. code-block:: python

   def function(argument):
       return [argument * {number} for _ in range(10)]
'''
MODULES = "json argparse textwrap string".split()


def loads():
    yield Load(PYTHON, "Django", ALL_MODES, lambda shop: shop.script("django_app.py", 40, needs=["django"]))
    yield Load(PYTHON, "SQLAlchemy", MODES, lambda shop: shop.script("sqlalchemy_app.py", 4, needs=["sqlalchemy"]))
    yield Load(PYTHON, "sqlglot", ALL_MODES, lambda shop: shop.script("sqlglot_app.py", 20, needs=["sqlglot"]))
    yield Load(PYTHON, "pandas group-bys", MODES, lambda shop: shop.script("pandas_app.py", 4, needs=["pandas"]))
    yield Load(PYTHON, "black", MODES, black)
    yield Load(PYTHON, "mypy", MODES, mypy)
    yield Load(PYTHON, "Sphinx", ALL_MODES, sphinx)
    yield Load(PYTHON, "pytest", MODES, pytest)
    modes = (DEFAULT, (NATIVE,))
    yield Load(COMPILED, "redis-server", modes, redis)
    yield Load(COMPILED, "sqlite3", (*modes, (TIMESTAMPS,)), sqlite)
    yield Load(COMPILED, "cc1plus", modes, cc1plus)
    yield Load(COMPILED, "perl", modes, lambda shop: Command([shop.tool("perl"), str(PROGRAMS / "text.pl"), "300"]))
    yield Load(COMPILED, "node", modes, lambda shop: Command([shop.tool("node"), str(PROGRAMS / "requests.js"), "2000"]))


def black(shop):
    """Formats a module of SQLAlchemy."""
    command = shop.python_command([], needs=["black", "sqlalchemy"])
    source = shop.file("formatted.py", (of_package(shop, "sqlalchemy") / "orm" / "path_registry.py").read_text())
    return Command([*command.words, "-m", "black", "-q", "--fast", "--diff", str(source)], is_python=True)


def mypy(shop):
    """Checks click, from a copy, since mypy treats what is installed as others' code; without its cache."""
    command = shop.python_command([], needs=["mypy", "click"])
    package = shop.directory / "checked" / "click"
    if not package.exists():
        shutil.copytree(of_package(shop, "click"), package)
    words = ["-m", "mypy", "--no-error-summary", "--follow-imports=skip", f"--cache-dir={os.devnull}", str(package / "parser.py")]
    return Command([*command.words, *words], is_python=True)


def of_package(shop, package):
    """The directory of an installed package."""
    where = f"import {package}; print({package}.__path__[0])"
    told = subprocess.run([shop.python, "-c", where], check=True, capture_output=True, text=True)
    return pathlib.Path(told.stdout.strip())


def sphinx(shop):
    command = shop.python_command([], needs=["sphinx"])
    source = shop.directory / "documents"
    shop.file("documents/conf.py", "extensions = ['sphinx.ext.autodoc', 'sphinx.ext.napoleon']\nproject = 'bench'\n")
    pages = []
    for number, module in enumerate(MODULES):
        pages.append(f"   page{number}")
        shop.file(f"documents/page{number}.rst", PAGE.format(number=number, module=module))
    shop.file("documents/index.rst", "Index\n=====\n\n.. toctree::\n\n" + "\n".join(pages) + "\n")
    words = ["-m", "sphinx", "-q", "-E", "-a", "-b", "html", str(source), str(shop.directory / "html")]
    return Command([*command.words, *words], is_python=True)


def pytest(shop):
    command = shop.python_command([], needs=["pytest"])
    tests = shop.file("tests/test_basket.py", TEST_FILE)
    return Command([*command.words, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)], is_python=True)


def redis(shop):
    server, benchmark = shop.tool("redis-server"), shop.tool("redis-benchmark")
    socket = shop.directory / "redis.sock"

    def client(process):
        """redis's own benchmark, whose processor seconds it returns."""
        while not socket.exists() and process.poll() is None:
            time.sleep(0.005)
        before = processor_of_children()
        run = [benchmark, "-q", "-s", str(socket), "-n", "40000", "-r", "20000", "-d", "200", "-P", "8"]
        subprocess.run([*run, "-t", "set,get,lpush,lpop,sadd,hset,zadd"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        seconds = processor_of_children() - before
        subprocess.run([shop.tool("redis-cli"), "-s", str(socket), "shutdown", "nosave"], capture_output=True)
        return seconds

    words = [server, "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(shop.directory)]
    return Command(words, client=client)


def sqlite(shop):
    return Command([shop.tool("sqlite3"), ":memory:", f".read {PROGRAMS / 'shop.sql'}"])


def cc1plus(shop):
    """gcc's compiler proper, on a C++ program that is already preprocessed."""
    compiler = shop.tool("g++")
    told = subprocess.run([compiler, "-print-prog-name=cc1plus"], check=True, capture_output=True, text=True)
    proper = shutil.which(told.stdout.strip())
    if not proper:
        raise Missing("gcc has no cc1plus")
    source = shop.directory / "containers.ii"
    subprocess.run([compiler, "-E", "-o", str(source), str(PROGRAMS / "containers.cc")], check=True)
    return Command([proper, "-quiet", "-fpreprocessed", "-O0", str(source), "-o", os.devnull])
