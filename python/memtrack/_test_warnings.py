"""What pytest keeps of the warnings of a test for its report. None of it is the test's memory.

pytest records them in a list, as `warnings.catch_warnings(record=True)` does. While the test runs, what they say lies in shared memory,
which counts as no allocation; a warning that refers to other objects is kept as it is, and counts. Invariant: pytest's list has
equal warnings afterwards, and lists of the test's own have the very ones.
"""

import contextlib
import warnings

# By name: a test may replace them in their modules while it is recorded.
from io import BytesIO
from marshal import dumps, load
from threading import Lock
from typing import Any, Dict, Iterator, List, Optional
from warnings import WarningMessage
from weakref import ref

from memtrack._shared_bytes import SharedBytes

_IMPLEMENTATION = "_showwarnmsg_impl"
#: What is equal, and of the same type, after it was packed. Of others, such as a bytearray or a scalar of numpy, it would be bytes.
_VALUES = frozenset((str, int, float, complex, bool, bytes, type(None)))
#: Seconds to wait for a thread that keeps a warning at this moment: longer than it takes, and no thread does in a forked child.
_PATIENCE = 5


def recorded() -> Optional[List[Any]]:
    """The list in which warnings are recorded at present, if they are."""
    return recorded_by(getattr(warnings, _IMPLEMENTATION, None))


def recorded_by(known: Any) -> Optional[List[Any]]:
    """The list in which this function, which shows warnings, records them, if it does."""
    kept = getattr(known, "__self__", None)
    return kept if type(kept) is list and getattr(known, "__name__", "") == "append" else None


class KeptWarnings:
    """Takes the warnings of the call of one test in place of pytest's list."""

    def __init__(self, kept: List[Any], store: SharedBytes) -> None:
        """`store` is used again by later tests."""
        self._kept = kept
        self._bytes = store
        store.clear()
        self._categories: Dict[type, int] = {}
        #: Those of earlier runs, by their numbers, as long as somebody else holds them.
        self._earlier: "Dict[int, ref[type]]" = {}
        self._whole: Dict[int, Any] = {}
        self._number = 0
        self._lock = Lock()
        self._is_over = False
        # Not kept here, so that nothing is left to the collector of cycles, which would run in later tests.
        setattr(warnings, _IMPLEMENTATION, self.add)

    def add(self, message: Any) -> None:
        """Keeps this one."""
        # Whoever comes amid another, as a signal handler does or a child of a process with threads, waits for nobody.
        if not self._lock.acquire(False):
            self._kept.append(message)
            return
        try:
            if self._is_over:
                # A thread that was on its way here when the test ended.
                self._kept.append(message)
                return
            packed = self._packed(message)
            if packed is None:
                self._number += 1
                self._whole[self._number] = message
                packed = dumps(self._number)
            self._bytes.append(packed)
        finally:
            self._lock.release()

    def _packed(self, message: Any) -> Optional[bytes]:
        """All that it says, unless that is more than values."""
        warning, category = message.message, message.category
        if type(warning) is not category or not _is_plain(category):
            return None
        more = (message.source, message.file, message.line, warning.__cause__, warning.__context__, warning.__traceback__)
        if vars(warning) or any(each is not None for each in more):
            return None
        said = (*warning.args, message.filename, message.lineno)
        if not all(type(each) in _VALUES for each in said):
            return None
        number = self._categories.setdefault(category, len(self._earlier) + len(self._categories))
        return dumps((number, *said))

    def next_run(self) -> None:
        """The test runs again: what is kept as it is begins anew, and so do warnings of a category that nobody holds any more."""
        with self._alone():
            self._whole.clear()
            self._earlier.update((number, ref(category)) for category, number in self._categories.items())
            self._categories.clear()

    @property
    def size(self) -> int:
        """The bytes of what they say."""
        return self._bytes.size

    @property
    def whole(self) -> int:
        """How many are kept as they are."""
        return len(self._whole)

    def restore(self) -> None:
        """The test was called: they are in pytest's list."""
        if getattr(warnings, _IMPLEMENTATION, None) == self.add:
            setattr(warnings, _IMPLEMENTATION, self._kept.append)
        # As `_alone`, which takes each test three times as long.
        is_held = self._lock.acquire(timeout=_PATIENCE)
        try:
            self._is_over = True
            content = self._bytes.content() if self._bytes.size else b""
        finally:
            if is_held:
                self._lock.release()
        if not content:
            return
        categories = {number: known() for number, known in self._earlier.items()}
        categories.update((number, category) for category, number in self._categories.items())
        file = BytesIO(content)
        while file.tell() < len(content):
            known = load(file)
            if isinstance(known, tuple):
                number, *arguments, name, line = known
                category = categories[number]
                if category is not None:
                    self._kept.append(WarningMessage(category(*arguments), category, name, line))
            elif known in self._whole:
                self._kept.append(self._whole[known])

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """No other thread keeps a warning meanwhile."""
        is_held = self._lock.acquire(timeout=_PATIENCE)
        try:
            yield
        finally:
            if is_held:
                self._lock.release()


def _is_plain(category: type) -> bool:
    """Whether its arguments make an equal one."""
    own = [vars(each) for each in category.__mro__ if each.__module__ != "builtins"]
    return not any(name in names for names in own for name in ("__init__", "__new__", "__slots__"))
