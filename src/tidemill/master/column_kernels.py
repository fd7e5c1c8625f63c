"""Compiled loops of the row format: rows into columns, all but values of open length (`value_kernels.py`)."""

import numpy as np
from numba import njit, types

from tidemill.master.addresses import (
    fetch,
    load_8,
    load_32,
    load_64,
    move_4,
    move_8,
    move_bytes,
    store_8,
    store_16,
    store_32,
    store_64,
    store_float,
)
from tidemill.master.row_kernels import (
    BIT,
    BITS,
    BYTES,
    CACHE_LINE_BYTES,
    CODED,
    DIGITS,
    FACTS,
    FRAMED,
    INT64S,
    KIND,
    NARROW,
    OPEN,
    PLACE,
    READ_BYTES,
    READ_FACTS,
    READ_INT64S,
    SCALED,
    SLOT,
    WIDTH,
    Int64s,
    UInt8s,
)

# Rows that are asked for together and stay in the first-level cache while column after column is gathered. Rows of
# 104 bytes from 100 MB come at 33 million a second; with blocks of 2,048 at 16, without asking ahead at 24.
BLOCK_ROWS = 128

# Of a column, behind what all tables of columns have: where its values begin, its bytes in a row (`WIDTH` has those in the
# column), and of a dictionary how many values it has, where they begin, and where they lie. Of a frame: bytes of its middle (in
# the place of `BEFORE`), of a value, those before its middle, and where a value without its middle lies. Of a scaled number: what
# divides it, in the place of `VALUES`.
BEFORE, STORED, VALUES, DICTIONARY, CONTENT, CONTENT_END = range(5, 11)
MIDDLE, DIVISOR = BEFORE, VALUES
WITH_VALUES = (OPEN, CODED, FRAMED, DIGITS)
# What was found of it: where it went, whether it is free of NULLs.
TARGET, SIZE, IS_FULL, VALUES_TARGET, VALUES_SIZE = range(5)


@njit(types.void(READ_INT64S, types.int64, types.int64, types.int64, types.int64), cache=True)
def _get_fixed(places: Int64s, rows: int, slot: int, width: int, to: int) -> None:
    """One column of fixed width, of a block of rows."""
    if width == 8:
        for i in range(rows):
            move_8(to + i * 8, places[i] + slot)
    elif width == 4:
        for i in range(rows):
            move_4(to + i * 4, places[i] + slot)
    else:
        for i in range(rows):
            move_bytes(to + i * width, places[i] + slot, width)


@njit(types.int64(types.int64, types.int64, types.int64), cache=True, inline="always")
def short_number(row: int, end: int, stored: int) -> int:
    """The number of so many bytes that ends at a place of a row, with its sign.

    Read as the last of eight bytes that end there. Behind a short code they would begin before the row, where there may be
    nothing: then they are the first eight of the row, which is never shorter, and what follows the number goes first.
    """
    begin = max(end - 8, 0)
    return (load_64(row + begin) << (8 * (begin + 8 - end))) >> (64 - 8 * stored)


@njit(types.void(READ_INT64S, types.int64, types.int64, types.int64, types.int64, types.int64), cache=True)
def _get_narrow(places: Int64s, rows: int, end: int, stored: int, width: int, to: int) -> None:
    """One column of numbers that are longer than they are stored, of a block of rows."""
    if width == 8:
        for i in range(rows):
            store_64(to + i * 8, short_number(places[i], end, stored))
    elif width == 4:
        for i in range(rows):
            store_32(to + i * 4, short_number(places[i], end, stored))
    else:
        for i in range(rows):
            store_16(to + i * 2, short_number(places[i], end, stored))


@njit(types.void(READ_INT64S, types.int64, types.int64, types.int64, types.int64, types.int64), cache=True)
def _get_scaled(places: Int64s, rows: int, end: int, stored: int, divisor: int, to: int) -> None:
    """One column of floats, of a block of rows; a product with the inverse would not give the same bits."""
    power = float(divisor)
    for i in range(rows):
        store_float(to + i * 8, short_number(places[i], end, stored) / power)


@njit(types.int64(types.int64, types.int64, types.int64, types.int64), cache=True, inline="always")
def number_of(row: int, end: int, stored: int, values: int) -> int:
    """The number of a value in its dictionary; 0, an empty one, should the row hold nonsense."""
    number = short_number(row, end, stored)
    return number if 0 <= number < values else 0


@njit(types.int64(READ_INT64S, types.int64, READ_INT64S, types.int64, types.int64), cache=True)
def _get_coded_ends(places: Int64s, rows: int, column: Int64s, total: int, to: int) -> int:
    """As `_get_ends`, of a column whose values are in a dictionary."""
    end, stored = column[SLOT] + column[STORED], column[STORED]
    values, dictionary = column[VALUES], column[DICTIONARY]
    for i in range(rows):
        place = dictionary + 4 * number_of(places[i], end, stored, values)
        total += load_32(place + 4) - load_32(place)
        store_32(to + i * 4, total)
    return total


@njit(types.int64(READ_INT64S, types.int64, READ_INT64S, types.int64, types.int64, types.int64), cache=True)
def _get_framed_ends(places: Int64s, rows: int, column: Int64s, absent_row: int, total: int, to: int) -> int:
    """As `_get_ends`, of a column whose values are equally long, unless they are NULL or the row is absent."""
    size, place, bit = column[VALUES], column[PLACE], column[BIT]
    if place < 0:
        for i in range(rows):
            total += size * (places[i] != absent_row)
            store_32(to + i * 4, total)
        return total
    for i in range(rows):
        total += size * ((load_8(places[i] + place) >> bit) & 1)
        store_32(to + i * 4, total)
    return total


@njit(types.int64(READ_INT64S, types.int64, types.int64, types.int64, types.int64), cache=True)
def _get_bits(places: Int64s, rows: int, slot: int, bit: int, to: int) -> int:
    """How many rows lack the bit; one bit of a byte of each row as the bitmap that Arrow has."""
    lacking = 0
    for first in range(0, rows, 8):
        bits = 0
        for i in range(first, min(rows, first + 8)):
            bits |= ((load_8(places[i] + slot) >> bit) & 1) << (i - first)
        until = min(rows - first, 8)
        for k in range(until):
            lacking += 1 - ((bits >> k) & 1)
        store_8(to + (first >> 3), bits)
    return lacking


@njit(types.int64(READ_INT64S, types.int64, types.int64, types.int64, types.int64, types.int64), cache=True)
def _get_ends(places: Int64s, rows: int, slot: int, before: int, total: int, to: int) -> int:
    """Where the values end, counted on from `total`; of a column of open length."""
    if before > 0:
        for i in range(rows):
            total += load_32(places[i] + slot) - before
            store_32(to + i * 4, total)
    else:
        for i in range(rows):
            total += load_32(places[i] + slot) - load_32(places[i] - before)
            store_32(to + i * 4, total)
    return total


@njit(types.int64(READ_FACTS, types.int64, FACTS), cache=True)
def _place_columns(columns: Int64s, rows: int, found: Int64s) -> int:
    """The end of the memory for all columns of fixed width, bits and ends, after giving each its place."""
    end = 0
    for c in range(len(columns)):
        kind, width = columns[c, KIND], columns[c, WIDTH]
        has_ends = kind in WITH_VALUES
        size = (rows + 7) >> 3 if kind == BITS else (rows + has_ends) * width
        found[c, TARGET], found[c, SIZE], found[c, IS_FULL] = end, size, 1
        found[c, VALUES_SIZE] = 0
        end += (size + CACHE_LINE_BYTES - 1) & -CACHE_LINE_BYTES
    return end


@njit(types.void(READ_FACTS, FACTS), cache=True)
def _place_values(columns: Int64s, found: Int64s) -> None:
    """Give values of open length their places, with room for a spill behind each column."""
    end = 0
    for c in range(len(columns)):
        found[c, VALUES_TARGET] = end
        if columns[c, KIND] in WITH_VALUES:
            end += (found[c, VALUES_SIZE] + 2 * CACHE_LINE_BYTES - 1) & -CACHE_LINE_BYTES
    found[len(columns), VALUES_TARGET] = end


@njit(types.int64(READ_FACTS), cache=True)
def _reach(columns: Int64s) -> int:
    """Bytes from the start of a row that are looked at, its values of open length left out."""
    reach = 0
    for c in range(len(columns)):
        reach = max(reach, columns[c, SLOT] + columns[c, STORED], columns[c, PLACE] + 1)
        if columns[c, KIND] == OPEN:
            reach = max(reach, columns[c, BEFORE] + CACHE_LINE_BYTES, 4 - columns[c, BEFORE])
    return reach


@njit(types.void(READ_FACTS, types.int64), cache=True)
def _make_absent(columns: Int64s, row: int) -> None:
    """Write a row of NULLs at an address, as far as these columns are concerned: values of open length are empty."""
    empty = 0
    for c in range(len(columns)):
        if columns[c, KIND] == OPEN:
            empty = max(empty, columns[c, BEFORE])
    for c in range(len(columns)):
        if columns[c, KIND] == OPEN:
            store_32(row + columns[c, SLOT], empty)
            if columns[c, BEFORE] <= 0:
                store_32(row - columns[c, BEFORE], empty)


@njit(
    types.int64(READ_INT64S, types.int64, types.int64, types.int64, types.int64, INT64S),
    cache=True, inline="always",
)  # fmt: skip
def _find_block(at: Int64s, begin: int, until: int, base: int, absent_row: int, places: Int64s) -> int:
    """How many rows of a block are absent; `places` gets the addresses of all, of absent ones that of `absent_row`.

    Without a branch: one row in a hundred that is absent costs more in wrong guesses than all the others in loads.
    """
    absent = 0
    for i in range(begin, until):
        is_absent = at[i] < 0
        places[i - begin] = absent_row if is_absent else base + at[i]
        absent += is_absent
    return absent


@njit(
    types.int64(READ_BYTES, READ_INT64S, READ_FACTS, BYTES, FACTS),
    cache=True,
    nogil=True,
)
def get_columns(rows: UInt8s, at: Int64s, columns: Int64s, out: UInt8s, found: Int64s) -> int:
    """How many rows are absent (negative places); `found` tells what lies where, its last line where the values end.

    A value of open length begins where the one before it ends: `BEFORE` is where the first one begins if positive,
    else minus the slot of the column before.
    """
    base, target = rows.ctypes.data, out.ctypes.data
    absent, reach = 0, _reach(columns)
    assert _place_columns(columns, len(at), found) <= len(out)
    nothing = np.zeros(reach + CACHE_LINE_BYTES, dtype=np.uint8)
    _make_absent(columns, nothing.ctypes.data)
    places = np.empty(BLOCK_ROWS, dtype=np.int64)
    for c in range(len(columns)):
        if columns[c, KIND] in WITH_VALUES:
            store_32(target + found[c, TARGET], 0)
    for begin in range(0, len(at), BLOCK_ROWS):
        until = min(len(at), begin + BLOCK_ROWS)
        count = until - begin
        absent_here = _find_block(at, begin, until, base, nothing.ctypes.data, places)
        absent += absent_here
        for ahead in range(0, reach, CACHE_LINE_BYTES):
            for i in range(count):
                fetch(places[i] + ahead)
        place, bits = -1, 255
        for c in range(len(columns)):
            if columns[c, PLACE] != place:  # of eight columns, once
                place, bits = columns[c, PLACE], 255
                if place < 0:
                    pass  # of rows without bits, in which nothing is NULL
                elif absent_here:
                    for i in range(begin, until):
                        if at[i] >= 0:
                            bits &= load_8(base + at[i] + place)
                else:
                    for i in range(count):
                        bits &= load_8(places[i] + place)
            found[c, IS_FULL] &= (bits >> columns[c, BIT]) & 1
            kind, slot, width = columns[c, KIND], columns[c, SLOT], columns[c, WIDTH]
            to = target + found[c, TARGET]
            if kind == OPEN:
                so_far, to = found[c, VALUES_SIZE], to + (begin + 1) * 4
                found[c, VALUES_SIZE] = _get_ends(places, count, slot, columns[c, BEFORE], so_far, to)
            elif kind == CODED:
                so_far, to = found[c, VALUES_SIZE], to + (begin + 1) * 4
                found[c, VALUES_SIZE] = _get_coded_ends(places, count, columns[c], so_far, to)
            elif kind in (FRAMED, DIGITS):
                so_far, to = found[c, VALUES_SIZE], to + (begin + 1) * 4
                found[c, VALUES_SIZE] = _get_framed_ends(
                    places, count, columns[c], nothing.ctypes.data, so_far, to
                )
            elif kind == NARROW:
                stored = columns[c, STORED]
                _get_narrow(places, count, slot + stored, stored, width, to + begin * width)
            elif kind == SCALED:
                stored = columns[c, STORED]
                _get_scaled(places, count, slot + stored, stored, columns[c, DIVISOR], to + begin * width)
            elif kind == BITS:
                _get_bits(places, count, slot, 0, to + (begin >> 3))
            else:
                _get_fixed(places, count, slot, width, to + begin * width)
    _place_values(columns, found)
    return absent


@njit(types.int64(READ_BYTES, READ_INT64S, types.int64, types.int64, BYTES), cache=True, nogil=True)
def get_validity(rows: UInt8s, at: Int64s, place: int, bit: int, out: UInt8s) -> int:
    """The number of NULLs; `out` becomes the bitmap as Arrow has it."""
    base, nulls = rows.ctypes.data, 0
    nothing = np.zeros(place + 1, dtype=np.uint8)
    places = np.empty(BLOCK_ROWS, dtype=np.int64)
    for begin in range(0, len(at), BLOCK_ROWS):
        until = min(len(at), begin + BLOCK_ROWS)
        _find_block(at, begin, until, base, nothing.ctypes.data, places)
        nulls += _get_bits(places, until - begin, place, bit, out.ctypes.data + (begin >> 3))
    return nulls


@njit(types.void(READ_INT64S, BYTES), cache=True, nogil=True)
def get_presence(at: Int64s, out: UInt8s) -> None:
    """Which places are those of rows, as the bitmap that Arrow has."""
    for first in range(0, len(at), 8):
        bits = 0
        for i in range(first, min(len(at), first + 8)):
            bits |= (1 - ((at[i] >> 63) & 1)) << (i - first)
        out[first >> 3] = bits


__all__ = [
    "BEFORE",
    "BLOCK_ROWS",
    "CONTENT",
    "CONTENT_END",
    "DICTIONARY",
    "IS_FULL",
    "MIDDLE",
    "SIZE",
    "STORED",
    "TARGET",
    "VALUES",
    "VALUES_TARGET",
    "WITH_VALUES",
    "get_columns",
    "get_presence",
    "get_validity",
    "number_of",
    "short_number",
]
