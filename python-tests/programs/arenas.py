"""Makes 200,000 small objects, keeps one in fifty of them, and maps as much as an arena has by its own call."""

import mmap


def make():
    return [(number,) for number in range(200_000)]


def map_memory():
    how = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return [mmap.mmap(-1, size, flags=how) for size in (256 << 10, 1 << 20)]


kept = make()[::50]
mapped = map_memory()
