"""Whose code it is where no directory says so: installed applications, frozen programs, text, and threads without Python."""

import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from conftest import interpreter_path

MB = 1_000_000

# As pip writes it.
SCRIPT = """#!{python}
# -*- coding: utf-8 -*-
import re
import sys
from {module} import main
if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script\\.pyw|\\.exe)?$', '', sys.argv[0])
    sys.exit(main())
"""
LOAD = f"""import json
held = []
def load():
    held.append(json.loads('["' + "y" * {6 * MB} + '"]'))
"""


@pytest.fixture
def environment(tmp_path):
    """A virtual environment with an application and a server, as installed; its working directory is empty."""
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    for package in ("shop", "server"):
        (site / package).mkdir()
        (site / package / "__init__.py").write_text("")
    (site / "shop" / "stock.py").write_text(LOAD)
    run = "from shop.stock import load\ndef main():\n    load()\n    import os; os._exit(0)\n"
    (site / "shop" / "cli.py").write_text(run)
    (site / "shop" / "__main__.py").write_text(f"{run}main()\n")
    serve = "import importlib, sys\nsys.path.insert(0, '')\ndef main():\n    importlib.import_module(sys.argv[1].split(':')[0]).main()\n"
    (site / "server" / "run.py").write_text(serve)
    for name, module in (("shop", "shop.cli"), ("server", "server.run")):
        script = folder / "bin" / name
        script.write_text(SCRIPT.format(python=folder / "bin" / "python", module=module))
        script.chmod(0o755)
    return folder


@pytest.mark.parametrize("start", [("shop",), ("python", "-m", "shop"), ("server", "shop.cli:main")], ids=" ".join)
def test_an_installed_application_is_own_code(memtrack, environment, start):
    capture = memtrack.record(environment / "bin" / start[0], *start[1:])
    table = capture.reading("table", "--leaks", "--own", capture.path)
    assert re.search(r"^  6\.\d+ MB .*load at shop/stock\.py:4, via JSONDecoder\.raw_decode at json", table, re.MULTILINE), table
    stats = capture.reading("stats", capture.path)
    assert re.search(r"^Own code +that of the installed package shop, which the command line starts", stats, re.MULTILINE), stats
    explained = capture.reading("explain", capture.path)
    assert "load at shop/stock.py:4" in explained.splitlines()[0], explained


WORKERS = f"""import json, multiprocessing
held = []
def load(): held.append(json.loads('["' + "y" * {6 * MB} + '"]'))
def hold(): held.append(bytearray({12 * MB}))
def work(kind):
    load() if kind == "json" else hold()
    return len(held)
def main():
    import vendor
    with multiprocessing.get_context("spawn").Pool(1, vendor.fill) as pool:
        assert pool.map(work, ["json", "own"], chunksize=2) == [1, 2]
        pool.close()
        pool.join()
if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("version", ["3.8", "3.12"])
@pytest.mark.parametrize("installed", [False, True], ids=["script", "installed"])
def test_what_starts_a_worker_is_not_own_code(memtrack, tmp_path, version, installed):
    """The text that multiprocessing gives to the interpreter of a worker has no caller in Python."""
    python, folder = interpreter_path(version), tmp_path / "env"
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    (site / "vendor.py").write_text(f"import json\nheld = []\ndef fill(): held.append(json.loads('[\"' + 'z' * {8 * MB} + '\"]'))\n")
    if installed:
        (site / "shop").mkdir()
        (site / "shop" / "__init__.py").write_text("")
        (site / "shop" / "work.py").write_text(WORKERS)
        start = folder / "bin" / "shop"
        start.write_text(SCRIPT.format(python=folder / "bin" / "python", module="shop.work"))
    else:
        start = memtrack.directory / "work.py"
        start.write_text(WORKERS)
    capture = memtrack.record(folder / "bin" / "python", start, options=("--follow",))
    captures = sorted(path for path in capture.path.parent.glob("*.bin") if path != capture.path)
    together = [capture.path, *captures]
    own = capture.reading("table", "--own", *together)
    assert "<string>" not in own and "vendor" not in own, own
    place = "shop/work.py" if installed else "work.py"
    assert re.search(rf"^  6\.\d+ MB .*load at {place}:3, via ", own, re.MULTILINE), own
    assert re.search(rf"^  12\.\d+ MB .*hold at {place}:4$", own, re.MULTILINE), own
    stats = capture.reading("stats", *together)
    assert ("that of the installed package shop" in stats) == installed, stats


def test_code_in_the_working_directory_comes_before_the_package_that_is_started(memtrack, environment):
    (memtrack.directory / "wsgi.py").write_text(f"{LOAD}def main():\n    load()\n    import os; os._exit(0)\n")
    capture = memtrack.record(environment / "bin" / "server", "wsgi:main")
    table = capture.reading("table", "--leaks", "--own", capture.path)
    assert "load at wsgi.py:4" in table and "server" not in table, table
    assert "Own code" not in capture.reading("stats", capture.path)


SUBINTERPRETER = f"""
try:
    import _interpreters
except ImportError:
    import _xxsubinterpreters as _interpreters
code = '''
held = []
def inner():
    held.append(bytes({6 * MB}))
inner()
import os; os._exit(0)
'''
_interpreters.run_string(_interpreters.create(), code)
"""


@pytest.mark.skipif(sys.version_info < (3, 9), reason="stacks of subinterpreters")
def test_text_that_a_subinterpreter_executes_is_own_code(memtrack, tmp_path):
    script = tmp_path / "sub.py"
    script.write_text(SUBINTERPRETER)
    capture = memtrack.record(sys.executable, script)
    table = capture.reading("table", "--own", capture.path)
    assert re.search(r"^  6\.00 MB .*inner at <string>:4$", table, re.MULTILINE), table


THREAD = """
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
static void *kept;
static void *work(void *unused) { kept = calloc(1, 30000000); return unused; }
void fill(void) {
  pthread_t thread;
  pthread_create(&thread, 0, work, 0);
  pthread_setname_np(thread, "pool-of-lib");
  pthread_join(thread, 0);
}
"""


def test_memory_of_threads_without_python_is_not_put_down_to_the_interpreter(memtrack, tmp_path):
    (tmp_path / "lib.c").write_text(THREAD)
    subprocess.run(["cc", "-g", "-shared", "-fPIC", "-o", tmp_path / "lib.so", tmp_path / "lib.c", "-lpthread"], check=True)
    code = f"import ctypes; ctypes.CDLL({str(tmp_path / 'lib.so')!r}).fill()"
    capture = memtrack.record(sys.executable, "-c", code)
    stats = capture.reading("stats", capture.path)
    row = r"^ +30\.0 MB +\d\d\.\d %  threads without Python code; --native shows whose.*$"
    assert len(re.findall(row, stats, re.MULTILINE)) == 2, stats
    explained = capture.reading("explain", capture.path)
    assert re.search(r"^1\. 30\.0 MB of threads without Python code", explained, re.MULTILINE), explained
    assert f"memtrack run --native {sys.executable} -c " in explained, explained
    native = memtrack.record(sys.executable, "-c", code, options=("--native",))
    assert "threads without Python code" not in native.reading("stats", native.path)


FROZEN = f"""
held = []
def of_archive(name, source):
    names = {{}}
    exec(compile(source, name, "exec"), names)
    return names
decode = of_archive("json/decoder.py", "def decode(size):\\n    return bytearray(size)\\n")["decode"]
app = of_archive("app.py", "def load(held, decode):\\n    held.append(decode({6 * MB}))\\n")
app["load"](held, decode)
import os; os._exit(0)
"""


def test_of_a_frozen_program_the_standard_library_and_the_interpreter_are_not_own(memtrack, tmp_path):
    """An interpreter of another name is to memtrack what PyInstaller's and Nuitka's executables are: files without directories."""
    base = pathlib.Path(sys.base_prefix)
    executable = memtrack.directory / "program"
    shutil.copy(base / "bin" / f"python3.{sys.version_info.minor}", executable)
    (tmp_path / "start").write_text(FROZEN)
    variables = [f"PYTHONHOME={base}", f"LD_LIBRARY_PATH={base / 'lib'}", f"_PYI_ARCHIVE_FILE={executable}"]
    capture = memtrack.record("env", *variables, executable, tmp_path / "start", options=("--native",))
    own = capture.reading("table", "--own", capture.path)
    first = own.splitlines()[2]
    assert re.search(r"6\.00 MB .*load at app\.py:2, via ", first), own
    assert not re.search(r"  (decode|program\+\S+|_?Py\w+) at ", own), own
