"""Exceptions that the program's signal handlers raise while memtrack begins or ends a recording, as Ctrl-C does.

Python runs handlers between any two instructions of the main thread. Invariant: the exception reaches the program, and
what it has interrupted is completed or taken back before.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from typing import Callable

#: How often handlers may interrupt what takes back or completes.
_INTERRUPTED = 5
#: Modules by which memtrack makes system calls.
_CALLED = ("ctypes", "fcntl", "genericpath", "os", "posixpath", "shutil", "sysconfig")


def surely(complete: Callable[[], None]) -> None:
    """Calls it until it ends without an exception. For use where another exception goes on."""
    for _ in range(_INTERRUPTED):
        try:
            complete()
            return
        except BaseException:
            pass


def release(lock: threading.RLock) -> None:
    """Releases the lock, unless a handler has ended the wait for it."""
    try:
        lock.release()
    except RuntimeError:
        pass


def is_own_failure(error: BaseException) -> bool:
    """Whether a system call of memtrack's has failed. An OSError that a handler has raised, as TimeoutError, is the program's."""
    if not isinstance(error, OSError):
        return False
    place = error.__traceback__
    while place is not None:
        module = str(place.tb_frame.f_globals.get("__name__"))
        if not module.startswith("memtrack.") and module not in _CALLED:
            return False
        place = place.tb_next
    return True


def pass_on(error: BaseException) -> None:
    """Raises an OSError again that a handler has raised, where one of memtrack's is expected."""
    if isinstance(error, OSError) and not is_own_failure(error):
        raise error
