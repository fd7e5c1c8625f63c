"""Memory that grows and shrinks where it is, in pages of 2 MiB where the system has them.

With pages of 4 KiB a processor must find out anew where a page lies for nearly every look into some megabytes, on a virtual
machine twice over. An array that is resized loses its large pages; one that is made anew is there twice for a moment.
"""

import mmap

import numpy as np
import numpy.typing as npt

_LARGE_BYTES = 2 * 2**20
_WORTH_BYTES = 4 * 2**20  # up to two large pages are taken that are not full


class Resizable:
    """Words of eight bytes, as many as are asked for; only what was written to takes memory.

    >>> memory = Resizable(800_000)
    >>> memory.words(100)[7] = 5
    >>> memory.words(50)[7], len(memory.words(90_000))
    (np.uint64(5), 90000)

    Args:
        most_bytes: Up to which it grows where it is; beyond, all of it moves once.
    """

    def __init__(self, most_bytes: int) -> None:
        self._used_bytes = 0
        self._reserve(most_bytes)

    def _reserve(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._map = mmap.mmap(
            -1, most_bytes + _LARGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        )  # private, or it would be a file in memory
        if most_bytes >= _WORTH_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        whole: npt.NDArray[np.uint8] = np.frombuffer(self._map, dtype=np.uint8)
        self._begin = -whole.ctypes.data % _LARGE_BYTES
        self._whole = whole[self._begin :]

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        """The first so many words; those that were there before keep what they hold, the memory behind is given back."""
        size_bytes = 8 * count
        if size_bytes > self._most_bytes:
            before = self._whole[: self._used_bytes]
            self._reserve(size_bytes)
            self._whole[: self._used_bytes] = before
        elif size_bytes < self._used_bytes:
            first = -(-(self._begin + size_bytes) // mmap.PAGESIZE) * mmap.PAGESIZE
            if first < self._begin + self._used_bytes:
                self._map.madvise(mmap.MADV_DONTNEED, first, self._begin + self._used_bytes - first)
        self._used_bytes = size_bytes
        return self._whole[:size_bytes].view(np.uint64)


__all__ = ["Resizable"]
