"""Times pictures of many Python objects, and the reports on them."""

import json
import os
import statistics
import subprocess

from . import measuring
from .reading import timed
from .table import as_text

# What `command.wanted` asks of a load.
family, name = "Pictures", "pictures of many objects"

KINDS = "dictionaries", "instances", "slots", "lists", "texts", "shuffled", "churned"
OBJECTS = 10_000_000
FIGURES = "stands still", "longer by", "memtrack's own", "`objects`", "memory", "`objects --retained`", "memory"


def measure(options, workshop, progress):
    """The text of the table, and the figures."""
    programs = {"memtrack": options.memtrack, **({"before": options.before} if options.before else {})}
    heads = ["objects at the end", *([] if len(programs) == 1 else ["build"]), "objects", *FIGURES]
    lines = ["### Pictures", "", "| " + " | ".join(heads) + " |", "|---" + "|--:" * (len(heads) - 1) + "|"]
    figures = []
    for kind in KINDS:
        command = workshop.script("object_heap.py", kind, OBJECTS)
        runs = {tool: [] for tool in programs}
        try:
            for number in range(options.rounds):
                for tool, program in programs.items():
                    progress(f"{tool}, picture of {kind}, round {number + 1}")
                    runs[tool].append(one_picture(program, command, workshop))
        except (measuring.Failed, subprocess.CalledProcessError) as why:
            progress(f"skipped: picture of {kind}: {why}\n")
            continue
        for tool, of_tool in runs.items():
            middle = [statistics.median(column) for column in zip(*of_tool)]
            count, pause, longer, own, report, report_memory, retained, retained_memory = middle
            cells = [kind, *([] if len(programs) == 1 else [tool]), f"{count:,.0f}", f"{pause:.2f} s", f"{longer:.2f} s"]
            cells += [f"{own / 1000:.0f} MB", f"{report:.2f} s", f"{report_memory / 1000:.0f} MB"]
            cells += [f"{retained:.2f} s", f"{retained_memory / 1000:.0f} MB"]
            lines.append("| " + " | ".join(cells) + " |")
            figures.append({"objects": kind, "tool": tool, "runs": of_tool})
    return as_text(lines), figures


def one_picture(program, command, workshop):
    """Objects, seconds that the program stands still, seconds that its recording takes longer than one without a picture, memory in kB
    of memtrack's own process, and seconds and memory of two reports."""
    path = str(workshop.directory / "picture.bin")
    words = [program, "run", "-q", "-f", "-o", path, "--no-native"]
    without = measuring.run_once([*words, "--", *command.words], command)
    recorded = measuring.run_once([*words, "--objects-at", "end", "--", *command.words], command)
    report, retained = timed([program, "objects", path]), timed([program, "objects", "--retained", path])
    text = subprocess.run([program, "objects", "--json", path], check=True, capture_output=True,
                          env={**os.environ, "MEMTRACK_CACHE": "none"}).stdout
    picture = json.loads(text)
    return picture["count"], picture["pause_ns"] / 1e9, recorded.wall - without.wall, recorded.others, *report, *retained
