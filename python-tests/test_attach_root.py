"""Programs with another root directory, as in a container, which are recorded from outside."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

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
    starter.wait(20)


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
