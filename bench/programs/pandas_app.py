"""Group-bys, joins, pivots and text columns of pandas."""

import sys

import numpy
import pandas


def main(rounds):
    random = numpy.random.default_rng(1)
    count = 150_000
    frame = pandas.DataFrame({
        "shop": random.integers(0, 300, count),
        "kind": random.choice(["a", "bb", "ccc", "dddd"], count),
        "day": pandas.Timestamp("2026-01-01") + pandas.to_timedelta(random.integers(0, 365, count), unit="D"),
        "value": random.random(count),
    })
    shops = pandas.DataFrame({"shop": range(300), "name": [f"shop {number}" for number in range(300)]})
    for _ in range(rounds):
        frame.groupby("shop")["value"].agg(["mean", "sum", "max"])
        frame.groupby(["shop", "kind"])["value"].sum().unstack()
        frame.groupby(frame["day"].dt.month)["value"].apply(lambda values: values.nlargest(3).sum())
        frame.merge(shops, on="shop").pivot_table(index="name", columns="kind", values="value", aggfunc="mean")
        frame["kind"].str.upper().value_counts()


main(int(sys.argv[1]))
