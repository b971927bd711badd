"""Runs a load plainly and under each tool in interleaved rounds, and takes times and memory.

Every ratio is one of the same round, so that a machine that is busy for a while disturbs both sides alike. Processor time
is that of the whole tree: this process is the subreaper of what it starts, and reaps all of it before it reads the sum.
"""

import ctypes
import dataclasses
import os
import pathlib
import select
import statistics
import subprocess
import tempfile
import threading
import time

from .loads import last_line, processor_of_children
from .tools import executable

PR_SET_CHILD_SUBREAPER = 36
POLL_SECONDS = 0.02
SHORT_POLL_SECONDS = 0.001


class Failed(Exception):
    """A run that ended with an error; the text says which and how."""


@dataclasses.dataclass
class Run:
    """One run: seconds, processor seconds of the tree, and largest resident memory in kB of the program and of the rest."""

    wall: float
    processor: float
    program: int
    others: int


class Row:
    """The figures of one load with one mode."""

    def __init__(self, load, mode, command):
        self.load, self.mode = load, mode
        self.is_python, self.repeat = command.is_python, command.repeat
        self.runs, self.bytes, self.events = {}, {}, 0

    def ratio(self, tool, figure):
        pairs = zip(self.runs[tool], self.runs["plain"])
        return statistics.median(getattr(run, figure) / max(getattr(plain, figure), 1e-3) for run, plain in pairs)

    def added(self, tool, figure):
        pairs = zip(self.runs[tool], self.runs["plain"])
        return statistics.median(getattr(run, figure) - getattr(plain, figure) for run, plain in pairs)

    def median(self, tool, figure):
        return statistics.median(getattr(run, figure) for run in self.runs[tool])

    def for_json(self):
        runs = {tool: [dataclasses.asdict(run) for run in runs] for tool, runs in self.runs.items()}
        return {"family": self.load.family, "load": self.load.name, "mode": list(self.mode), "events": self.events,
                "bytes": self.bytes, "runs": runs}


def measure(load, command, tools, rounds, progress):
    """The rows of a load, one for each of its modes. All modes share the plain run of their round."""
    plain, memtrack = tools[0], tools[1]
    rows = {mode: Row(load, mode, command) for mode in load.modes}
    variants = [(plain, load.modes[0])]
    variants += [(tool, mode) for mode in load.modes for tool in tools[1:] if tool.words(command, mode)]
    failed = set()
    for number in range(rounds):
        turn = number % len(variants)
        for tool, mode in variants[turn:] + variants[:turn]:
            if (tool, mode) in failed:
                continue
            progress(f"{load.name}: round {number + 1}, {tool.name} {', '.join(mode)}")
            try:
                run = run_once(tool.words(command, mode), command)
            except Failed as error:
                if tool in (plain, memtrack):
                    raise
                failed.add((tool, mode))
                progress(f"skipped: {load.name} under {tool.name}: {error}\n")
                for row in rows.values():
                    row.runs.pop(tool.name, None) if row.mode == mode else None
                continue
            for row in rows.values():
                if tool is plain or row.mode == mode:
                    row.runs.setdefault(tool.name, []).append(run)
            if tool is not plain and number == rounds - 1:
                rows[mode].bytes[tool.name] = tool.written()
                if tool is memtrack:
                    rows[mode].events = tool.events()
    return list(rows.values())


def become_subreaper():
    """Processes whose parent ends become children of this one, so that their processor time counts."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def run_once(words, command):
    """Runs the words, which are those of the command or of a tool on it, as often as the command says."""
    runs = [one_process(words, command) for _ in range(command.repeat)]
    return Run(
        sum(run.wall for run in runs), sum(run.processor for run in runs),
        max(run.program for run in runs), max(run.others for run in runs),
    )


def one_process(words, command):
    before = processor_of_children()
    with tempfile.TemporaryFile() as errors:
        start = time.perf_counter()
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors)
        watch = Watch(process.pid, executable(command.words))
        client = Client(command.client, process)
        status = wait(process, watch, SHORT_POLL_SECONDS if command.repeat > 1 else POLL_SECONDS)
        wall = time.perf_counter() - start
        client.join()
        reap_orphans()
        if status:
            errors.seek(0)
            text = errors.read().decode(errors="replace")
            raise Failed(f"{pathlib.Path(words[0]).name} ended with status {status}: {last_line(text)}")
    return Run(wall, processor_of_children() - before - client.seconds, watch.program(), watch.others())


def wait(process, watch, period):
    """The exit status; until then the memory of the tree is looked at."""
    descriptor = os.pidfd_open(process.pid)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while not poll.poll(period * 1000):
            watch.look()
    finally:
        os.close(descriptor)
    return process.wait()


class Client(threading.Thread):
    """What uses a server, while this process looks at the server's memory; its processor seconds are not the server's."""

    def __init__(self, client, process):
        super().__init__()
        self.client, self.process, self.seconds = client, process, 0.0
        self.start()

    def run(self):
        if self.client:
            self.seconds = self.client(self.process)


def reap_orphans():
    """Waits until no process of the tree is left."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.001)
        except ChildProcessError:
            return


class Watch:
    """The largest resident memory of each process of a tree, as last seen while it lived."""

    def __init__(self, root, program):
        self.root, self.program_path = root, program
        self.peaks = {}

    def look(self):
        unseen = [self.root]
        while unseen:
            pid = unseen.pop()
            try:
                path = os.readlink(f"/proc/{pid}/exe")
                status = pathlib.Path(f"/proc/{pid}/status").read_text()
                for task in os.listdir(f"/proc/{pid}/task"):
                    unseen += map(int, pathlib.Path(f"/proc/{pid}/task/{task}/children").read_text().split())
            except OSError:
                continue
            line = status.partition("VmHWM:")[2].split()
            if line:
                self.peaks[pid] = (path, int(line[0]))

    def program(self):
        return max((peak for path, peak in self.peaks.values() if path == self.program_path), default=0)

    def others(self):
        return sum(peak for path, peak in self.peaks.values() if path != self.program_path)
