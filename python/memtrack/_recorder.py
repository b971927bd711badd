"""The process that records this one: starts it, and asks it for things.

Invariant: it is no child of this process, gets no signal of the terminal, and ends with this process.
"""

import json
import os
import select
import socket
from typing import Any, Dict, Union

from memtrack._errors import Error
from memtrack._library import Library
from memtrack._program import find_program

#: Variables that change how programs are loaded, which are meant for this one.
_LEFT_OUT = (b"LD_PRELOAD=", b"LD_AUDIT=", b"LD_LIBRARY_PATH=", b"GLIBC_TUNABLES=", b"MALLOC_")

_NEWLINE = 10
_POSITION = b'"position"\n'

_LOST = "the recorder has ended (was it killed?); what it had written until then is in the file"


class Recorder:
    """A recorder of this process."""

    def __init__(self, library: Library) -> None:
        try:
            program = os.path.realpath(find_program())
        except OSError as error:
            raise Error(str(error)) from error
        try:
            own, other = socket.socketpair()
        except OSError as error:
            raise Error(f"no connection to the recorder can be made: {error}") from error
        environment = [b"%s=%s" % entry for entry in os.environb.items()]
        environment = [entry for entry in environment if not entry.startswith(_LEFT_OUT)]
        try:
            with other:
                library.start_recorder(program, ["memtrack", "recorder"], environment, _above_outputs(other))
        except Error:
            own.close()
            raise
        self._socket = own
        self._answers = own.makefile("rb")

    def close(self) -> None:
        """Ends it, if no forked child has the connection, too."""
        self._answers.close()
        self._socket.close()

    def is_alive(self) -> bool:
        """Whether it still listens."""
        return not select.select([self._socket], [], [], 0)[0]

    def ask(self, request: Union[str, Dict[str, Any]]) -> Dict[str, Any]:
        """Its answer to a request."""
        try:
            self._socket.sendall(json.dumps(request).encode() + b"\n")
            line = self._answers.readline()
        except OSError as error:
            raise Error(_LOST) from error
        if not line:
            raise Error(_LOST)
        answer: Dict[str, Any] = json.loads(line)
        if "ok" not in answer:
            raise Error(answer["error"])
        said: Dict[str, Any] = answer["ok"]
        return said

    def ask_position(self, answer: bytearray) -> int:
        """Asks for the ticket of the present moment, and puts the answer there; its length. Allocates next to nothing."""
        try:
            self._socket.sendall(_POSITION)
            length = self._socket.recv_into(answer)
            while 0 < length < len(answer) and answer[length - 1] != _NEWLINE:
                more = self._socket.recv(len(answer) - length)
                if not more:
                    break
                answer[length : length + len(more)] = more
                length += len(more)
            return length
        except OSError as error:
            raise Error(_LOST) from error


def position_in(answer: bytearray, length: int) -> int:
    """The ticket in an answer."""
    said = json.loads(bytes(answer[:length]) or b"{}")
    if "ok" not in said:
        raise Error(said.get("error", _LOST))
    ticket: int = said["ok"]["ticket"]
    return ticket


def _above_outputs(end: socket.socket) -> int:
    """A descriptor of the socket that is none of the first three, which a program may have closed."""
    if end.fileno() > 2:
        return end.fileno()
    import fcntl

    moved = socket.socket(fileno=fcntl.fcntl(end.fileno(), fcntl.F_DUPFD_CLOEXEC, 3))
    end.close()
    return moved.detach()
