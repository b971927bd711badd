"""numpy and pandas at work; one array is by far the largest allocation."""

import numpy
import pandas


def large_array():
    return numpy.ones(12_500_000)


def array():
    return numpy.zeros(4_001)


def thousand_arrays():
    return [array() for _ in range(1000)]


def table():
    frame = pandas.DataFrame({"key": numpy.arange(200_000) % 100, "value": numpy.arange(200_000) / 7})
    return frame.groupby("key").value.agg(["sum", "mean", "count"])


def main():
    kept = thousand_arrays()
    print(table().tail(3))
    print(len(kept), large_array().sum())


main()
