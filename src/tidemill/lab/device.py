"""How fast the disk is: bytes a second past the page cache, by size of a read and reads in flight."""

import mmap
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

READ_BYTES = (4 * 1024, 16 * 1024, 64 * 1024, 256 * 1024, 1024 * 1024)
READS_IN_FLIGHT = (1, 4, 16)
POINT_SECONDS = 0.15
"""Fifteen points: two to three seconds a run."""


@dataclass(frozen=True)
class DeviceCurve:
    """Bytes a second for each size of a read, with as many reads in flight as served that size best.

    >>> curve = DeviceCurve({4096: 100e6, 65536: 400e6})
    >>> round(curve.seconds(400e6, read_bytes=65536), 2), round(curve.seconds(200e6, read_bytes=16384), 2)
    (1.0, 1.0)
    """

    bytes_per_s: dict[int, float]
    alone_bytes_per_s: dict[int, float] = field(default_factory=dict)
    """The same with one read after the other."""
    by_in_flight: dict[int, dict[int, float]] = field(default_factory=dict)
    """All that was measured, by reads in flight and size."""

    @property
    def best_bytes_per_s(self) -> float:
        return max(self.bytes_per_s.values())

    def seconds(self, size_bytes: float, *, read_bytes: float, alone: bool = False) -> float:
        """Seconds to read that much in reads of that size, a straight line between measured points on log scales."""
        points = (self.alone_bytes_per_s if alone else None) or self.bytes_per_s
        sizes = sorted(points)
        speeds = [points[size] for size in sizes]
        at = np.log(max(1.0, read_bytes))
        return size_bytes / float(np.exp(np.interp(at, np.log(sizes), np.log(speeds))))


def measure_device(file: Path) -> DeviceCurve:
    """The curve of the disk under this file, from reads at random places of it."""
    handle = os.open(file, os.O_RDONLY | os.O_DIRECT)
    try:
        file_bytes = os.fstat(handle).st_size
        sizes = [size for size in READ_BYTES if size <= file_bytes] or [READ_BYTES[0]]
        speeds = {
            size: [_bytes_per_s(handle, file_bytes, size, n) for n in READS_IN_FLIGHT] for size in sizes
        }
        return DeviceCurve(
            {size: max(found) for size, found in speeds.items()},
            {size: found[0] for size, found in speeds.items()},
            {n: {size: found[i] for size, found in speeds.items()} for i, n in enumerate(READS_IN_FLIGHT)},
        )
    finally:
        os.close(handle)


def _bytes_per_s(handle: int, file_bytes: int, read_bytes: int, in_flight: int) -> float:
    places = max(1, file_bytes // read_bytes)

    def read(number: int) -> int:
        place, done = random.Random(number), 0  # noqa: S311 - places on a disk, no secret
        with mmap.mmap(-1, read_bytes) as buffer:  # aligned, as direct reads need
            while time.perf_counter() < deadline:
                done += os.preadv(handle, [buffer], place.randrange(places) * read_bytes)
        return done

    with ThreadPoolExecutor(in_flight) as pool:
        started = time.perf_counter()
        deadline = started + POINT_SECONDS
        done = sum(pool.map(read, range(in_flight)))
        return done / (time.perf_counter() - started)


__all__ = ["DeviceCurve", "measure_device"]
