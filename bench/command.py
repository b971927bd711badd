"""The command: options, which loads, and what is printed."""

import argparse
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile

from . import applications, measuring, pictures, pyperformance, reading, record_distributions, running, setup, synthetic, table, tools
from .loads import Missing, Workshop

# The section of docs/benchmarks.md that has the tables.
SECTION = "## Figures"
ROOT = pathlib.Path(__file__).resolve().parent.parent


def main(description):
    options = arguments(description)
    if options.setup:
        setup.install(options.setup)
        return
    loads = [load for load in all_loads() if wanted(load, options.only)]
    if options.list:
        for load in loads:
            print(f"{load.family}: {load.name}")
        return
    measuring.become_subreaper()
    if options.record_distributions:
        with tempfile.TemporaryDirectory(prefix="memtrack-bench-") as directory:
            record_distributions.record(loads, Workshop(directory, options.python), options.memtrack)
        return
    with tempfile.TemporaryDirectory(prefix="memtrack-bench-") as directory:
        os.chdir(directory)
        report(options, loads, directory)


def all_loads():
    return [*synthetic.loads(), *pyperformance.loads(), *applications.loads()]


def wanted(load, only):
    """Parts of names, by commas; a family is chosen by a part of its own name."""
    parts = [part for part in only.split(",") if part]
    return not parts or any(part in load.name or part in load.family for part in parts)


def arguments(description):
    parser = argparse.ArgumentParser(description=description.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="rounds for each load (3)")
    parser.add_argument("--only", default="", metavar="PARTS", help="loads or families whose names contain one of these, by commas")
    parser.add_argument("--list", action="store_true", help="print the loads, and run none")
    parser.add_argument("--python", help="the Python to measure with; without it that of --setup where there is one, else python3")
    parser.add_argument("--memtrack", default=str(ROOT / "target/release/memtrack"), help="the memtrack to measure")
    parser.add_argument("--before", metavar="PATH", help="another memtrack, measured in the same rounds")
    parser.add_argument("--without", default="", metavar="TOOLS", help="memray, heaptrack, reading, pictures or running are left out, by commas")
    parser.add_argument("--json", metavar="FILE", help="write every run's figures there")
    parser.add_argument("--document", metavar="FILE", help=f"put the tables under the heading {SECTION!r} of this Markdown file")
    parser.add_argument("--setup", nargs="?", const=str(setup.default_directory()), metavar="DIRECTORY",
                        help=f"make a virtual environment there with what the loads need ({setup.default_directory()}), and end")
    parser.add_argument("--record-distributions", action="store_true", help="record programs anew for distributions.json, and end")
    options = parser.parse_args()
    options.without = options.without.split(",")
    options.memtrack = found(parser, options.memtrack)
    options.before = options.before and found(parser, options.before)
    options.document = options.document and os.path.abspath(options.document)
    options.json = options.json and os.path.abspath(options.json)
    python = options.python or setup.python_of(setup.default_directory()) or "python3"
    # The interpreter itself, so that a version manager's script is not measured along with it.
    options.python = output([python, "-c", "import sys; print(sys.executable)"]).strip()
    return options


def found(parser, program):
    path = shutil.which(program)
    if not path:
        parser.error(f"{program}: not there; build it with 'cargo build --release'")
    return os.path.abspath(path)


def report(options, loads, directory):
    has_memray = subprocess.run([options.python, "-c", "import memray"], capture_output=True).returncode == 0
    in_use = tools.tools(options, directory, has_memray)
    texts = [described(options, [tool.name for tool in in_use]) + "\n"]
    workshop = Workshop(directory, options.python)
    rows = []
    for load in loads:
        try:
            rows += measuring.measure(load, load.make(workshop), in_use, options.rounds, progress)
        except (Missing, measuring.Failed) as why:
            progress(f"skipped: {load.name}: {why}\n")
    texts.append(table.tables(rows, bool(options.before)))
    timed = {"reading": [], "pictures": [], "running": []}
    for part in (reading, pictures, running):
        kind = part.family.lower()
        if kind not in options.without and wanted(part, options.only):
            text, timed[kind] = part.measure(options, workshop, progress)
            texts.append(text)
    progress("")
    print("\n".join(texts), end="")
    if options.document:
        replace_figures(pathlib.Path(options.document), "\n".join(texts))
    if options.json:
        figures = {"about": described(options, []), "rows": [row.for_json() for row in rows], **timed}
        pathlib.Path(options.json).write_text(json.dumps(figures, indent=1))


def replace_figures(document, text):
    """Puts the tables in the place of those under SECTION in a Markdown document."""
    before, heading, rest = document.read_text().partition(SECTION)
    if not heading:
        raise SystemExit(f"error: {document}: no heading {SECTION!r}")
    after = rest.find("\n## ")
    document.write_text(before + heading + "\n\n" + text + (rest[after:] if after >= 0 else ""))


def described(options, names):
    parts = [version(options.memtrack)]
    parts += [f"before: {version(options.before)}"] if options.before else []
    parts.append("Python " + output([options.python, "-c", "import platform; print(platform.python_version())"]).strip())
    if "memray" in names:
        parts.append(output([options.python, "-c", "import memray; print('memray', memray.__version__)"]).strip())
    if "heaptrack" in names:
        parts.append(output(["heaptrack", "--version"]).strip())
    parts += [f"Linux {platform.release()}", f"{len(os.sched_getaffinity(0))} cores"]
    return ", ".join(parts) + f"; medians of {options.rounds} interleaved rounds"


def version(memtrack):
    """memtrack and the commit that it was built from."""
    version, commit = output([memtrack, "--version"]).splitlines()[:2]
    return f"{version} ({commit.removeprefix('commit: ')})"


def progress(text):
    """What is being run, on a terminal; what is skipped, everywhere."""
    if sys.stderr.isatty():
        print(f"\r{text}\033[K", end="", file=sys.stderr, flush=True)
    elif text.endswith("\n"):
        print(text, end="", file=sys.stderr, flush=True)


def output(command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
