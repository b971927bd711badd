"""What a load is: a command to run plainly and under each tool, with the options of memtrack to measure it with."""

import dataclasses
import os
import pathlib
import resource
import shutil
import subprocess
import typing

PROGRAMS = pathlib.Path(__file__).resolve().parent / "programs"

# Options of a tool, by the names that the tables use. A mode is a tuple of these; () is what a user gets without options.
OBJECTS, NATIVE, TIMESTAMPS = "every object", "native stacks", "timestamps"
DEFAULT = ()


class Missing(Exception):
    """What a load needs is not there; the text says what."""


@dataclasses.dataclass
class Command:
    """How a load is run plainly."""

    words: list
    is_python: bool = False
    # How often it is run for one figure: start-ups are too short for one.
    repeat: int = 1
    # Of servers: called with the process; tells it to end, and returns the processor seconds of clients.
    client: typing.Optional[typing.Callable] = None


@dataclasses.dataclass
class Load:
    family: str
    name: str
    modes: tuple
    # Makes the Command in the Workshop's directory, or raises Missing.
    make: typing.Callable


class Workshop:
    """A directory for what loads need, and the programs that this machine has."""

    def __init__(self, directory, python):
        self.directory = pathlib.Path(directory)
        self.python = python
        self.importable = {}

    def script(self, name, *arguments, needs=(), repeat=1):
        """A Python program of ours."""
        return self.python_command([str(PROGRAMS / name), *map(str, arguments)], needs, repeat)

    def python_command(self, words, needs=(), repeat=1):
        for module in needs:
            if module not in self.importable:
                found = subprocess.run([self.python, "-c", f"import {module}"], capture_output=True)
                self.importable[module] = found.returncode == 0
            if not self.importable[module]:
                raise Missing(f"{self.python} cannot import {module}")
        return Command([self.python, *words], is_python=True, repeat=repeat)

    def compiled(self, source, *arguments):
        """A C, C++ or Rust program of ours, optimized and with line tables."""
        target = self.directory / pathlib.Path(source).stem
        if not target.exists():
            # Without knowledge of malloc, which would let the compiler drop the calls.
            compiler, options = {
                ".c": (os.environ.get("CC", "cc"), ["-O2", "-g", "-fno-builtin", "-pthread"]),
                ".cc": (os.environ.get("CXX", "c++"), ["-O2", "-g"]),
                ".rs": (os.environ.get("RUSTC", "rustc"), ["-O", "-g"]),
            }[pathlib.Path(source).suffix]
            words = [self.tool(compiler), *options, "-o", str(target), str(PROGRAMS / source)]
            built = subprocess.run(words, capture_output=True, text=True)
            if built.returncode:
                raise Missing(f"{source} does not compile: {last_line(built.stderr)}")
        return Command([str(target), *map(str, arguments)])

    def native_command(self, name, repeat=1):
        return Command([self.tool(name)], repeat=repeat)

    def tool(self, name):
        found = shutil.which(name)
        if not found:
            raise Missing(f"no {name} in PATH")
        return found

    def file(self, name, text):
        """A file of the directory, written when it is not there."""
        path = self.directory / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return path


def processor_of_children():
    """Of all that were waited for, and what these waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def last_line(text):
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no message"
