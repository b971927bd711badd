"""The first rows name the user's own line: what is folded, skipped and left out, and how to see it all the same."""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import zipapp

import pytest

MB = 1_000_000


def rows(text):
    """The rows of a table of text, below its head."""
    lines = text.splitlines()
    head = next(number for number, line in enumerate(lines) if line.split()[:2] == ["Size", "Part"])
    return lines[head + 1 :]


@pytest.fixture
def program(tmp_path):
    """A script, a package with a cache that is filled by its import, and a library in site-packages."""
    library = tmp_path / "lib" / "site-packages" / "vendor"
    for folder in (tmp_path / "shop", library):
        folder.mkdir(parents=True)
    (library / "__init__.py").write_text(f"TABLE = bytearray({8 * MB})\ndef load(size):\n    return bytearray(size)\n")
    (tmp_path / "shop" / "__init__.py").write_text("")
    (tmp_path / "shop" / "cache.py").write_text(
        "import vendor\n"
        f"CACHE = vendor.load({6 * MB})\n"
        "kept = []\n"
        "def remember():\n"
        f"    kept.append((vendor.load({3 * MB}), [None] * 250_000))\n"
    )
    script = tmp_path / "main.py"
    script.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(library.parent)!r})\n"
        "from shop import cache\n"
        "cache.remember()\n"
        "import os\nos._exit(0)\n"
    )
    return script


def test_leaks_name_own_lines_and_leave_out_what_imports_hold(memtrack, python, program):
    capture = memtrack.record(python, "-S", "-X", "utf8", program)
    text = capture.reading("table", "--leaks", capture.path)
    first, second, *_ = rows(text)
    # The calls of one line are one row, and the module that an import executes is own code.
    assert re.search(r"<module> at shop/cache\.py:2, via load at vendor/__init__\.py:3$", first), text
    assert re.search(r"^  5\.00 MB .*remember at shop/cache\.py:5, via load at vendor/__init__\.py:3$", second), text
    assert re.search(r"^8\.\d+ MB allocated during imports not shown; use --with-imports$", text, re.MULTILINE), text
    whole = capture.reading("table", "--leaks", "--with-imports", capture.path)
    assert rows(whole)[0].endswith("import vendor at shop/cache.py:1"), whole
    assert "not shown" not in whole
    recorded = capture.reading("table", "--leaks", "--all-frames", capture.path)
    assert f"load at {program.parent}/lib/site-packages/vendor/__init__.py:3" in recorded, recorded


def test_stats_and_query_name_own_lines_as_table_does(memtrack, python, program):
    capture = memtrack.record(python, "-S", "-X", "utf8", program)
    stats = capture.reading("stats", "--leaks", "-n", 3, capture.path)
    biggest = stats.split("Biggest by size, of what was leaked\n")[1].splitlines()[0]
    assert "<module> at shop/cache.py:2, via load at vendor/__init__.py:3" in biggest, stats
    assert re.search(r"^Lists below +8\.\d+ MB allocated during imports not shown; use --with-imports$", stats, re.MULTILINE)
    recorded = capture.reading("stats", "--leaks", "--all-frames", "--with-imports", "-n", 3, capture.path)
    assert "<module> at " + str(program.parent) in recorded and "not shown" not in recorded, recorded

    expression = f"bytes > {2 * MB}"
    listed = capture.reading("query", expression, capture.path)
    assert "<module> at shop/cache.py:2, via load at vendor/__init__.py:3" in listed, listed
    assert "import vendor at shop/cache.py:1" in listed, listed
    skipped = capture.reading("query", expression, "--skip-function", "^load$", capture.path)
    assert re.search(r"<module> at shop/cache\.py:2$", skipped, re.MULTILINE), skipped
    functions = capture.reading("query", expression, "--by", "function", capture.path)
    assert "load at vendor/__init__.py" in functions and "import vendor at vendor/__init__.py" in functions, functions
    recorded = capture.reading("query", expression, "--all-frames", capture.path)
    assert f"load at {program.parent}/lib/site-packages/vendor/__init__.py:3" in recorded, recorded
    # What is searched are the stacks as they were recorded, however they are shown.
    found = f'file ~ "importlib" and {expression}'
    assert capture.reading("query", found, capture.path).startswith("2 of "), "the table and the cache"
    both = [json.loads(capture.reading("query", found, "--json", *more, capture.path)) for more in ((), ("--all-frames",))]
    assert both[0] == both[1]


def test_query_says_where_an_import_is_and_tells_stacks_apart_by_lines(memtrack, python, program):
    capture = memtrack.record(python, "-S", program)
    functions = capture.reading("query", "--by", "function", "bytes > 0", "-n", 0, capture.path)
    assert re.search(r"  finding and loading modules at shop/cache\.py$", functions, re.MULTILINE), functions
    stacks = capture.reading("query", "--by", "stack", f"bytes > {MB}", capture.path)
    assert "load:3 < remember:5 < <module>:4\n" in stacks, stacks


def test_imports_mean_the_same_in_every_report(memtrack, python, program):
    capture = memtrack.record(python, "-S", "-X", "utf8", program, options=("--trace-python-allocators",))
    imports = capture.stats()["leaked"]["imports"]
    held = json.loads(capture.reading("table", "--leaks", "--imports", "--json", "-n", 0, capture.path))["rows"]
    assert sum(row["bytes"] for row in held) == imports["bytes"]
    assert sum(row["count"] for row in held) == imports["allocations"]


def test_a_package_in_its_checkout_is_one_module(memtrack, python, program):
    capture = memtrack.record(python, "-S", "-X", "utf8", program)
    modules = {row["module"] for row in capture.stats("--leaks")["modules_by_size"]}
    assert "shop" in modules and "cache" not in modules, modules
    kept = json.loads(capture.reading("table", "--leaks", "--module", "shop.cache", "--json", capture.path))["rows"]
    assert sum(row["bytes"] for row in kept) == 2 * MB, kept


CONSOLE_SCRIPT = "import sys\nfrom served import main\nsys.exit(main())\n"


def test_of_what_starts_a_package_the_working_directory_is_own(memtrack, tmp_path):
    """As gunicorn: its script lies beside the interpreter, and the application in the working directory."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = tmp_path / "venv" / "lib" / version / "site-packages"
    packages.mkdir(parents=True)
    (tmp_path / "venv" / "bin").mkdir()
    interpreter = pathlib.Path(sys.executable).resolve()
    (tmp_path / "venv" / "pyvenv.cfg").write_text(f"home = {interpreter.parent}\n")
    (tmp_path / "venv" / "bin" / "python").symlink_to(interpreter)
    script = tmp_path / "venv" / "bin" / "serve"
    script.write_text(f"import sys\nsys.path[:0] = [{str(packages)!r}, {str(tmp_path)!r}]\n{CONSOLE_SCRIPT}")
    (packages / "served.py").write_text("def main():\n    import app\n    app.view()\n    import os; os._exit(0)\n")
    (tmp_path / "app.py").write_text(f"HELD = []\ndef view():\n    HELD.append(bytearray({6 * MB}))\n")
    capture = memtrack.record(tmp_path / "venv" / "bin" / "python", "-S", script)
    text = capture.reading("table", "--leaks", "--own", capture.path)
    assert re.search(r"view at app\.py:3$", rows(text)[0]), text


CXX = """#include <map>
#include <string>
#include <vector>
struct Shop { std::vector<std::string> names; std::map<int, std::vector<int>> stock; };
__attribute__((noinline)) void remember(Shop &shop) {
  for (int n = 0; n < 20000; n++)
    shop.stock[n] = std::vector<int>(100);
}
int main() { static Shop *shop = new Shop; remember(*shop); return shop->stock.size() == 0; }
"""
RUST = """use std::collections::HashMap;
#[inline(never)]
fn remember(shop: &mut HashMap<u32, Vec<u32>>) {
    for n in 0..20_000 {
        shop.insert(n, vec![0; 100]);
    }
}
fn main() {
    let mut shop = HashMap::new();
    remember(&mut shop);
    std::mem::forget(shop);
}
"""


@pytest.mark.parametrize("compiler, name, source", [("g++", "shop.cc", CXX), ("rustc", "shop.rs", RUST)])
def test_containers_are_not_the_place(memtrack, plain, compiler, name, source, tmp_path):
    if not shutil.which(compiler):
        pytest.skip(f"no {compiler}")
    (tmp_path / name).write_text(source)
    assert plain(compiler, "-g", name, "-o", "shop").status == 0
    capture = memtrack.record("./shop", options=("--native",))
    text = capture.reading("table", "--leaks", capture.path)
    assert re.search(r"remember.* at .*shop\.(cc:7|rs:5)", rows(text)[0]), text


@pytest.mark.parametrize("target", ["./tools/app.py", "tools/../tools/app.py", "./app.pyz", "./app"])
def test_a_program_may_be_named_with_dots(memtrack, python, tmp_path, target):
    """Python keeps them in the names of files, of which the directories of own code must know nothing."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "app" / "shop").mkdir(parents=True)
    holding = f"kept = []\ndef hold():\n    kept.append(bytearray({3 * MB}))\n"
    (tmp_path / "app" / "shop" / "deep.py").write_text(holding)
    (tmp_path / "app" / "__main__.py").write_text("import shop.deep\nshop.deep.hold()\n")
    (tmp_path / "tools" / "app.py").write_text(f"{holding}hold()\n")
    zipapp.create_archive(tmp_path / "app", tmp_path / "app.pyz")
    capture = memtrack.record(python, target)
    own = capture.reading("table", "--own", "--function", "hold", capture.path)
    place = "app.py" if target.endswith(".py") else "shop/deep.py"
    assert re.search(rf"^  3\.00 MB .*hold at {place}:3$", own, re.MULTILINE), own


WORKERS = f"""
import multiprocessing, sys
kept = []
def hold(number):
    kept.append(bytearray({3 * MB}))
if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    worker = context.Process(target=hold, args=(1,))
    worker.start()
    worker.join()
"""


@pytest.mark.parametrize("way", ["spawn", "forkserver"])
def test_own_code_of_a_worker_is_that_of_the_program_that_started_it(memtrack, python, tmp_path, way):
    """Its command line, `-c` and code of multiprocessing, says nothing of the script; it is read alone."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "app.py").write_text(WORKERS)
    (tmp_path / "elsewhere").mkdir()
    command = ("run", "-q", "--no-native", "--follow", "-o", "all.bin", "--python", python, tmp_path / "tools" / "app.py", way)
    assert memtrack(*command, cwd=tmp_path / "elsewhere").status == 0
    tables = [memtrack("table", "--own", path).stdout.decode() for path in (tmp_path / "elsewhere").glob("all.*.bin")]
    (held,) = [table for table in tables if "hold at" in table]
    assert re.search(r"^  3\.00 MB .*hold at app\.py:5$", held, re.MULTILINE), tables


def test_modules_of_archives_and_editable_installations(memtrack, python, tmp_path):
    """Files in no package of their own: the roots of their imports tell their names."""
    holding = f"kept = []\ndef hold():\n    kept.append(bytearray({3 * MB}))\n"
    for folder in ("src/linked/inner", "checkout/mapped/inner", "app/packed/inner"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "deep.py").write_text(holding)
    (tmp_path / "app" / "__main__.py").write_text(
        "import packed.inner.deep, linked.inner.deep, mapped.inner.deep\n"
        "for package in (packed, linked, mapped):\n    package.inner.deep.hold()\n"
    )
    zipapp.create_archive(tmp_path / "app", tmp_path / "app.pyz")
    # A virtual environment that another interpreter is linked into, as pip and setuptools leave it.
    environment = tmp_path / "venv"
    subprocess.run([python, "-m", "venv", "--without-pip", environment], check=True)
    (site,) = environment.glob("lib/python3*/site-packages")
    (site / "linked.pth").write_text(f"{tmp_path}/src\n")
    (site / "finder.pth").write_text("import __editable___mapped_1_finder\n")
    (site / "__editable___mapped_1_finder.py").write_text(
        "import sys\n"
        f"MAPPING = {{'mapped': '{tmp_path}/checkout/mapped'}}\n"
        f"sys.path.append('{tmp_path}/checkout')\n"
    )
    capture = memtrack.record(environment / "bin" / "python", tmp_path / "app.pyz")
    for module in ("packed", "linked.inner", "mapped.inner.deep"):
        kept = capture.reading("table", "--module", module, "--json", capture.path)
        assert sum(row["bytes"] for row in json.loads(kept)["rows"]) == 3 * MB + 1, (module, kept)
