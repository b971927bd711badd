"""Makes distributions.json: sizes and lifetimes of blocks, as drawn from recordings of real programs.

    scripts/bench --record-distributions

Each program is recorded, its events are read with `memtrack parse`, and of each kind of block a sample of equal size from each
program is kept as pairs of size in bytes and lifetime in further allocations of that kind; what was never freed lives to the end.
"""

import json
import pathlib
import random
import re
import subprocess

from .loads import OBJECTS, Missing

TARGET = pathlib.Path(__file__).resolve().parent / "distributions.json"
PAIRS_OF_EACH = 120
PYMALLOC_LARGEST = 512
EVENT = re.compile(r"(ALLOC|FREE) .*?address=(\S+)(?: size=(\d+) allocator=(\S+))?")
# Kinds of blocks, by the programs they are recorded from (loads of `applications`) and how.
KINDS = {
    "python objects": (["Django", "SQLAlchemy", "sqlglot", "black", "Sphinx", "mypy"], OBJECTS),
    "python blocks": (["Django", "SQLAlchemy", "sqlglot", "black", "Sphinx", "pandas group-bys"], None),
    "native blocks": (["redis-server", "sqlite3", "cc1plus", "perl", "node"], None),
}


def record(loads, workshop, memtrack):
    kinds = {}
    for kind, (names, option) in KINDS.items():
        pairs, recorded = [], []
        for name in names:
            load = next(load for load in loads if load.name == name)
            try:
                found = of_program(load, workshop, memtrack, option, kind)
            except Missing as why:
                print(f"skipped: {name}: {why}")
                continue
            pairs += random.Random(name).sample(found, min(PAIRS_OF_EACH, len(found)))
            recorded.append({"program": name, "blocks": len(found)})
        kinds[kind] = {"programs": recorded, "pairs": sorted(pairs)}
    write(kinds)


def of_program(load, workshop, memtrack, option, kind):
    """Every block of the kind that the program made, as (size, lifetime)."""
    command = load.make(workshop)
    capture = str(workshop.directory / "distribution.bin")
    options = ["--trace-python-allocators"] if option == OBJECTS else []
    words = [memtrack, "run", "--no-native", "-q", "-f", "-o", capture, *options, "--", *command.words]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if command.client:
        command.client(process)
    if process.wait():
        raise Missing(f"status {process.returncode}")
    parse = subprocess.Popen([memtrack, "parse", capture], stdout=subprocess.PIPE, text=True)
    return lifetimes(parse.stdout, kind)


def lifetimes(lines, kind):
    live, pairs, count = {}, [], 0
    for line in lines:
        event = EVENT.match(line)
        if not event:
            continue
        what, address, size, allocator = event.groups()
        if what == "FREE":
            if address in live:
                size, made = live.pop(address)
                pairs.append((size, count - made))
        elif belongs(kind, allocator, int(size)):
            count += 1
            live[address] = int(size), count
    return pairs + [(size, count) for size, made in live.values()]


def belongs(kind, allocator, size):
    if kind == "python objects":
        return allocator.startswith("pymalloc") and size <= PYMALLOC_LARGEST
    if allocator.endswith("arena") or allocator.startswith("mmap"):
        return False
    return kind == "native blocks" or size > PYMALLOC_LARGEST


def write(kinds):
    texts = []
    for kind, told in kinds.items():
        pairs = ",".join(f"[{size},{lifetime}]" for size, lifetime in told["pairs"])
        programs = ",\n   ".join(map(json.dumps, told["programs"]))
        texts.append(f'"{kind}": {{"programs": [\n   {programs}],\n  "pairs": [{pairs}]}}')
    made = " ".join(__doc__.split("\n\n")[-1].split())
    joined = ",\n ".join(texts)
    TARGET.write_text(f'{{"made": {json.dumps(made)},\n"kinds": {{\n {joined}}}}}\n')
