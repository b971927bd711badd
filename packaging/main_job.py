"""The main job of memtrack, done by an installed one: records examples/demo.py and checks the figures of its reports.

    python3 main_job.py DIRECTORY COMMAND...

COMMAND is memtrack as it is called there; DIRECTORY holds demo.py and gets what is written. Why a program of its own:
it runs in systems that have only Python's standard library. Invariant: the figures are those that demo.py names at
its top.
"""

import json
import os
import subprocess
import sys

BLOCKS = 40_000_000
CACHE = 100 * 80_033  # bytes(80_000) and the header of a bytes object
# What interpreters and imports hold besides; they differ from version to version.
REST = 16_000_000


def output(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    if done.returncode:
        sys.exit("main_job: %s: status %d\n%s" % (" ".join(command), done.returncode, done.stderr.decode()))
    return done.stdout.decode()


def check(what, actual, low, high):
    if not low <= actual <= high:
        sys.exit("main_job: %s: %d is not between %d and %d" % (what, actual, low, high))


def bytes_of_demo(memtrack, capture, *view):
    """Of all lines of demo.py: the names of its functions differ between versions of Python."""
    rows = json.loads(output([*memtrack, "table", "--json", *view, capture]))["rows"]
    return sum(row["bytes"] for row in rows if os.path.basename(row["file"] or "") == "demo.py")


def main(directory, *memtrack):
    capture, profile = os.path.join(directory, "demo.bin"), os.path.join(directory, "demo.json")
    printed = output(
        [*memtrack, "run", "-f", "--allocation-timestamps", "-o", capture, os.path.join(directory, "demo.py")]
    )
    if "remembered 100 entries" not in printed:
        sys.exit("main_job: demo.py printed %r" % printed)
    stats = json.loads(output([*memtrack, "stats", "--json", capture]))
    peak = stats["peak"]["bytes"]
    check("bytes at the peak", peak, BLOCKS, BLOCKS + REST)
    check("version of Python", int(stats["capture"]["python_version"].split(".")[1]), *[sys.version_info[1]] * 2)
    check("bytes of load() at the peak", bytes_of_demo(memtrack, capture), BLOCKS, BLOCKS + 100_000)
    check("bytes of remember() at the end", bytes_of_demo(memtrack, capture, "--leaks"), CACHE, CACHE + 100_000)
    output([*memtrack, "transform", "speedscope", "-f", "-o", profile, capture])
    with open(profile) as file:
        check("sum of speedscope's weights", sum(json.load(file)["profiles"][0]["weights"]), peak, peak)
    return peak


if __name__ == "__main__":
    print("%d bytes at the peak" % main(*sys.argv[1:]))
