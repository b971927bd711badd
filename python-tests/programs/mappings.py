"""Anonymous mappings that are unmapped in part, overlaid and moved; reserved address space; a file; shared memory."""

import ctypes
import mmap
import tempfile

import marks

libc = marks.libc
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mmap.restype = ctypes.c_void_p
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.mremap.argtypes, libc.mremap.restype = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int], ctypes.c_void_p
PAGE = 4096
READ_WRITE, PRIVATE_ANONYMOUS, FIXED, MAY_MOVE = 3, 0x22, 0x10, 1


def maps(pages, address=None, protection=READ_WRITE, flags=PRIVATE_ANONYMOUS):
    return libc.mmap(address, pages * PAGE, protection, flags, -1, 0)


def unmaps_in_part():
    address = maps(1000)
    libc.munmap(address + 100 * PAGE, 300 * PAGE)


def overlays():
    address = maps(500)
    maps(200, address + 100 * PAGE, flags=PRIVATE_ANONYMOUS | FIXED)


def moves():
    return libc.mremap(maps(50), 50 * PAGE, 2000 * PAGE, MAY_MOVE)


def reserves():
    return maps(100_000, protection=0)


def of_a_file():
    file = tempfile.TemporaryFile()
    file.truncate(64 * PAGE)
    return mmap.mmap(file.fileno(), 64 * PAGE)


def shared():
    return mmap.mmap(-1, 32 * PAGE)


unmaps_in_part()
overlays()
libc.munmap(moves(), 2000 * PAGE)
reserves()
kept = of_a_file(), shared()
temporary = [mmap.mmap(-1, PAGE, flags=mmap.MAP_PRIVATE).close() for _ in range(20)]
