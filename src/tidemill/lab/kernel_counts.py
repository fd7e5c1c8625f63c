"""What the kernel counts of a process, and how its page cache is kept from helping.

Our store reads past the page cache. SQLite, LMDB, DuckDB and Polars cannot, so the benchmark drops their file from the
cache again and again (`posix_fadvise`, which needs no rights): clean pages that nobody maps leave at once, 0.7 ms for
4 MB of them. Whether that worked is not believed but counted: `/proc/self/io` knows the bytes that came from the device, for
direct reads, reads through the cache and page faults alike, and all contenders are judged by it.
"""

import os
from pathlib import Path
from typing import Literal, NamedTuple

from tidemill.master.many_reads import READS_ASKED


class KernelCounts(NamedTuple):
    """Of the whole process with its threads, since its start."""

    bytes_read: int
    """From the device; what the page cache answered is not in it."""
    reads: int
    """Calls that read, page faults that had to wait for the device, and reads that the store asked for by the dozen.

    Those go through asynchronous I/O, whose bytes the kernel counts and whose calls it does not.
    """

    @classmethod
    def now(cls) -> "KernelCounts":
        told = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        # The twelfth field counts major faults; the second may hold spaces, so count from its bracket.
        faults = Path("/proc/self/stat").read_text().rpartition(") ")[2].split()[9]
        return cls(int(told["read_bytes"]), int(told["syscr"]) + int(faults) + READS_ASKED.reads)

    def since(self, before: "KernelCounts") -> "KernelCounts":
        return KernelCounts(self.bytes_read - before.bytes_read, self.reads - before.reads)


def private_bytes(process: int | Literal["self"] = "self") -> int:
    """Memory that the process wrote itself (RssAnon), without files that it maps; 0 once it ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon")), 0)


def drop_from_cache(file: Path) -> None:
    """Let the page cache forget the file; pages that some process maps or has not written yet stay."""
    handle = os.open(file, os.O_RDONLY)
    try:
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


__all__ = ["KernelCounts", "drop_from_cache", "private_bytes"]
