"""Which pages hold each of many codes: as `locate` of the master data tells, by one search instead of two."""

import numpy as np
from numba import njit, types

from tidemill.join.parts.kernels import Bools, Int64s
from tidemill.master import MasterData
from tidemill.master.row_kernels import INT64S, READ_INT64S

_READ_BOOLS = types.Array(types.boolean, 1, "C", readonly=True)


@njit(types.int64(READ_INT64S, types.int64, types.int64), cache=True, inline="always")
def _count_until(stored: Int64s, code: int, size: int) -> int:
    """How many of the first `size` codes, which ascend, are not greater."""
    low = 0
    while size > 1:  # without branches that the processor would have to guess
        half = size >> 1
        low = low + half if stored[low + half - 1] <= code else low
        size -= half
    return low + (1 if size == 1 and stored[low] <= code else 0)


@njit(types.void(READ_INT64S, _READ_BOOLS, READ_INT64S, INT64S, INT64S), cache=True)
def _search(first_codes: Int64s, continues: Bools, codes: Int64s, first: Int64s, pages: Int64s) -> None:
    """First page and number of pages that can hold each code, in order of code; the end of the last one is not known."""
    for i in range(len(codes)):
        end = _count_until(first_codes, codes[i], len(first_codes))
        begin = end
        if end and first_codes[end - 1] == codes[i]:
            begin = _count_until(first_codes, codes[i] - 1, end) if codes[i] > np.iinfo(np.int64).min else 0
            begin -= 1 if continues[begin] else 0
        elif end:
            begin = end - 1
        first[i], pages[i] = begin, end - begin


def find_pages(master: MasterData, codes: Int64s) -> tuple[Int64s, Int64s]:
    """First page and number of pages that can hold each code; 0 pages when none can.

    With 75,000 pages 0.12 µs a code; two searches of NumPy take 0.25.
    """
    if master.page_order != "key" or not hasattr(master, "first_codes"):
        return master.locate(codes)
    first, pages = np.empty((2, len(codes)), dtype=np.int64)
    _search(master.first_codes, master.continues, codes, first, pages)
    # Where the last page ends only the store knows.
    at_end = np.flatnonzero(first + pages == master.pages)
    first[at_end], pages[at_end] = master.locate(codes[at_end])
    return first, pages


__all__ = ["find_pages"]
