"""Own code of a program that an installed package starts, where the code lies elsewhere than in the working directory."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
from conftest import with_names
from test_attach import Attached

MB = 1_000_000

# As pip writes it.
SCRIPT = """#!{python}
import sys
from server.run import main
if __name__ == '__main__':
    sys.exit(main())
"""
# A server that imports what it is told of: by a directory, by a file, by a variable, or from sys.path.
SERVER = """import importlib.util, os, sys
def load(path):
    spec = importlib.util.spec_from_file_location("loaded", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
def main():
    target = sys.argv[-1].split(":")[0]
    if "--app-dir" in sys.argv:
        sys.path.insert(0, sys.argv[sys.argv.index("--app-dir") + 1])
    target = os.environ.get("SERVER_APP", target)
    module = load(target) if target.endswith(".py") else importlib.import_module(target)
    held = bytearray(3_000_000)
    module.fill()
    print("served", flush=True)
    if "--stay" in sys.argv:
        sys.stdin.read()
        module.fill()
    os._exit(0)
"""
MAIN = f"""import json
held = []
def fill():
    held.append(json.loads('["' + "y" * {6 * MB} + '"]'))
"""
FILLED = re.compile(r"^ +6\.\d+ MB .*fill at (\S*/)?main\.py:4, via JSONDecoder\.raw_decode at json", re.MULTILINE)


@pytest.fixture
def environment(tmp_path):
    """A virtual environment with a server, an application beside the working directory, and one that is installed."""
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    for package in ("server", "shop"):
        (site / package).mkdir()
        (site / package / "__init__.py").write_text("")
    (site / "server" / "run.py").write_text(SERVER)
    (site / "server" / "__main__.py").write_text("from server.run import main\nmain()\n")
    (site / "shop" / "main.py").write_text(MAIN)
    script = folder / "bin" / "server"
    script.write_text(SCRIPT.format(python=folder / "bin" / "python"))
    (tmp_path / "app").mkdir()
    (tmp_path / "work").mkdir()
    (tmp_path / "app" / "main.py").write_text(MAIN)
    return folder


def told(memtrack, environment, start, **variables):
    """The table of own code and `stats` of a recorded start in a directory without code."""
    start = [word.format(base=environment.parent) for word in start]
    command = [environment / "bin" / "python", *([environment / "bin" / "server"] if start[0] != "-m" else []), *start]
    capture = memtrack.record(*command, cwd=environment.parent / "work", env={**os.environ, **variables})
    return capture.reading("table", "--leaks", "--own", capture.path), capture.reading("stats", capture.path)


@pytest.mark.parametrize(
    "start",
    [
        ("--app-dir", "{base}/app", "main:app"),
        ("{base}/app/main.py",),
        ("-m", "server", "{base}/app/main.py"),
        ("-m", "server", "--config={base}/app", "{base}/app/main.py"),
    ],
    ids=" ".join,
)
def test_code_that_arguments_lead_to_is_own(memtrack, environment, start):
    table, stats = told(memtrack, environment, start)
    assert FILLED.search(table) and "server" not in table, table
    assert "Own code" not in stats, stats


def test_code_on_the_python_path_is_own(memtrack, environment):
    table, stats = told(memtrack, environment, ("main:app",), PYTHONPATH=str(environment.parent / "app"))
    assert FILLED.search(table) and "server" not in table and "Own code" not in stats, (table, stats)


def test_what_is_installed_on_the_python_path_is_not_own(memtrack, environment):
    """As by `pip install --target`, in a directory of the application's."""
    app = environment.parent / "app"
    (app / "deps" / "vendor-1.dist-info").mkdir(parents=True)
    (app / "deps" / "vendor.py").write_text(f"import json\nheld = bytearray({7 * MB})\ndef fill():\n    return bytearray({5 * MB})\n")
    (app / "main.py").write_text(f"{MAIN}import vendor\nkept = vendor.fill()\n")
    table, _ = told(memtrack, environment, ("main:app",), PYTHONPATH=f"{app}:{app}/deps")
    assert FILLED.search(table) and re.search(r"5\.00 MB .*<module> at main\.py:6, via fill at .*vendor\.py:4", table), table
    assert not re.search(r"7\.00 MB", table), table


@pytest.mark.parametrize("start", [("main:app",), ("--app-dir", "{base}/app", "main:app")], ids=" ".join)
def test_own_code_beside_what_is_installed_is_own(memtrack, environment, start):
    """As `pip install --target .` leaves it beside the application."""
    app = environment.parent / "app"
    (app / "vendor-1.dist-info").mkdir()
    (app / "vendor-1.dist-info" / "RECORD").write_text("vendor.py,,\nvendor-1.dist-info/RECORD,,\n")
    (app / "vendor.py").write_text(f"held = bytearray({7 * MB})\n")
    (app / "main.py").write_text(f"{MAIN}import vendor\n")
    variables = {"PYTHONPATH": str(app)} if len(start) == 1 else {}
    table, _ = told(memtrack, environment, start, **variables)
    assert FILLED.search(table) and "vendor.py" not in table, table


def test_own_code_beside_what_is_installed_is_own_below_the_working_directory(memtrack, environment):
    """As in images of containers and AWS Lambda, where the directory is on PYTHONPATH."""
    app = environment.parent / "app"
    (app / "vendor-1.dist-info").mkdir()
    (app / "vendor-1.dist-info" / "RECORD").write_text("vendor.py,,\n")
    (app / "vendor.py").write_text(f"held = bytearray({7 * MB})\n")
    code = "import main, vendor, os; main.fill(); os._exit(0)"
    command = [environment / "bin" / "python", "-c", code]
    capture = memtrack.record(*command, cwd=environment.parent, env={**os.environ, "PYTHONPATH": str(app)})
    table = capture.reading("table", "--leaks", "--own", capture.path)
    assert FILLED.search(table) and "vendor.py" not in table, table


def test_code_that_a_variable_names_is_own_with_the_server(memtrack, environment):
    variables = {"SERVER_APP": str(environment.parent / "app" / "main.py")}
    table, stats = told(memtrack, environment, ("x:y",), **variables)
    assert FILLED.search(table) and re.search(r"3\.00 MB .*main at server/run\.py", table), table
    expected = "that of the installed package server, which the command line starts, and files in no installation"
    assert re.search(rf"^Own code +{expected}: no other was recorded", stats, re.MULTILINE), stats


def test_an_installed_application_stays_own_code_whatever_sets_it_up(memtrack, environment):
    """Directories without code, and a file with settings, beside an application that is named."""
    base = environment.parent
    (base / "data").mkdir()
    (base / "data" / "set.csv").write_text("1\n")
    start = ("--data", "{base}/data", "--config", "{base}/app/main.py", "--config={base}/venv", "shop.main:app")
    table, stats = told(memtrack, environment, start)
    assert re.search(r"^ +6\.\d+ MB .*fill at shop/main\.py:4", table, re.MULTILINE) and "server" not in table, table
    assert "that of the installed package shop, which the command line starts: no other" in stats, stats


def test_code_that_arguments_lead_to_is_own_where_a_program_is_attached_to(memtrack, environment):
    base = environment.parent
    command = [environment / "bin" / "python", environment / "bin" / "server", "--stay", "--app-dir", base / "app", "main:app"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=base / "work", **pipes) as program:
        assert program.stdout.readline() == b"served\n"
        path = memtrack.directory / "late.bin"
        attached = Attached(memtrack.executable, program.pid, "-o", path)
        program.stdin.close()
        attached.end(by=None)
        assert program.wait() == 0
    table = memtrack("table", "--leaks", "--own", path).stdout.decode()
    assert FILLED.search(table), table


def test_without_native_names_the_end_of_run_has_pythons_lines(memtrack, python, tmp_path):
    """A child that is no Python program, with an executable that is too large to be read in time."""
    large = pathlib.Path(tmp_path, "large.c")
    large.write_text("#include <stdlib.h>\nint main(void) { void *volatile kept = malloc(2000000); return kept == 0; }\n")
    subprocess.run(["cc", "-g", large, "-o", tmp_path / "large"], check=True)
    with open(tmp_path / "large", "ab") as file:
        file.truncate((1 << 30) + 4096)
    script = tmp_path / "main.py"
    script.write_text(f"import subprocess\nheld = bytearray({6 * MB})\nsubprocess.run([{str(tmp_path / 'large')!r}])\nimport os; os._exit(0)\n")
    text = with_names(lambda: memtrack("run", "--follow", "-f", "-o", "all.bin", "--python", python, script))
    assert "not symbolized: resolving symbols of binaries this large" in text, text
    assert len(re.findall(r"^ +6\.00 MB .*<module> at main\.py:2$", text, re.MULTILINE)) == 2, text
    assert re.search(r"^ +2\.0\d MB .*native code, not symbolized here$", text, re.MULTILINE), text
