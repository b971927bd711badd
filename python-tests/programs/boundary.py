"""Goes to and fro between Python and C; each block that is marked has a size of its own."""

import sys

sys.path.insert(0, sys.argv[1])
import boundary  # noqa: E402


def innermost():
    boundary.take(3000005)  # @innermost
    return bytes(3000006)  # @bytes


def inner():
    return boundary.around(innermost, 3000003)  # @inner


def key(value):
    inner()  # @key
    return value


def outer():
    return sorted([1], key=key)  # @sorted


def generator():
    boundary.take(3000010)  # @generator
    yield boundary.made(3000011)  # @yield


def in_thread():
    boundary.take(3000015)  # @in_thread


class Counted:
    def __del__(self):
        boundary.take(3000020)  # @del

    def __repr__(self):
        return str(boundary.made(3000021))[:1]  # @repr


boundary.take(3000001)  # @first
boundary.around(outer, 3000007)  # @outer
outer()  # @again
list(generator())  # @list
boundary.native_thread(3000014)
boundary.calling_thread(in_thread)
counted = Counted()
f"{counted}"  # @format
del counted  # @forget
boundary.take(3000022)  # @last
