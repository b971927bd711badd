"""A connection to a process that records this one: requests and answers are lines of JSON.

Invariant: there is one answer to each request, and nothing else is read.
"""

from __future__ import annotations

# The module socket makes enumerations, which takes longer than to connect.
from _socket import MSG_DONTWAIT, MSG_NOSIGNAL, MSG_PEEK, SOL_SOCKET, socket, timeout

from memtrack._errors import Error
from memtrack._interrupts import is_own_failure, pass_on
from memtrack._json_lines import to_line, to_object

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional, Union

    Request = Union[str, Dict[str, Any]]

#: The option of sockets, which the module socket does not name.
_SO_COOKIE = 57
_NEWLINE = 10
_OK = b'"ok":'
#: The longest answer of an exchange: an error with paths in it.
_LONGEST = 16384

#: How often a connection is resumed until it is given up.
_SETTLED_AFTER = 5

#: What happened where there is no answer any more.
LOST = "the recorder has ended (was it killed?); what it had written until then is in the file"
#: What the system raises where there is none yet, and what is said then.
NO_ANSWER = (timeout, BlockingIOError)
LATE = "the recorder does not answer (was it stopped?); it may still do what it was asked for"
_CLOSED = "the program has closed the connection to the recorder; what was recorded until then is in the file"


class RecorderSocket(socket):
    """A socket that is open until the program ends where a recording goes on until then: not a mistake that warnings name.

    A program that closes all descriptors, as one that becomes a daemon, closes this one, too. Its number may be that of
    another file or socket then, which is not to be touched.
    """

    __slots__ = ("_cookie",)

    def note(self) -> None:
        """Remembers which socket it is."""
        self._cookie = self._known_cookie()

    def is_own(self) -> bool:
        """Whether the descriptor still is this socket's. Allocates next to nothing."""
        if self.fileno() < 0:
            return False
        if self._known_cookie() == getattr(self, "_cookie", None):
            return True
        self.detach()
        return False

    def _known_cookie(self) -> Optional[bytes]:
        """The kernel's number for the socket, which no other ever has; None before Linux 4.12, or if it is no socket."""
        try:
            return self.getsockopt(SOL_SOCKET, _SO_COOKIE, 8)
        except OSError as error:
            pass_on(error)
            return None

    def close(self) -> None:
        """Closes it, if it is still there."""
        if self.is_own():
            super().close()

    def __del__(self) -> None:
        self.close()


class Connection:
    """A connection; calls are made by one thread at a time."""

    def __init__(self, connected: RecorderSocket) -> None:
        self._socket = connected
        connected.note()
        #: The answer of the last exchange.
        self._answer, self._length = bytearray(_LONGEST), 0
        #: What happened to it, where there was none.
        self._failed = ""
        #: A request was sent whose answer was not read yet.
        self._is_owed = False
        #: That answer, once it was read.
        self._late = b""

    def close(self) -> None:
        """Ends it."""
        self._socket.close()

    def is_alive(self) -> bool:
        """Whether the other side still listens. Not by select(), which takes no descriptor from 1024 on."""
        try:
            self._take_owed()
        except Error:
            return False
        if not self._socket.is_own():
            return False
        patience = self._socket.gettimeout()
        try:
            if patience is not None:
                # With one, Python waits whatever the flags say.
                self._socket.settimeout(0)
            self._socket.recv(1, MSG_PEEK | MSG_DONTWAIT)
        except OSError as error:
            pass_on(error)
            return isinstance(error, BlockingIOError)
        finally:
            if patience is not None:
                self._socket.settimeout(patience)
        # It has closed the connection, or said something unasked.
        return False

    def is_open(self) -> bool:
        """Whether the other side has not closed it, where nothing is owed and no call waits: less work than `is_alive`, which finds out
        more."""
        if self._is_owed or not self._socket.is_own():
            return False
        try:
            # Sends nothing, and fails where nobody would read it.
            self._socket.send(b"", MSG_NOSIGNAL)
        except OSError as error:
            pass_on(error)
            return False
        return True

    def has_ended(self) -> bool:
        """Whether the other side is gone, for whoever has no part in what is asked of it at this moment."""
        if not self._socket.is_own():
            return True
        try:
            return not self._socket.recv(1, MSG_PEEK | MSG_DONTWAIT)
        except OSError as error:
            pass_on(error)
            return not isinstance(error, NO_ANSWER)

    def ask(self, request: Request) -> Dict[str, Any]:
        """Its answer to a request."""
        answer: Dict[str, Any] = self.ask_line(to_line(request))
        return answer

    def ask_line(self, request: bytes) -> Any:
        """The same to a request that is a line already."""
        try:
            self._send(request)
            line = self._line()
        except BaseException as error:
            self._has_failed(error)
            raise
        return _said(line)

    def ask_ahead(self, request: bytes) -> None:
        """Sends a request that is a line already, whose answer comes while this process does other things: `late_answer` gives it,
        also where others were made since, but no further one of this kind."""
        try:
            self._send(request)
            self._late, self._is_owed = b"", True
        except BaseException as error:
            self._has_failed(error)
            raise

    def late_answer(self) -> Any:
        """The answer to the request of `ask_ahead`."""
        self._take_owed()
        line, self._late = self._late, b""
        return _said(line)

    def _take_owed(self) -> None:
        """Reads the answer that is owed, if one is: what comes next is the answer to the next request."""
        if not self._is_owed:
            return
        try:
            # The program may have closed it since, and opened something else.
            if not self._socket.is_own():
                self._is_owed = False
                raise Error(_CLOSED)
            self._late = self._line()
            self._is_owed = False
        except BaseException as error:
            self._has_failed(error)
            raise

    def _send(self, request: bytes) -> None:
        self._take_owed()
        if not self._socket.is_own():
            raise Error(_CLOSED)
        # A program may have the signal SIGPIPE end it.
        self._socket.sendall(request, MSG_NOSIGNAL)

    def _has_failed(self, error: BaseException) -> None:
        """After an exception amid a request: raises Error for a failure of memtrack's own. No answer is owed any more."""
        if is_own_failure(error):
            self._is_owed = False
            raise Error(self._after_failure(error)) from error
        if not isinstance(error, Error):
            self._settle()

    def tell(self, request: Request) -> None:
        """Has something done, of which nothing more is to be known. Imports nothing, so that a recording does not have it."""
        if not self.exchange(to_line(request)):
            raise self.failure()

    def _line(self) -> bytes:
        return read_line(self._socket)

    def exchange(self, request: bytes) -> bool:
        """Sends a whole line; whether the answer is that it was done. Allocates next to nothing."""
        self._length = 0
        self._failed = ""
        answer = self._answer
        if self._is_owed and not self.is_alive():
            return False
        if not self._socket.is_own():
            return False
        try:
            self._socket.sendall(request, MSG_NOSIGNAL)
            length = self._socket.recv_into(answer)
            while 0 < length < _LONGEST and answer[length - 1] != _NEWLINE:
                more = self._socket.recv(_LONGEST - length)
                if not more:
                    break
                answer[length : length + len(more)] = more
                length += len(more)
        except BaseException as error:
            if is_own_failure(error):
                self._failed = self._after_failure(error)
                return False
            self._settle()
            raise
        self._length = length
        return answer.find(_OK, 0, length) >= 0

    def _after_failure(self, error: BaseException) -> str:
        """What a system call's failure means. An answer that comes later is not one to the next request."""
        if not isinstance(error, NO_ANSWER):
            return LOST
        self._settle()
        return LATE

    def _settle(self) -> None:
        """After an exception that a signal handler has raised amid a request: what is answered to it is not an answer to the next.

        Whatever handlers raise meanwhile is left out: the first exception goes on.
        """
        for _ in range(_SETTLED_AFTER):
            try:
                self._is_owed = False
                self._resume()
                return
            except BaseException as error:
                if is_own_failure(error) or isinstance(error, Error):
                    break
        self.close()

    def _resume(self) -> None:
        """Has the next answer be that to the next request; the request before is done by then, or never will be."""
        raise NotImplementedError

    def failure(self) -> Error:
        """Why the last exchange failed."""
        if self._failed:
            return Error(self._failed)
        if not self._length and self._socket.fileno() < 0:
            return Error(_CLOSED)
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


def above_outputs(end: socket) -> RecorderSocket:
    """The socket with a descriptor that is none of the first three: where the program has closed these, what it prints would go there."""
    if end.fileno() > 2:
        return RecorderSocket(fileno=end.detach())
    import fcntl

    try:
        return RecorderSocket(fileno=fcntl.fcntl(end.fileno(), fcntl.F_DUPFD_CLOEXEC, 3))
    finally:
        end.close()


def read_line(connected: socket) -> bytes:
    """What comes up to the next newline, or to the end."""
    line = b""
    while not line.endswith(b"\n"):
        more = connected.recv(_LONGEST)
        if not more:
            break
        line += more
    return line


def _said(line: bytes) -> Any:
    """What an answer says."""
    if not line:
        raise Error(LOST)
    answer: Dict[str, Any] = to_object(line)
    if "ok" not in answer:
        raise Error(answer["error"])
    return answer["ok"]
