"""The recording of this process by somebody else: `memtrack run`, `attach` or `start`.

It is reached over its control socket (docs/control-protocol.md). Imported where there is one only. Invariant: what it gives is a
recording of this very process.
"""

from __future__ import annotations

import os
from _socket import AF_UNIX, socket

# By name: a test may replace them in their modules while it is recorded.
from os import geteuid, getpid, getppid, listdir
from time import sleep

from memtrack._connection import NO_ANSWER, Connection, RecorderSocket, above_outputs, read_line
from memtrack._errors import Error
from memtrack._interrupts import pass_on
from memtrack._json_lines import to_line, to_object

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Tuple

#: Seconds that an answer may take: it may be the copy of a large capture.
_PATIENCE = 600
#: Seconds that a recording has to say what it records, while others are asked, too: one that was stopped never does. Then, that of this
#: process may be one that has much to do.
_BRIEFLY, _AGAIN = 1, 30
#: How often the socket is looked for, and the pause between: it gets its name when the program has just been started.
_TRIES, _PAUSE = 50, 0.002


class OtherRecording(Connection):
    """A recording of this process that somebody else has begun."""

    def __init__(self, path: str, patience: int) -> None:
        self._path = path
        self._patience = patience
        super().__init__(self._connected())

    def _connected(self) -> RecorderSocket:
        connected = above_outputs(socket(AF_UNIX))
        connected.note()
        try:
            connected.settimeout(self._patience)
            connected.connect(self._path)
            # The greeting.
            if not to_object(read_line(connected)):
                raise ValueError("no greeting")
        except BaseException:
            connected.close()
            raise
        return connected

    def _resume(self) -> None:
        """Spans are known by their files, so another connection does for them."""
        self._socket.close()
        self._socket = self._connected()
        self._socket.settimeout(_PATIENCE)

    def wait_for_answers(self) -> None:
        """From now on an answer may take its time."""
        self._patience = _AGAIN
        self._socket.settimeout(_PATIENCE)

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


def find_recording() -> OtherRecording:
    """The recording of this process, which is being recorded. Raises Error if it cannot be reached."""
    silent: List[str] = []
    for _ in range(_TRIES):
        for path in _sockets():
            found = None if path in silent else _asked(path, _BRIEFLY, silent)
            if found is not None:
                return found
        sleep(_PAUSE)
    late: List[str] = []
    for path in silent:
        found = _asked(path, _AGAIN, late)
        if found is not None:
            return found
    raise Error(
        "this process is being recorded, but the recording cannot be reached (see 'memtrack ps'): "
        + (
            f"{', '.join(late)} does not answer; was its recorder stopped?"
            if late
            else f"there is no socket of it in {' or '.join(_directories())}"
        )
    )


def _asked(path: str, patience: int, silent: List[str]) -> Optional[OtherRecording]:
    """The recording with that socket, if it has this process. One that does not answer is noted."""
    try:
        found = OtherRecording(path, patience)
    except (OSError, ValueError, KeyError) as error:
        pass_on(error)
        if isinstance(error, NO_ANSWER):
            silent.append(path)
        return None
    try:
        # Of children, the recording has the name of the first process.
        if found.has(getpid()):
            found.wait_for_answers()
            return found
    except Error as error:
        if isinstance(error.__cause__, NO_ANSWER):
            silent.append(path)
    found.close()
    return None


def _sockets() -> Iterator[str]:
    """The sockets of recordings; those of this process and of its parent first."""
    own = [f"{process}.sock" for process in (getpid(), getppid())]
    for directory in _directories():
        try:
            if os.stat(directory).st_uid != geteuid():
                continue
            names = [name for name in listdir(directory) if name.endswith(".sock")]
        except OSError as error:
            pass_on(error)
            continue
        for name in sorted(names, key=lambda name: (own.index(name) if name in own else len(own), name)):
            yield os.path.join(directory, name)


def _directories() -> Tuple[str, ...]:
    own = f"/tmp/memtrack-{geteuid()}"
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return (os.path.join(runtime, "memtrack"), own) if runtime else (own,)
