"""Compiled loops over hot rows that lie row by row: probe, admit, evict, close the gaps."""

import numpy as np
from numba import njit, types

from tidemill.join.parts.kernels import Bools, Int64s, UInt32s, home_slot
from tidemill.master.addresses import fetch
from tidemill.master.page_kernels import code_in
from tidemill.master.row_kernels import BYTES, INT64S, READ_BYTES, READ_INT64S, UInt8s, move_bytes

_HITS_BITS, _ROWS_BITS, _WORDS_BITS = 8, 13, 13
_ROWS_AT, _WORDS_AT, _PLACE_AT = _HITS_BITS, _HITS_BITS + _ROWS_BITS, _HITS_BITS + _ROWS_BITS + _WORDS_BITS
_PLACES = 2 ** (64 - _PLACE_AT) - 1
MOST_HITS = 2**_HITS_BITS - 1
MOST_ROWS_OF_A_KEY = 2**_ROWS_BITS - 1
MOST_BYTES_OF_A_KEY = 8 * (2**_WORDS_BITS - 1)
MOST_BYTES = 8 * (_PLACES - 1)
"""Of all rows."""

_TABLE = types.Array(types.int64, 2, "C")
_READ_TABLE = types.Array(types.int64, 2, "C", readonly=True)
_READ_BOOLS = types.Array(types.boolean, 1, "C", readonly=True)
_READ_UINT32S = types.Array(types.uint32, 1, "C", readonly=True)
AHEAD = 32
"""Codes that are asked for before they are looked at; a power of two."""
ENTRY_WIDTH = 16
"""Bytes of a slot of the table."""


# An entry: place of the rows in words of eight bytes plus one (30 bits), words that they take (13), rows (13), hits (8).
# Hits lie here, since to count one then touches no other line of memory: 17 ns a row instead of 23, caches emptied in between.
@njit(types.int64(types.int64, types.int64, types.int64, types.int64), cache=True, inline="always")
def _entry(at: int | np.int64, size: int | np.int64, rows: int | np.int64, hits: int | np.int64) -> np.int64:
    return np.int64((((at >> 3) + 1) << _PLACE_AT) | ((size >> 3) << _WORDS_AT) | (rows << _ROWS_AT) | hits)


@njit(types.int64(types.int64), cache=True, inline="always")
def rows_of(entry: int | np.int64) -> np.int64:
    return np.int64((entry >> _ROWS_AT) & MOST_ROWS_OF_A_KEY)


@njit(types.int64(types.int64), cache=True, inline="always")
def bytes_of(entry: int | np.int64) -> np.int64:
    """That the rows of an entry take."""
    return np.int64(((entry >> _WORDS_AT) << 3) & MOST_BYTES_OF_A_KEY)


@njit(types.int64(types.int64), cache=True, inline="always")
def place_of(entry: int | np.int64) -> np.int64:
    """Where the rows of an entry begin, -1 if there are none."""
    return np.int64((((entry >> _PLACE_AT) & _PLACES) - 1) << 3 if rows_of(entry) else -1)


@njit(types.int64(types.int64), cache=True, inline="always")
def hit(entry: int | np.int64) -> np.int64:
    """The entry with one hit more; that of a free slot as it is."""
    return np.int64(entry + np.int64((entry != 0) & ((entry & MOST_HITS) < MOST_HITS)))


@njit(types.int64(_READ_TABLE, types.int64), cache=True, inline="always")
def _slot_of(table: Int64s, code: int | np.int64) -> np.int64:
    """The slot of a code, or of the free slot where it would go. An entry of 0 marks a free slot."""
    capacity = table.shape[0]
    at = home_slot(code, capacity)
    while table[at, 1] != 0 and table[at, 0] != code:
        at = at + np.int64(1) if at + 1 < capacity else np.int64(0)
    return at


@njit(types.void(_TABLE, READ_INT64S, _READ_BOOLS, INT64S, INT64S, INT64S), cache=True, nogil=True)
def probe(table: Int64s, codes: Int64s, present: Bools, at: Int64s, rows: Int64s, sizes: Int64s) -> None:
    """Where the rows of each code begin, and how many there are: 0 for one known not to exist, -1 for a miss.

    And how many bytes they take.

    Slots are asked for so many codes ahead: between two calls other work has thrown the table out of the caches. 57 ns a
    code without, 30 with it; 18 and 16 where the table is still there (as measured with hits in an array of their own).
    """
    capacity, slots = table.shape[0], table.ctypes.data
    home = np.empty(AHEAD, dtype=np.int64)
    for k in range(min(AHEAD, len(codes))):
        home[k] = home_slot(codes[k], capacity)
        fetch(slots + ENTRY_WIDTH * home[k])
    for i in range(len(codes)):
        turn = i & (AHEAD - 1)
        slot = home[turn]
        if i + AHEAD < len(codes):
            home[turn] = home_slot(codes[i + AHEAD], capacity)
            fetch(slots + ENTRY_WIDTH * home[turn])
        at[i], rows[i], sizes[i] = -1, 0, 0
        if not present[i]:
            continue
        entry = table[slot, 1]
        if entry != 0 and table[slot, 0] != codes[i]:
            slot = _slot_of(table, codes[i])
            entry = table[slot, 1]
        if entry == 0:
            rows[i] = -1
        else:
            rows[i], sizes[i], at[i] = rows_of(entry), bytes_of(entry), place_of(entry)
            table[slot, 1] = hit(entry)


@njit(types.int64(READ_BYTES, types.int64, types.int64, types.int64), cache=True, inline="always")
def row_size(rows: UInt8s, at: int | np.int64, last_open: int, fixed_bytes: int) -> np.int64:
    """Bytes of the row at a place, a multiple of eight."""
    end = fixed_bytes if last_open < 0 else np.int64(rows.view(np.uint32)[(at + last_open) >> 2])
    return (end + np.int64(7)) & ~np.int64(7)


@njit(
    types.void(
        _TABLE, BYTES, INT64S, READ_BYTES, READ_INT64S, READ_INT64S, READ_INT64S, READ_INT64S,
        _READ_UINT32S, types.int64, types.int64, types.int64, types.boolean,
    ),
    cache=True, nogil=True,
)  # fmt: skip
def admit(
    table: Int64s,
    arena: UInt8s,
    state: Int64s,
    page: UInt8s,
    page_at: Int64s,
    start: Int64s,
    matches: Int64s,
    codes: Int64s,
    met: UInt32s,
    least_met: int,
    last_open: int,
    fixed_bytes: int,
    keeps_rows: bool,
) -> None:
    """Copy the rows of codes that were met often enough, as long as there is room.

    `state`: entries, most entries, end of the arena, whether something did not fit.
    """
    base, target = page.ctypes.data, arena.ctypes.data
    for i in range(len(codes)):
        if met[i] < least_met or matches[i] > MOST_ROWS_OF_A_KEY:
            continue
        slot = _slot_of(table, codes[i])
        if table[slot, 1] != 0:
            continue
        begin = end = state[2]
        if keeps_rows:
            for k in range(matches[i]):
                end += row_size(page, page_at[start[i] + k], last_open, fixed_bytes)
        if end - begin > MOST_BYTES_OF_A_KEY:
            continue
        if end > len(arena) or state[0] >= state[1]:
            state[3] = 1
            continue
        if keeps_rows:
            to = begin
            for k in range(matches[i]):
                size = row_size(page, page_at[start[i] + k], last_open, fixed_bytes)
                move_bytes(np.uintp(target + to), np.uintp(base + page_at[start[i] + k]), int(size))
                to += size
        table[slot, 0] = codes[i]
        table[slot, 1] = _entry(begin, end - begin, matches[i], min(np.int64(met[i]), np.int64(MOST_HITS)))
        state[0] += 1
        state[2] = end


@njit(types.void(_TABLE, _READ_TABLE), cache=True, nogil=True)
def put_entries(table: Int64s, entries: Int64s) -> None:
    """Put codes with their entries into a table that has none of them."""
    for i in range(len(entries)):
        slot = _slot_of(table, entries[i, 0])
        table[slot, 0], table[slot, 1] = entries[i, 0], entries[i, 1]


@njit(types.void(_TABLE), cache=True, nogil=True)
def halve_hits(table: Int64s) -> None:
    for slot in range(table.shape[0]):
        entry = table[slot, 1]
        table[slot, 1] = entry - ((entry & MOST_HITS) + 1 >> 1)


@njit(types.int64(_TABLE, types.int64, types.int64, types.int64), cache=True, nogil=True)
def evict(table: Int64s, below: int, of_equals: int, equals: int) -> int:
    """How many entries went: those with fewer hits than `below`, and so many of the `equals` with exactly that.

    The latter are taken evenly from the whole table: were its first part emptied, the rest would fill up in time.
    """
    capacity = table.shape[0]
    gone = 0
    at = turn = np.int64(0)
    while at < capacity:
        hits = table[at, 1] & MOST_HITS
        is_weak = hits < below
        if table[at, 1] != 0 and hits == below:
            turn += np.int64(of_equals)
            is_weak = turn >= equals
            if is_weak:
                turn -= np.int64(equals)
        if table[at, 1] == 0 or not is_weak:
            at += 1
            continue
        gone += 1
        # Close the gap: entries behind it that would no longer be found move up. The slot is looked at again.
        free, behind = at, at
        while True:
            behind = behind + np.int64(1) if behind + 1 < capacity else np.int64(0)
            if table[behind, 1] == 0:
                break
            home = home_slot(table[behind, 0], capacity)
            from_home = behind - home if behind >= home else behind - home + capacity
            from_free = behind - free if behind >= free else behind - free + capacity
            if from_home >= from_free:
                table[free, 0], table[free, 1] = table[behind, 0], table[behind, 1]
                free = behind
        table[free, 0], table[free, 1] = 0, 0
    return gone


@njit(
    types.int64(_TABLE, BYTES, types.int64, types.int64, types.int64, types.boolean), cache=True, nogil=True
)
def close_gaps(
    table: Int64s, arena: UInt8s, end: int, last_open: int, fixed_bytes: int, is_short: bool
) -> np.int64:
    """The new end of the arena, after rows without an entry were overwritten by those behind them.

    A row begins with its code, of four bytes if it is short; the rows of a code lie side by side. Slots of rows to come are
    asked for where all rows are equally long.
    """
    words, slots, capacity = arena.view(np.uint64), table.ctypes.data, table.shape[0]
    ahead = AHEAD * row_size(arena, 0, last_open, fixed_bytes) if last_open < 0 else np.int64(end)
    at = to = np.int64(0)
    while at < end:
        if at + ahead < end:
            home = home_slot(code_in(words[(at + ahead) >> 3], is_short), capacity)
            fetch(int(slots + ENTRY_WIDTH * home))
        slot = _slot_of(table, code_in(words[at >> 3], is_short))
        entry = table[slot, 1]
        size = row_size(arena, at, last_open, fixed_bytes)
        if entry == 0 or place_of(entry) != at:
            at += size
            continue
        size = bytes_of(entry)
        if to != at:
            for k in range(size >> 3):
                words[(to >> 3) + k] = words[(at >> 3) + k]
            table[slot, 1] = _entry(to, size, rows_of(entry), entry & MOST_HITS)
        at += size
        to += size
    return to


__all__ = [
    "AHEAD",
    "ENTRY_WIDTH",
    "MOST_BYTES",
    "MOST_BYTES_OF_A_KEY",
    "MOST_HITS",
    "MOST_ROWS_OF_A_KEY",
    "admit",
    "bytes_of",
    "close_gaps",
    "evict",
    "halve_hits",
    "hit",
    "place_of",
    "probe",
    "put_entries",
    "row_size",
    "rows_of",
]
