"""Memory that is used again when nobody refers to it any more.

An allocator that gives freed memory back to the system gets it again page by page, zeroed: 0.3 µs for 4 KiB, as long as
it takes to fill them. One that keeps it holds twice of what is in use.
"""

import mmap
import threading
import weakref

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.core.large_pages import LARGE_PAGE_BYTES, in_large_pages

UInt8s = npt.NDArray[np.uint8]

_UNIT_BYTES = 64 * 1024
_ALIGNMENT_BYTES = 4096
_UNITS = 8  # at least so many of a size that grows by steps
_LARGE_SHARE = 0.8  # of large pages that a block fills, or they would take more than they are worth
_MOST_SHARE = 2
"""Of the limit: blocks are larger than what is asked for, and one that was handed on comes back only when the next is due. With
less `tide` let go of half of its blocks and made them anew, each time with pages that the system had to fill with zeros."""
_LEAST_MAPPED_BYTES = 256 * 1024
"""Smaller blocks are the C library's: a process may have 65,530 pieces of its own, and batches may be collected."""


class MemoryBlock:
    """A piece of memory with all that is asked of it again and again: numpy takes a microsecond for an address.

    It has addresses for half as much again, so that it can become larger: only what was written to takes memory. What
    the C library has it keeps in part when it is freed: 16 MB where blocks of 9 MB were in use.
    """

    __slots__ = ("address", "bytes", "first_word", "most_bytes", "size_bytes")

    def __init__(self, size_bytes: int, *, may_be_large: bool = False) -> None:
        fills = size_bytes / (-(-size_bytes // LARGE_PAGE_BYTES) * LARGE_PAGE_BYTES)
        if may_be_large and fills >= _LARGE_SHARE:
            self.bytes: UInt8s = in_large_pages(size_bytes)
        elif size_bytes >= _LEAST_MAPPED_BYTES:
            place = mmap.mmap(-1, size_bytes * 3 // 2, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self.bytes = np.frombuffer(place, dtype=np.uint8)
        else:
            whole = np.empty(size_bytes + _ALIGNMENT_BYTES, dtype=np.uint8)
            self.bytes = whole[-whole.ctypes.data % _ALIGNMENT_BYTES :][:size_bytes]

        self.size_bytes = size_bytes
        """That were asked for at most."""
        self.most_bytes = len(self.bytes)
        self.address = self.bytes.ctypes.data
        self.first_word: npt.NDArray[np.int64] = self.bytes[:8].view(np.int64)


class Recycled:
    """Blocks of memory, kept when they are free as long as they and those in use stay below a limit.

    Threads may share it: a block comes back in the thread that drops it last, be it inside a garbage collection.

    >>> memory = Recycled(1_000_000)
    >>> first = memory.array(100_000)
    >>> place = first.ctypes.data
    >>> del first
    >>> memory.array(90_000).ctypes.data == place
    True

    Args:
        limit_bytes: Of what is in use at a time; all blocks together take twice as much at most.
        large_pages: Whether blocks that fill pages of 2 MiB lie in such, where the system has them.
    """

    def __init__(self, limit_bytes: int, *, large_pages: bool = False) -> None:
        self._most_bytes = int(_MOST_SHARE * limit_bytes)
        self._large_pages = large_pages
        self._free: list[MemoryBlock] = []
        self._used_bytes = 0
        self._lock = threading.RLock()

    def array(self, size_bytes: int) -> UInt8s:
        """Bytes at a multiple of 4,096; their block is free again when nobody refers to them."""
        block = self.lend(size_bytes)
        # An object of its own, to which parts of it refer: the block itself stays with this list.
        lent: UInt8s = np.frombuffer(block.bytes.data, np.uint8, size_bytes)
        weakref.finalize(lent, self.take_back, block).atexit = False
        return lent

    def lend(self, size_bytes: int) -> MemoryBlock:
        """A block with room for so many bytes, until `take_back`."""
        with self._lock:
            block = self._fitting(size_bytes)
            self._used_bytes += block.size_bytes
        return block

    def buffer(self, size_bytes: int) -> tuple[UInt8s, pa.Buffer]:
        """The same, to write to, and as Arrow wants it."""
        lent = self.array(size_bytes)
        return lent, pa.py_buffer(lent.data)

    def _fitting(self, size_bytes: int) -> MemoryBlock:
        # Sizes that differ little take blocks of one size, or each would need a new one.
        unit = max(_UNIT_BYTES, (1 << size_bytes.bit_length()) // (2 * _UNITS))
        wanted = max(1, -(-size_bytes // unit)) * unit
        best = self._best(wanted)
        # A collection may have given blocks back, or let some go, since they were looked at.
        if best is not None and best in self._free:
            self._free.remove(best)
            if best.size_bytes < wanted:
                self._keep_below(self._most_bytes - self._used_bytes - wanted)
                best.size_bytes = wanted
            return best
        self._keep_below(self._most_bytes - self._used_bytes - wanted)
        return MemoryBlock(wanted, may_be_large=self._large_pages)

    def _best(self, wanted: int) -> MemoryBlock | None:
        """The smallest free block that is large enough, or else the largest that can become so; the last one that came
        back where several are: a processor's cache still has it.
        """
        best = None
        for block in reversed(self._free):
            if block.most_bytes < wanted:
                continue
            if best is None or (
                best.size_bytes > block.size_bytes >= wanted
                if best.size_bytes >= wanted
                else block.size_bytes > best.size_bytes
            ):
                best = block
        return best

    def take_back(self, block: MemoryBlock) -> None:
        """Nobody refers to a block any more."""
        with self._lock:
            self._used_bytes -= block.size_bytes
            self._free.append(block)
            self._keep_below(self._most_bytes - self._used_bytes)

    def _keep_below(self, most_bytes: int) -> None:
        while self._free and sum(block.size_bytes for block in self._free) > most_bytes:
            self._free.pop(0)


__all__ = ["MemoryBlock", "Recycled"]
