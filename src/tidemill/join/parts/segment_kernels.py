"""Compiled loops over the codes of a segment that was read: where the rows of a code begin, and how many wait for them.

Codes that rise, as they do in a store in order of key, are found by where they should lie if they rose evenly; others by
a hash table. What was found for a waiting row is noted, so that it is looked for once.
"""

import numpy as np
from numba import njit, types

from tidemill.join.parts.cell_kernels import INT32S, STRIDE, code_of, top_of
from tidemill.join.parts.kept_kernels import slot_address
from tidemill.join.parts.kernels import Int32s, Int64s, mix
from tidemill.master.addresses import fetch, load_32
from tidemill.master.row_kernels import BYTES, CACHE_LINE_BYTES, READ_INT64S, UInt8s

_LINE_WORDS = CACHE_LINE_BYTES // 8
_BLOCK = 16  # rows that are looked at together


@njit(types.boolean(READ_INT64S, types.int64, types.int64), cache=True)
def are_rising(codes: Int64s, begin: int, end: int) -> bool:
    """Whether no code is less than the one before it. Looks at all of them in any case: they come from another core."""
    falls = 0
    for row in range(begin + 1, end):
        falls += int(codes[row] < codes[row - 1])
    return falls == 0


@njit(types.void(READ_INT64S, types.int64, types.int64, INT32S), cache=True)
def index_codes(codes: Int64s, begin: int, end: int, slots: Int32s) -> None:
    """A hash table of rows with which a code begins; rows of a code are neighbours, in whatever order codes come."""
    capacity = len(slots)
    slots[:] = 0
    for row in range(begin, end):
        if row > begin and codes[row] == codes[row - 1]:
            continue
        slot = int(mix(codes[row])) & (capacity - 1)
        while slots[slot]:
            slot = (slot + 1) & (capacity - 1)
        slots[slot] = row - begin + 1


@njit(types.int64(READ_INT64S, types.int64, INT32S, types.int64), cache=True, inline="always")
def _indexed_row(codes: Int64s, begin: int, slots: Int32s, code: int) -> int:
    capacity = len(slots)
    slot = int(mix(code)) & (capacity - 1)
    while slots[slot] and codes[begin + slots[slot] - 1] != code:
        slot = (slot + 1) & (capacity - 1)
    return int(slots[slot]) - 1


@njit(types.float64(READ_INT64S, types.int64, types.int64), cache=True, inline="always")
def rows_per_code(codes: Int64s, begin: int, end: int) -> float:
    """By how many rows codes that rise move on for each number between the first and the last."""
    if begin == end:
        return 0.0
    return (end - 1 - begin) / max(1.0, np.float64(codes[end - 1]) - np.float64(codes[begin]))


@njit(
    types.int64(READ_INT64S, types.int64, types.int64, types.float64, types.int64),
    cache=True,
    inline="always",
)
def _risen_row(codes: Int64s, begin: int, end: int, slope: float, code: int) -> int:
    """Steps away from the row where the code should lie double until it is passed, and halve from there."""
    if begin == end or code < codes[begin] or code > codes[end - 1]:
        return -1
    low = begin + int((np.float64(code) - np.float64(codes[begin])) * slope + 0.5)
    low = min(max(low, begin), end - 1)
    if codes[low] != code or (low > begin and codes[low - 1] == code):
        high, step = low, 1
        while codes[high] < code:  # ends: the last code is not less
            low, high = high + 1, min(high + step, end - 1)
            step *= 2
        while low > begin and codes[low - 1] >= code:
            high, low = low - 1, max(low - step, begin)
            step *= 2
        while low < high:
            middle = (low + high) >> 1
            if codes[middle] < code:
                low = middle + 1
            else:
                high = middle
        if codes[low] != code:
            return -1
    return low - begin


@njit(
    types.int64(READ_INT64S, types.int64, types.int64, types.boolean, types.float64, INT32S, types.int64),
    cache=True, inline="always",
)  # fmt: skip
def first_row(
    codes: Int64s, begin: int, end: int, is_rising: bool, slope: float, slots: Int32s, code: int
) -> int:
    """Row with which a code begins, counted from `begin`, or -1."""
    if is_rising:
        return _risen_row(codes, begin, end, slope, code)
    return _indexed_row(codes, begin, slots, code)


@njit(types.int64(READ_INT64S, types.int64, types.int64), cache=True, inline="always")
def rows_of_code(codes: Int64s, first: int, end: int) -> int:
    last = first + 1
    while last < end and codes[last] == codes[first]:
        last += 1
    return last - first


@njit(types.int64(INT32S, types.int64, types.int64, types.int64), cache=True)
def next_met(met: Int32s, row: int, rows: int, least: int) -> int:
    """The first row from one on that was met so often, or the number of rows; few are."""
    while row < rows:
        if row + _BLOCK <= rows:
            are_any = 0
            for k in range(_BLOCK):
                are_any |= int(met[row + k] >= least)
            if not are_any:
                row += _BLOCK
                continue
        stop = min(row + _BLOCK, rows)
        while row < stop and met[row] < least:
            row += 1
        if row < stop:
            return row
    return rows


@njit(
    types.void(
        BYTES, READ_INT64S, READ_INT64S, types.int64, types.int64, types.int64, types.int64, READ_INT64S, READ_INT64S,
        types.int64, types.int64, types.boolean, types.float64, INT32S, INT32S, types.int64,
    ),
    cache=True,
)  # fmt: skip
def count_waiting(
    memory: UInt8s,
    state: Int64s,
    shape: Int64s,
    cell: int,
    waiting: int,
    source: int,
    reach: int,
    codes: Int64s,
    at: Int64s,
    begin: int,
    end: int,
    is_rising: bool,
    slope: float,
    slots: Int32s,
    met: Int32s,
    least: int,
) -> None:
    """How many of the rows that wait from a cell on wait for each code.

    Where codes rise, `slots` gets the row of each, the first of all that wait last; beyond its end none are noted. A row
    with more of its code behind it is noted as -2 less itself. What was read is asked for, since another core has it:
    a master row and what lies `reach` bytes further. So is the slot of a code for which `least` wait: it may turn hot.
    """
    top, stride = top_of(memory), shape[STRIDE]
    met[: end - begin] = 0
    for row in range(begin, end, _LINE_WORDS):
        fetch(at.ctypes.data + 8 * row)
    while cell:
        waiting -= 1
        row = first_row(codes, begin, end, is_rising, slope, slots, code_of(top, cell, shape))
        if is_rising and waiting < len(slots):
            has_more = row >= 0 and begin + row + 1 < end and codes[begin + row + 1] == codes[begin + row]
            slots[waiting] = -2 - row if has_more else row
        if row >= 0:
            times = met[row] + 1
            met[row] = times
            if times == 1:
                place = source + at[begin + row]
                fetch(place)
                fetch(place + reach)
            if times == least:
                fetch(slot_address(memory, state, codes[begin + row]))
        cell = load_32(top - cell * stride)


__all__ = [
    "are_rising",
    "count_waiting",
    "first_row",
    "index_codes",
    "next_met",
    "rows_of_code",
    "rows_per_code",
]
