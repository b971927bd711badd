"""Holds something from its import on, and more when it is asked to; for owners.py, as an installed package."""

cached = bytearray(700_000)
kept = []


def hold():
    kept.append(bytearray(800_000))
