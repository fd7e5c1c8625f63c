"""Memory that allocators keep after it was freed goes back to the system now and then."""

import ctypes

import pyarrow as pa

_MOST_BYTES = 32 * 2**20


class Freed:
    """Counts what was taken from Arrow's memory, and has it give back what is free once that is enough.

    Its allocator kept 30 MB of a budget of 32 MB for nothing, and the more the longer it was left alone. To have it give
    back after each step would cost as much as the memory is filled with: 0.3 us for 4 KiB.

    Args:
        enough_bytes: A part of the budget of whoever takes it; never more than 32 MiB.
    """

    def __init__(self, enough_bytes: int) -> None:
        self._enough_bytes = min(enough_bytes, _MOST_BYTES)
        self._taken_bytes = 0

    def took(self, taken_bytes: int) -> None:
        """So many bytes more were taken, and freed or handed on."""
        self._taken_bytes += taken_bytes
        if self._taken_bytes > self._enough_bytes:
            self._taken_bytes = 0
            pa.default_memory_pool().release_unused()


def give_back_heap() -> None:
    """Have the C library give back what is free: it keeps up to 64 MB after large arrays of a moment."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it
    if trim is not None:
        trim(0)


__all__ = ["Freed", "give_back_heap"]
