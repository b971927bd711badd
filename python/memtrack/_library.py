"""memtrack's library in this process: finds it where it is loaded already, else loads it from the program's file.

Invariant: a process has one copy of it, whoever loaded it; and no file is written for it.
"""

from __future__ import annotations

import errno
import os
import struct
import sys

# By name: a test may replace them in their modules while it is recorded.
from os import close
from time import sleep

from memtrack._errors import Error, with_remedy
from memtrack._interrupts import pass_on
from memtrack._program import find_program, how_to_mend

try:
    import ctypes
except ImportError as missing:
    # From 3.12 on it is none for subinterpreters with a GIL of their own.
    raise Error(
        f"memtrack needs the module ctypes, which cannot be imported: {missing}; a Tracker cannot be used in a subinterpreter: "
        "start it in the main one; it records all threads"
    ) from missing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, List, Optional, Tuple

_NAME = "libmemtrack_shim.so"
#: The section of the program's file that is the library.
_SECTION = b".memtrack_shim"
#: Names a library to use instead of the program's own.
_VARIABLE = "MEMTRACK_SHIM"
#: What the loader calls a library that 'memtrack attach' loaded.
_ATTACHED = b"/proc/./self/fd/"
#: A memory file that may be executed, for kernels that ask for this.
_MFD_EXEC = 0x10
_RTLD_NOLOAD = 4

#: How often a library that is busy is asked again.
TRIES = 200

#: Results of memtrack_attach and memtrack_detach that are dealt with here; the library names the others.
DONE, ALREADY_RECORDED, NOT_MAPPED, OTHER_SLOT_COUNT, NOT_RECORDED, BUSY = 0, -1, -2, -4, -7, -9
_TEXTS = {
    ALREADY_RECORDED: "the process is already being recorded",
    NOT_MAPPED: "the process cannot map the shared memory (is its address space limited?)",
    -3: "the library in the process belongs to another version of memtrack",
    OTHER_SLOT_COUNT: "the process was recorded before with room for another number of threads",
    -5: "the system cannot keep forked children from recording into the same memory",
    -6: "a thread of the process has stopped inside an allocation function",
    NOT_RECORDED: "the process is not being recorded",
    -8: "the recording had ended before it began",
    BUSY: "the process is just beginning or ending a recording; try again",
    -10: "the system refuses the process memory for memtrack's tables (is its address space limited?)",
}


def status_text(status: int) -> str:
    """What a result of the library means."""
    return _TEXTS.get(status, "the library in the process belongs to another version of memtrack")


class Library:
    """The library's functions. They are called with the GIL held, so that no other Python code runs meanwhile."""

    def __init__(self, loaded: ctypes.PyDLL) -> None:
        try:
            self.attach: Callable[[int, int], int] = loaded.memtrack_attach
            self.detach: Callable[[], int] = loaded.memtrack_detach
            self.rest: Callable[[], int] = loaded.memtrack_rest
            self.go_on: Callable[[], int] = loaded.memtrack_go_on
            self.most_bytes: Callable[[], int] = loaded.memtrack_most_bytes
            self.note_run: Callable[[], int] = loaded.memtrack_note_run
            self._rest_sums: Callable[..., int] = loaded.memtrack_rest_sums
            self._end_resting: Callable[[], int] = loaded.memtrack_end_resting
            self._start_recorder = loaded.memtrack_start_recorder
        except AttributeError as error:
            raise Error(status_text(-3)) from error
        loaded.memtrack_attach.argtypes = [ctypes.c_int, ctypes.c_uint32]
        for function in (loaded.memtrack_detach, loaded.memtrack_rest, loaded.memtrack_go_on, loaded.memtrack_end_resting):
            function.argtypes = []
        for number in (loaded.memtrack_most_bytes, loaded.memtrack_note_run):
            number.argtypes, number.restype = [], ctypes.c_uint64
        self._numbers = (ctypes.c_uint64 * 15)()
        loaded.memtrack_rest_sums.argtypes = [ctypes.c_void_p]
        self._numbers_place = ctypes.c_void_p(ctypes.addressof(self._numbers))
        texts = ctypes.POINTER(ctypes.c_char_p)
        self._start_recorder.argtypes = [ctypes.c_char_p, texts, texts, ctypes.c_int]

    def end_recording(self) -> int:
        """Ends the recording of this process, as `detach`, when the library is not busy any more."""
        return _when_not_busy(self.detach)

    def end_resting(self) -> int:
        """Ends the recording that rests, and none that has begun since."""
        return _when_not_busy(self._end_resting)

    def rest_sums(self) -> "Optional[List[int]]":
        """The sums of the last span of a recording that rests, as the recorder tells them, and three numbers of the moment at which it
        ended; None: the recorder is to be asked."""
        return self._numbers[:] if self._rest_sums(self._numbers_place) == 1 else None

    def start_recorder(self, program: str, arguments: List[str], environment: List[bytes], socket: int) -> None:
        """Starts a process that is no child of this one, with the socket as its standard input."""
        words = [os.fsencode(word) for word in arguments]
        error = self._start_recorder(os.fsencode(program), _texts(words), _texts(environment), socket)
        if error:
            raise Error(f"{program}: the recorder cannot be started: {os.strerror(error)}")


def _when_not_busy(call: Callable[[], int]) -> int:
    status = BUSY
    for _ in range(TRIES):
        status = call()
        if status != BUSY:
            break
        sleep(0.001)
    return status


def _texts(texts: List[bytes]) -> "ctypes.Array[ctypes.c_char_p]":
    return (ctypes.c_char_p * (len(texts) + 1))(*texts, None)


def load_library() -> Library:
    """The library, loaded if it is not yet."""
    name = _loaded_name()
    try:
        if name is not None:
            return Library(ctypes.PyDLL(os.fsdecode(name), ctypes.DEFAULT_MODE | _RTLD_NOLOAD))
        return Library(_load())
    except OSError as error:
        pass_on(error)
        remedy = "; it is loaded from memory, which 'ulimit -f' limits, too: raise that" if error.errno == errno.EFBIG else ""
        raise Error(f"memtrack's library cannot be loaded: {with_remedy(error)}{remedy}") from error


_is_recording: Optional[Callable[[], int]] = None

#: How many objects had been loaded when the library was looked for in vain.
_loads_before: Optional[int] = None


def is_recording_now() -> bool:
    """Whether the library, if it is loaded, records this process now."""
    global _is_recording, _loads_before
    if _is_recording is None:
        # To look at all objects takes 30 times as long as to ask how many were loaded.
        loads = None if is_subinterpreter() else _loads()
        if loads is not None and loads == _loads_before:
            return False
        _loads_before = loads
        # In a subinterpreter, Python cannot be called back, so there only a library is found that was loaded at the start.
        name = None if is_subinterpreter() else _loaded_name()
        mode = ctypes.DEFAULT_MODE if name is None else ctypes.DEFAULT_MODE | _RTLD_NOLOAD
        try:
            # It is never unloaded.
            _is_recording = ctypes.PyDLL(os.fsdecode(name) if name else None, mode).memtrack_is_recording
        except (OSError, AttributeError):
            return False
    return bool(_is_recording())


_is_sub: Optional[bool] = None


def is_subinterpreter() -> bool:
    """Whether this is another than the main interpreter; each has a module of its own."""
    global _is_sub
    if _is_sub is None:
        _is_sub = _interpreter_number() != 0
    return _is_sub


def refuse_subinterpreter() -> None:
    """The library reads the frames of the main interpreter's threads only."""
    if is_subinterpreter():
        raise Error("a Tracker cannot be used in a subinterpreter: start it in the main one; it records all threads")


def _interpreter_number() -> int:
    python = ctypes.PyDLL(None)
    # Before 3.9 it has an underscore.
    current = getattr(python, "PyInterpreterState_Get", None) or python._PyInterpreterState_Get
    current.restype = ctypes.c_void_p
    python.PyInterpreterState_GetID.argtypes = [ctypes.c_void_p]
    python.PyInterpreterState_GetID.restype = ctypes.c_int64
    number: int = python.PyInterpreterState_GetID(current())
    return number


class _ObjectInfo(ctypes.Structure):
    """The beginning of struct dl_phdr_info."""

    _fields_ = [
        ("address", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("headers", ctypes.c_void_p),
        ("header_count", ctypes.c_uint16),
        ("loads", ctypes.c_ulonglong),
    ]


_Look = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_ObjectInfo), ctypes.c_size_t, ctypes.c_void_p)
_loads_seen = 0


def _see_loads(info: "ctypes._Pointer[_ObjectInfo]", size: int, data: Optional[int]) -> int:
    global _loads_seen
    _loads_seen = info.contents.loads
    return 1


_iterate: "Optional[Tuple[ctypes._NamedFuncPointer, ctypes._FuncPointer]]" = None


def _loads() -> int:
    """How many objects the loader has loaded since the program began."""
    global _iterate
    if _iterate is None:
        _iterate = ctypes.PyDLL(None).dl_iterate_phdr, _Look(_see_loads)
    iterate, look = _iterate
    iterate(look, None)
    return _loads_seen


def _loaded_name() -> Optional[bytes]:
    """What the loader calls the library, if it is loaded."""
    found: List[bytes] = []

    def look(info: "ctypes._Pointer[_ObjectInfo]", size: int, data: Optional[int]) -> int:
        name = info.contents.name or b""
        if name.endswith(b"/" + _NAME.encode()) or name.startswith(_ATTACHED):
            found.append(name)
        return 0

    ctypes.PyDLL(None).dl_iterate_phdr(_Look(look), None)
    return found[0] if found else None


def _load() -> ctypes.PyDLL:
    if not sys.platform.startswith("linux"):
        raise Error("memtrack records programs on Linux only")
    named = os.environ.get(_VARIABLE)
    if named:
        return ctypes.PyDLL(os.path.realpath(named))
    try:
        program = os.path.realpath(find_program())
        place = _embedded(program)
        if place is not None:
            return _load_part(program, *place)
    except struct.error as error:
        raise Error(str(error)) from error
    for path in _installed(program):
        if os.path.exists(path):
            return ctypes.PyDLL(os.path.realpath(path))
    raise Error(f"{program} is not the program memtrack: its library is neither in it nor beside it; {how_to_mend()}")


def _load_part(path: str, offset: int, length: int) -> ctypes.PyDLL:
    """Loads a library that is a part of a file from a memory file, which is closed again."""
    try:
        descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC | _MFD_EXEC)
    except OSError:
        # Older kernels do not know the flag.
        descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC)
    try:
        # The system copies it: through this process it takes more than twice as long.
        with open(path, "rb", buffering=0) as file:
            while length > 0:
                copied = os.sendfile(descriptor, file.fileno(), offset, length)
                if copied == 0:
                    raise Error(f"{path}: the file is cut off")
                offset += copied
                length -= copied
        return ctypes.PyDLL(os.fsdecode(_ATTACHED) + str(descriptor))
    finally:
        close(descriptor)


def _embedded(program: str) -> Optional[Tuple[int, int]]:
    """Where the library is in the program's file, and its length; None if there is none, as where a package installs it as a file of its own."""
    with open(program, "rb") as file:
        header = file.read(64)
        if header[:6] != b"\x7fELF\x02\x01":
            raise Error(f"{program}: this is not the program memtrack; {how_to_mend()}")
        (table,) = struct.unpack_from("<Q", header, 40)
        size, count, names = struct.unpack_from("<HHH", header, 58)
        file.seek(table)
        sections = file.read(size * count)

        def place(number: int) -> Tuple[int, int, int]:
            name, offset, length = struct.unpack_from("<I20xQQ", sections, number * size)
            return name, offset, length

        _, offset, length = place(names)
        file.seek(offset)
        texts = file.read(length)
        for number in range(count):
            name, offset, length = place(number)
            if texts[name:].split(b"\0", 1)[0] == _SECTION:
                return offset, length
    return None


def _installed(program: str) -> List[str]:
    """Where packages of a system install the library."""
    directory = os.path.dirname(program)
    multiarch = f"../lib/{os.uname().machine}-linux-gnu/memtrack"
    return [os.path.join(directory, path, _NAME) for path in (multiarch, "../lib/memtrack", "../lib64/memtrack", ".")]
