"""Deep stacks of which only an old frame changes, in every way a frame can be left and entered again.

Usage: deep.py EXPECTED, which gets what stacks.py writes. Each case makes the tracker look at a deep stack several times,
changes a frame in its middle so that all newer ones are again where they were, and allocates a marked block.
"""
import functools
import json
import sys

import stacks
from stacks import churn, mark

ABOVE = BELOW = 40


class Refused(Exception):
    pass


def looked_at():
    """Enough allocations for whatever a tracker does with a stack that stays."""
    for _ in range(3):
        churn()


def deeper(depth, function):
    """Calls `function` below `depth` frames; the stack is looked at while they are there."""
    if depth == 0:
        looked_at()
        return function()
    result = deeper(depth - 1, function)
    return result


def marked():
    looked_at()
    mark()


def refused():
    marked()
    raise Refused


def two_lines():
    deeper(ABOVE, marked)
    deeper(ABOVE, marked)


def case_next_line():
    deeper(BELOW, two_lines)


def two_lines_by_exceptions():
    try:
        deeper(ABOVE, refused)
    except Refused:
        pass
    try:
        deeper(ABOVE, refused)
    except Refused:
        deeper(ABOVE, marked)


def case_next_line_after_an_exception():
    deeper(BELOW, two_lines_by_exceptions)


def one_line():
    deeper(ABOVE, refused)


def callers_by_exceptions():
    try:
        one_line()
    except Refused:
        pass
    try:
        one_line()
    except Refused:
        one_line()


def case_another_caller_of_the_same_line():
    try:
        deeper(BELOW, callers_by_exceptions)
    except Refused:
        marked()


def generated(depth, function):
    """Delegates to itself; each yield goes through all the frames."""
    if depth:
        yield from generated(depth - 1, function)
    else:
        for _ in range(2):
            looked_at()
            yield function()


def iterated(function):
    for _ in generated(ABOVE, function):
        deeper(3, marked)
    for _ in generated(ABOVE, function):
        marked()


def case_generators():
    deeper(BELOW, functools.partial(iterated, marked))


def failing(function):
    yield deeper(ABOVE, function)


def iterate(generator):
    for _ in (1,):
        for _ in generator:
            pass


def iterated_in_vain():
    for _ in range(20):
        iterate(failing(churn))
    for _ in range(2):
        try:
            iterate(failing(refused))
        except:  # a word more, and the handler would use the part of the stack that this is about
            pass
        try:
            iterate(failing(refused))
        except:
            pass
        iterate(failing(marked))


def case_generators_that_raise():
    deeper(BELOW, iterated_in_vain)


class Made:
    def __init__(self, function):
        deeper(ABOVE, function)


def instances():
    for _ in range(20):
        Made(churn)
    for _ in range(2):
        try:
            Made(refused)
        except Refused:
            Made(marked)
    Made(marked)
    try:
        Made(refused)
    except Refused:
        pass


def case_instances():
    deeper(BELOW, instances)


class Attributes:
    def __getitem__(self, function):
        return deeper(ABOVE, function)

    @property
    def refused(self):
        return deeper(ABOVE, refused)

    @property
    def marked(self):
        return deeper(ABOVE, marked)


def attributes():
    thing = Attributes()
    for _ in range(20):
        thing[churn]
    for _ in range(2):
        thing.marked
        thing[marked]
        try:
            thing.refused
        except Refused:
            thing.marked
        try:
            thing[refused]
        except Refused:
            thing[marked]


def case_attributes():
    deeper(BELOW, attributes)


def jump(frame, line):
    """Moves a waiting frame to another line, and allocates while it is there but has not gone on."""
    marked()
    frame.f_lineno = line
    marked()


def traced():
    len(())
    len(())
    len(())


def tracer(frame, event, _):
    if frame.f_code is not traced.__code__:
        return None
    if event == "line" and frame.f_lineno == traced.__code__.co_firstlineno + 1:
        deeper(3, functools.partial(jump, frame, frame.f_lineno + 2))
    return tracer


def under_a_tracer():
    sys.settrace(tracer)
    try:
        traced()
    finally:
        sys.settrace(None)
    marked()


def case_jump():
    deeper(BELOW, under_a_tracer)


def wrapped(function):
    @functools.wraps(function)
    def wrapper(*arguments, **options):
        return function(*arguments, **options)

    return wrapper


@wrapped
def through_wrappers(depth, function):
    if depth == 0:
        return function()
    return max([depth], key=lambda _: through_wrappers(depth - 1, function))


def case_through_c_code():
    deeper(BELOW, functools.partial(through_wrappers, 10, two_lines))


def up_and_down(depth, turns):
    looked_at()
    if depth % 7 == turns % 7:
        marked()
    if depth:
        up_and_down(depth - 1, turns)
    if depth % 11 == turns % 11:
        marked()


def case_up_and_down():
    for turns in range(3):
        up_and_down(50, turns)


def main():
    sys.setrecursionlimit(5000)
    for name, function in sorted(globals().items()):
        if name.startswith("case_"):
            stacks.current.case = name[len("case_") :]
            function()
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        for entry in stacks.expected:
            file.write(json.dumps(entry) + "\n")


if __name__ == "__main__":
    main()
