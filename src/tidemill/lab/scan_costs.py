"""What reading a file in order costs on the disk of this machine, past the page cache."""

import mmap
import os
import time
from collections.abc import Sequence
from pathlib import Path

_ROUNDS = 5


def scan_seconds(file: Path, read_bytes: Sequence[int], *, seconds_each: float) -> dict[int, float]:
    """Seconds of one read of each size, where each read begins at the end of the last one.

    The least of five rounds over all sizes: other work on the machine can only make a read slower.

    Args:
        file: Read from its start again when its end is reached; at least as large as the largest read.
        read_bytes: Sizes, multiples of 4 KB.
        seconds_each: Spent on each size in all.
    """
    handle = os.open(file, os.O_RDONLY | os.O_DIRECT)
    try:
        rounds = [
            {size: _scan(handle, size, seconds_each / _ROUNDS) for size in read_bytes} for _ in range(_ROUNDS)
        ]
    finally:
        os.close(handle)
    return {size: min(one[size] for one in rounds) for size in read_bytes}


def _scan(handle: int, read_bytes: int, seconds: float) -> float:
    end = os.fstat(handle).st_size // read_bytes * read_bytes
    with mmap.mmap(-1, read_bytes) as buffer:  # aligned, as direct reads need
        os.preadv(handle, [buffer], 0)  # pages of the buffer itself come with the first
        started, reads, at = time.perf_counter(), 0, 0
        while reads == 0 or time.perf_counter() - started < seconds:
            os.preadv(handle, [buffer], at)
            reads, at = reads + 1, (at + read_bytes) % end
        return (time.perf_counter() - started) / reads


__all__ = ["scan_seconds"]
