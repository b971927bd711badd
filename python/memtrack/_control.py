"""The recording of this process by somebody else: `memtrack run`, `attach` or `start`.

It is reached over its control socket (docs/control-protocol.md). Invariant: what it gives is a recording of this very
process.
"""

from __future__ import annotations

import os
from _socket import AF_UNIX

# By name: a test may replace them in their modules while it is recorded.
from os import geteuid, getpid, listdir
from time import sleep

from memtrack._connection import Connection, RecorderSocket
from memtrack._errors import Error
from memtrack._interrupts import pass_on
from memtrack._json_lines import to_line, to_object
from memtrack._library import is_recording_now

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, Tuple

#: Seconds that an answer may take: it may be the copy of a large capture.
_PATIENCE = 600
#: How often the socket is looked for, and the pause between: it gets its name when the program has just been started.
_TRIES, _PAUSE = 50, 0.002


class OtherRecording(Connection):
    """A recording of this process that somebody else has begun."""

    def __init__(self, path: str) -> None:
        super().__init__(RecorderSocket(AF_UNIX))
        self._path = path
        #: Its first process.
        self.process = self._connect()

    def _connect(self) -> int:
        try:
            self._socket.settimeout(_PATIENCE)
            self._socket.connect(self._path)
            process: int = to_object(self._line())["pid"]
        except BaseException:
            self._socket.close()
            raise
        return process

    def _resume(self) -> None:
        """Spans are known by their files, so another connection does for them."""
        self._socket.close()
        self._socket = RecorderSocket(AF_UNIX)
        self._socket.note()
        self._connect()

    def mark(self, name: str) -> None:
        """Names the present moment."""
        self.tell({"id": 1, "command": "mark", "name": name})

    def span_request(self, command: str, members: Dict[str, Any]) -> bytes:
        """A request about a span."""
        return to_line({"id": 1, "command": command, **members})

    def has(self, process: int) -> bool:
        """Whether it records this process."""
        known = self.ask({"id": 1, "command": "status"})["processes"]
        return any(one["pid"] == process and one["state"] == "recording" for one in known)


def is_recorded() -> bool:
    """Whether somebody records this process now."""
    return is_recording_now()


def find_recording() -> OtherRecording:
    """The recording of this process, which is being recorded. Raises Error if it cannot be reached."""
    for _ in range(_TRIES):
        for path in _sockets():
            try:
                found = OtherRecording(path)
            except (OSError, ValueError, KeyError) as error:
                pass_on(error)
                continue
            try:
                # Of children, the recording has the name of the first process.
                if found.has(getpid()):
                    return found
            except Error:
                pass
            found.close()
        sleep(_PAUSE)
    raise Error(
        "this process is being recorded, but the recording cannot be reached (see 'memtrack ps'): "
        f"there is no socket of it in {' or '.join(_directories())}"
    )


def _sockets() -> Iterator[str]:
    """The sockets of recordings; that of this process first."""
    own = f"{getpid()}.sock"
    for directory in _directories():
        try:
            if os.stat(directory).st_uid != geteuid():
                continue
            names = [name for name in listdir(directory) if name.endswith(".sock")]
        except OSError as error:
            pass_on(error)
            continue
        for name in sorted(names, key=lambda name: (name != own, name)):
            yield os.path.join(directory, name)


def _directories() -> Tuple[str, ...]:
    own = f"/tmp/memtrack-{geteuid()}"
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return (os.path.join(runtime, "memtrack"), own) if runtime else (own,)
