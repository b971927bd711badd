"""Known amounts, each by a function of its own: what leaks, what makes the peak, what is freed at once, what grows."""

import ctypes

import marks

libc = marks.libc
libc.calloc.argtypes, libc.calloc.restype = [ctypes.c_size_t, ctypes.c_size_t], ctypes.c_void_p
libc.realloc.argtypes, libc.realloc.restype = [ctypes.c_void_p, ctypes.c_size_t], ctypes.c_void_p
libc.aligned_alloc.argtypes, libc.aligned_alloc.restype = [ctypes.c_size_t, ctypes.c_size_t], ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mmap.restype = ctypes.c_void_p
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

held_to_the_end = [None] * 100
READ_WRITE, PRIVATE_ANONYMOUS = 3, 0x22


def leaks():
    for index in range(100):
        held_to_the_end[index] = bytearray(50_020)


def leaks_natively():
    libc.malloc(777_777)


def peaks():
    return [bytearray(3_999_999) for _ in range(10)]


def churns():
    for _ in range(1000):
        bytearray(20_000)


def keeps_for_a_while():
    return [bytearray(30_000) for _ in range(200)]


def grows():
    address = None
    for size in range(1_000_000, 6_000_000, 1_000_000):
        address = libc.realloc(address, size)
    libc.free(address)


def fails_to_grow():
    address = libc.malloc(123_456)
    assert libc.realloc(address, 1 << 62) is None
    libc.free(address)


def four_at_once():
    malloc, calloc, aligned_alloc, mmap = libc.malloc, libc.calloc, libc.aligned_alloc, libc.mmap
    how = (READ_WRITE, PRIVATE_ANONYMOUS, -1, 0)
    return malloc(40_001), calloc(4, 10_001), aligned_alloc(64, 40_064), mmap(None, 40_960, *how)


def reserves():
    address = libc.mmap(None, 1 << 30, 0, PRIVATE_ANONYMOUS, -1, 0)
    libc.munmap(address, 1 << 30)


leaks()
leaks_natively()
churns()
del (lambda kept: kept)(keeps_for_a_while())[:]
grows()
fails_to_grow()
reserves()
first, second, third, fourth = four_at_once()
for each in first, second, third:
    libc.free(each)
libc.munmap(fourth, 40_960)
peaks()
print("done")
