"""Which pages hold each of many codes: as `locate` of the master data tells, by one search instead of two."""

import numpy as np
from numba import njit, types

from tidemill.join.parts.kernels import Bools, Int64s
from tidemill.join.parts.leaving_kernels import first_at_least
from tidemill.master import MasterData
from tidemill.master.row_kernels import INT64S, READ_INT64S

_READ_BOOLS = types.Array(types.boolean, 1, "C", readonly=True)


@njit(types.void(READ_INT64S, _READ_BOOLS, READ_INT64S, INT64S, INT64S), cache=True)
def _search(first_codes: Int64s, continues: Bools, codes: Int64s, first: Int64s, pages: Int64s) -> None:
    """First page and number of pages that can hold each code, in order of code; the end of the last one is not known."""
    count = np.int64(len(first_codes))
    for i in range(len(codes)):
        begin = first_at_least(first_codes, np.int64(0), count, codes[i])
        end = begin
        while end < count and first_codes[end] == codes[i]:
            end += 1
        if begin and (begin == end or continues[begin]):
            begin -= 1
        first[i], pages[i] = begin, end - begin


def find_pages(master: MasterData, codes: Int64s) -> tuple[Int64s, Int64s]:
    """First page and number of pages that can hold each code; 0 pages when none can.

    Looks first where a code would lie if codes were spread evenly; two searches of NumPy take 0.25 µs a code.
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
