"""Threads: the names by which they are known, and what is left of those that end."""

FIRST_SIZE = 2_000_000  # bytes; nothing else in the program comes near
OS_NAMES_SINCE = (3, 14)  # Python itself gives its names to the operating system, which keeps 15 bytes of them


def test_names_given_before_the_start_inside_and_from_outside(memtrack, interpreter, programs, tmp_path):
    outcome, capture = memtrack.run(interpreter, programs / "names.py")
    assert outcome.status == 0, outcome.stderr
    stats = capture.stats()
    names = {thread["tid"]: thread["name"] for thread in stats["threads"]}
    found = {record.size: names[record.tid] for record in capture.allocations() if record.size > FIRST_SIZE}
    expected = {int(size): name for size, name in (line.split(" ", 1) for line in outcome.stdout.decode().splitlines())}
    if tuple(map(int, stats["capture"]["python_version"].split(".")[:2])) >= OS_NAMES_SINCE:
        expected = {size: name.encode()[:15].decode(errors="replace") for size, name in expected.items()}
    assert found == expected
