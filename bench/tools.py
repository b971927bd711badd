"""How the tools are run on a load: memtrack (one build or two), memray on Python programs, heaptrack on others."""

import json
import os
import pathlib
import shutil
import subprocess

from .loads import NATIVE, OBJECTS, TIMESTAMPS

MEMTRACK_OPTIONS = {OBJECTS: "--trace-python-allocators", NATIVE: "--native", TIMESTAMPS: "--allocation-timestamps"}
MEMRAY_OPTIONS = {OBJECTS: "--trace-python-allocators", NATIVE: "--native"}


class Plain:
    name = "plain"

    def words(self, command, mode):
        return command.words

    def written(self):
        return None


class Memtrack:
    def __init__(self, name, program, directory):
        self.name, self.program = name, program
        self.capture = pathlib.Path(directory) / f"{name}.bin"

    def words(self, command, mode):
        options = [MEMTRACK_OPTIONS[word] for word in mode]
        if NATIVE not in mode:
            options.append("--no-native")
        return [self.program, "run", "-q", "-f", "-o", str(self.capture), *options, "--", *command.words]

    def written(self):
        return self.capture.stat().st_size

    def events(self):
        """How many allocations and frees the last run had."""
        stats = subprocess.run([self.program, "stats", "--json", str(self.capture)], check=True, capture_output=True, text=True)
        told = json.loads(stats.stdout)
        return told["allocations"]["count"] + told["deallocations"]["count"]


class Memray:
    name = "memray"

    def __init__(self, directory):
        self.capture = pathlib.Path(directory) / "memray.bin"

    def words(self, command, mode):
        """None where memray does not know the mode or the program is not Python."""
        if not command.is_python or not set(mode) <= set(MEMRAY_OPTIONS):
            return None
        options = [MEMRAY_OPTIONS[word] for word in mode]
        python, *rest = command.words
        return [python, "-m", "memray", "run", "-q", "-f", "-o", str(self.capture), *options, *rest]

    def written(self):
        return self.capture.stat().st_size


class Heaptrack:
    """heaptrack always takes native stacks."""

    name = "heaptrack"

    def __init__(self, directory):
        self.directory = pathlib.Path(directory)

    def words(self, command, mode):
        if command.is_python or mode != (NATIVE,):
            return None
        for old in self.directory.glob("heaptrack.out*"):
            old.unlink()
        return [shutil.which("heaptrack"), "--raw", "-o", str(self.directory / "heaptrack.out"), *command.words]

    def written(self):
        return sum(path.stat().st_size for path in self.directory.glob("heaptrack.out*"))


def tools(options, directory, has_memray):
    """The plain run first, then every tool that is there."""
    found = [Plain(), Memtrack("memtrack", options.memtrack, directory)]
    if options.before:
        found.append(Memtrack("before", options.before, directory))
    if has_memray and "memray" not in options.without:
        found.append(Memray(directory))
    if shutil.which("heaptrack") and "heaptrack" not in options.without:
        found.append(Heaptrack(directory))
    return found


def executable(words):
    """The file that the kernel runs for a plain command."""
    return os.path.realpath(shutil.which(words[0]) or words[0])
