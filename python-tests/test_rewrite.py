"""`memtrack merge`, `strip` and `anonymize`: captures that every command reads, and that say what was done to them."""

import itertools
import json
import re
import sys

import pytest

from conftest import PROGRAMS, Capture

READERS = ["stats", "summary", "table", "tree", "parse", "query"]
FORMATS = ["speedscope", "csv", "collapsed", "gprof2dot", "pprof", "firefox", "dhat", "heaptrack", "jsonl"]


@pytest.fixture(scope="module", params=[[], ["--allocation-timestamps"]], ids=["plain", "timed"])
def capture(module_memtrack, request):
    return module_memtrack.record(sys.executable, PROGRAMS / "handover.py", "--token=xyzzy", options=request.param)


@pytest.fixture(scope="module")
def other(module_memtrack):
    return module_memtrack.record(sys.executable, PROGRAMS / "handover.py", "--token=xyzzy")


@pytest.fixture(scope="module")
def aggregated(module_memtrack):
    return module_memtrack.record(sys.executable, PROGRAMS / "handover.py", "--token=xyzzy", options=["--aggregate"])


def rewritten(capture, command, *options):
    path = capture.path.parent / f"{command}-{capture.path.stem}.bin"
    outcome = capture.memtrack(command, "-f", "-o", path, *options, capture.path)
    assert outcome.status == 0, outcome.stderr.decode()
    return Capture(capture.memtrack, path)


def comparable(stats, *without):
    """What a report says but for the capture's own name and what it is about."""
    return {key: value for key, value in stats.items() if key not in ("capture", "processes", "account", *without)}


def read_by_every_command(capture):
    for command in READERS:
        words = ["live"] if command == "query" else []
        outcome = capture.memtrack(command, *words, capture.path)
        assert outcome.status == 0 and outcome.stdout, (command, outcome.stderr.decode())
    for name in FORMATS:
        outcome = capture.memtrack("transform", name, "-o", "-", capture.path)
        assert outcome.status == 0 and outcome.stdout, (name, outcome.stderr.decode())


# --- merge ------------------------------------------------------------------------------------------------------------


def test_merged_captures_are_those_that_were_merged(capture, aggregated, tmp_path):
    merged = tmp_path / "all.bin"
    assert capture.memtrack("merge", "-o", merged, capture.path, aggregated.path).status == 0
    whole = json.loads(capture.reading("stats", "--json", merged))
    singles = [capture.stats(), aggregated.stats()]
    for key, unit in itertools.product(("allocations", "leaked", "temporary"), ("count", "allocations", "bytes")):
        if unit in whole[key]:
            assert whole[key][unit] == sum(one[key][unit] for one in singles), (key, unit)
    for number, single in ((1, capture), (2, aggregated)):
        one = json.loads(capture.reading("stats", "--json", f"{merged}#{number}"))
        assert comparable(one) == comparable(single.stats())
    again = tmp_path / "again.bin"
    outcome = capture.memtrack("merge", "-o", again, merged, capture.path)
    # A process counts once, also where it is in a merged file.
    assert outcome.status == 0 and f"{capture.path}: left out: {merged}#1 has the same recording" in outcome.stderr.decode()
    assert len(json.loads(capture.reading("query", "--json", "--by", "thread", "thread ~ ''", again))["captures"]) == 2


def test_merging_a_capture_with_itself_counts_it_once(capture, tmp_path):
    twice, copy = tmp_path / "twice.bin", tmp_path / "copy.bin"
    copy.write_bytes(capture.path.read_bytes())
    outcome = capture.memtrack("merge", "-o", twice, capture.path, capture.path, copy)
    told = outcome.stderr.decode()
    assert outcome.status == 0 and "1 capture in one file" in told, told
    for path in capture.path, copy:
        assert f"{path}: left out: {capture.path} has the same recording of the same process" in told, told
    assert json.loads(capture.reading("stats", "--json", twice))["allocations"] == capture.stats()["allocations"]


def test_captures_one_behind_the_other_are_no_capture(capture, aggregated, tmp_path):
    both = tmp_path / "both.bin"
    both.write_bytes(capture.path.read_bytes() + aggregated.path.read_bytes())
    for command in (["stats"], ["table"], ["merge", "-o", tmp_path / "all.bin"], ["diff", capture.path]):
        outcome = capture.memtrack(*command, both)
        assert outcome.status == 1 and b"another capture behind it" in outcome.stderr, outcome
        assert b"join captures with 'memtrack merge'" in outcome.stderr and not outcome.stdout, outcome


def test_other_bytes_behind_a_capture_are_told(capture, tmp_path):
    longer = tmp_path / "longer.bin"
    longer.write_bytes(capture.path.read_bytes() + bytes(100))
    outcome = capture.memtrack("stats", "--json", longer)
    assert b"100 bytes of something else behind the end of the capture, which is complete" in outcome.stderr, outcome
    assert b"incomplete" not in outcome.stderr
    stats = json.loads(outcome.stdout)
    assert stats["capture"]["complete"] and comparable(stats) == comparable(capture.stats())


def test_merged_captures_are_read_by_every_command(capture, other, tmp_path):
    merged = tmp_path / "all.bin"
    assert capture.memtrack("merge", "-o", merged, capture.path, other.path).status == 0
    for command in READERS:
        assert capture.memtrack(command, *(["live"] if command == "query" else []), merged).status == 0
    for name in set(FORMATS) - {"heaptrack"}:
        assert capture.memtrack("transform", name, "-o", "-", merged).status == 0
    outcome = capture.memtrack("transform", "heaptrack", "-o", "-", merged)
    assert outcome.status == 1 and b"one process" in outcome.stderr
    assert capture.memtrack("transform", "heaptrack", "-o", "-", f"{merged}#2").status == 0
    assert capture.memtrack("diff", f"{merged}#1", f"{merged}#2").status == 0


def test_cut_and_damaged_merges_are_told(capture, other, tmp_path):
    merged = tmp_path / "all.bin"
    assert capture.memtrack("merge", "-o", merged, capture.path, other.path).status == 0
    content = merged.read_bytes()
    merged.write_bytes(content[: len(content) // 3])
    outcome = capture.memtrack("stats", merged)
    assert outcome.status == 0 and b"1 of 2 captures are missing" in outcome.stderr
    merged.write_bytes(content[:72] + b"\xff" + content[73:])
    outcome = capture.memtrack("stats", merged)
    assert outcome.status == 1 and b"corrupt capture index" in outcome.stderr


# --- strip ------------------------------------------------------------------------------------------------------------


def test_stripping_keeps_peak_and_leaks_and_says_what_is_gone(capture):
    stripped = rewritten(capture, "strip", "--lived-less", "100s", "--smaller", "60kB")
    before, after = capture.stats(), stripped.stats()
    for key in ("peak", "leaked", "rss", "mappings"):
        assert after[key] == before[key], key
    dropped = after["capture"]["stripped"]
    assert dropped["count"] > 1000
    for key in ("count", "bytes"):
        assert after["allocations"][key] + dropped[key] == before["allocations"][key]
    assert before["capture"]["stripped"] is None
    assert stripped.path.stat().st_size < capture.path.stat().st_size
    for view in ((), ("--leaks",)):
        assert stripped.speedscope(*view).samples() == capture.speedscope(*view).samples()
    outcome = stripped.memtrack("table", stripped.path)
    assert f"{dropped['count']:,} allocations".encode() in outcome.stderr and b"were removed" in outcome.stderr
    found = json.loads(stripped.reading("query", "--json", "freed and bytes < 60kB and not peak and not allocator ~ map and not leaked", stripped.path))
    assert found["rows"] == []
    read_by_every_command(stripped)


def test_stripping_twice_adds_up(capture):
    once = rewritten(capture, "strip", "--lived-less", "100s", "--smaller", "100B")
    twice = rewritten(once, "strip", "--lived-less", "100s", "--smaller", "60kB")
    direct = rewritten(capture, "strip", "--lived-less", "100s", "--smaller", "60kB")
    assert twice.stats()["capture"]["stripped"] == direct.stats()["capture"]["stripped"]
    assert comparable(twice.stats()) == comparable(direct.stats())


def test_stripping_nothing_changes_nothing(capture):
    same = rewritten(capture, "strip", "--lived-less", "0s")
    assert comparable(same.stats()) == comparable(capture.stats())
    events = lambda text: [line for line in text.splitlines() if line.split(" ")[0] in ("ALLOC", "FREE", "MAP", "UNMAP")]
    without_numbers = lambda lines: [re.sub(r" stack=\d+", "", line) for line in lines]
    assert without_numbers(events(same.text)) == without_numbers(events(capture.text))


def test_damaged_captures_are_stripped_as_far_as_they_go(capture, tmp_path):
    content = bytearray(capture.path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 50] = bytes(50)
    (tmp_path / "damaged.bin").write_bytes(content)
    damaged = Capture(capture.memtrack, tmp_path / "damaged.bin")
    stripped = rewritten(damaged, "strip", "--lived-less", "0s")
    before, after = damaged.stats(), stripped.stats()
    assert comparable(after) == comparable(before)
    assert after["capture"]["lost_blocks"] == before["capture"]["lost_blocks"] > 0
    (tmp_path / "cut.bin").write_bytes(capture.path.read_bytes()[: middle])
    cut = Capture(capture.memtrack, tmp_path / "cut.bin")
    for command in ("strip", "anonymize"):
        assert rewritten(cut, command).stats()["capture"]["complete"] is False


# --- anonymize --------------------------------------------------------------------------------------------------------

SECRETS = [b"handover", b"produce", b"consume", b"linger", b"xyzzy", b"threading", b"python-tests", sys.executable.encode()]


def decompressed(path):
    """What the blocks of a capture hold. They are stored as they are, as LZ4, which is taken apart here, or as Zstandard."""
    pyarrow = pytest.importorskip("pyarrow")
    content, at, parts = path.read_bytes(), 16, []
    while at < len(content):
        codec = content[at + 9]
        raw, stored = (int.from_bytes(content[at + offset : at + offset + 4], "little") for offset in (40, 44))
        payload = content[at + 56 : at + 56 + stored]
        parts.append(
            {
                0: lambda: payload,
                1: lambda: unpacked(payload, raw),
                2: lambda: pyarrow.decompress(payload, raw, codec="zstd", asbytes=True),
            }[codec]()
        )
        at += 56 + stored
    return b"".join(parts)


def unpacked(data, size):
    """One LZ4 block."""
    out, at = bytearray(), 0
    while at < len(data):
        token = data[at]
        at += 1
        literals, at = length(token >> 4, data, at)
        out += data[at : at + literals]
        at += literals
        if at >= len(data):
            break
        distance = data[at] | data[at + 1] << 8
        match, at = length(token & 15, data, at + 2)
        for _ in range(match + 4):
            out.append(out[-distance])
    assert len(out) == size
    return bytes(out)


def length(value, data, at):
    more = 255 if value == 15 else 0
    while more == 255:
        more = data[at]
        value, at = value + more, at + 1
    return value, at


@pytest.fixture(scope="module", params=["events", "sums"])
def native(module_memtrack, request):
    options = ["--native"] + ["--aggregate"] * (request.param == "sums")
    return module_memtrack.record(sys.executable, PROGRAMS / "handover.py", "--token=xyzzy", options=options)


def symbolized(capture):
    path = capture.path.parent / f"symbolized-{capture.path.name}"
    assert capture.memtrack("symbolize", "-f", "-o", path, capture.path).status == 0
    return Capture(capture.memtrack, path)


def shapes(capture):
    """The call tree without names."""
    calls = json.loads(capture.reading("tree", "--json", "--allocated", capture.path))["calls"]
    return sorted((call["line"] or 0, call["total"]["bytes"], call["total"]["count"]) for call in calls)


@pytest.mark.parametrize("named", [False, True], ids=["recorded", "symbolized"])
def test_nothing_of_native_code_is_left(native, named):
    source = symbolized(native) if named else native
    anonymous = rewritten(source, "anonymize")
    content = decompressed(anonymous.path)
    calls = json.loads(source.reading("tree", "--json", "--allocated", source.path))["calls"]
    names = {call["function"] for call in calls} | {part for call in calls for part in (call["file"] or "").split("/")}
    names |= {part for part in sys.executable.split("/")[:-1]}
    # Short words are found by chance; these stay: see docs/formats.md.
    stay = ("python3", "libpython3", "site-packages", "dist-packages", "<module>", "<listcomp>", "__init__", "<string>")
    stay += ("importlib", "_bootstrap.py", "_bootstrap_external", "<frozen importlib", "<frozen zipimport>", "<frozen runpy>")
    # Plumbing, what starts programs, and the runtimes' objects and sources: reports know them by their names.
    stay += ("malloc", "calloc", "realloc", "PyObject_", "_PyObject_", "PyMem_", "_PyMem_", "PyType_GenericAlloc", "_PyType_AllocNoTrack")
    stay += ("new_arena", "pymalloc_", "gc_alloc", "list_resize", "dictresize", "insertion_resize", "new_keys_object", "list_preallocate")
    stay += ("_start", "__libc_", "start_thread", "call_init", "_dl_init", "clone", "libc.so", "ld-linux", "include", "library")
    secrets = {name for name in names if len(name) > 5 and not name.startswith(stay) and not any(name in word for word in stay)}
    assert len(secrets) > 100, "names of native functions and of their files"
    assert any("+0x" not in name and "." not in name for name in secrets)
    words = set(re.findall(rb"[\w.+-]+", content))
    assert not words & {name.encode() for name in secrets}
    for secret in SECRETS:
        assert secret not in content, secret
    assert shapes(anonymous) == shapes(source)


def whose(capture):
    """Whose memory it is, and which places hold it, without names."""
    rows = lambda *options: json.loads(capture.reading("table", "--json", *options, capture.path))["rows"]
    figures = lambda *options: sorted((row["bytes"], row["count"], row["line"] or 0) for row in rows(*options))
    parts = capture.stats()["leaked"]["parts"]
    return parts, {option: figures(*option) for option in itertools.product(("--own", "--libraries", "--stdlib", "--imports"), ("--leaks", "--allocated"))}


def test_anonymous_memory_is_whose_it_was(native):
    """The runtime stays the runtime, and plumbing plumbing: no place and no byte goes to another."""
    parts, figures = whose(native)
    assert parts["stdlib"]["bytes"] > 0 and len(figures["--own", "--allocated"]) > 1
    assert whose(rewritten(native, "anonymize")) == (parts, figures)


@pytest.mark.parametrize("named", [False, True], ids=["recorded", "symbolized"])
def test_stripped_captures_keep_their_native_code(native, named):
    if native.stats()["capture"]["aggregated"]:
        pytest.skip("there is nothing to strip in sums")
    source = symbolized(native) if named else native
    same = rewritten(source, "strip", "--lived-less", "0s")
    for words in (["tree", "--json"], ["table", "--json", "--leaks"]):
        assert same.reading(*words, same.path) == source.reading(*words, source.path)
    assert symbolized(same).reading("tree", "--json", symbolized(same).path) == source.reading("tree", "--json", source.path)


@pytest.mark.parametrize("kind", ["events", "sums"])
def test_nothing_of_the_names_is_left(capture, aggregated, kind):
    source = capture if kind == "events" else aggregated
    anonymous = rewritten(source, "anonymize")
    content = decompressed(anonymous.path)
    assert b"site-packages" in content or b"lib" in content
    for secret in SECRETS:
        assert secret not in content, secret
    before, after = source.stats(), anonymous.stats()
    named = ("threads", "top_by_size", "top_by_count", "modules_by_size", "modules_by_count")
    assert comparable(after, *named) == comparable(before, *named)
    for key in named:
        figures = lambda stats: [(row["count"], row["bytes"]) for row in stats[key]]
        assert sorted(figures(after)) == sorted(figures(before))
    assert after["capture"]["anonymized"] and not before["capture"]["anonymized"]
    lines = lambda capture: [[frame.line or 0 for frame in sample[0]] for sample in capture.speedscope("--allocated").samples()]
    assert sorted(lines(anonymous)) == sorted(lines(source))
    if kind == "events":
        read_by_every_command(anonymous)


def test_anonymous_captures_differ_in_what_differed(capture):
    anonymous = rewritten(capture, "anonymize")
    assert len(capture.records.frames) == len(anonymous.records.frames)
    names = lambda capture: len({frame.name for frame in capture.records.frames.values()})
    assert names(anonymous) == names(capture)


def test_aggregated_captures_hold_nothing_to_strip(aggregated):
    outcome = aggregated.memtrack("strip", aggregated.path)
    assert outcome.status == 1 and b"aggregated" in outcome.stderr


def test_existing_files_are_refused(capture):
    for words in (["merge", capture.path], ["strip", capture.path], ["anonymize", capture.path]):
        outcome = capture.memtrack(*words, "-o", capture.path)
        assert outcome.status == 1 and b"--force" in outcome.stderr


def test_a_recording_of_a_process_counts_once(capture):
    """A capture, a smaller copy of it and the same file again are one recording: the whole capture is read."""
    whole = capture.stats()
    stripped = rewritten(capture, "strip", "--smaller", "60kB")
    outcome = capture.memtrack("stats", "--json", stripped.path, capture.path, capture.path)
    told = json.loads(outcome.stdout)
    assert [told[name] for name in ("allocations", "peak", "leaked")] == [whole[name] for name in ("allocations", "peak", "leaked")]
    said = outcome.stderr.decode()
    assert said.count("left out") == 2 and f"{stripped.path}: left out" in said, said
    # Records are no sums: all are printed.
    assert capture.reading("parse", capture.path, capture.path) == 2 * capture.text
