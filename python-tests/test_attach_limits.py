"""Programs that may have little more memory, and recording processes that end without an answer: no program is ended or changed."""

import contextlib
import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from conftest import PATIENCE

WAITS = """
import sys
print("ready", flush=True)
sys.stdin.read()
kept = [bytearray(1000) for _ in range(1000)]
print("done", flush=True)
"""


def waiting():
    program = subprocess.Popen([sys.executable, "-c", WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert program.stdout.readline() == "ready\n"
    return program


def memory(pid, name):
    """A figure of the process, in bytes."""
    return int(re.search(name + r":\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1]) << 10


@pytest.mark.parametrize("limit, option, used", [(resource.RLIMIT_AS, "as", "VmSize"), (resource.RLIMIT_DATA, "data", "VmData")])
def test_a_program_with_little_memory_left_is_refused_untouched(executable, tmp_path, limit, option, used):
    program = waiting()
    maps = Path(f"/proc/{program.pid}/maps").read_text()
    attach = [executable, "attach", "-q", "-o", tmp_path / "a.bin", "--duration", "10ms", str(program.pid)]
    for left in (0, 2, 17, 18, 19, 20, 21, 24):
        resource.prlimit(program.pid, limit, (memory(program.pid, used) + (left << 20), resource.RLIM_INFINITY))
        refused = subprocess.run(attach, capture_output=True, text=True)
        assert refused.returncode == 1 and f"prlimit --pid {program.pid} --{option}=unlimited" in refused.stderr, refused.stderr
        assert re.search(rf"only {left * 1024 * 1024 // 1_000_000} MB more", refused.stderr), refused.stderr
        assert Path(f"/proc/{program.pid}/maps").read_text() == maps
    assert not (tmp_path / "a.bin").exists()
    # With what it says that it needs it takes it, and puts the program back.
    needed = int(re.search(r"needs about (\d+) MB", refused.stderr)[1]) * 1_000_000 + 1_000_000
    resource.prlimit(program.pid, limit, (memory(program.pid, used) + needed, resource.RLIM_INFINITY))
    attached = subprocess.run(attach, capture_output=True, text=True)
    assert (attached.returncode, attached.stderr) == (0, "")
    assert program.communicate(timeout=PATIENCE)[0] == "done\n" and program.returncode == 0


BLOCKS = """
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    int blocks = 0;
    for (; blocks < 300; blocks++) {
        char *block = malloc(10000);
        if (block == NULL) break;
        *(volatile char *)block = 1;
    }
    printf("%d\\n", blocks);
}
"""


def test_a_program_under_a_limit_of_address_space_has_what_it_would_have(executable, tmp_path):
    compiler = shutil.which("cc") or pytest.skip("there is no C compiler")
    (tmp_path / "blocks.c").write_text(BLOCKS)
    subprocess.run([compiler, "-o", tmp_path / "blocks", tmp_path / "blocks.c"], check=True)
    # With less than that the library itself, which the loader maps, leaves too little.
    for megabytes in range(16, 41, 2):
        limited = ["prlimit", f"--as={megabytes * 1_000_000}", tmp_path / "blocks"]
        command = [executable, "run", "-q", "-f", "-o", tmp_path / "a.bin", "--", *limited]
        told = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert (told.returncode, told.stdout) == (0, "300\n"), megabytes


def recorder(directory, pid, capture):
    """A recording process of a process that has this capture, and ends when it is asked to detach."""
    (directory / "memtrack").mkdir(mode=0o700)
    listening = socket.socket(socket.AF_UNIX)
    path = directory / "memtrack" / f"{pid}.sock"
    listening.bind(str(path))
    listening.listen()

    def answer(client):
        client.sendall(json.dumps({"memtrack": 1, "version": "0", "pid": pid}).encode() + b"\n")
        process = {"pid": pid, "number": 0, "state": "recording", "record_bytes": 9, "capture": str(capture), "command_line": []}
        for line in client.makefile():
            request = json.loads(line)
            if request["command"] == "detach":
                path.unlink()
                client.shutdown(socket.SHUT_RDWR)
                return
            status = {"recorder": os.getpid(), "processes": [process]}
            client.sendall(json.dumps({"id": request["id"], "ok": status}).encode() + b"\n")

    def attend(client):
        with contextlib.suppress(OSError):
            # One that looks whether somebody listens goes at once.
            answer(client)

    def serve():
        while True:
            threading.Thread(target=attend, args=[listening.accept()[0]], daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()


@pytest.mark.parametrize("complete", [True, False])
def test_a_detach_whose_recorder_ends_without_an_answer_has_succeeded_where_all_is_done(executable, tmp_path, complete):
    capture = tmp_path / "a.bin"
    subprocess.run([executable, "run", "-q", "-o", capture, sys.executable, "-c", "pass"], check=True)
    if not complete:
        capture.write_bytes(capture.read_bytes()[:-100])
    program = waiting()
    recorder(tmp_path, program.pid, capture)
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    told = subprocess.run([executable, "detach", str(program.pid)], capture_output=True, text=True, env=environment, timeout=PATIENCE)
    if complete:
        assert (told.returncode, told.stderr) == (0, f"memtrack: process {program.pid} detached: {capture}\n")
    else:
        assert told.returncode == 1 and f"without completing {capture}" in told.stderr, told.stderr
    program.communicate(timeout=PATIENCE)
    assert program.returncode == 0


def test_stop_of_an_attached_recording_names_detach(executable, tmp_path):
    program = waiting()
    attach = [executable, "attach", "-q", "--detached", "-o", tmp_path / "a.bin", str(program.pid)]
    subprocess.run(attach, check=True)
    stopped = subprocess.run([executable, "stop", str(program.pid)], capture_output=True, text=True)
    assert stopped.returncode == 1 and "'memtrack detach' ends it" in stopped.stderr, stopped.stderr
    subprocess.run([executable, "detach", "-q", str(program.pid)], check=True)
    program.communicate(timeout=PATIENCE)
    assert program.returncode == 0


LOADS = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
static long size_kb(void) {
    char line[256];
    long kb = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, status)) if (sscanf(line, "VmSize: %ld", &kb) == 1) break;
    fclose(status);
    return kb;
}
int main(int argc, char **argv) {
    int loaded = 0;
    free(malloc(100000));
    dlclose(dlopen(argv[1], RTLD_NOW));
    struct rlimit limit;
    getrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur = (size_kb() + 40) * 1024;
    setrlimit(RLIMIT_AS, &limit);
    for (int i = 0; i < 2000; i++) {
        void *library = dlopen(argv[1], RTLD_NOW);
        if (library != NULL) { loaded++; dlclose(library); }
    }
    printf("%d\n", loaded);
}
"""


@pytest.mark.parametrize("option", ["--native", "--no-native"])
def test_a_program_without_room_loads_libraries_as_often_as_it_likes(executable, tmp_path, option):
    """What memtrack needs for each comes from a reserve that is not filled again."""
    (tmp_path / "plugin.c").write_text("int plugin(void) { return 1; }\n")
    (tmp_path / "loads.c").write_text(LOADS)
    plugin, program = tmp_path / "plugin.so", tmp_path / "loads"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", plugin, tmp_path / "plugin.c"], check=True)
    subprocess.run(["gcc", "-o", program, tmp_path / "loads.c", "-ldl"], check=True)
    plain = subprocess.run([program, plugin], capture_output=True, text=True, check=True)
    command = [executable, "run", "-q", option, "-o", tmp_path / "c.bin", "--", program, plugin]
    recorded = subprocess.run(command, capture_output=True, text=True)
    assert (recorded.returncode, recorded.stdout) == (0, plain.stdout), recorded.stderr


THREADS = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
static pthread_barrier_t barrier;
static void *work(void *unused) {
    void *volatile block = malloc(100);
    free(block);
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    return unused;
}
int main(void) {
    enum { THREADS = 12 };
    pthread_t threads[THREADS];
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 65536);
    pthread_barrier_init(&barrier, NULL, THREADS + 1);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], &attributes, work, NULL)) return 1;
    pthread_barrier_wait(&barrier);
    int left = 0;
    while (left < 1000 && mmap(NULL, 65536, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED) left++;
    printf("%d\n", left);
    fflush(stdout);
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    return 0;
}
"""


def test_more_threads_leave_the_program_its_room_or_recording_stops(executable, tmp_path):
    """A ninth thread needs 16 MB more. Where these leave the program next to nothing, it keeps them, and every first screen says why
    nothing more was recorded."""
    (tmp_path / "threads.c").write_text(THREADS)
    subprocess.run(["gcc", "-pthread", "-o", tmp_path / "threads", tmp_path / "threads.c"], check=True)
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
    stopped = set()
    for megabytes in (32, 36, 40, 42, 43, 44, 48, 52, 60):
        limited = ["prlimit", f"--as={megabytes << 20}", tmp_path / "threads"]
        command = [executable, "run", "-q", "-f", "--no-native", "-o", tmp_path / "t.bin", "--", *limited]
        told = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        assert told.returncode == 0, (megabytes, told.stderr)
        assert int(told.stdout) * 65536 > 3 << 20, (megabytes, told.stdout)
        stats = json.loads(subprocess.run([executable, "stats", "--json", tmp_path / "t.bin"], stdout=subprocess.PIPE, check=True).stdout)
        reason = stats["capture"]["stop_reason"]
        stopped.add(reason is not None)
        text = subprocess.run([executable, "stats", tmp_path / "t.bin"], capture_output=True, text=True, check=True).stdout
        assert ("  recorded       not to the end: " in text) == (reason is not None), text
        assert reason is None or "no memory, address space or mappings" in reason and reason in text, text
        # All of its events, or an end that is told.
        assert reason is not None or stats["account"]["lost"]["events"] == 0
    assert stopped == {True, False}
