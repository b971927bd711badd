"""`memtrack objects` on memory that lies: it ends, within bounds, and counts what it could not read."""

import json
import subprocess

import pytest

from conftest import FREE_THREADED, OBJECT_VERSIONS, PATIENCE, flat, interpreter_path

BEGIN = """
import ctypes, sys, sysconfig, resource
class Kept: pass
KEPT = [Kept() for number in range(100)]
# The larger heads of objects without the GIL, behind which all fields are.
LARGER = 16 if sysconfig.get_config_var("Py_GIL_DISABLED") else 0
def word(address, offset): return ctypes.c_uint64.from_address(address + offset + (LARGER if offset >= 8 else 0))
def wait():
    print("ready", flush=True)
    sys.stdin.readline()
    import os
    os._exit(0)
"""
# Objects whose sizes are read from their fields, all of which lie. Nothing may take them down.
MEASURED = """
import cProfile, collections, decimal, io, itertools, pickle, queue, struct, xml.etree.ElementTree, xml.parsers.expat
class Fields(ctypes.Structure): _fields_ = [("a", ctypes.c_int * 3)]
victims = [
    io.BytesIO(b"abc" * 100), io.BufferedReader(io.BytesIO(b"a")), struct.Struct("iii"), pickle.Pickler(io.BytesIO()),
    pickle.Unpickler(io.BytesIO()), xml.etree.ElementTree.Element("a", b="c"), decimal.Decimal(7) ** 200,
    itertools.combinations("abcd", 2), itertools.permutations("abcd", 2), itertools.product("ab", "cd"),
    queue.SimpleQueue(), Fields(), collections.deque([1, 2]), xml.parsers.expat.ParserCreate(), cProfile.Profile(),
    xml.etree.ElementTree.Element("a").iter(),
]
KEPT.append(victims)
for victim in victims:
    for offset in range(16, type(victim).__basicsize__ - LARGER, 8): word(id(victim), offset).value = {value}
"""
# What an element has for its children, and what says how many they are and where.
ELEMENT = """
import xml.etree.ElementTree
victim = xml.etree.ElementTree.Element("a")
victim.extend([xml.etree.ElementTree.Element("b") for number in range(9)])
KEPT.append(victim)
ctypes.c_uint64.from_address(word(id(victim), 40).value + %d).value = %s
"""
# What C code calls a greenlet is one by its name; its state is made up.
GREENLET = """
Made = type("greenlet.greenlet", (), {"__slots__": ("a", "b", "c")})
victim = Made()
KEPT.append(victim)
state = (ctypes.c_uint64 * 64)(*[%s] * 64)
state[1] = id(victim)
word(id(victim), 32).value = ctypes.addressof(state)
"""
# Each damages its own memory; what comes after the damage executes as little as possible.
DAMAGE = {
    "a_list_that_claims_more_than_there_is": "victim = [1, 2, 3]\nword(id(victim), 16).value = 1 << 40\n",
    "a_list_with_more_room_than_there_is": "victim = [1, 2, 3]\nword(id(victim), 32).value = 1 << 40\n",
    "bytes_that_claim_more_than_there_are": "victim = b''.join([b'a', b'b'])\nKEPT.append(victim)\nword(id(victim), 16).value = 1 << 40\n",
    "bytes_with_more_room_than_there_is": "victim = bytearray(b'abc')\nKEPT.append(victim)\nword(id(victim), 24).value = 1 << 40\n",
    "a_list_whose_items_are_nowhere": "victim = [1, 2, 3]\nword(id(victim), 24).value = 0x10\n",
    "a_list_of_negative_length": "victim = [1, 2, 3]\nword(id(victim), 16).value = (1 << 64) - 7\n",
    "a_tuple_that_claims_more_than_there_is": "victim = tuple([object(), object()])\nword(id(victim), 16).value = 1 << 50\n",
    "a_tuple_that_claims_terabytes": "victim = tuple([object(), object()])\nword(id(victim), 16).value = 1 << 40\n",
    "a_dictionary_with_keys_nowhere": "victim = {'a': 1, 'b': object()}\nword(id(victim), 32).value = 0x7fff00000000\n",
    "a_dictionary_with_keys_in_its_middle": "victim = {'a': 1, 'b': object()}\nword(id(victim), 32).value = id(victim)\n",
    "a_set_that_claims_more_than_there_is": "victim = {1, 2, 3}\nword(id(victim), 32).value = (1 << 45) - 1\n",
    "a_string_that_claims_more_than_there_is": "victim = ''.join(['a', 'b', 'c'])\nKEPT.append({victim: Kept()})\nword(id(victim), 16).value = 1 << 62\n",
    "a_number_that_claims_more_than_there_is": "victim = 12345678901234567890\nKEPT.append([victim])\nword(id(victim), 16).value = 1 << 60\n",
    "an_object_whose_type_is_nowhere": "victim = Kept()\nKEPT.append(victim)\nword(id(victim), 8).value = 0x7fff12345678\n",
    "an_object_whose_type_is_itself": "victim = Kept()\nKEPT.append(victim)\nword(id(victim), 8).value = id(victim)\n",
    "an_object_whose_type_is_no_type": "victim = Kept()\nKEPT.append(victim)\nword(id(victim), 8).value = id(KEPT)\n",
    "a_type_whose_size_lies": "class Lies: pass\nvictim = Lies()\nword(id(Lies), 32).value = 1 << 40\n",
    "a_type_whose_name_is_nowhere": "class Lies: pass\nvictim = Lies()\nword(id(Lies), 24).value = 0x20\n",
    "a_type_whose_base_is_itself": "class Lies: pass\nvictim = Lies()\nword(id(Lies), 256).value = id(Lies)\n",
    "a_type_whose_members_are_nowhere": "class Lies:\n    __slots__ = ('a',)\nvictim = Lies()\nvictim.a = Kept()\nword(id(Lies), 240).value = 0x40\n",
    "a_type_whose_dictionary_lies": "class Lies: pass\nvictim = Lies()\nword(id(Lies), 264).value = id(victim)\n",
    "a_deque_whose_blocks_are_nowhere": "import collections\nvictim = collections.deque([1, 2])\nword(id(victim), 24).value = 0x50\nword(id(victim), 16).value = 1 << 40\n",
    "a_list_of_the_collector_that_is_cut": "victim = Kept()\nLATER = [Kept() for number in range(10)]\nword(id(victim), -16).value = 0\n",
    "a_list_of_the_collector_that_leads_nowhere": "victim = Kept()\nLATER = [Kept() for number in range(10)]\nword(id(victim), -16).value = 0x7fff00000010\n",
    "a_list_of_the_collector_that_is_a_ring": "victim = Kept()\nLATER = [Kept() for number in range(10)]\nword(id(victim), -16).value = id(victim) - 16\n",
    "measured_objects_whose_fields_are_nowhere": MEASURED.replace("{value}", "0x7fff12345678"),
    "measured_objects_whose_fields_are_large": MEASURED.replace("{value}", "(1 << 60) + 1"),
    "measured_objects_whose_fields_are_themselves": MEASURED.replace("{value}", "id(victim)"),
    "an_element_with_more_children_than_there_is_room_for": ELEMENT % (8, "1 << 29"),
    "an_element_with_more_children_than_there_can_be": ELEMENT % (8, "1 << 62"),
    "an_element_whose_children_are_nowhere": ELEMENT % (24, "0x7fff12345678"),
    "a_queue_with_more_items_than_there_is_room_for": "import queue\nvictim = queue.SimpleQueue()\nKEPT.append(victim)\nfor offset in (48, 56): word(id(victim), offset).value = 1 << 29\n",
    "a_queue_whose_oldest_item_is_nowhere": "import queue\nvictim = queue.SimpleQueue()\nKEPT.append(victim)\nfor offset in (32, 56): word(id(victim), offset).value = 5\n",
    "a_profiler_whose_functions_are_a_ring": "import cProfile\nvictim = cProfile.Profile()\nring = (ctypes.c_uint64 * 4)()\nring[1] = ring[2] = word(id(victim), 16).value = ctypes.addressof(ring)\nKEPT.append(victim)\n",
    "a_greenlet_whose_state_is_nowhere": GREENLET % "0x7fff12345678",
    "a_greenlet_whose_state_is_large": GREENLET % "(1 << 64) - 16",
    "a_greenlet_whose_frame_is_itself": GREENLET % "id(victim)",
    "a_reference_count_of_nothing": "victim = Kept()\nKEPT.append(victim)\nword(id(victim), 0).value = 0\n",
}
# Of the builds without the GIL: words of the head of the page, and of its segment, in which objects of a rare size are.
PAGE = """
class Large: __slots__ = tuple(f"a{number}" for number in range(100))
victims = [Large() for number in range(3)]
place = id(victims[0])
segment = place & -(32 << 20)
def raw(at): return ctypes.c_uint64.from_address(at)
head = segment + 264 + 96 * ((place - segment) >> 16)
"""
PAGE_DAMAGE = {
    "free_blocks_nowhere": "raw(head + 16).value = 0x7fff12345678\n",
    "free_blocks_between_blocks": "raw(head + 16).value = place + 8\n",
    "free_blocks_without_an_end": "raw(raw(head + 16).value).value = raw(head + 16).value\n",
    "a_page_with_more_blocks_than_there_is_room_for": "raw(head + 8).value |= 0xffff << 16\n",
    "a_page_of_blocks_of_nothing": "raw(head + 24).value &= 0xffffffff\n",
    "a_page_that_claims_more_than_there_is": "raw(head).value = 0x7fffffff\n",
    "an_allocator_of_another_cookie": "raw(segment + 216).value ^= 1\n",
}
LISTS = tuple(name for name in DAMAGE if name.startswith("a_list_of_the_collector"))


@pytest.fixture(params=OBJECT_VERSIONS)
def damaged(request, tmp_path):
    processes = []

    def start(text):
        script = tmp_path / "app.py"
        script.write_text("import gc\ngc.disable()\n" + BEGIN + text + "wait()\n")
        command = flat([interpreter_path(request.param), script])
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def without_lists(request, name):
    if name in LISTS and request.node.callspec.params["damaged"] in FREE_THREADED:
        pytest.skip("its collector has no lists")


def limited(executable, *words):
    """Within 2 GB of memory and 20 s of a processor."""
    command = ["prlimit", "--as=2000000000", "--cpu=20", str(executable), "objects", "--json", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_memory_is_read_within_bounds(executable, damaged, request, name):
    without_lists(request, name)
    process = damaged(DAMAGE[name])
    if process.stdout.readline() != "ready\n":
        pytest.skip("the program does not survive it itself")
    for options in ([], ["--why", "Kept"]):
        done = limited(executable, process.pid, *options)
        if options and done.returncode == 1 and "there is no object" in done.stderr:
            # What comes behind the damage in the collector's list is found only where something refers to it.
            continue
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert told["unreadable"] <= 20
        # What a number claims that was overwritten is in no sum.
        assert told["own_bytes"] < 64 << 20
        # Most are read all the same.
        assert told["count"] > 2000
        found = sum(row["count"] for row in told["types"] if row["type"] == "__main__.Kept")
        assert found >= 95


@pytest.mark.parametrize("name", ["a_list_that_claims_more_than_there_is", "an_object_whose_type_is_nowhere", "a_list_of_the_collector_that_leads_nowhere"])
def test_what_cannot_be_read_is_counted(executable, damaged, request, name):
    without_lists(request, name)
    process = damaged(DAMAGE[name])
    assert process.stdout.readline() == "ready\n"
    assert json.loads(limited(executable, process.pid).stdout)["unreadable"] >= 1
    text = subprocess.run([str(executable), "objects", str(process.pid)], capture_output=True, text=True, check=False)
    assert "unreadable: " in text.stderr


@pytest.mark.parametrize("name", PAGE_DAMAGE)
def test_damaged_pages_without_the_gil_are_read_within_bounds(executable, damaged, request, name):
    if request.node.callspec.params["damaged"] not in FREE_THREADED:
        pytest.skip("objects are in lists")
    process = damaged(PAGE + PAGE_DAMAGE[name])
    if process.stdout.readline() != "ready\n":
        pytest.skip("the program does not survive it itself")
    done = limited(executable, process.pid)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    counts = {row["type"]: row["count"] for row in told["types"]}
    # What the list holds is found all the same.
    assert counts["__main__.Large"] == 3 and counts["__main__.Kept"] == 100
    assert told["count"] > 2000
    is_said = 3 <= told["unreadable"] < 200 if name.startswith("free") else told["unreadable"] < 200
    assert is_said, told["unreadable"]
