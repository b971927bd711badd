"""A connection to a process that records this one: requests and answers are lines of JSON.

Invariant: there is one answer to each request, and nothing else is read.
"""

from __future__ import annotations

# By name: a test may replace it in its module while it is recorded.
from select import select

# The module socket makes enumerations, which takes longer than to connect.
from _socket import socket

from memtrack._errors import Error
from memtrack._json_lines import to_line, to_object

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Union

    Request = Union[str, Dict[str, Any]]

_NEWLINE = 10
_OK = b'"ok":'
#: The longest answer of an exchange: an error with paths in it.
_LONGEST = 16384

#: What happened where there is no answer any more.
LOST = "the recorder has ended (was it killed?); what it had written until then is in the file"


class RecorderSocket(socket):
    """A socket that is open until the program ends where a recording goes on until then: not a mistake that warnings name."""

    __slots__ = ()

    def __del__(self) -> None:
        self.close()


class Connection:
    """A connection; calls are made by one thread at a time."""

    def __init__(self, connected: RecorderSocket) -> None:
        self._socket = connected
        #: The answer of the last exchange.
        self._answer, self._length = bytearray(_LONGEST), 0

    def close(self) -> None:
        """Ends it."""
        self._socket.close()

    def is_alive(self) -> bool:
        """Whether the other side still listens."""
        return not select([self._socket], [], [], 0)[0]

    def ask(self, request: Request) -> Dict[str, Any]:
        """Its answer to a request."""
        try:
            self._socket.sendall(to_line(request))
            line = self._line()
        except OSError as error:
            raise Error(LOST) from error
        return _said(line)

    def tell(self, request: Request) -> None:
        """Has something done, of which nothing more is to be known. Imports nothing, so that a recording does not have it."""
        if not self.exchange(to_line(request)):
            raise self.failure()

    def _line(self) -> bytes:
        """What comes up to the next newline, or to the end."""
        line = b""
        while not line.endswith(b"\n"):
            more = self._socket.recv(_LONGEST)
            if not more:
                break
            line += more
        return line

    def exchange(self, request: bytes) -> bool:
        """Sends a whole line; whether the answer is that it was done. Allocates next to nothing."""
        self._length = 0
        answer = self._answer
        try:
            self._socket.sendall(request)
            length = self._socket.recv_into(answer)
            while 0 < length < _LONGEST and answer[length - 1] != _NEWLINE:
                more = self._socket.recv(_LONGEST - length)
                if not more:
                    break
                answer[length : length + len(more)] = more
                length += len(more)
        except OSError:
            return False
        self._length = length
        return answer.find(_OK, 0, length) >= 0

    def failure(self) -> Error:
        """Why the last exchange failed."""
        try:
            _said(bytes(self._answer[: self._length]))
        except Error as error:
            return error
        return Error("the recorder gave no answer")

    def mark(self, name: str) -> None:
        """Names the present moment."""
        raise NotImplementedError

    def span_request(self, command: str, members: Dict[str, Any]) -> bytes:
        """A request about a span: `begin`, `copy` or `end`, as in docs/control-protocol.md."""
        raise NotImplementedError


def _said(line: bytes) -> Dict[str, Any]:
    """What an answer says."""
    if not line:
        raise Error(LOST)
    answer: Dict[str, Any] = to_object(line)
    if "ok" not in answer:
        raise Error(answer["error"])
    said: Dict[str, Any] = answer["ok"]
    return said
