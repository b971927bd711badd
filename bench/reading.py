"""Times the reports on large captures, and their memory."""

import dataclasses
import os
import statistics
import subprocess
import time

from .table import as_text
from .tools import Memtrack

# What `command.wanted` asks of a load.
family, name = "Reading", "reports of large captures"

REPORTS = (
    ["stats"],
    ["table"],
    ["tree", "--text"],
    ["summary"],
    ["flamegraph", "-f", "-o", "report.html"],
    ["transform", "speedscope", "-f", "-o", "report.json"],
    ["transform", "pprof", "-f", "-o", "report.pb.gz"],
)


@dataclasses.dataclass
class Capture:
    label: str
    path: str
    events: int


def measure(options, workshop, progress):
    """The text of the table, and the figures."""
    captures = record(options, workshop, progress)
    programs = {"memtrack": options.memtrack, **({"before": options.before} if options.before else {})}
    heads = ["report", *(head for capture in captures for tool in programs for head in (f"{capture.label}: {tool}", "memory"))]
    lines = ["### Reading", "", "| " + " | ".join(heads) + " |", "|---" + "|--:" * (len(heads) - 1) + "|"]
    figures = []
    for report in REPORTS:
        cells = []
        for capture in captures:
            runs = {tool: [] for tool in programs}
            for _ in range(options.rounds):
                for tool, program in programs.items():
                    progress(f"{tool} {' '.join(report[:2])} of {capture.label}")
                    runs[tool].append(timed([program, *report, capture.path]))
            for tool in programs:
                seconds, kilobytes = (statistics.median(column) for column in zip(*runs[tool]))
                cells += [f"{seconds:.2f} s", f"{kilobytes / 1000:.0f} MB"]
                figures.append({"report": report[:2], "capture": capture.label, "events": capture.events, "tool": tool,
                                "runs": runs[tool]})
        command = " ".join(word for word in report if word not in ("-f", "-o") and not word.startswith("report."))
        lines.append(f"| `memtrack {command}` | " + " | ".join(cells) + " |")
    return as_text(lines), figures


def record(options, workshop, progress):
    """Captures of 20 million events, where little and where two million objects are live."""
    captures = []
    for label, mode, command in (
        ("20 M events of C", ["--no-native"], workshop.compiled("repeated.c", 10_000_000)),
        ("20 M events of Python, 2 M live", ["--no-native", "--trace-python-allocators"], workshop.script("many_live.py", 5_700_000)),
    ):
        progress(f"recording {label}")
        path = str(workshop.directory / f"reading{len(captures)}.bin")
        subprocess.run([options.memtrack, "run", "-q", "-f", "-o", path, *mode, "--", *command.words], check=True,
                       stdout=subprocess.DEVNULL)
        counted = Memtrack("reading", options.memtrack, workshop.directory)
        counted.capture = path
        captures.append(Capture(label, path, counted.events()))
    return captures


def timed(words):
    """Seconds, and the largest resident memory in kB, of a report that is made from events."""
    start = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               env={**os.environ, "MEMTRACK_CACHE": "none"})
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, words)
    return time.perf_counter() - start, usage.ru_maxrss
