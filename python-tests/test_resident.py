"""`resident`: what it says to be kept by glibc is what malloc_trim(0) gives back, in Python programs, too; of jemalloc likewise."""

import contextlib
import ctypes.util
import json
import os
import re
import shutil
import struct
import subprocess
import sys

import pytest

from conftest import PATIENCE, PROGRAMS, in_one_of, interpreter_path, until

# Blocks of which one in 97 stays; and modules, which the loader allocates for.
PROGRAM = """
import ctypes, decimal, json, sqlite3, ssl, xml.etree.ElementTree
blocks = [bytearray(600 + number % 3000) for number in range(8000)]
kept = blocks[::97]
del blocks
"""


def wait_for(path, process):
    until(path, lambda: path.exists() or process.poll() is not None)
    assert path.exists(), path


def anonymous(pid):
    """Bytes of anonymous memory, as the system counts."""
    with open(f"/proc/{pid}/smaps") as smaps:
        return sum(int(line.split()[1]) * 1024 for line in smaps if line.startswith("Anonymous:"))


def child(pid):
    for thread in os.listdir(f"/proc/{pid}/task"):
        for one in open(f"/proc/{pid}/task/{thread}/children").read().split():
            with contextlib.suppress(OSError):  # It has ended.
                if not os.readlink(f"/proc/{one}/exe").endswith("/memtrack"):
                    return int(one)
    raise AssertionError("no program")


def given_back(memtrack, tmp_path, options, environment):
    """What the allocator gives back when it is asked at the end of PROGRAM; a capture, with a mark before it."""
    library = tmp_path / "trimmed.so"
    compiler = shutil.which("cc") or pytest.skip("no C compiler")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, PROGRAMS / "trimmed.c"], check=True)
    capture = tmp_path / "capture.bin"
    command = memtrack.command("run", "-q", *options, "-o", capture, sys.executable, "-c", PROGRAM)
    is_glibc = "LD_PRELOAD" not in environment
    preload = f"{library} {environment.pop('LD_PRELOAD', '')}"
    process = subprocess.Popen(command, env={**os.environ, **environment, "LD_PRELOAD": preload, "PROBE": str(tmp_path)})
    wait_for(tmp_path / "ready", process)
    pid = child(process.pid)
    # It allocates now, so that its allocator is asked; of glibc, the account is what was read from outside.
    until("its allocator has answered", lambda: is_glibc or has_answered(memtrack, tmp_path / "asked.bin", pid))
    memtrack.mark(pid, "here")
    # The mark's account has come when a later snapshot is complete.
    assert memtrack("snapshot", "-o", tmp_path / "after.bin", pid).status == 0
    before = anonymous(pid)
    (tmp_path / "go").touch()
    wait_for(tmp_path / "trimmed", process)
    bytes = before - anonymous(pid)
    (tmp_path / "end").touch()
    assert process.wait(PATIENCE) == 0
    return bytes, capture


def has_answered(memtrack, snapshot, pid):
    taken = memtrack("snapshot", "-f", "-o", snapshot, pid)
    return taken.status == 0 and json.loads(memtrack("resident", "--json", snapshot).stdout)["allocator_statistics"]


# Objects of which one in 61 stays.
OBJECTS = """
class Session:
    __slots__ = ("number", "name", "path")
    def __init__(self, number):
        self.number, self.name, self.path = number, str(number) * 3, [number]
kept = [Session(number + 1000) for number in range(100000)][::61]
print("ready", flush=True)
input()
"""


def pools_in_memory(pid, arenas, pool_bytes):
    """{bytes of a block: (pools, blocks)}: what the headers of pymalloc's pools say, read from outside."""
    sums = {}
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb") as memory:
        mappings = [[int(end, 16) for end in line.split()[0].split("-")] for line in maps]
        for start, end in [next(one for one in mappings if one[0] <= arena < one[1]) for arena in arenas]:
            memory.seek(start)
            bytes = memory.read(end - start)
            for at in range(-start % pool_bytes, len(bytes) - pool_bytes + 1, pool_bytes):
                blocks, size_class = struct.unpack_from("<I32xI", bytes, at)
                # What else was mapped next to arenas has no such header.
                if size_class < 32 and 0 < blocks <= pool_bytes // ((size_class + 1) * 16):
                    pools, all_blocks = sums.get(size_class, (0, 0))
                    sums[size_class] = (pools + 1, all_blocks + blocks)
    return {(size_class + 1) * 16: both for size_class, both in sums.items()}


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "sid-3.14", "sid-3.15"])
def test_pools_by_size_class_are_those_of_the_allocator(memtrack, tmp_path, version):
    capture = tmp_path / "capture.bin"
    python = interpreter_path(version)
    command = memtrack.command("run", "-q", "--trace-python-allocators", "-o", capture, python, "-c", OBJECTS)
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    pid = child(process.pid)
    memtrack.mark(pid, "here")
    # The mark's account has come when a later snapshot is complete.
    assert memtrack("snapshot", "-o", tmp_path / "snapshot.bin", pid).status == 0
    found = json.loads(memtrack("resident", "--json", "--at", "mark:here", tmp_path / "snapshot.bin").stdout)
    arenas = [arena for arena in found["arenas"] if arena["allocator"] == "pymalloc"]
    pool_bytes = 4096 if version in ("3.8", "3.9") else 16384
    expected = pools_in_memory(pid, [arena["address"] for arena in arenas], pool_bytes)
    process.communicate(b"\n", PATIENCE)
    assert {one["block_bytes"]: (one["pools"], one["blocks"]) for one in found["pools"]} == expected
    classes = {one["class"]: one["bytes"] for one in found["classes"]}
    in_pools = sum(one["resident_bytes"] for one in found["pools"])
    assert sum(one["excess_bytes"] for one in found["pools"]) > 0.7 * in_pools
    # Beside pools there are the ends of arenas, and large blocks that were mapped next to them.
    assert 0.98 <= (in_pools + classes["python_free"]) / sum(arena["resident_bytes"] for arena in arenas) <= 1


@pytest.mark.parametrize("options", [[], ["--trace-python-allocators"], ["--native"]], ids=lambda options: "".join(options) or "plain")
def test_retained_is_what_malloc_trim_gives_back_after_the_interpreters_end(memtrack, tmp_path, options):
    trimmed, capture = given_back(memtrack, tmp_path, options, {})
    report = json.loads(memtrack("resident", "--json", "--at", "mark:here", capture).stdout)
    [retained] = [row["bytes"] for row in report["classes"] if row["class"] == "retained"]
    assert trimmed > 4_000_000
    assert abs(retained - trimmed) <= trimmed / 50, (retained, trimmed)


def test_what_jemalloc_gives_back_is_advised(memtrack, tmp_path):
    jemalloc = ctypes.util.find_library("jemalloc") or pytest.skip("jemalloc is not installed")
    environment = {"LD_PRELOAD": jemalloc, "MALLOC_CONF": KEEPING}
    purged, capture = given_back(memtrack, tmp_path, [], environment)
    report = json.loads(memtrack("resident", "--json", "--at", "mark:here", capture).stdout)
    [advised] = [advice["bytes"] for advice in report["advice"] if "jemalloc" in advice["text"]]
    assert purged > 4_000_000
    assert abs(advised - purged) <= purged / 50, (advised, purged)
    classes = {row["class"]: row["bytes"] for row in report["classes"]}
    beside = classes.pop("untouched") + classes.pop("swapped")
    assert beside >= 0 and sum(classes.values()) == sum(report["rss"].values())
    assert classes["unexplained"] < 1_000_000


@pytest.mark.parametrize("allocator", ["jemalloc", "tcmalloc_minimal", "mimalloc"])
def test_what_an_allocator_says_of_itself_stands_beside_its_pages(memtrack, tmp_path, allocator):
    library = ctypes.util.find_library(allocator) or pytest.skip(f"{allocator} is not installed")
    # Its free pages stay, so that the figures do.
    released, capture = given_back(memtrack, tmp_path, [], {"LD_PRELOAD": library, "MALLOC_CONF": KEEPING})
    own = json.loads((tmp_path / "figures").read_text())
    report = json.loads(memtrack("resident", "--json", "--at", "mark:here", capture).stdout)
    told = report["allocator_statistics"]
    assert allocator.startswith(told["allocator"])
    assert abs(told["age_ms"]) < 5000
    # It answers while the program has the one block that it allocates meanwhile, or has not.
    assert all(abs(bytes - told[name]) <= 64 for name, bytes in own.items()), (own, told)
    assert f"{told['allocator']} says of itself" in memtrack("resident", "--at", "mark:here", capture).stdout.decode()
    # An older answer says nothing of this moment: on a machine that is busy with others the program may be late.
    if told["allocator"] == "tcmalloc" and told["age_ms"] < 10:
        [advised] = [advice["bytes"] for advice in report["advice"] if "tcmalloc" in advice["text"]]
        # It was never written to some of them.
        assert released <= advised <= released * 1.1, (advised, released)


def test_glibc_says_nothing_of_itself(memtrack, tmp_path):
    capture = tmp_path / "capture.bin"
    memtrack("run", "-q", "-o", capture, sys.executable, "-c", PROGRAM)
    assert json.loads(memtrack("resident", "--json", capture).stdout)["allocator_statistics"] is None


# Six threads that live on, each of which has freed what it held before the next one begins.
THREADS = """
import ctypes, threading
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
turns = [threading.Event() for _ in range(7)]
over = threading.Event()

def work(number):
    turns[number].wait()
    blocks = [libc.malloc(2000 + at % 3000) for at in range(8000)]
    for at, block in enumerate(blocks):
        ctypes.memset(block, 1, 2000 + at % 3000)
        if at % 50:
            libc.free(block)
    turns[number + 1].set()
    over.wait()

threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
for thread in threads: thread.start()
turns[0].set()
turns[6].wait()
over.set()
for thread in threads: thread.join()
"""


# Free memory goes back with time, too.
KEEPING = "dirty_decay_ms:-1,muzzy_decay_ms:-1"


def most_resident(environment):
    """What is resident of THREADS at its most, in bytes."""
    printing = THREADS + "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    output = subprocess.run([sys.executable, "-c", printing], env={**os.environ, **environment}, check=True, capture_output=True)
    return int(output.stdout) * 1024


def test_what_if_is_what_another_setting_and_another_allocator_come_to(memtrack, tmp_path):
    jemalloc = ctypes.util.find_library("jemalloc") or pytest.skip("jemalloc is not installed")
    capture = tmp_path / "capture.bin"
    memtrack("run", "-q", "-o", capture, sys.executable, "-c", THREADS)
    options = ["--what-if", "MALLOC_ARENA_MAX=1", "--what-if", f"jemalloc MALLOC_CONF={KEEPING}"]
    report = json.loads(memtrack("resident", "--json", *options, capture).stdout)
    arena, other = report["what_if"]
    assert (arena["setting"], arena["library"]) == ("MALLOC_ARENA_MAX=1", None)
    assert "jemalloc" in other["library"]
    plain = most_resident({})
    for setting, environment in [(arena, {"MALLOC_ARENA_MAX": "1"}), (other, {"LD_PRELOAD": jemalloc, "MALLOC_CONF": KEEPING})]:
        change = most_resident(environment) - plain
        assert abs(change) > 10_000_000
        assert abs(setting["change_bytes"] - change) <= plain / 50, (setting, change, plain)
        assert setting["resident_bytes"] == sum(report["rss"].values()) + setting["change_bytes"]
    text = memtrack("resident", "--what-if", "MALLOC_ARENA_MAX=1", capture).stdout
    assert b"MALLOC_ARENA_MAX=1" in text and b"as recorded" in text


def test_what_if_refuses_what_is_no_allocator_and_samples(memtrack, tmp_path):
    capture, samples = tmp_path / "capture.bin", tmp_path / "samples.bin"
    memtrack("run", "-q", "-o", capture, sys.executable, "-c", PROGRAM)
    for setting, status, text in [
        ("/nowhere.so", 1, "/nowhere.so cannot be loaded"),
        ("libm.so.6", 1, "libm.so.6 has no malloc"),
        ("jemaloc", 2, "neither jemalloc"),
        ("", 2, "name an allocator"),
    ]:
        refused = memtrack("resident", "--what-if", setting, capture)
        assert refused.status == status and text.encode() in refused.stderr, (setting, refused.stderr)
    memtrack("run", "-q", "--sample", "-o", samples, sys.executable, "-c", PROGRAM)
    assert memtrack("resident", "--what-if", "MALLOC_ARENA_MAX=1", samples).status == 1


def test_what_a_program_reserves_and_never_touches_is_told_at_once(memtrack, tmp_path):
    """As mimalloc does in pyarrow: a mapping of which a part is handed out. A snapshot has an account of the memory."""
    program = f"""
import mmap, os, subprocess
kept = [bytes(600 + number % 100) * 20 for number in range(2000)]
arena = mmap.mmap(-1, 1 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
arena[: 64 << 20] = bytes(64 << 20)
kept += [bytes(600 + number % 100) * 20 for number in range(2000)]
subprocess.run([{str(memtrack.command("")[0])!r}, "snapshot", "-q", "-o", "now.bin", str(os.getpid())], check=True)
"""
    (tmp_path / "app.py").write_text(program)
    ended = memtrack("run", "-o", "capture.bin", sys.executable, "app.py", cwd=tmp_path)
    assert ended.status == 0
    # At which account depends on when they were taken: it is touched after it was reserved.
    expected = r"after the start: [\d.]+ MB, .* of it live blocks in memory: .*; 1\.[01]\d GB more of live blocks is not in memory"
    assert re.search(expected, ended.stderr.decode()), ended.stderr.decode()
    assert re.search(expected, memtrack("stats", "capture.bin", cwd=tmp_path).stdout.decode())
    # Who holds most of the peak holds no memory: nothing is to be processed in parts.
    explained = json.loads(memtrack("explain", "--json", "capture.bin", cwd=tmp_path).stdout)["findings"]
    [reserved] = [of for of in explained if of["id"] == "held" and of["title"].endswith(", most of it not in memory")]
    assert re.search(r"1\.01 GB of a block of 1\.07 GB was in memory at no account", reserved["evidence"][1]["text"])
    assert "in parts" not in reserved["advice"] and reserved["command"].startswith("memtrack resident --at ")
    assert reserved["evidence"][0]["line"] == 4
    # The last account of the snapshot is its own, when nothing changes any more.
    report = json.loads(memtrack("resident", "--json", "--at", "end", "now.bin", cwd=tmp_path).stdout)
    [row] = [row for row in report["untouched"] if row["bytes"] >= 1 << 30]
    assert (row["function"], row["line"], row["blocks"]) == ("<module>", 4, 1)
    assert row["untouched_bytes"] == (1 << 30) - (64 << 20)


# What `reserve` returns counts as live, and takes no memory.
RESERVING = """
import ctypes, mmap, time
def reserve(size):
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
"""


def explained(memtrack, folder, program):
    (folder / "app.py").write_text(RESERVING + program)
    ended = memtrack("run", "-o", "capture.bin", sys.executable, "app.py", cwd=folder)
    assert ended.status == 0, ended.stderr
    report = json.loads(memtrack("explain", "--json", "capture.bin", cwd=folder).stdout)
    return report, ended.stderr.decode()


def test_memory_that_was_reserved_after_much_was_freed_is_not_said_to_leak(memtrack, tmp_path):
    """The accounts from before it was reserved have memory that the allocator keeps, and other reserves."""
    report, told = explained(memtrack, tmp_path, """
library = reserve(67_000_000)
kept = [bytes(700) for number in range(40_000)][::40]
time.sleep(0.3)
data = [bytes(700) for number in range(100_000)]
pool = reserve(1_000_000_000)
time.sleep(0.3)
""")
    assert re.search(r"; 1\.[01]\d GB more of live blocks is not in memory", told), told
    evidence = [each["text"] for finding in report["findings"] for each in finding["evidence"]]
    assert not [text for text in evidence if text.startswith("not given back: 1.")], evidence
    assert "1.07 GB of 2 blocks of 1.07 GB in all was in memory at no account: never touched, or given back" in evidence


def test_a_reserve_does_not_hide_what_holds_memory(memtrack, tmp_path):
    """A copy is told although it is a small part of a peak with a reserve, and the reserve of a thread without Python code is no
    culprit."""
    report, _ = explained(memtrack, tmp_path, """
libc = ctypes.CDLL(None)
def start_thread():
    # The thread's function is malloc: no Python frame is on its stack.
    thread = ctypes.c_ulong()
    libc.pthread_create(ctypes.byref(thread), None, libc.malloc, ctypes.c_void_p(500_000_000))
    libc.pthread_join(thread, None)
def convert(data):
    return bytes(data)
def work():
    data = bytearray(b"x" * 40_000_000)
    copy = convert(data)
    time.sleep(0.3)
    del data
    time.sleep(0.6)
    return copy
start_thread()
pool = reserve(1_000_000_000)
kept = work()
""")
    found = report["findings"]
    titles = [finding["title"] for finding in found]
    [copy] = [title for title in titles if " is in memory twice, " in title]
    assert " of what is in memory of the peak, " in copy, titles
    [thread] = [finding for finding in found if "of threads without Python code" in finding["title"]]
    assert thread["title"].endswith(", most of it not in memory") and thread["command"].startswith("memtrack resident "), thread
    assert not any("not in memory" in title or "without Python code" in title for title in titles[:1]), titles
    assert not [text for text in report["not_seen"] if "allocator keeps" in text]


def test_a_sentence_about_a_moment_has_what_was_not_in_memory_then(memtrack, tmp_path):
    """Resident memory is larger at another moment, when other blocks are live for a short time; `resident` shows the same figures."""
    report, told = explained(memtrack, tmp_path, """
table = reserve(300_000_000)
table[: 30_000_000] = bytes(30_000_000)
time.sleep(0.3)
blocks = [b"x" * 100_000 for number in range(2000)]
del blocks
time.sleep(0.3)
""")
    at, resident, absent = re.search(r"([\d.]+ m?s) after the start: ([\d.]+ MB), .*; ([\d.]+ MB) more of live blocks is not", told).groups()
    evidence = [each["text"] for finding in report["findings"] for each in finding["evidence"]]
    number, unit = at.split()
    until = float(number) + 1 if unit == "ms" else float(number) * 1000 + 6
    shown = memtrack("resident", "--at", f"{until:.0f}ms", "capture.bin", cwd=tmp_path).stdout.decode()
    assert f"{absent} of live blocks is not in memory" in shown, (told, shown)
    assert f", {at} after the start;" in shown and shown.startswith(f"Resident {resident} beside "), (told, shown)
    assert any("of a block of 300 MB was in memory at no account" in text for text in evidence), evidence
    # At the end 30 MB of it are in memory, whatever was between accounts.
    assert not [text for text in evidence if text.startswith("not given back: 300 MB")], evidence


def test_a_block_that_was_being_filled_is_not_said_to_be_untouched(memtrack, tmp_path):
    """A snapshot has an account of the memory, here of the half that is filled; another one has all of it."""
    program = f"""
import mmap, os, subprocess
def snapshot(name):
    subprocess.run([{str(memtrack.command("")[0])!r}, "snapshot", "-q", "-o", name, str(os.getpid())], check=True)
def fill(block, begin, end):
    for at in range(begin, end, 1_000_000):
        block[at : at + 1_000_000] = piece
piece = b"x" * 1_000_000
def table():
    block = mmap.mmap(-1, 200_000_000, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    fill(block, 0, 80_000_000)
    snapshot("half.bin")
    fill(block, 80_000_000, 200_000_000)
    snapshot("whole.bin")
    return block
table()
"""
    (tmp_path / "app.py").write_text(program)
    ended = memtrack("run", "-o", "capture.bin", sys.executable, "app.py", cwd=tmp_path)
    assert ended.status == 0
    said = ended.stderr, *(memtrack(report, "capture.bin", cwd=tmp_path).stdout for report in ("stats", "explain"))
    assert not [text.decode() for text in said if b"not in memory" in text or b"never touched" in text]
    found = json.loads(memtrack("explain", "--json", "capture.bin", cwd=tmp_path).stdout)["findings"]
    assert [of["evidence"][0]["line"] for of in found if of["id"] == "held"] == [10], found
    # What was known at the half is said of it.
    half = memtrack("explain", "half.bin", cwd=tmp_path).stdout.decode()
    assert re.search("1[12]. MB of a block of 200 MB was in memory at no account", half), half


def test_where_growth_comes_to_rest_has_an_account(memtrack, tmp_path):
    """Accounts that were asked for have taken the time that accounts of growth may take. Where the program stays for a while is
    the moment of most memory even so."""
    program = f"""
import os, subprocess, time
kept = [bytearray(b"x") * 4_000_000 for _ in range(25)]
for _ in range(6):
    subprocess.run([{str(memtrack.command("")[0])!r}, "mark", "-q", str(os.getpid()), "here"], check=True)
def grow():
    more = [bytearray(b"x") * 4_000_000 for _ in range(50)]
    time.sleep(0.6)
grow()
"""

    def missed():
        ended = memtrack("run", "-f", "-o", "capture.bin", sys.executable, "-c", program, cwd=tmp_path)
        assert ended.status == 0
        report = json.loads(memtrack("resident", "--json", "capture.bin", cwd=tmp_path).stdout)
        # The end of `run` begins with the most that there was, whatever accounts there are.
        [peak] = re.findall(r"\n  resident +peak (\d+) MB", ended.stderr.decode())
        assert int(peak) >= 300 and abs(report["peak"]["bytes"] / 1e6 - int(peak)) < 1
        most, peak = sum(report["rss"].values()), report["peak"]["bytes"]
        said = b"at most" in memtrack("resident", "capture.bin", cwd=tmp_path).stdout
        assert said == (most < 0.9 * peak)
        return "" if most >= 0.95 * peak else f"{most} of {peak}"

    in_one_of(3, missed)


def test_resident_memory_at_the_end_is_what_is_left_when_the_interpreter_has_ended(memtrack, tmp_path):
    """Modules free what they have in less time than is between two snapshots."""
    program = "kept = [str(number) * 20 for number in range(400_000)]"
    for _ in range(6):
        assert memtrack("run", "-f", "-o", "capture.bin", sys.executable, "-c", program, cwd=tmp_path).status == 0
        told = json.loads(memtrack("stats", "--json", "capture.bin", cwd=tmp_path).stdout)["rss"]
        at_end = json.loads(memtrack("resident", "--at", "end", "--json", "capture.bin", cwd=tmp_path).stdout)
        assert told["peak_bytes"] > 60_000_000
        [own] = [row["bytes"] for row in at_end["classes"] if row["class"] == "memtrack"]
        # Between the two there may be pages that are touched meanwhile.
        assert abs(told["last_bytes"] - sum(at_end["rss"].values()) + own) < 900_000, told


def test_of_a_merged_file_one_process_is_to_be_named(memtrack, tmp_path):
    for name in ("first", "second"):
        memtrack("run", "-q", "-o", tmp_path / f"{name}.bin", "true")
    merged = tmp_path / "all.bin"
    memtrack("merge", "-o", merged, tmp_path / "first.bin", tmp_path / "second.bin")
    refused = memtrack("resident", merged)
    assert refused.status == 1 and f"such as '{merged}#1'" in refused.stderr.decode()
    assert memtrack("resident", f"{merged}#1").stdout == memtrack("resident", tmp_path / "first.bin").stdout
