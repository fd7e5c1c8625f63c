"""Compiled loops over hot rows that lie row by row: probe, admit, evict, close the gaps."""

import numpy as np
import numpy.typing as npt
from numba import njit, types

from tidemill.join.parts.kernels import Bools, Int64s, UInt32s, home_slot
from tidemill.master.addresses import fetch
from tidemill.master.page_kernels import code_in
from tidemill.master.row_kernels import BYTES, INT64S, READ_BYTES, READ_INT64S, UInt8s, move_bytes

UInt16s = npt.NDArray[np.uint16]

MOST_ROWS_OF_A_KEY = 2**16 - 1
MOST_BYTES_OF_A_KEY = 8 * (2**16 - 1)

_TABLE = types.Array(types.int64, 2, "C")
_READ_TABLE = types.Array(types.int64, 2, "C", readonly=True)
_HITS = types.Array(types.uint16, 1, "C")
_READ_HITS = types.Array(types.uint16, 1, "C", readonly=True)
_READ_BOOLS = types.Array(types.boolean, 1, "C", readonly=True)
_READ_UINT32S = types.Array(types.uint32, 1, "C", readonly=True)
_MOST_HITS = np.uint16(65535)
AHEAD = 32
"""Codes that are asked for before they are looked at; a power of two."""
ENTRY_WIDTH = 16
"""Bytes of a slot of the table."""


# An entry: place of the rows in words of eight bytes plus one (32 bits), words that they take (16), rows (16).
@njit(types.int64(types.int64, types.int64, types.int64), cache=True, inline="always")
def _entry(at: int | np.int64, size: int | np.int64, rows: int | np.int64) -> np.int64:
    return np.int64((((at >> 3) + 1) << 32) | ((size >> 3) << 16) | rows)


@njit(types.int64(types.int64), cache=True, inline="always")
def _place(entry: int | np.int64) -> np.int64:
    return np.int64(((entry >> 32) - 1) << 3)


@njit(types.int64(_READ_TABLE, types.int64), cache=True, inline="always")
def _slot_of(table: Int64s, code: int | np.int64) -> np.int64:
    """The slot of a code, or of the free slot where it would go. An entry of 0 marks a free slot."""
    capacity = table.shape[0]
    at = home_slot(code, capacity)
    while table[at, 1] != 0 and table[at, 0] != code:
        at = at + np.int64(1) if at + 1 < capacity else np.int64(0)
    return at


@njit(
    types.void(_READ_TABLE, _HITS, READ_INT64S, _READ_BOOLS, INT64S, INT64S, INT64S), cache=True, nogil=True
)
def probe(
    table: Int64s, hits: UInt16s, codes: Int64s, present: Bools, at: Int64s, rows: Int64s, sizes: Int64s
) -> None:
    """Where the rows of each code begin, and how many there are: 0 for one known not to exist, -1 for a miss.

    And how many bytes they take.

    Slots and hits are asked for so many codes ahead: between two calls other work has thrown the table out of the
    caches. 57 ns a code without, 30 with it; 18 and 16 where the table is still there.
    """
    capacity, slots, counts = table.shape[0], table.ctypes.data, hits.ctypes.data
    home = np.empty(AHEAD, dtype=np.int64)
    for k in range(min(AHEAD, len(codes))):
        home[k] = home_slot(codes[k], capacity)
        fetch(slots + ENTRY_WIDTH * home[k])
        fetch(counts + 2 * home[k])
    for i in range(len(codes)):
        turn = i & (AHEAD - 1)
        slot = home[turn]
        if i + AHEAD < len(codes):
            home[turn] = home_slot(codes[i + AHEAD], capacity)
            fetch(slots + ENTRY_WIDTH * home[turn])
            fetch(counts + 2 * home[turn])
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
            rows[i] = entry & MOST_ROWS_OF_A_KEY
            sizes[i] = ((entry >> 16) & np.int64(0xFFFF)) << 3
            at[i] = _place(entry) if rows[i] else -1
            hits[slot] += np.uint16(hits[slot] < _MOST_HITS)


@njit(types.int64(READ_BYTES, types.int64, types.int64, types.int64), cache=True, inline="always")
def row_size(rows: UInt8s, at: int | np.int64, last_open: int, fixed_bytes: int) -> np.int64:
    """Bytes of the row at a place, a multiple of eight."""
    end = fixed_bytes if last_open < 0 else np.int64(rows.view(np.uint32)[(at + last_open) >> 2])
    return (end + np.int64(7)) & ~np.int64(7)


@njit(
    types.void(
        _TABLE, _HITS, BYTES, INT64S, READ_BYTES, READ_INT64S, READ_INT64S, READ_INT64S, READ_INT64S,
        _READ_UINT32S, types.int64, types.int64, types.int64, types.boolean,
    ),
    cache=True, nogil=True,
)  # fmt: skip
def admit(
    table: Int64s,
    hits: UInt16s,
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
        table[slot, 1] = _entry(begin, end - begin, matches[i])
        hits[slot] = np.uint16(min(met[i], np.uint32(65535)))
        state[0] += 1
        state[2] = end


@njit(types.void(_TABLE, _HITS, _READ_TABLE, _READ_HITS), cache=True, nogil=True)
def put_entries(table: Int64s, hits: UInt16s, entries: Int64s, entry_hits: UInt16s) -> None:
    """Put codes with their entries and hits into a table that has none of them."""
    for i in range(len(entries)):
        slot = _slot_of(table, entries[i, 0])
        table[slot, 0], table[slot, 1] = entries[i, 0], entries[i, 1]
        hits[slot] = entry_hits[i]


@njit(types.int64(_TABLE, _HITS, types.int64, types.int64, types.int64), cache=True, nogil=True)
def evict(table: Int64s, hits: UInt16s, below: int, of_equals: int, equals: int) -> int:
    """How many entries went: those with fewer hits than `below`, and so many of the `equals` with exactly that.

    The latter are taken evenly from the whole table: were its first part emptied, the rest would fill up in time.
    """
    capacity = table.shape[0]
    gone = 0
    at = turn = np.int64(0)
    while at < capacity:
        is_weak = hits[at] < below
        if table[at, 1] != 0 and hits[at] == below:
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
                hits[free] = hits[behind]
                free = behind
        table[free, 0], table[free, 1], hits[free] = 0, 0, 0
    return gone


@njit(
    types.int64(_TABLE, BYTES, types.int64, types.int64, types.int64, types.boolean), cache=True, nogil=True
)
def close_gaps(
    table: Int64s, arena: UInt8s, end: int, last_open: int, fixed_bytes: int, is_short: bool
) -> np.int64:
    """The new end of the arena, after rows without an entry were overwritten by those behind them.

    A row begins with its code, of four bytes if it is short; the rows of a code lie side by side.
    """
    words = arena.view(np.uint64)
    at = to = np.int64(0)
    while at < end:
        slot = _slot_of(table, code_in(words[at >> 3], is_short))
        entry = table[slot, 1]
        size = row_size(arena, at, last_open, fixed_bytes)
        if entry == 0 or _place(entry) != at or entry & MOST_ROWS_OF_A_KEY == 0:
            at += size
            continue
        size = ((entry >> 16) & np.int64(0xFFFF)) << 3
        if to != at:
            for k in range(size >> 3):
                words[(to >> 3) + k] = words[(at >> 3) + k]
            table[slot, 1] = _entry(to, size, entry & MOST_ROWS_OF_A_KEY)
        at += size
        to += size
    return to


__all__ = [
    "AHEAD",
    "ENTRY_WIDTH",
    "MOST_BYTES_OF_A_KEY",
    "MOST_ROWS_OF_A_KEY",
    "admit",
    "close_gaps",
    "evict",
    "probe",
    "put_entries",
    "row_size",
]
