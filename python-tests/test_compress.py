"""`run --compress`: the same capture, stored in other ways."""

import json
import struct
import sys

import pytest

from conftest import in_one_of

# Lines that come again and again with other numbers: something to be found by a compressor, and not too easily.
PROGRAM = """
import json
held = []
for number in range(300):
    held.append(json.loads(json.dumps({"a": list(range(number)), "b": {str(key): None for key in range(50)}})))
"""
ZSTD = {0, 1, 2, 3, 4}
CODECS = {"none": {0}, "lz4": {0, 1, 5}, "zstd": ZSTD, "zstd:1": ZSTD, "zstd:19": ZSTD}
HEADER, BLOCK = 16, 56


def codecs(path):
    """How the blocks of a capture are stored."""
    content, at, found = path.read_bytes(), HEADER, set()
    while at + BLOCK <= len(content):
        found.add(content[at + 9])
        at += BLOCK + struct.unpack_from("<I", content, at + 44)[0]
    assert at == len(content)
    return found


def whole(stats):
    capture = stats["capture"]
    return capture["complete"] and (capture["lost_blocks"], capture["lost_bytes"], capture["unmatched_frees"]) == (0, 0, 0)


@pytest.mark.parametrize("options", [[], ["--aggregate"], ["--allocation-timestamps"]], ids=lambda options: "".join(options) or "plain")
def test_each_way_is_read(memtrack, options):
    def attempt():
        sizes = each_way(memtrack, options)
        # Each recording has times of its own, which on a busy machine make more difference than the level does; and blocks end by the
        # clock, too, which makes a few percent.
        return "" if sizes["zstd"] > sizes["zstd:19"] or "--allocation-timestamps" in options else str(sizes)

    in_one_of(3, attempt)


def each_way(memtrack, options):
    """The sizes of captures, in parts of their records, by the way in which they are packed."""
    sizes, held = {}, set()
    for how, wanted in CODECS.items():
        options_too = ["--trace-python-allocators", "--compress", how, *options]
        capture = memtrack.record(sys.executable, "-c", PROGRAM, options=options_too)
        stats = capture.stats()
        assert whole(stats), (how, stats["capture"])
        assert codecs(capture.path) <= wanted, how
        sizes[how] = capture.path.stat().st_size / max(stats["account"]["record_bytes"], 1)
        table = json.loads(capture.reading("table", "--leaks", "--json", "-n", 0, "--function", "raw_decode", capture.path))
        held.add(sum(row["count"] for row in table["rows"]))
    # What the program holds is the same in all of them; and so is their order by size.
    assert len(held) == 1 and held.pop() > 1000
    assert sizes["none"] > sizes["lz4"] > max(sizes["zstd"], sizes["zstd:19"]), sizes
    return sizes


def test_the_captures_of_a_tree_are_compressed_too(memtrack, python, programs):
    options = ["--follow", "--compress", "zstd:19"]
    outcome = memtrack("run", *options, "-o", "capture.bin", "--", python, programs / "tree.py", "forks")
    captures = sorted(memtrack.directory.glob("*.bin"))
    assert outcome.status == 0 and len(captures) == 6
    for path in captures:
        assert whole(json.loads(memtrack("stats", "--json", path).stdout))
    # Nothing else is left behind.
    assert not list(memtrack.directory.glob(".memtrack-*"))


@pytest.mark.parametrize("how", ["gzip", "zstd:20", "zstd:x", "lz4:9", ""])
def test_what_there_is_not_is_refused(memtrack, how):
    outcome = memtrack("run", "--compress", how, "--", "true")
    assert outcome.status == 2
    assert b"from 1 (fastest) to 19" in outcome.stderr, outcome
