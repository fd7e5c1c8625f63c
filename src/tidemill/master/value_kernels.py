"""Compiled loops of the row format: values of open length, whose ends `get_columns` has found.

They move in pieces of 32 bytes that may spill beyond their end, onto what is written later.
"""

from numba import njit, types

from tidemill.master.addresses import load_32, load_64, move_bytes, spill_bytes, store_digits
from tidemill.master.column_kernels import (
    BEFORE,
    BLOCK_ROWS,
    CONTENT,
    CONTENT_END,
    DICTIONARY,
    MIDDLE,
    STORED,
    TARGET,
    VALUES,
    VALUES_TARGET,
    WITH_VALUES,
    number_of,
)
from tidemill.master.row_kernels import (
    BYTES,
    CODED,
    DIGITS,
    FRAMED,
    KIND,
    READ_BYTES,
    READ_FACTS,
    READ_INT64S,
    SLOT,
    Int64s,
    UInt8s,
)

_WORD_BYTES = 8


@njit(
    types.void(types.int64, READ_INT64S, types.int64, types.int64, READ_INT64S, types.int64, types.int64),
    cache=True,
)
def _get_coded(base: int, at: Int64s, begin: int, until: int, column: Int64s, ends: int, to: int) -> None:
    """Values of a dictionary, of a block of rows."""
    slot_end, stored = column[SLOT] + column[STORED], column[STORED]
    for i in range(begin, until):
        place, end = load_32(ends + i * 4), load_32(ends + i * 4 + 4)
        if end > place:
            number = number_of(base + at[i], slot_end, stored, column[VALUES])
            source = column[CONTENT] + load_32(column[DICTIONARY] + 4 * number)
            spill_bytes(to + place, source, end - place, column[CONTENT_END])


@njit(
    types.void(types.int64, READ_INT64S, types.int64, types.int64, READ_INT64S, types.int64, types.int64),
    cache=True,
)
def _get_framed(base: int, at: Int64s, begin: int, until: int, column: Int64s, ends: int, to: int) -> None:
    """Values that begin and end alike, of a block of rows: the frame, which may spill over the next, then what is inside."""
    slot, stored, size, before = column[SLOT], column[STORED], column[VALUES], column[DICTIONARY]
    for i in range(begin, until):
        place, end = load_32(ends + i * 4), load_32(ends + i * 4 + 4)
        if end > place:
            spill_bytes(to + place, column[CONTENT], size, column[CONTENT_END])
            move_bytes(to + place + before, base + at[i] + slot, stored)


@njit(
    types.void(types.int64, READ_INT64S, types.int64, types.int64, READ_INT64S, types.int64, types.int64),
    cache=True,
)
def _get_digits(base: int, at: Int64s, begin: int, until: int, column: Int64s, ends: int, to: int) -> None:
    """Values with digits in a frame, of a block of rows: each part may spill over the next, which comes after it."""
    slot, stored, before = column[SLOT], column[STORED], column[DICTIONARY]
    frame, frame_end, behind = column[CONTENT], column[CONTENT_END], column[DICTIONARY] + column[MIDDLE]
    size_behind = column[VALUES] - behind
    last = max(slot + stored - _WORD_BYTES, 0)
    beyond = 8 * (last + _WORD_BYTES - slot - stored)
    for i in range(begin, until):
        place, end = load_32(ends + i * 4), load_32(ends + i * 4 + 4)
        if end > place:
            source, target = base + at[i] + slot, to + place
            spill_bytes(target, frame, before, frame_end)
            done = 0
            while stored - done > _WORD_BYTES:
                store_digits(target + before + 2 * done, load_64(source + done))
                done += _WORD_BYTES
            # The word that ends with the last digit: one that begins with it may end beyond the rows. Or the first of the row,
            # as `short_number` has it.
            word = (load_64(base + at[i] + last) << beyond) >> (8 * (_WORD_BYTES - stored + done))
            store_digits(target + before + 2 * done, word)
            if size_behind:
                spill_bytes(target + behind, frame + behind, size_behind, frame_end)


@njit(types.void(READ_BYTES, READ_INT64S, READ_FACTS, READ_FACTS, READ_BYTES, BYTES), cache=True, nogil=True)
def get_values(
    rows: UInt8s, at: Int64s, columns: Int64s, found: Int64s, offsets: UInt8s, out: UInt8s
) -> None:
    """Gather values of open length into `out`; their ends are those that `get_columns` put into `offsets`."""
    base, target = rows.ctypes.data, out.ctypes.data
    readable_end = base + len(rows)
    for begin in range(0, len(at), BLOCK_ROWS):
        until = min(len(at), begin + BLOCK_ROWS)
        for c in range(len(columns)):
            if columns[c, KIND] not in WITH_VALUES:
                continue
            ends, before = offsets.ctypes.data + found[c, TARGET], columns[c, BEFORE]
            to = target + found[c, VALUES_TARGET]
            if columns[c, KIND] == CODED:
                _get_coded(base, at, begin, until, columns[c], ends, to)
                continue
            if columns[c, KIND] == FRAMED:
                _get_framed(base, at, begin, until, columns[c], ends, to)
                continue
            if columns[c, KIND] == DIGITS:
                _get_digits(base, at, begin, until, columns[c], ends, to)
                continue
            for i in range(begin, until):
                place, end = load_32(ends + i * 4), load_32(ends + i * 4 + 4)
                if end > place:
                    start = before if before > 0 else load_32(base + at[i] - before)
                    spill_bytes(to + place, base + at[i] + start, end - place, readable_end)


__all__ = ["get_values"]
