"""The static probes of `--sample`: their notes, and what a tracer sees that puts breakpoints there, as the kernel's uprobes do."""

import ctypes
import os
import re
import shutil
import signal
import subprocess

import pytest

from conftest import PATIENCE, until, until_it_waits

PROGRAM = """
import sys
print("ready", flush=True)
sys.stdin.readline()
kept = [bytearray(3_000_000 + number) for number in range(20)]
del kept[:10]
print("done")
"""
ATTACH, CONTINUE, PEEK, POKE, REGISTERS = 16, 7, 1, 4, 12


@pytest.fixture
def tracer():
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.restype = ctypes.c_long
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]

    def call(request, pid, address=0, data=0):
        ctypes.set_errno(0)
        result = libc.ptrace(request, pid, address, data)
        if ctypes.get_errno() == 1:
            pytest.skip("this user may not trace")
        assert ctypes.get_errno() == 0, os.strerror(ctypes.get_errno())
        return result & (1 << 64) - 1

    return call


def library(pid):
    """The shim in a process: its file, and where its first byte is mapped."""
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
        for line in maps:
            found = re.fullmatch(r"([0-9a-f]+)-\S+ \S+ 0+ \S+ \d+ +(\S*memtrack\S*\.so.*)\n", line)
            if found:
                return f"/proc/{pid}/map_files/{line.split()[0]}", int(found[1], 16)
    raise AssertionError("the library is not mapped")


def probes(path):
    """Name: (place, semaphore, arguments), as the notes have them."""
    readelf = shutil.which("readelf") or pytest.skip("no readelf")
    notes = subprocess.run([readelf, "-n", path], capture_output=True, text=True, check=True).stdout
    pattern = r"Provider: otel_memory\s+Name: (\w+)\s+Location: (\w+), Base: 0x0+, Semaphore: (\w+)\s+Arguments: (.*)"
    return {name: (int(place, 16), int(counter, 16), of) for name, place, counter, of in re.findall(pattern, notes)}


def change(tracer, pid, address, value, size):
    """Writes the lowest bytes of a word."""
    word, mask = tracer(PEEK, pid, address), (1 << 8 * size) - 1
    before = word & mask
    tracer(POKE, pid, address, word & ~mask | value)
    return before


def test_a_tracer_sees_samples_and_their_frees(memtrack, python, tracer):
    capture = memtrack.directory / "capture.bin"
    command = memtrack.command("run", "-q", "--sample=1MB", "-o", capture, python, "-c", PROGRAM)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=memtrack.directory, **pipes) as process:
        assert process.stdout.readline() == "ready\n"
        until("the capture is there", capture.exists)
        with open(f"/proc/{process.pid}/task/{process.pid}/children", encoding="ascii") as children:
            pid = int(children.read().split()[0])
        until_it_waits(pid)
        path, base = library(pid)
        known = probes(path)
        assert {name: of for name, (_, _, of) in known.items()} == {"alloc": "8@%rdi 8@%rsi 8@%rdx", "free": "8@%rdi"}
        tracer(ATTACH, pid)
        os.waitpid(pid, 0x40000000)
        for place, counter, _ in known.values():
            assert change(tracer, pid, base + place, 0xCC, 1) == 0x90
            change(tracer, pid, base + counter, 1, 2)
        tracer(CONTINUE, pid)
        process.stdin.write("\n")
        process.stdin.flush()
        seen = hits(tracer, pid, {base + place + 1: name for name, (place, _, _) in known.items()})
        assert process.stdout.read() == "done\n" and process.wait(PATIENCE) == 0
    large = {address: (size, weight) for name, address, size, weight in seen if name == "alloc" and size >= 3_000_000}
    # 3 MB are sampled with a probability of 95 %.
    assert len(large) >= 10 and all(size <= 3_000_100 for size, _ in large.values())
    assert all(abs(weight - size / (1 - 2.718281828 ** (-size / 1e6))) < size / 1e4 for size, weight in large.values())
    frees = {address for name, address, _, _ in seen if name == "free"}
    assert len(frees & large.keys()) == len(large)


def hits(tracer, pid, places):
    """What the probes say until the program ends: name, and three registers."""
    seen, registers = [], (ctypes.c_ulonglong * 27)()
    while True:
        _, status = os.waitpid(pid, 0x40000000)
        if not os.WIFSTOPPED(status):
            return seen
        number = os.WSTOPSIG(status)
        if number == signal.SIGTRAP:
            tracer(REGISTERS, pid, 0, ctypes.addressof(registers))
            rdx, rsi, rdi, rip = registers[12], registers[13], registers[14], registers[16]
            if rip in places:
                seen.append((places[rip], rdi, rsi, rdx))
                number = 0
        tracer(CONTINUE, pid, 0, number)
