"""The recording of this process by somebody else: `memtrack run`, `attach` or `start`.

It is reached over its control socket (docs/control-protocol.md). Invariant: where there is none, nothing is done.
"""

import json
import os
import socket
from typing import Any, Dict, Optional, Tuple

from memtrack._errors import Error

#: Seconds that an answer may take.
_PATIENCE = 10


def ask_recording(command: Dict[str, Any]) -> Optional[Dict[str, Any]]:
    """The answer of the recording of this process; None if there is none. Raises Error if it refuses."""
    for directory in _directories():
        path = os.path.join(directory, f"{os.getpid()}.sock")
        try:
            if os.stat(directory).st_uid != os.geteuid():
                continue
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(_PATIENCE)
                connection.connect(path)
                connection.sendall(json.dumps({"id": 1, **command}).encode() + b"\n")
                with connection.makefile("rb") as lines:
                    lines.readline()
                    line = lines.readline()
        except OSError:
            continue
        answer: Dict[str, Any] = json.loads(line) if line else {"error": "the recording has just ended"}
        if "error" in answer:
            raise Error(answer["error"])
        said: Dict[str, Any] = answer["ok"]
        return said
    return None


def is_recorded() -> bool:
    """Whether somebody records this process now."""
    known = ask_recording({"command": "status"})
    processes = known["processes"] if known is not None else []
    return any(process["pid"] == os.getpid() and process["state"] == "recording" for process in processes)


def _directories() -> Tuple[str, ...]:
    own = f"/tmp/memtrack-{os.geteuid()}"
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return (os.path.join(runtime, "memtrack"), own) if runtime else (own,)
