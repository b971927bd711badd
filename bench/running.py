"""Times programs that somebody watches while they are recorded, and programs whose recording waits or samples."""

import contextlib
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import threading
import time

from . import measuring
from .loads import Missing
from .synthetic import in_c
from .table import as_text
from .tools import executable

# What `command.wanted` asks of a load.
family, name = "Running", "programs that are watched"

PLAIN, RECORDED = "plain", "recorded"
# The options of `run` of each way, and how many viewers it has; viewers of "come and go" are killed and start again.
WAYS = {
    RECORDED: ([], 0),
    "one viewer": ([], 1),
    "3 viewers that come and go": ([], 3),
    "dormant": (["--dormant"], 0),
    "sampled": (["--sample"], 0),
}
VIEWER_SECONDS = 0.5
POLL_SECONDS = 0.01
LIVE_THREAD = "memtrack-live"
HEADS = (
    "program's wall", "until all is read", "program's wall of recorded", "program's processor time of recorded",
    "live view, core at 10 M events/s", "memtrack's own",
)


@dataclasses.dataclass
class Run:
    """Seconds until the end of all and of the program, processor seconds of the program's threads and of the thread that replays for
    viewers, memory in kB of memtrack, and the events that the one viewer was told of: what was not replayed cost nothing."""

    wall: float
    ended: float
    program: float
    live: float
    memory: int
    events: int


def loads(shop):
    yield "C, 150 M malloc and free", ["--no-native"], lambda: shop.compiled("repeated.c", 150_000_000)
    yield "C, calls, depth 10", ["--no-native"], lambda: in_c(shop, "calls", 10, 40_000_000)
    yield "C, calls, depth 10, native stacks", [], lambda: in_c(shop, "calls", 10, 15_000_000)
    objects = ["--no-native", "--trace-python-allocators"]
    yield "calls, objects, depth 10, every object", objects, lambda: shop.script("varied.py", "calls", "python objects", 10, 8_000_000)


def measure(options, workshop, progress):
    """The text of the table, and the figures."""
    lines = ["### Programs that are watched", "", "| load | " + " | ".join(HEADS) + " |", "|---" + "|--:" * len(HEADS) + "|"]
    figures = []
    for label, mode, make in loads(workshop):
        try:
            runs = rounds(options, label, mode, make(), workshop, progress)
        except (Missing, measuring.Failed) as why:
            progress(f"skipped: {label}: {why}\n")
            continue
        for way in WAYS:
            lines.append(f"| {label}, {way} | " + " | ".join(cells(runs, way)) + " |")
        figures.append({"load": label, "runs": {way: [dataclasses.asdict(run) for run in of_way] for way, of_way in runs.items()}})
    return as_text(lines), figures


def rounds(options, label, mode, command, workshop, progress):
    """The runs of each way, and the plain ones, in interleaved rounds."""
    ways = [PLAIN, *WAYS]
    runs = {way: [] for way in ways}
    for number in range(options.rounds):
        turn = number % len(ways)
        for way in ways[turn:] + ways[:turn]:
            progress(f"{label}: round {number + 1}, {way}")
            runs[way].append(one_run(options.memtrack, mode, way, command, workshop))
    return runs


def cells(runs, way):
    def ratio(figure, other):
        return statistics.median(getattr(run, figure) / getattr(base, figure) for run, base in zip(runs[way], runs[other]))

    told = [f"{ratio('ended', PLAIN):.2f}x", f"{ratio('wall', PLAIN):.2f}x"]
    if WAYS[way][1]:
        told += [f"{ratio('ended', RECORDED):.3f}x", f"{ratio('program', RECORDED):.3f}x"]
        replayed = [run.live / run.events for run in runs[way] if run.events]
        told.append(f"{100 * statistics.median(replayed) * 10_000_000:.0f} %" if replayed else "")
    else:
        told += ["", "", ""]
    return [*told, f"{statistics.median(run.memory for run in runs[way]) / 1000:.0f} MB"]


def one_run(memtrack, mode, way, command, workshop):
    path = workshop.directory / "watched.bin"
    options, viewers = WAYS.get(way, ([], 0))
    words = command.words if way == PLAIN else [memtrack, "run", "-q", "-f", "-o", str(path), *mode, *options, "--", *command.words]
    start = time.perf_counter()
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    watch = Watch(process.pid, executable(command.words))
    told = workshop.directory / "viewer.jsonl"
    with contextlib.ExitStack() as stack:
        for _ in range(viewers):
            stack.enter_context(Viewer(memtrack, watch, told, comes_and_goes=viewers > 1))
        status = measuring.wait(process, watch, POLL_SECONDS)
        wall = time.perf_counter() - start
    if status:
        raise measuring.Failed(f"{pathlib.Path(words[0]).name} ended with status {status}")
    events = events_of(told) if viewers == 1 else 0
    return Run(wall, watch.last_seen - start, watch.program_seconds(), watch.live_seconds(), watch.others(), events)


def events_of(path):
    """The events in the windows that a viewer has written."""
    with open(path) as lines:
        return sum(json.loads(line)["events"] for line in lines if line.startswith('{"type":"window"'))


class Watch(measuring.Watch):
    """Processor seconds of threads, too, each as last seen while it lived."""

    def __init__(self, root, program):
        super().__init__(root, program)
        self.seconds = {}
        self.found = threading.Event()
        self.last_seen = time.perf_counter()

    def look(self):
        super().look()
        for pid, (path, _) in list(self.peaks.items()):
            if path == self.program_path and os.path.exists(f"/proc/{pid}/schedstat"):
                self.found.set()
                self.note_running(pid)
            with contextlib.suppress(OSError):
                for thread in os.listdir(f"/proc/{pid}/task"):
                    self.read_thread(pid, path, pathlib.Path(f"/proc/{pid}/task/{thread}"))

    def note_running(self, pid):
        with contextlib.suppress(OSError):
            if pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX":
                self.last_seen = time.perf_counter()

    def read_thread(self, pid, path, thread):
        with contextlib.suppress(OSError):
            name = (thread / "comm").read_text().strip()
            nanoseconds = int((thread / "schedstat").read_text().split()[0])
            self.seconds[pid, thread.name] = (path, name, nanoseconds / 1e9)

    def program_pid(self):
        """The process of the program, once it runs."""
        self.found.wait()
        return next(pid for pid, (path, _) in list(self.peaks.items()) if path == self.program_path)

    def program_seconds(self):
        return sum(seconds for path, _, seconds in self.seconds.values() if path == self.program_path)

    def live_seconds(self):
        return sum(seconds for _, name, seconds in self.seconds.values() if name == LIVE_THREAD)


class Viewer(threading.Thread):
    """`live --jsonl` of the program until the recording ends; one that comes and goes is killed, and begins anew."""

    def __init__(self, memtrack, watch, told, comes_and_goes):
        super().__init__(daemon=True)
        self.memtrack, self.watch, self.told, self.comes_and_goes = memtrack, watch, told, comes_and_goes
        self.ended = threading.Event()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.watch.found.set()
        self.join()

    def run(self):
        with contextlib.suppress(StopIteration):
            words = [self.memtrack, "live", "--jsonl", "--every", "500ms", str(self.watch.program_pid())]
            while not self.ended.is_set():
                with open(os.devnull if self.comes_and_goes else self.told, "wb") as output:
                    viewer = subprocess.Popen(words, stdout=output, stderr=subprocess.DEVNULL)
                if self.comes_and_goes:
                    self.ended.wait(VIEWER_SECONDS)
                    viewer.kill()
                else:
                    # Its last window comes behind the end of the recording.
                    self.ended.wait()
                viewer.wait()
