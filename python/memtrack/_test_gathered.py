"""What a run of a test does until its end by fixtures that undo it: monkeypatch, mocker of pytest-mock, addCleanup of unittest.

`limit_leaks` runs a test several times with the same fixtures. What one run has done by them is undone before the next, as it would be if
each were a test; else it would grow from run to run, and be taken for a leak. Invariant: what fixtures and `setUp` have done stays, and the
last run's is left to whoever undoes it without memtrack.
"""

import unittest
from typing import Any, List

import pytest

#: What monkeypatch keeps once: the working directory and sys.path before its first change.
_PLACES = ("_cwd", "_savesyspath")


class Gathered:
    """What of this is there before the first run of a test."""

    def __init__(self, item: pytest.Item) -> None:
        fixtures = getattr(item, "funcargs", None) or {}
        self._patch: Any = fixtures.get("monkeypatch")
        self._patch = self._patch if isinstance(self._patch, pytest.MonkeyPatch) else None
        self._patched = [len(changes) for changes in _changes(self._patch)]
        self._mocker: Any = fixtures.get("mocker")
        self._mocks = len(self._mocked())
        case = getattr(item, "instance", None)
        # What an async case has of this may have to be awaited.
        is_plain = isinstance(case, unittest.TestCase) and not isinstance(case, unittest.IsolatedAsyncioTestCase)
        self._cleanups: List[Any] = getattr(case, "_cleanups", []) if is_plain else []
        self._cleaned = len(self._cleanups)
        self._had = [getattr(self._patch, name, None) for name in _PLACES]

    def undo(self) -> None:
        """Undoes what has come since, the latest first."""
        while len(self._cleanups) > self._cleaned:
            function, arguments, named = self._cleanups.pop()
            function(*arguments, **named)
        mocked = self._mocked()
        while len(mocked) > self._mocks:
            # mocker.stop(mock) compares mocks in some versions, and those keep that as a call.
            each = mocked.pop()
            if each.patch is not None:
                each.patch.stop()
        if self._patch is not None:
            self._undo_patch()

    def _undo_patch(self) -> None:
        later = pytest.MonkeyPatch()
        for changes, mine, first in zip(_changes(self._patch), _changes(later), self._patched):
            mine += changes[first:]
            del changes[first:]
        for name, had in zip(_PLACES, self._had):
            if had is None:
                setattr(later, name, getattr(self._patch, name, None))
                setattr(self._patch, name, None)
        later.undo()

    def _mocked(self) -> List[Any]:
        """What mocker has replaced; none where it is another, or does not tell."""
        known = getattr(getattr(self._mocker, "_mock_cache", None), "cache", None)
        return known if isinstance(known, list) else []


def _changes(patch: Any) -> List[List[Any]]:
    return [getattr(patch, name, []) for name in ("_setattr", "_setitem")]
