"""A small package's tests: fixtures, parameters, one that fails, one that is skipped."""

import pytest

cache = []


@pytest.fixture
def resource():
    yield bytearray(200_000)


def keep():
    return bytearray(80_000)


@pytest.mark.parametrize("number", range(30))
def test_passes(resource, number):
    cache.append(keep())
    assert len(resource) == 200_000


def test_fails(resource):
    assert len(resource) == 1


@pytest.mark.skip(reason="on purpose")
def test_is_skipped():
    pass


def test_captures_output(capsys):
    print("seen")
    assert capsys.readouterr().out == "seen\n"
