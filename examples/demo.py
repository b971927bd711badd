"""A program with something to find: a peak, a leak, and memory that is thrown away at once.

    memtrack run --allocation-timestamps examples/demo.py

What a report should say:
 - load() holds 40 MB at the peak, and nothing at the end;
 - remember() holds 8 MB at the end: the cache that nobody empties;
 - render() has thousands of temporary allocations.
"""

CACHE = {}


def load(blocks):
    """A burst: everything is held at once, and then let go."""
    return [bytearray(1_000_000) for _ in range(blocks)]


def summarize(blocks):
    return sum(len(block) for block in blocks)


def remember(number):
    """A leak: keys that never come again."""
    CACHE[number] = bytes(80_000)


def render(line):
    """Churn: a buffer for every line, dropped at once."""
    return len(bytearray(2_000) + line)


def main():
    total = summarize(load(40))
    for number in range(100):
        remember(number)
    rendered = sum(render(b"line") for _ in range(5_000))
    print(f"loaded {total} bytes, remembered {len(CACHE)} entries, rendered {rendered} bytes")


if __name__ == "__main__":
    main()
