"""JSON there and back, many times: 40, or as often as the argument says."""

import json
import sys

DOCUMENT = [
    {"name": f"entry {number}", "values": list(range(20)), "nested": {"deep": [None, True, 1.5]}}
    for number in range(500)
]


def round_trip():
    text = json.dumps(DOCUMENT)
    assert json.loads(text) == DOCUMENT
    return bytearray(len(text))


print(sum(len(round_trip()) for _ in range(int(sys.argv[1]) if sys.argv[1:] else 40)))
