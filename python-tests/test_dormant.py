"""Recordings of a dormant program and of its children are recordings of their own: none is taken for another."""

import json
import subprocess
import sys
import threading

from conftest import PATIENCE, until

SIZE = 1_000_001
#: A program with two workers, which all keep a block for each line that is read.
WORKERS = f"""
import os
import sys

def work(orders, done):
    kept = []
    while os.read(orders, 1):
        kept.append(bytearray({SIZE - 1}))
        os.write(done, b"x")
    os._exit(0)

def worker():
    (orders, order), (done, tell) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(order)
        [os.close(other) for _, other, _ in workers]
        work(orders, tell)
    workers.append((pid, order, done))

workers = []
worker(), worker()
print(os.getpid(), *(pid for pid, _, _ in workers), flush=True)
for line in sys.stdin:
    for _, order, done in workers:
        os.write(order, b"x")
        os.read(done, 1)
    print("done", flush=True)
"""


class Workers:
    """The program, dormant, and what is said to its recording process."""

    def __init__(self, executable, directory):
        self.executable, self.directory = executable, directory
        (directory / "workers.py").write_text(WORKERS)
        command = [executable, "run", "--dormant", "--follow", "-q", sys.executable, directory / "workers.py"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.program, *self.workers = (int(pid) for pid in self.process.stdout.readline().split())
        until("they are known", lambda: {self.program, *self.workers} <= self.listed().keys())

    def asked(self, *words):
        command = [self.executable, *map(str, words)]
        outcome = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=self.directory)
        assert outcome.returncode == 0, outcome.stderr
        return outcome.stdout

    def listed(self):
        """What `ps` says of each process."""
        return {process["pid"]: process for process in json.loads(self.asked("ps", "--json"))["processes"]}

    def recordings(self):
        listed = self.listed()
        return [listed[pid]["recording"] for pid in (self.program, *self.workers)]

    def grow(self, count=1):
        for _ in range(count):
            print(file=self.process.stdin, flush=True)
            assert self.process.stdout.readline() == "done\n"

    def blocks(self, capture):
        """How many there are, and the processes of the capture."""
        told = json.loads(self.asked("query", "--json", f"bytes = {SIZE}", "-n", "0", capture))
        return len(told["rows"]), [one["pid"] for one in told["captures"]]

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(PATIENCE) == 0


class Viewer:
    """`live --jsonl --all` of a process."""

    def __init__(self, workers, pid):
        command = [workers.executable, "live", "--jsonl", "--all", "--every", "200ms", str(pid)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        timer = threading.Timer(PATIENCE, self.process.kill)
        timer.daemon = True
        timer.start()

    def records(self, kind):
        return (record for record in map(json.loads, self.process.stdout) if record["type"] == kind)

    def sees(self, count):
        """Waits for a window in which so many blocks are live; gives how many processes it is of."""
        return next(each["processes"] for each in self.records("window") if each["live"]["bytes"] // SIZE == count)


def test_each_is_found_by_its_process(executable, tmp_path):
    workers = Workers(executable, tmp_path)
    first, second = workers.workers
    assert workers.recordings() == [None, None, None]
    workers.asked("start", first, "-o", "first.bin")
    workers.grow()
    # The others are dormant.
    workers.asked("snapshot", first, "-o", "alone.bin")
    assert workers.blocks("alone.bin") == (1, [first])
    workers.asked("start", second, "-o", "second.bin")
    workers.grow(2)
    workers.asked("start", workers.program, "-o", "program.bin")
    assert workers.recordings() == [3, 1, 2]
    for number, (pid, count) in enumerate({workers.program: 0, first: 3, second: 2}.items()):
        workers.asked("snapshot", pid, "-o", f"{number}.bin")
        assert workers.blocks(f"{number}.bin") == (count, [pid])
    workers.end()
    assert [workers.blocks(f"{name}.bin") for name in ("first", "second")] == [(3, [first]), (2, [second])]


def test_a_sum_of_all_processes_is_of_one_recording_and_ends_with_it(executable, tmp_path):
    workers = Workers(executable, tmp_path)
    first, second = workers.workers
    for pid, count in ((first, 1), (second, 2)):
        workers.asked("start", pid, "-o", f"{pid}.bin")
        workers.grow(count)
    viewers = [Viewer(workers, pid) for pid in (first, second)]
    assert [viewer.sees(count) for viewer, count in zip(viewers, (3, 2))] == [1, 1]
    # It is recorded again, which is another recording.
    workers.asked("stop", first)
    workers.asked("start", first, "-o", "again.bin")
    workers.grow()
    *_, last = viewers[0].records("window")
    assert (last["live"]["bytes"], last["processes"], viewers[0].process.wait(PATIENCE)) == (0, 0, 0)
    assert viewers[1].sees(3) == 1
    workers.end()
    assert viewers[1].process.communicate(timeout=PATIENCE) and viewers[1].process.returncode == 0
    assert workers.blocks("again.bin") == (1, [first])


def test_a_second_recording_does_not_replace_the_first_unasked(executable, tmp_path):
    capture = tmp_path / "a.bin"
    capture.write_bytes(b"old")
    code = "import os; print(os.getpid(), flush=True); input()"
    command = [executable, "run", "--dormant", "-q", "-f", "-o", capture, sys.executable, "-c", code]
    program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def says(word, *options):
        outcome = subprocess.run([executable, word, str(pid), *options], capture_output=True, text=True, timeout=PATIENCE)
        return outcome.returncode, outcome.stderr

    try:
        pid = int(program.stdout.readline())
        until("it is known", lambda: says("stop")[1] != "" and "dormant" in says("stop")[1])
        assert says("start")[0] == 0 and says("stop")[0] == 0
        first = capture.read_bytes()
        refused = says("start")
        assert refused[0] == 1 and "file exists" in refused[1], refused
        assert capture.read_bytes() == first and first != b"old"
        assert says("start", "-f")[0] == 0 and says("stop")[0] == 0
        assert capture.read_bytes() != first
    finally:
        program.communicate("\n", timeout=PATIENCE)
