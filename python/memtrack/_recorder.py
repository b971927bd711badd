"""The process that records this one: starts it, and asks it for things.

Invariant: it is no child of this process, gets no signal of the terminal, and ends with this process.
"""

from __future__ import annotations

import os
from _socket import MSG_NOSIGNAL, socket, socketpair

from memtrack._connection import LOST, Connection, RecorderSocket, above_outputs
from memtrack._errors import Error, with_remedy
from memtrack._interrupts import pass_on
from memtrack._json_lines import to_line
from memtrack._library import Library
from memtrack._program import find_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Sequence, Tuple

#: Variables that change how programs are loaded, which are meant for this one.
_LEFT_OUT = (b"LD_PRELOAD=", b"LD_AUDIT=", b"LD_LIBRARY_PATH=", b"GLIBC_TUNABLES=", b"MALLOC_")


class Recorder(Connection):
    """A recorder of this process."""

    def __init__(self, library: Library) -> None:
        try:
            program = os.path.realpath(find_program())
        except OSError as error:
            pass_on(error)
            raise Error(str(error)) from error
        try:
            own, other = map(_waiting, socketpair())
        except OSError as error:
            pass_on(error)
            raise Error(f"no connection to the recorder can be made: {with_remedy(error)}") from error
        environment = [b"%s=%s" % entry for entry in os.environb.items()]
        environment = [entry for entry in environment if not entry.startswith(_LEFT_OUT)]
        try:
            library.start_recorder(program, ["memtrack", "recorder"], environment, other.fileno())
        except BaseException:
            own.close()
            raise
        finally:
            other.close()
        super().__init__(own)
        #: How often the connection was resumed.
        self._resumed = 0

    def _resume(self) -> None:
        """What was sent of a request ends with the line. Answers come in the order of requests, so all before this one are left out."""
        if not self._socket.is_own():
            raise Error(LOST)
        self._resumed += 1
        self._socket.sendall(b'\n{"sync":%d}\n' % self._resumed, MSG_NOSIGNAL)
        answer = b'{"ok":{"sync":%d}}\n' % self._resumed
        while True:
            line = self._line()
            if not line:
                raise Error(LOST)
            if line.endswith(answer):
                return

    def mark(self, name: str) -> None:
        """Names the present moment."""
        self.tell({"mark": name})

    def sums(self, captures: Sequence[str], spans: Sequence[Tuple[int, int]]) -> Optional[List[List[Tuple[int, ...]]]]:
        """For each capture, and each span, four sums; None where it has ended or fails: whoever reads them then says why."""
        try:
            if not self.is_alive():
                return None
            # Not an object, as other answers are.
            sums: Any = self.ask({"sums": {"captures": list(captures), "spans": [list(span) for span in spans]}})
        except Error:
            return None
        return [[tuple(sum_) for sum_ in of_spans] for of_spans in sums]

    def span_request(self, command: str, members: Dict[str, Any]) -> bytes:
        """A request about a span."""
        return to_line({f"span_{command}": members})


def _waiting(end: socket) -> RecorderSocket:
    """An end of the connection, which waits however long it takes. The program may have given all its sockets a timeout."""
    moved = above_outputs(end)
    moved.settimeout(None)
    moved.note()
    return moved


def memory_file() -> int:
    """An empty memory file, which this process and the recorder share."""
    try:
        return os.memfd_create("memtrack", os.MFD_CLOEXEC)
    except OSError as error:
        pass_on(error)
        raise Error(f"shared memory cannot be created: {with_remedy(error)}") from error
