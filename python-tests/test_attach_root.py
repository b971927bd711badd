"""Programs with another root directory, as in a container, which are recorded from outside."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import PATIENCE

PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
void *kept[1000];
__attribute__((noinline)) void hold(int i) { kept[i] = malloc(1000); }
int main(void) {
    puts("ready");
    fflush(stdout);
    for (int i = 0; getchar() != EOF; i++) {
        for (int k = 0; k < 100; k++)
            hold(i * 100 + k);
        puts("done");
        fflush(stdout);
    }
    return 0;
}
"""


@pytest.fixture
def inside(tmp_path):
    """Starts a program in a root directory of its own, which this machine's paths do not lead to."""
    if os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("gcc"):
        pytest.skip("needs root, unshare and a compiler")
    root, source = tmp_path / "root", tmp_path / "program.c"
    (root / "proc").mkdir(parents=True)
    source.write_text(PROGRAM)
    subprocess.run(["gcc", "-g", "-O1", "-Wl,--build-id", "-o", root / "held_inside", source], check=True)
    libraries = subprocess.run(["ldd", root / "held_inside"], capture_output=True, text=True, check=True).stdout
    for library in re.findall(r"/\S+", libraries):
        (root / library[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, root / library[1:])
    command = ["unshare", "-mpf", "--kill-child", f"--mount-proc={root}/proc", "chroot", root, "/held_inside"]
    if subprocess.run([*command[:-2], root, "/held_inside"], stdin=subprocess.DEVNULL, capture_output=True).returncode:
        pytest.skip("no name spaces may be made")
    starter = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert starter.stdout.readline() == "ready\n"
    pid = int(Path(f"/proc/{starter.pid}/task/{starter.pid}/children").read_text())
    yield starter, pid, root
    starter.stdin.close()
    starter.wait(PATIENCE)


def attach(executable, pid, capture, *options):
    recorder = subprocess.Popen([executable, "attach", str(pid), "-o", capture, *options], stderr=subprocess.PIPE, text=True)
    assert "recording process" in recorder.stderr.readline()
    return recorder


def grow(starter):
    starter.stdin.write("x")
    starter.stdin.flush()
    assert starter.stdout.readline() == "done\n"


def rows(executable, capture, *options):
    run = subprocess.run([executable, "table", "--leaks", "--json", *options, capture], capture_output=True, text=True, check=True)
    return json.loads(run.stdout)["rows"]


@pytest.mark.parametrize("options", [[], ["--aggregate"]])
@pytest.mark.parametrize("ends", ["the recording", "the program"])
def test_names_are_kept_and_the_program_is_own_code(executable, inside, tmp_path, options, ends):
    starter, pid, root = inside
    recorder = attach(executable, pid, tmp_path / "a.bin", *options)
    grow(starter)
    if ends == "the program":
        starter.stdin.close()
    else:
        subprocess.run([executable, "detach", str(pid)], capture_output=True, check=True)
    text = recorder.communicate()[1]
    assert "hold at " in text and "without own code" not in text and "no symbols" not in text, text
    # Of what is read later nothing of the root is left.
    (root / "held_inside").unlink()
    assert [(row["function"], row["count"]) for row in rows(executable, tmp_path / "a.bin") if row["function"] == "hold"] == [("hold", 100)]


def test_a_copy_of_the_root_is_a_debug_directory(executable, inside, tmp_path):
    starter, pid, root = inside
    shutil.copy(root / "held_inside", tmp_path / "aside")
    (root / "held_inside").unlink()
    recorder = attach(executable, pid, tmp_path / "a.bin")
    grow(starter)
    subprocess.run([executable, "detach", str(pid)], capture_output=True, check=True)
    recorder.communicate()
    assert not any(row["function"] == "hold" for row in rows(executable, tmp_path / "a.bin"))
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copy(tmp_path / "aside", copy / "held_inside")
    assert any(row["function"] == "hold" for row in rows(executable, tmp_path / "a.bin", "--debug-dir", copy))
    subprocess.run([executable, "symbolize", "-f", "--debug-dir", copy, tmp_path / "a.bin"], capture_output=True, check=True)
    shutil.rmtree(copy)
    assert any(row["function"] == "hold" for row in rows(executable, tmp_path / "a.bin"))


STOCK = """import json, sys
held = []
def load():
    held.append(json.loads('["' + "y" * 6_000_000 + '"]'))
def main():
    print("ready", flush=True)
    while sys.stdin.read(1):
        load()
        print("done", flush=True)
"""
MOUNTS = """for path in {shared}; do
    mkdir -p {root}$path && mount --rbind $path {root}$path || exit 9
done
mount -t proc proc {root}/proc && exec chroot {root} /app-of-test/bin/python /app-of-test/bin/shop"""


@pytest.fixture
def application(tmp_path):
    """Starts an installed application in a root directory of its own; the interpreter is this machine's."""
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("needs root and unshare")
    root, base = tmp_path / "root", Path(sys.base_prefix)
    (root / "proc").mkdir(parents=True)
    environment = root / "app-of-test"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (site,) = environment.glob("lib/python3*/site-packages")
    (site / "shop").mkdir()
    (site / "shop" / "__init__.py").write_text("")
    (site / "shop" / "stock.py").write_text(STOCK)
    (environment / "bin" / "shop").write_text("import sys\nfrom shop.stock import main\nsys.exit(main())\n")
    shared = {path for path in (base, *map(Path, ("/usr", "/lib", "/lib64"))) if path.exists()}
    shared = [str(path) for path in shared if path == Path("/usr") or Path("/usr") not in path.parents]
    script = MOUNTS.format(shared=" ".join(shared), root=root)
    starter = subprocess.Popen(
        ["unshare", "-mpf", "--kill-child", "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    if starter.stdout.readline() != "ready\n":
        starter.kill()
        pytest.skip("no name spaces may be made")
    yield starter, int(Path(f"/proc/{starter.pid}/task/{starter.pid}/children").read_text())
    starter.stdin.close()
    starter.wait(PATIENCE)


def test_an_installed_application_in_a_container_is_own_code(executable, application, tmp_path):
    """Its console script is read from its root directory: this machine has none at that path."""
    starter, pid = application
    recorder = attach(executable, pid, tmp_path / "a.bin")
    grow(starter)
    subprocess.run([executable, "detach", str(pid)], capture_output=True, check=True)
    recorder.communicate()
    stats = subprocess.run([executable, "stats", tmp_path / "a.bin"], capture_output=True, text=True, check=True).stdout
    assert "that of the installed package shop, which the command line starts" in stats, stats
    table = subprocess.run([executable, "table", "--leaks", "--own", tmp_path / "a.bin"], capture_output=True, text=True, check=True)
    assert re.search(r"6\.\d+ MB .*load at shop/stock\.py:4", table.stdout), table.stdout


NAMED = """
import _thread, ctypes, sys, threading
name = lambda name: ctypes.CDLL(None).prctl(15, name, 0, 0, 0)
kept, asked, answered = [], threading.Semaphore(0), threading.Semaphore(0)

def work():
    name(b"the worker")
    for _ in range(2):
        answered.release()
        asked.acquire()
        kept.append(bytearray(3_000_000))
    answered.release()

name(b"the first")
_thread.start_new_thread(work, ())
answered.acquire()
print("ready", flush=True)
sys.stdin.read(1)
for _ in range(2):
    kept.append(bytearray(5_000_000))
    asked.release()
    answered.acquire()
print("done", flush=True)
sys.stdin.read()
"""


def test_threads_of_another_pid_namespace_have_their_names(executable, tmp_path):
    """They have other ids there than the recorder sees."""
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("needs root and unshare")
    command = ["unshare", "-pf", "--kill-child", sys.executable, "-c", NAMED]
    starter = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    if starter.stdout.readline() != "ready\n":
        starter.kill()
        pytest.skip("no name spaces may be made")
    pid = int(Path(f"/proc/{starter.pid}/task/{starter.pid}/children").read_text())
    recorder = attach(executable, pid, tmp_path / "a.bin")
    grow(starter)
    starter.stdin.close()
    recorder.communicate()
    starter.wait(PATIENCE)
    command = [executable, "stats", "--json", tmp_path / "a.bin"]
    stats = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    held = {thread["name"]: thread["bytes"] for thread in stats["threads"]}
    assert held["the first"] >= 10_000_000 and held["the worker"] >= 6_000_000, held
