"""Opens a library whose constructor allocates, in the middle of a function, and closes it again; then imports modules."""

import _ctypes
import ctypes
import sys


def load(path):
    library = ctypes.CDLL(path)
    assert library.constructs() == 1
    return library


def main(path, *modules):
    library = load(path)
    _ctypes.dlclose(library._handle)
    for module in modules:
        __import__(module)


main(*sys.argv[1:])
