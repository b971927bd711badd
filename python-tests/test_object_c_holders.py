"""`memtrack objects --why`: where pointers lie to what C code holds, of an extension module that the test compiles."""

import json
import re
import subprocess

import pytest

from conftest import PATIENCE, PROGRAMS, VERSIONS, compile_extension, interpreter_path

SOURCE = PROGRAMS / "holding.c"
GROW_LINE = 1 + next(number for number, line in enumerate(SOURCE.read_text().splitlines()) if "@grow" in line)
APP = """
import sys
class Static: pass
class Row: pass
class Forgotten: pass
class Held: pass
class InArray: pass
class InFunction: pass
def clear(depth=40):
    # What is left of calls on the stack is no pointer of anybody.
    return depth and clear(depth - 1) + len(str(depth))
def fill():
    import holding
    holding.keep_static([Static()])
    holding.keep_in_array(InArray())
    holding.keep_in_function(InFunction())
    for number in range(3): holding.keep_in_table({"row": Row()})
    for number in range(5): holding.forget(Forgotten())
    return holding.hold
def wait():
    print("ready", flush=True)
    sys.stdin.readline()
hold = fill()
clear()
hold(Held, wait)
"""
FILL_LINE = 1 + next(number for number, line in enumerate(APP.splitlines()) if "keep_in_table" in line)
FORGOTTEN = "no pointer to it was found in static variables, blocks of malloc and C stacks: a forgotten Py_DECREF, or memory that C code maps itself"


@pytest.fixture(params=VERSIONS)
def program(request, tmp_path):
    """A command line, and the name of the extension module."""
    interpreter = interpreter_path(request.param)
    built = compile_extension(interpreter, SOURCE, tmp_path)
    script = tmp_path / "app.py"
    script.write_text(APP)
    return [str(interpreter), str(script)], built.name


def why(executable, target, wanted):
    """The objects of a type by their paths and by what is told of the C code that holds them."""
    command = [str(executable), "objects", str(target), "--json", "--why", wanted]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout)["why"]
    return {(path["pattern"], path["held_by"]): path["count"] for path in found}


def waits(command, **options):
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)
    assert process.stdout.readline() == "ready\n"
    return process


def test_of_a_running_program(executable, program):
    command, module = program
    with waits(command) as process:
        held = {wanted: why(executable, process.pid, wanted) for wanted in ("Static", "InArray", "InFunction", "Forgotten")}
        rows, stack = why(executable, process.pid, "Row"), why(executable, process.pid, "Held")
        text = subprocess.run([str(executable), "objects", str(process.pid), "--why", "Forgotten"], capture_output=True, text=True).stdout
        process.stdin.write("\n")
    in_variable = "a pointer to it lies in static variable {} of " + module
    assert held == {
        "Static": {("<list that C code holds>[…]", in_variable.format("kept")): 1},
        "InArray": {("<__main__.InArray that C code holds>", in_variable.format("several+0x10")): 1},
        "InFunction": {("<__main__.InFunction that C code holds>", in_variable.format("hidden")): 1},
        "Forgotten": {("<__main__.Forgotten that C code holds>", FORGOTTEN): 5},
    }
    ((path, held_by),) = rows
    assert rows[path, held_by] == 3 and path == "<dict that C code holds>[…]"
    assert re.fullmatch(r"a pointer to it lies in a block of 8\d\d B that is no object", held_by)
    ((path, held_by),) = stack
    assert path == "<__main__.Held that C code holds>" and held_by.startswith("a pointer to it lies in the C stack of thread python")
    assert FORGOTTEN in text and text.count("that C code holds>") == 1


@pytest.mark.parametrize("native", [True, False], ids=["native", "python"])
def test_of_a_capture(executable, program, native, tmp_path):
    """A recording knows who allocated the block."""
    command, module = program
    capture = tmp_path / "app.memtrack"
    options = ["--objects-at", "end", "-o", str(capture), *(["--native"] if native else [])]
    with waits([str(executable), "run", *options, *command], stderr=subprocess.DEVNULL) as process:
        process.stdin.write("\n")
    assert process.returncode == 0
    assert why(executable, capture, "Static") == {
        ("<list that C code holds>[…]", f"a pointer to it lies in static variable kept of {module}"): 1
    }
    place = f"grow_table at holding.c:{GROW_LINE}" if native else f"fill at app.py:{FILL_LINE}"
    assert why(executable, capture, "Row") == {
        ("<dict that C code holds>[…]", f"a pointer to it lies in a block of 800 B that {place} allocated"): 3
    }
    assert why(executable, capture, "Forgotten") == {("<__main__.Forgotten that C code holds>", FORGOTTEN): 5}


def test_a_module_without_symbols(executable, tmp_path):
    """The place is told, and no name."""
    interpreter = interpreter_path("3.11")
    built = compile_extension(interpreter, SOURCE, tmp_path, "-s")
    (tmp_path / "app.py").write_text(APP)
    with waits([str(interpreter), str(tmp_path / "app.py")]) as process:
        held = why(executable, process.pid, "Static")
        # Another file under its name is not believed.
        compile_extension(interpreter, SOURCE, tmp_path, "-Wl,--build-id=0x1234")
        of_other = why(executable, process.pid, "Static")
        process.stdin.write("\n")
    expected = {("<list that C code holds>[…]", f"a pointer to it lies in static data of {built.name}"): 1}
    assert (held, of_other) == (expected, expected)


MODULES = """
import atexit, operator, struct, sys
class Registered: pass
def make(held): return lambda: held
atexit.register(make(Registered()))
for number in range(1, 40): struct.pack(f"{number}B", *range(number))
# From 3.13 on they have the names of arguments once they were called.
CALLERS = [operator.methodcaller("format", name=number) for number in range(200)]
for caller in CALLERS: caller("{name}")
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_what_modules_of_the_standard_library_hold(executable, tmp_path, version):
    script = tmp_path / "app.py"
    script.write_text(MODULES)
    with waits([str(interpreter_path(version)), str(script)]) as process:
        formats = why(executable, process.pid, "Struct")
        registered = why(executable, process.pid, "__main__.Registered")
        tuples = why(executable, process.pid, "tuple")
        process.stdin.write("\n")
    minor = int(version.split(".")[1].rstrip("t"))
    if 9 < minor < 15:
        by_c = {held_by for path, held_by in formats if path == "<dict that C code holds>[…]"}
        assert by_c == {"a pointer to it lies in the state of module _struct"}
    assert sum(count for (_, held_by), count in tuples.items() if held_by == FORGOTTEN) < 100
    # Not the table of functions by their versions that the interpreter has since 3.13: it does not hold them.
    assert not any("_PyRuntime" in (held_by or "") for _, held_by in registered)
