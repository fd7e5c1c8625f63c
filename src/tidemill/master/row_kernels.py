"""Compiled loops of the row format: columns into rows, rows from place to place.

Columns and rows are met at their addresses, so that one call serves all columns of a batch. Values of open length move
in pieces of 32 bytes that may spill beyond their end, onto what is written later. A byte-exact copy must choose among
five sizes: with names of 1 to 31 bytes it takes 2.3 times as long into rows and 1.25 times as long out of them.
"""

import numpy as np
import numpy.typing as npt
from numba import njit, types

from tidemill.master.addresses import (
    load_8,
    load_32,
    load_64,
    move_4,
    move_8,
    move_bytes,
    spill_bytes,
    store_8,
    store_32,
    store_64,
)

UInt8s = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]

READ_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
BYTES = types.Array(types.uint8, 1, "C")
READ_INT64S = types.Array(types.int64, 1, "C", readonly=True)
INT64S = types.Array(types.int64, 1, "C")
FACTS = types.Array(types.int64, 2, "C")
READ_FACTS = types.Array(types.int64, 2, "C", readonly=True)

# Written together: what may spill over the next row first.
BLOCK_ROWS = 128
CACHE_LINE_BYTES = 64

# What a column is, in the tables that describe columns.
FIXED, BITS, OPEN = 0, 1, 2
# Only of a decode: short numbers that become longer, numbers of values in a dictionary, values that all begin and end alike,
# short numbers that become floats, numbers that become digits between what is alike.
NARROW, CODED, FRAMED, SCALED, DIGITS = 3, 4, 5, 6, 7
# Where the facts stand in the tables of columns, a line each. Of both ways:
KIND, SLOT, WIDTH, PLACE, BIT = range(5)
# of an encode, addresses and the first value's number. Those of a decode are in `column_kernels.py`.
VALUES, VALUES_END, OFFSETS, OFFSET_WIDTH, START, BITMAP = range(5, 11)


@njit(types.boolean(READ_FACTS, types.int64, types.int64), cache=True, inline="always")
def _is_null(columns: Int64s, c: int, i: int) -> bool:
    bitmap, place = columns[c, BITMAP], columns[c, START] + i
    return bool(bitmap != 0 and (load_8(bitmap + (place >> 3)) >> (place & 7)) & 1 == 0)


@njit(types.int64(READ_FACTS, types.int64, types.int64), cache=True, inline="always")
def _begin(columns: Int64s, c: int, i: int) -> int:
    """Where a value of open length begins in its column."""
    place = columns[c, OFFSETS] + (columns[c, START] + i) * columns[c, OFFSET_WIDTH]
    return load_64(place) if columns[c, OFFSET_WIDTH] == 8 else load_32(place)


@njit(types.int64(READ_FACTS, types.int64, types.int64), cache=True, inline="always")
def _size(columns: Int64s, c: int, i: int) -> int:
    return 0 if _is_null(columns, c, i) else _begin(columns, c, i + 1) - _begin(columns, c, i)


@njit(types.int64(READ_FACTS, types.int64, INT64S), cache=True, nogil=True)
def measure_rows(opened: Int64s, fixed_bytes: int, at: Int64s) -> int:
    """Bytes of the longest row; `at` becomes where each row starts. `opened` tells of columns of open length."""
    longest = 0
    at[0] = 0
    for i in range(len(at) - 1):
        size = fixed_bytes
        for c in range(len(opened)):
            size += _size(opened, c, i)
        longest = max(longest, size)
        at[i + 1] = at[i] + ((size + 7) & ~7)
    return longest


@njit(types.void(READ_FACTS, types.int64, types.int64, types.int64, READ_INT64S, types.int64), cache=True)
def _put_validity(columns: Int64s, c: int, start: int, until: int, at: Int64s, base: int) -> None:
    if columns[c, BITMAP] != 0:
        for i in range(start, until):
            address = base + at[i] + columns[c, PLACE]
            bit = (0 if _is_null(columns, c, i) else 1) << columns[c, BIT]
            store_8(address, load_8(address) | bit)


@njit(types.void(READ_FACTS, types.int64, types.int64, types.int64, READ_INT64S, types.int64), cache=True)
def _put_column(columns: Int64s, c: int, start: int, until: int, at: Int64s, base: int) -> None:
    width, begin = columns[c, WIDTH], columns[c, START]
    values, target = columns[c, VALUES], base + columns[c, SLOT]
    if columns[c, KIND] == BITS:
        for i in range(start, until):
            place = begin + i
            bit = (load_8(values + (place >> 3)) >> (place & 7)) & 1
            store_8(target + at[i], bit)
    elif width == 8:
        for i in range(start, until):
            move_8(target + at[i], values + (begin + i) * 8)
    elif width == 4:
        for i in range(start, until):
            move_4(target + at[i], values + (begin + i) * 4)
    else:
        for i in range(start, until):
            move_bytes(target + at[i], values + (begin + i) * width, width)
    if columns[c, BITMAP] != 0:
        for i in range(start, until):
            if _is_null(columns, c, i):  # what lies under a NULL is nobody's business
                for k in range(width):
                    store_8(target + at[i] + k, 0)
        _put_validity(columns, c, start, until, at, base)


@njit(types.void(READ_FACTS, READ_FACTS, READ_BYTES, types.int64, READ_INT64S, BYTES), cache=True, nogil=True)
def put_rows(
    columns: Int64s, opened: Int64s, present: UInt8s, fixed_bytes: int, at: Int64s, rows: UInt8s
) -> None:
    """Write all rows, in blocks: what may spill over the next row first.

    `columns` tells of those of fixed width, `opened` of the others, `present` has the bits of columns without NULLs.
    """
    base = rows.ctypes.data
    for start in range(0, len(at) - 1, BLOCK_ROWS):
        until = min(len(at) - 1, start + BLOCK_ROWS)
        for i in range(start, until):
            row = base + at[i]
            cursor = fixed_bytes
            for k in range(len(present)):
                store_8(row + fixed_bytes - len(present) + k, present[k])
            for c in range(len(opened)):
                size = _size(opened, c, i)
                if size > 0:
                    source = opened[c, VALUES] + _begin(opened, c, i)
                    spill_bytes(row + cursor, source, size, opened[c, VALUES_END])
                cursor += size
                store_32(row + opened[c, SLOT], cursor)
            store_64(row + cursor, 0)  # the gap before the next row
        for c in range(len(columns)):
            _put_column(columns, c, start, until, at, base)
        for c in range(len(opened)):
            _put_validity(opened, c, start, until, at, base)


@njit(types.int64(types.int64, types.int64, types.int64), cache=True, inline="always")
def _row_size(row: int, slot: int, fixed_bytes: int) -> int:
    end = fixed_bytes if slot < 0 else load_32(row + slot)
    return (end + 7) & ~7


@njit(types.void(READ_BYTES, READ_INT64S, types.int64, types.int64, INT64S), cache=True, nogil=True)
def row_sizes(rows: UInt8s, at: Int64s, slot: int, fixed_bytes: int, sizes: Int64s) -> None:
    """Bytes of each row, a multiple of eight; 0 of absent ones. `slot` is that of the last value of open length, or -1."""
    base = rows.ctypes.data
    for i in range(len(at)):
        sizes[i] = _row_size(base + at[i], slot, fixed_bytes) if at[i] >= 0 else 0


@njit(types.void(READ_BYTES, READ_INT64S, READ_INT64S, BYTES, READ_INT64S), cache=True, nogil=True)
def copy_rows(rows: UInt8s, at: Int64s, sizes: Int64s, out: UInt8s, to: Int64s) -> None:
    """Copy rows of known sizes to new places in another buffer."""
    base, target = rows.ctypes.data, out.ctypes.data
    for i in range(len(at)):
        move_bytes(target + to[i], base + at[i], sizes[i])


@njit(
    types.void(READ_BYTES, READ_INT64S, types.int64, types.int64, INT64S, INT64S),
    cache=True,
    nogil=True,
)
def find_rows(rows: UInt8s, starts: Int64s, slot: int, fixed_bytes: int, ends: Int64s, at: Int64s) -> None:
    """Where the rows lie that follow each other from each start to the next one, and how many there are up to there."""
    base = rows.ctypes.data
    count = 0
    for i in range(len(starts) - 1):
        place = starts[i]
        while place < starts[i + 1] and count < len(at):
            at[count] = place
            count += 1
            place += _row_size(base + place, slot, fixed_bytes)
        ends[i + 1] = count


__all__ = [
    "BITS",
    "CACHE_LINE_BYTES",
    "CODED",
    "DIGITS",
    "FIXED",
    "FRAMED",
    "NARROW",
    "OPEN",
    "SCALED",
    "copy_rows",
    "find_rows",
    "measure_rows",
    "move_bytes",
    "put_rows",
    "row_sizes",
]
