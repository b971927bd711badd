"""What the tests share: the memtrack under test, the interpreters it is tried on, and readers of what it prints.

Every test works on real processes. MEMTRACK names the executable; without it, the release build of this checkout.
"""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import typing

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
PROGRAMS = REPOSITORY / "python-tests" / "programs"
# Where tests of the package warn, the process that collects what workers of pytest-xdist say looks for the warning's class.
sys.path.insert(0, str(REPOSITORY / "python"))
VERSIONS = ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13")
SYSTEM_PYTHON = "/usr/bin/python3.11"
UNPACKED = ("bullseye-3.9", "trixie-3.13", "sid-3.13", "sid-3.14", "sid-3.15")  # by scripts/setup-pythons
FREE_THREADED = ("3.13t", "3.14t", "3.15t")  # by scripts/setup-pythons --build, where somebody has done so
OBJECT_VERSIONS = (*VERSIONS, "sid-3.14", "sid-3.15", "3.14-tail", *FREE_THREADED)  # whose objects are read
# Nothing is kept in the user's home, and reports are made from events but where a test is of what is kept.
os.environ["MEMTRACK_CACHE"] = "none"
# Shells without job control let what they start in the background ignore it, which programs inherit; the tests send it to some.
signal.signal(signal.SIGINT, signal.default_int_handler)
WHOLE = "MEMTRACK_TEST_WHOLE" in os.environ  # with the figures that memtrack is to bear: scripts/test --whole
PATIENCE = 1800 if WHOLE else 600  # seconds after which a program counts as hanging: no promise of memtrack's is in it


def pytest_addoption(parser):
    parser.addoption("--all-pythons", action="store_true", help="also on what scripts/setup-pythons has unpacked")


def pytest_collection_modifyitems(config, items):
    """Leaves out the tests on unpacked interpreters, in words, unless they are asked for."""
    skip = pytest.mark.skip(reason="Pythons of scripts/setup-pythons: only with scripts/test --all-pythons")
    for item in items:
        parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
        if any(value in UNPACKED for value in parameters if isinstance(value, str)) and not config.getoption(
            "--all-pythons"
        ):
            item.add_marker(skip)


# --- interpreters -----------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=None)
def pyenv_versions():
    """The interpreters of the version manager: {"3.8": path, ...}, the newest patch level of each."""
    root = os.environ.get("PYENV_ROOT")
    if not root and shutil.which("pyenv"):
        root = subprocess.run(["pyenv", "root"], capture_output=True, text=True).stdout.strip()
    found = {}
    for directory in pathlib.Path(root or os.devnull).glob("versions/3.*"):
        numbers = tuple(int(part) for part in re.findall(r"\d+", directory.name))
        if re.fullmatch(r"[\d.]+", directory.name) and (directory / "bin" / "python3").exists():
            version = ".".join(map(str, numbers[:2]))
            found[version] = max(found.get(version, ((), "")), (numbers, str(directory / "bin" / "python3")))
    return {version: path for version, (_, path) in found.items()}


def interpreter_path(version):
    """The interpreter of that version, or a skip that names it. "system" is the distribution's stripped one.

    A word for a command line; for an unpacked one a tuple of words.
    """
    if version.endswith("-tail"):
        return built_interpreter(version)
    if version in UNPACKED:
        return unpacked_interpreter(*version.split("-"))
    if version in FREE_THREADED:
        return built_interpreter(version)
    if version == "system":
        path = SYSTEM_PYTHON if os.path.exists(SYSTEM_PYTHON) else None
    else:
        path = pyenv_versions().get(version) or found_in_path(f"python{version}")
    return path or pytest.skip(f"no Python {version} ({SYSTEM_PYTHON if version == 'system' else 'pyenv, PATH'})")


def set_up_pythons():
    """The directory of scripts/setup-pythons."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(os.environ.get("MEMTRACK_PYTHONS") or pathlib.Path(cache, "memtrack-pythons"))


def built_interpreter(variant):
    """An interpreter that no distribution has as a package."""
    path = shutil.which(f"python{variant}") or set_up_pythons() / variant / "build" / "python"
    return str(path) if os.path.exists(path) else pytest.skip(f"no {path}: run scripts/setup-pythons --build {variant}")


def unpacked_interpreter(suite, version):
    """An interpreter in a root directory of its own, run through the dynamic loader that it was built for."""
    root = set_up_pythons() / suite / "usr"
    program = root / "bin" / f"python{version}"
    loaders = list(root.glob("lib/*/ld-linux-*.so.*"))
    if not loaders or not program.exists():
        pytest.skip(f"no Python {version} in {root}: run scripts/setup-pythons")
    return str(loaders[0]), "--library-path", str(loaders[0].parent), str(program)


def found_in_path(name):
    """The interpreter of that name, unless it is a version manager's script, which runs only a version that is set."""
    path = shutil.which(name)
    return path if path and pathlib.Path(path).read_bytes()[:4] == b"\x7fELF" else None


def compile_extension(interpreter, source, directory, *options):
    """The file of the module for that interpreter; a skip in words where its headers are not there."""
    code = "import sysconfig as s; print(s.get_path('include'), s.get_config_var('EXT_SUFFIX'))"
    include, suffix = subprocess.run([interpreter, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    if not os.path.exists(os.path.join(include, "Python.h")):
        pytest.skip(f"no headers of {interpreter} (python3-dev)")
    command = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-pthread", "-g", "-O1"]
    # Without knowledge of malloc, which would let the compiler drop the calls.
    command += ["-fno-builtin", "-fno-optimize-sibling-calls", *options, "-I", include]
    built = pathlib.Path(directory, source.stem + suffix)
    subprocess.run([*command, "-o", built, source], check=True)
    return built


WITH_GIL = (*VERSIONS, "system", *UNPACKED, "3.14-tail")


@pytest.fixture(params=WITH_GIL)
def interpreter(request):
    """Each interpreter in turn."""
    return interpreter_path(request.param)


@pytest.fixture(params=[*WITH_GIL, *FREE_THREADED])
def any_interpreter(request):
    """Each interpreter in turn, and those without the GIL."""
    return interpreter_path(request.param)


@pytest.fixture(params=FREE_THREADED)
def free_threaded(request):
    """Each interpreter without the GIL."""
    return interpreter_path(request.param)


@pytest.fixture
def python():
    """The interpreter that runs the tests; it has the packages of requirements.txt."""
    return sys.executable


#: Code of programs that record themselves: `keep` makes blocks that the interpreter requests from malloc one by one, 1 byte
#: larger than asked for. Small objects have room in arenas that are there: whether one more is made would be chance. Without the GIL, objects are in mimalloc, from 3.15 on all that Python allocates: blocks of C++ are not.
KEEP = """
import os, signal, sys, threading, time
import memtrack

room = [bytes(400) for _ in range(10_000)][::100]

def keep(count, size=70_001):
    return [bytearray(size) for _ in range(count)]

if not getattr(sys, "_is_gil_enabled", lambda: True)():
    import ctypes
    library = ctypes.CDLL("libstdc++.so.6")
    allocate, release = library._Znwm, library._ZdlPv
    allocate.argtypes, allocate.restype, release.argtypes, release.restype = [ctypes.c_size_t], ctypes.c_void_p, [ctypes.c_void_p], None

    class Block:
        def __init__(self, size, release=release):
            self.address, self.release = allocate(size), release

        def __del__(self):
            self.release(self.address)

    def keep(count, size=70_001):
        return [Block(size + 1) for _ in range(count)]
"""


# --- running ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Outcome:
    """How a program ended. A signal is 128 + its number, as a shell has it."""

    status: int
    stdout: bytes
    stderr: bytes


def execute(command, **options):
    """Runs a command to its end, without core files."""
    options = {"stdin": subprocess.DEVNULL, "timeout": PATIENCE, **options}
    if "input" in options:
        del options["stdin"]
    done = subprocess.run(flat(command), capture_output=True, preexec_fn=no_core_files, **options)
    status = done.returncode if done.returncode >= 0 else 128 - done.returncode
    return Outcome(status, done.stdout, done.stderr)


def flat(words):
    """A command line whose words may themselves be command lines."""
    return [part for word in words for part in (flat(word) if isinstance(word, (list, tuple)) else [str(word)])]


def no_core_files():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


# --- waiting, and measuring on a machine that is busy -----------------------------------------------------------------


def until(what, holds):
    """Waits until it holds, and gives what that was."""
    end = time.monotonic() + PATIENCE
    while not (found := holds()):
        assert time.monotonic() < end, what
        time.sleep(0.005)
    return found


def state_of(pid):
    """As ps shows it: R, S, T …"""
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def until_it_waits(pid):
    """Until the first thread of a process sleeps. Behind a print into a pipe, it is its next read that makes it sleep."""
    state = until(f"process {pid} waits", lambda: (now := state_of(pid)) in "SZX" and now)
    assert state == "S", f"process {pid} has ended: {state}"


def kill_in_time(process):
    """One that hangs, and what it has started, so that whoever reads what they write goes on."""

    def kill():
        if process.poll() is None:
            for pid in [process.pid, *started_by(process.pid)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    timer = threading.Timer(PATIENCE, kill)
    timer.daemon = True
    timer.start()


def started_by(pid):
    """The processes that run below this one."""
    with contextlib.suppress(OSError):  # It has ended.
        for children in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
            for child in map(int, children.read_text().split()):
                yield child
                yield from started_by(child)


def in_one_of(tries, attempt):
    """That a bound holds in one of several measurements. A busy machine spoils one now and then, a fault spoils each.

    `attempt` gives what is wrong, or "". What has to hold whatever the machine does, it asserts.
    """
    said = []
    for _ in range(tries):
        said.append(attempt())
        if said[-1] == "":
            return
    raise AssertionError(said)


def with_names(record):
    """What a run that succeeds says at its end where it has names: it gives them half a second, too little on a busy machine."""
    for _ in range(5):
        outcome = record()
        assert outcome.status == 0, outcome
        if b"there was no time" not in outcome.stderr:
            return outcome.stderr.decode()
    raise AssertionError(outcome)


#: For what waits until a thread is in a certain call.
shows_calls = pytest.mark.skipif(not os.path.exists("/proc/self/syscall"), reason="this kernel does not show what is waited for")


class Memtrack:
    """The executable under test, working in a directory of the test's own."""

    def __init__(self, executable, directory):
        self.executable = str(executable)
        self.directory = directory
        self.captures = 0

    def command(self, *words):
        return [self.executable, *flat(words)]

    def __call__(self, *words, **options):
        """Any command; gives its Outcome."""
        return execute(self.command(*words), **{"cwd": self.directory, **options})

    def run(self, *target, options=(), **process):
        """`memtrack run -q`; gives the Outcome and the Capture."""
        self.captures += 1
        capture = self.directory / f"capture-{self.captures}.bin"
        outcome = self("run", "--no-native", "-q", "-o", capture, *options, "--", *target, **process)
        return outcome, Capture(self, capture)

    def record(self, *target, options=(), **process):
        """The Capture of a program that must succeed."""
        outcome, capture = self.run(*target, options=options, **process)
        assert outcome.status == 0, outcome.stderr.decode(errors="replace")
        return capture

    def processes(self):
        """What `ps` lists."""
        outcome = self("ps", "--json")
        assert outcome.status == 0, outcome.stderr.decode(errors="replace")
        return json.loads(outcome.stdout)["processes"]

    def mark(self, pid, name):
        """Sets a mark, as soon as the program, which runs already, can be reached."""
        until(f"the mark {name} is set", lambda: self("mark", "-q", pid, name).status == 0)


@dataclasses.dataclass
class Capture:
    """A capture and what memtrack says of it."""

    memtrack: Memtrack
    path: pathlib.Path

    def reading(self, *words):
        outcome = self.memtrack(*words)
        assert outcome.status == 0, outcome.stderr.decode(errors="replace")
        return outcome.stdout.decode()

    def stats(self, *options):
        return json.loads(self.reading("stats", "--json", self.path, *options))

    def symbolized(self):
        """The same with its native code's names in it, for many reports: each would look them up in the programs' files."""
        self.reading("symbolize", "-f", self.path)
        return self

    def speedscope(self, *options):
        return Profile(json.loads(self.reading("transform", "speedscope", self.path, "-o", "-", *options)))

    @functools.cached_property
    def text(self):
        """What `memtrack parse` prints."""
        return self.reading("parse", self.path)

    @functools.cached_property
    def records(self):
        """The same, read back."""
        return Records(self.text)

    def allocations(self):
        """The records that begin a block or a mapping."""
        return [record for record in self.records.events if record.kind in ("ALLOC", "MAP")]


class Profile:
    """A speedscope file: samples root to leaf, with their bytes and number of allocations."""

    def __init__(self, file):
        self.file = file
        self.frames = [Frame(f["name"], f.get("file"), f.get("line")) for f in file["shared"]["frames"]]
        self.by_bytes, self.by_count = file["profiles"]
        assert self.by_bytes["samples"] == self.by_count["samples"]

    def samples(self):
        """[(stack root to leaf, bytes, count), ...] in the file's order."""
        stacks = [tuple(self.frames[index] for index in sample) for sample in self.by_bytes["samples"]]
        return list(zip(stacks, self.by_bytes["weights"], self.by_count["weights"]))

    def leaf(self, function):
        """(bytes, count) of what that function itself allocated."""
        own = [(size, count) for stack, size, count in self.samples() if stack[-1].name == function]
        return sum(size for size, _ in own), sum(count for _, count in own)

    def leaves(self, *functions):
        """These functions in the order in which they first are a leaf."""
        names = dict.fromkeys(stack[-1].name for stack, _, _ in self.samples())
        return [name for name in names if name in functions]


@dataclasses.dataclass(frozen=True)
class Frame:
    name: str
    file: str
    line: int


class Record(typing.NamedTuple):
    """One event; what its kind does not have is 0 or empty."""

    kind: str
    time_ns: int = 0
    order: int = 0
    tid: int = 0
    address: int = 0
    size: int = 0
    allocator: str = ""
    domain: str = ""
    map_class: str = ""
    stack: int = 0


#: Lines of events and of stacks, nearly all that there are: each is read in one match, since captures have hundred thousands.
EVENT = re.compile(
    r"(\w+) time_ns=(\d+) order=(\d+) tid=(\d+)(?: address=(\w+))?(?: size=(\d+))?"
    r"(?: allocator=(\w+))?(?: domain=(\w+))?(?: class=(\w+))?(?: stack=(\d+))?"
)
STACK = re.compile(r"STACK stack=(\d+) frame=(\d+) caller=(\d+)")


class Records:
    """The lines of `memtrack parse`: the events in their order, and the tables that they refer to."""

    def __init__(self, text):
        self.events, self.frames, self.nodes = [], {}, {}
        self.snapshots = []  # how many events came before each
        for line in text.splitlines():
            if event := EVENT.fullmatch(line):
                self.take_event(*event.groups(""))
            elif node := STACK.fullmatch(line):
                stack, frame, caller = map(int, node.groups())
                self.nodes[stack] = frame, caller
            else:
                kind, values = line.split(" ", 1)
                self.take(kind, dict(re.findall(r'(\w+)=("(?:\\.|[^"\\])*"|\S*)', values)))

    def take_event(self, kind, time_ns, order, tid, address, size, allocator, domain, map_class, stack):
        numbers = int(time_ns), int(order), int(tid), int(address or "0", 16), int(size or 0)
        self.events.append(Record(kind, *numbers, allocator, domain, map_class, int(stack or 0)))

    def take(self, kind, values):
        if kind == "FRAME":
            name, file = (values[key].strip('"') for key in ("function", "file"))
            self.frames[int(values["frame"])] = Frame(name, file, int(values["line"]))
        elif kind == "SNAPSHOT":
            self.snapshots.append(len(self.events))
        else:
            assert kind != "STACK" and "order" not in values, f"other fields than known: {kind} {values}"

    def stack(self, number):
        """Root to leaf."""
        frames = []
        while number:
            frame, number = self.nodes[number]
            frames.append(self.frames[frame])
        return frames[::-1]


# --- fixtures ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def executable():
    path = pathlib.Path(os.environ.get("MEMTRACK") or REPOSITORY / "target" / "release" / "memtrack").absolute()
    if not path.is_file():
        pytest.exit(f"{path}: not built; cargo build --release, or set MEMTRACK", returncode=1)
    return path


@pytest.fixture
def memtrack(executable, tmp_path):
    return Memtrack(executable, tmp_path)


@pytest.fixture(scope="module")
def module_memtrack(executable, tmp_path_factory):
    """For captures that the tests of a module share."""
    return Memtrack(executable, tmp_path_factory.mktemp("captures"))


@pytest.fixture
def plain(tmp_path):
    """Runs a command without memtrack, in the same directory."""
    return lambda *command, **options: execute(command, **{"cwd": tmp_path, **options})


@pytest.fixture
def seen(tmp_path):
    """Is made by the test when it has seen what it wants, and at its end for programs that are left."""
    yield tmp_path / "seen"
    (tmp_path / "seen").touch()


@pytest.fixture
def programs():
    return PROGRAMS
