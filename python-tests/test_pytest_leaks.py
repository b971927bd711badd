"""What limit_leaks takes for growth: also where each run adds by other stacks, and not where caches are filled, in whichever order."""

import pytest

from test_pytest_plugin import outcomes, tests  # noqa: F401

from memtrack._growth import growth
from memtrack._holders import Holding
from memtrack._records import Frame
from memtrack._test_limits import _fixture

pytest_plugins = ["pytester"]


def grown(*added, first=2):
    """The growth where each run adds these places to what was there: texts like `work:7`, below `/own`, or of a recursion `work:7:3`."""
    runs, held = [], {}
    for places in added:
        for place, size in places.items():
            held[place] = held.get(place, 0) + size
        runs.append([])
        for place, size in held.items():
            function, line, *depth = place.split(":")
            stack = (Frame(function, "/own/shop.py", int(line), 1), Frame("run", "/own/test.py", 1, 1)) + (
                Frame("again", "/own/shop.py", 3, 1),
            ) * int(depth[0] if depth else 0)
            if size:
                runs[-1].append(Holding(size, 1, "malloc", stack))
    return growth(runs, first, "/own")


@pytest.mark.parametrize(
    "added, size, differs",
    [
        ([{"a:1": 500}, {"a:1": 100}, {"a:1": 100}, {"a:1": 100}, {"a:1": 100}], 100, False),
        # One line, called from other depths each time; one function; several in turn.
        ([{f"a:1:{depth}": 100} for depth in (5, 1, 4, 2, 3)], 100, False),
        ([{f"a:{line}": 100} for line in range(1, 6)], 100, False),
        ([{f"{name}:1": 100} for name in "abcde"], 100, True),
        ([{f"{name}:1": 60} for name in "abcabcabc"], 60, True),
        ([{"a:1": 10, f"{name}:1": 100} for name in "abcde"], 110, True),
        ([{"a:1": 10_000, f"{name}:1": 1} for name in "bcdef"], 10_001, False),
        # Filled once, one after the other, ever more slowly.
        ([{"a:1": 500}, {}, {"b:1": 100}, {}, {}], 0, False),
        ([{"a:1": 500}, {"b:1": 900}, {"c:1": 300}, {"d:1": 100}, {}], 0, False),
        ([{"a:1": 500}, {"b:1": 900}, {"c:1": 400}, {"d:1": 200}, {"e:1": 7}], 7, True),
        # Replaced by something larger or smaller.
        ([{"a:1": 500}, {"b:1": 500, "a:1": -500}, {"c:1": 600, "b:1": -500}, {"d:1": 100, "c:1": -600}, {"e:1": 400, "d:1": -100}], 0, False),
        # A cache that is full: what some functions add others lose.
        ([dict.fromkeys(("g:1", "g:2", "g:3", "g:4"), 100), *({f"f:{line}": 60, f"g:{line}": -60} for line in range(1, 5))], 0, False),
        # A leak by lines in turn, and something large that is given back in one run.
        ([{"x:1": 9000}, *({f"{name}:1": 60} for name in "abcabc"), {"x:1": -9000, "a:1": 60}, {"b:1": 60}], 60, True),
        # A run gives back some of what it leaks, or what was large; it fails all the same.
        ([{"a:1": 100}, {"a:1": 100}, {"a:1": 100}, {"a:1": -10}, {"a:1": 100}], 100, False),
        ([{"a:1": 100}, {"a:1": 100}, {"a:1": 100}, {"a:1": -30}, {"a:1": 100}], 100, False),
        ([*[{"a:1": 100}] * 8, {"a:1": -30}, {"a:1": 100}], 100, False),
        ([{"a:1": 100, "x:1": 9000}, {"a:1": 100}, {"a:1": 100, "x:1": -9000}, {"a:1": 100}, {"a:1": 100}], 100, False),
        # A leak that is far more than what is emptied beside it in the same place.
        ([{"a:1": 300}, {"a:1": 100}, {"a:1": 300}, {"a:1": 300}, {"a:1": 300}], 300, False),
        ([{"a:1": 300}, {"a:1": 300}, {"a:1": -150}, *[{"a:1": 300}] * 7], 243, False),
        # Emptied by the third run, and filled further than it was: its lines are in turn.
        ([{"a:1": 400}, {"a:2": 400}, {"a:1": -400, "a:2": -400, "a:3": 200}, {"a:4": 400}, {"a:5": 400}], 0, False),
        ([{"a:1": 500}, {}, {}, {}, {}], 0, False),
        ([{}] * 5, 0, False),
    ],
)
def test_growth(added, size, differs):
    found = grown(*added)
    assert (found.bytes, found.differs) == (size, differs), found
    assert all(holding.bytes > 0 for holding in found.holdings)


def test_growth_of_the_only_run_is_everything():
    found = grown({"a:1": 500, "b:1": 30}, first=0)
    assert (found.bytes, found.differs) == (530, False)


def levels_of_cache(added, kept, earlier, runs):
    """What a cache of 100 entries, which begins with some of earlier work, has of the runs after each: full, it keeps so many, the newest."""
    entries, levels = [0] * earlier, []
    for _ in range(runs):
        for _ in range(added):
            if len(entries) == 100:
                del entries[: 100 - kept]
            entries.append(1)
        levels.append(sum(entries))
    return levels


@pytest.mark.parametrize("kept", [0, 50])
def test_a_cache_that_is_emptied_when_full_does_not_grow(kept):
    """In whichever run it is emptied, and by lines of a function in turn, too. One whose emptying no run shows has grown for all that is known."""
    wrong = []
    for runs in range(4, 16):
        for added in range(7, 100, 3):
            levels = levels_of_cache(added, kept, 0, runs)
            if any(now < before for before, now in zip(levels, levels[1:])):
                changes = [now - before for before, now in zip([0, *levels], levels)]
                if grown(*({"a:1": 50 * change} for change in changes)).bytes:
                    wrong.append((runs, added, levels))
    assert not wrong


def test_a_cache_that_others_have_filled_in_part_does_not_grow():
    """What was in it before all runs is not known: it is seen to be emptied by what is left of the runs before."""
    wrong = []
    for runs in range(5, 16):
        for added in range(7, 100, 3):
            for earlier in range(0, 100, 7):
                levels = levels_of_cache(added, 0, earlier, runs)
                # By the second run a leak and a cache may have left as much.
                if any(now < before for before, now in zip(levels[1:], levels[2:])):
                    changes = [now - before for before, now in zip([0, *levels], levels)]
                    if grown(*({"a:1": 50 * change} for change in changes)).bytes:
                        wrong.append((runs, added, earlier, levels))
    assert not wrong


VARIES = """
import random
SEEN = []

def walk(depth):
    if depth:
        return walk(depth - 1)
    SEEN.append(bytearray(1_000_000))

def bought(): SEEN.append(bytearray(60_000))
def sold(): SEEN.append(bytearray(60_000))
def lost(): SEEN.append(bytearray(60_000))
HANDLERS = [bought, sold, lost]
NUMBERS = iter(range(1000))
"""


def test_leaks_by_stacks_that_differ_are_found(tests):  # noqa: F811
    result = tests(
        VARIES
        + """
@pytest.mark.limit_leaks("100 kB")
def test_recursive():
    walk(random.randint(1, 60))

@pytest.mark.limit_leaks("40 kB")
def test_in_turn():
    HANDLERS[next(NUMBERS) % 3]()

@pytest.mark.limit_leaks("40 kB", repeat=10)
def test_at_random():
    random.choice(HANDLERS)()

@pytest.mark.limit_leaks("40 kB", filter_fn=lambda stack: all(frame.function not in ("bought", "sold", "lost") for frame in stack.frames))
def test_filtered():
    HANDLERS[next(NUMBERS) % 3]()
"""
    )
    assert outcomes(result) == {"failed": 3, "passed": 1}, result.stdout.str()
    result.stdout.fnmatch_lines(
        [
            "limit_leaks('100 kB'): what the test leaves grows by 1.0? MB with each of 5 runs, 9?? kB more than its limit",
            "limit_leaks('40 kB'): what the test leaves grows by 60.? kB with each of 5 runs, by stacks that differ each time, 20.? kB more*",
        ]
    )


def test_the_cache_of_formats_of_struct_is_no_leak(tests):  # noqa: F811
    """It has 100 entries at most, and is emptied when it is full: by the third or fourth run of these."""
    result = tests(
        """
import itertools
import struct

NUMBERS = itertools.count(1000)

@pytest.mark.parametrize("added", range(40, 60, 3))
@pytest.mark.limit_leaks("5 kB")
def test_packs(added):
    for _ in range(added):
        number = next(NUMBERS)
        struct.calcsize(f"{number}s{number % 97 + 1}I")
"""
    )
    assert outcomes(result) == {"passed": 7}, result.stdout.str()


def test_names_that_the_interpreter_keeps_of_attributes_are_none(tests):  # noqa: F811
    """It has a table of 4,096 of them, by their addresses, which is filled over many runs."""
    result = tests(
        """
from itertools import count
NUMBERS, RUNS = count(), count()

class Visitor:
    pass

@pytest.mark.limit_leaks("3 kB")
def test_looks_up():
    run, visitor, names = next(RUNS), Visitor(), []
    for number in range(400):
        name = next(NUMBERS)
        names.append(f"visit_{name}_{'x' * (name * 7 % 83)}")
        # So that the addresses are others in each run.
        names.append("y" * (number * run * 13 % 97) + str(name))
    assert not [name for name in names if name[0] == "v" and getattr(visitor, name, None)]
"""
    )
    assert outcomes(result) == {"passed": 1}, result.stdout.str()


def test_a_fixture_among_native_frames():
    """The interpreter's functions lie between those of Python before 3.11; its name is that of Python's function, too."""
    python = [
        Frame("big", "test_shop.py", 4, 0),
        Frame("call_fixture_func", "_pytest/fixtures.py", 8, 0),
        Frame("pytest_fixture_setup", "_pytest/fixtures.py", 9, 0),
    ]
    native = [Frame("_PyEval_EvalFrame", "", 0, 0), Frame("function_code_fastcall", "Objects/call.c", 7, 0)]
    mixed = (*native, *[each for frame in python for each in (frame, *native)])
    assert _fixture(tuple(python)) == _fixture(mixed) == "big"
    # A step of pytest-bdd, and what pytest does itself.
    step = tuple(each for frame in (*python[:2], Frame("_execute_step_function", "pytest_bdd/scenario.py", 3, 0)) for each in (frame, *native))
    assert _fixture(step) is None and _fixture(mixed[3:]) == ""
