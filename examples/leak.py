"""A cache that never forgets: docs/tutorial.md finds it."""

import json

SEEN = {}


def parse(document):
    return json.loads(document)


def remember(key, record):
    SEEN[key] = record


def handle(number):
    record = parse('{"name": "order %d", "lines": ["%s"]}' % (number, "x" * 2000))
    remember(number, record)
    return len(record["name"])


def main():
    print(sum(handle(number) for number in range(5000)))


main()
