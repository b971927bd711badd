"""JSON there and back, many times."""

import json

DOCUMENT = [
    {"name": f"entry {number}", "values": list(range(20)), "nested": {"deep": [None, True, 1.5]}}
    for number in range(500)
]


def round_trip():
    text = json.dumps(DOCUMENT)
    assert json.loads(text) == DOCUMENT
    return bytearray(len(text))


print(sum(len(round_trip()) for _ in range(40)))
