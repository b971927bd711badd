"""With an argument two functions of a library are called in place of one: each of them has less than that one has, and both more."""

import base64
import sys


def encodes():
    if len(sys.argv) > 1:
        return [base64.b16encode(bytes(2_250_000)), base64.encodebytes(bytes(3_000_000))]
    return [base64.b64encode(bytes(4_500_000))]


kept = encodes()
