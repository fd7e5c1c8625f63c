"""Compiled loops over hot rows that several processes map: probe and admit beside each other, all else alone.

A group is what is kept of a code: the code, the bytes of the group, then the rows of the code side by side; none for
a code that does not exist. An entry of the table says where a group lies. While others probe, groups are only added,
and an entry is written after its group. A reader that meets an entry too early finds another code in its group and
takes it for a miss.
"""

import numpy as np
from numba import njit, types

from tidemill.join.parts.kernels import Bools, Int64s, UInt16s, UInt32s, home_slot
from tidemill.join.parts.row_cache_kernels import AHEAD, ENTRY_WIDTH
from tidemill.master.addresses import fetch, load_32, load_64, move_bytes, store_64
from tidemill.master.row_kernels import BYTES, INT64S, READ_BYTES, READ_INT64S, UInt8s

GROUP_BYTES = 16
"""Before the rows of a group."""
MOST_ROWS_OF_A_KEY = 2**16 - 1
MOST_BYTES_OF_A_KEY = 8 * (2**16 - 1)
ENTRIES, MOST_ENTRIES, END, IS_FULL, LEAST_MET, PROBED = range(6)
"""Places in the state: entries now and at most, end of the groups, whether something did not fit, how often a code must
have been met to become hot, codes probed since hits were halved last."""

_TABLE = types.Array(types.int64, 2, "C")
READ_TABLE = types.Array(types.int64, 2, "C", readonly=True)
HITS = types.Array(types.uint16, 1, "C")
_READ_BOOLS = types.Array(types.boolean, 1, "C", readonly=True)
_READ_UINT32S = types.Array(types.uint32, 1, "C", readonly=True)
MOST_HITS = np.uint16(65535)


# An entry: place of the group in words of eight bytes plus one (32 bits), words that it takes (16), rows (16).
@njit(types.int64(types.int64, types.int64, types.int64), cache=True, inline="always")
def _entry(at: int, size: int, rows: int) -> int:
    return (((at >> 3) + 1) << 32) | ((size >> 3) << 16) | rows


@njit(types.int64(types.int64), cache=True, inline="always")
def place_of(entry: int) -> int:
    return ((entry >> 32) - 1) << 3


@njit(types.int64(types.int64), cache=True, inline="always")
def bytes_of(entry: int) -> int:
    """That a group takes."""
    return ((entry >> 16) & 0xFFFF) << 3


@njit(types.int64(READ_TABLE, types.int64), cache=True, inline="always")
def _slot_of(table: Int64s, code: int) -> int:
    """The slot of a code, or the free one where it would go. An entry of 0 marks a free slot."""
    capacity = table.shape[0]
    at = int(home_slot(code, capacity))
    while table[at, 1] != 0 and table[at, 0] != code:
        at = at + 1 if at + 1 < capacity else 0
    return at


@njit(
    types.void(READ_TABLE, HITS, READ_BYTES, READ_INT64S, _READ_BOOLS, INT64S, INT64S, INT64S),
    cache=True,
    nogil=True,
)
def probe(
    table: Int64s,
    hits: UInt16s,
    groups: UInt8s,
    codes: Int64s,
    present: Bools,
    at: Int64s,
    rows: Int64s,
    sizes: Int64s,
) -> None:
    """Where the rows of each code begin, how many there are and bytes that they take: -1 rows for a miss.

    Slots and hits are asked for some codes ahead, groups for half as many.
    """
    capacity, base = table.shape[0], groups.ctypes.data
    slots, counts = table.ctypes.data, hits.ctypes.data
    home = np.empty(AHEAD, dtype=np.int64)
    for i in range(-AHEAD, len(codes)):
        turn = i & (AHEAD - 1)
        slot = int(home[turn]) if i >= 0 else 0
        if i + AHEAD < len(codes):
            home[turn] = home_slot(codes[i + AHEAD], capacity)
            fetch(slots + ENTRY_WIDTH * home[turn])
            fetch(counts + 2 * home[turn])
        if -AHEAD // 2 <= i < len(codes) - AHEAD // 2:
            soon = table[home[(i + AHEAD // 2) & (AHEAD - 1)], 1]
            fetch(base + place_of(soon))  # any place will do: that of a free slot lies just before the groups
        if i < 0:
            continue
        at[i], rows[i], sizes[i] = -1, 0, 0
        if not present[i]:
            continue
        entry = table[slot, 1]
        if entry != 0 and table[slot, 0] != codes[i]:
            slot = _slot_of(table, codes[i])
            entry = table[slot, 1]
        rows[i] = -1
        if entry != 0:
            place = place_of(entry)
            if load_64(base + place) == codes[i]:
                rows[i] = entry & MOST_ROWS_OF_A_KEY
                sizes[i] = (((entry >> 16) & 0xFFFF) << 3) - GROUP_BYTES
                at[i] = place + GROUP_BYTES if rows[i] else -1
                hits[slot] += np.uint16(hits[slot] < MOST_HITS)


@njit(types.int64(types.int64, types.int64, types.int64), cache=True, inline="always")
def _row_size(row: int, last_open: int, fixed_bytes: int) -> int:
    end = fixed_bytes if last_open < 0 else load_32(row + last_open)
    return (end + 7) & ~7


@njit(
    types.void(
        _TABLE, HITS, BYTES, INT64S, READ_BYTES, READ_INT64S, READ_INT64S, READ_INT64S, READ_INT64S, _READ_UINT32S,
        types.int64, types.int64, types.int64,
    ),
    cache=True,
)  # fmt: skip
def admit(
    table: Int64s,
    hits: UInt16s,
    groups: UInt8s,
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
) -> None:
    """Add the rows of codes that were met often enough, as long as there is room. One process at a time."""
    source, target = page.ctypes.data, groups.ctypes.data
    for i in range(len(codes)):
        if met[i] < least_met or matches[i] > MOST_ROWS_OF_A_KEY:
            continue
        slot = _slot_of(table, codes[i])
        if table[slot, 1] != 0:
            continue
        begin = state[END]
        size = GROUP_BYTES
        for k in range(matches[i]):
            size += _row_size(source + page_at[start[i] + k], last_open, fixed_bytes)
        if size > MOST_BYTES_OF_A_KEY:
            continue
        if begin + size > len(groups) or state[ENTRIES] >= state[MOST_ENTRIES]:
            state[IS_FULL] = 1
            continue
        store_64(target + begin, codes[i])
        store_64(target + begin + 8, size)
        to = target + begin + GROUP_BYTES
        for k in range(matches[i]):
            row = source + page_at[start[i] + k]
            row_bytes = _row_size(row, last_open, fixed_bytes)
            move_bytes(to, row, row_bytes)
            to += row_bytes
        state[END] = begin + size
        state[ENTRIES] += 1
        hits[slot] = np.uint16(min(met[i], np.uint32(65535)))
        table[slot, 0] = codes[i]
        table[slot, 1] = _entry(begin, size, matches[i])


# From here on nobody else may look at the table.


@njit(types.void(_TABLE, HITS, types.int64), cache=True)
def _empty(table: Int64s, hits: UInt16s, slot: int) -> None:
    """Free a slot; entries behind it that would no longer be found move up."""
    capacity = table.shape[0]
    free = behind = slot
    while True:
        behind = behind + 1 if behind + 1 < capacity else 0
        if table[behind, 1] == 0:
            break
        home = int(home_slot(table[behind, 0], capacity))
        from_home = behind - home if behind >= home else behind - home + capacity
        from_free = behind - free if behind >= free else behind - free + capacity
        if from_home >= from_free:
            table[free, 0], table[free, 1] = table[behind, 0], table[behind, 1]
            hits[free] = hits[behind]
            free = behind
    table[free, 0], table[free, 1], hits[free] = 0, 0, 0


@njit(types.int64(_TABLE, HITS, READ_INT64S), cache=True)
def forget(table: Int64s, hits: UInt16s, codes: Int64s) -> int:
    """How many of these codes were hot; they are no longer."""
    gone = 0
    for i in range(len(codes)):
        slot = _slot_of(table, codes[i])
        if table[slot, 1] != 0:
            _empty(table, hits, slot)
            gone += 1
    return gone


@njit(types.int64(_TABLE, HITS, types.int64, types.int64, types.int64), cache=True, nogil=True)
def evict(table: Int64s, hits: UInt16s, below: int, of_equals: int, equals: int) -> int:
    """How many entries went, as of hot rows of one's own: those with fewer hits than `below`, and some of the `equals`."""
    gone = at = turn = 0
    while at < table.shape[0]:
        is_weak = hits[at] < below
        if table[at, 1] != 0 and hits[at] == below:
            turn += of_equals
            is_weak = turn >= equals
            if is_weak:
                turn -= equals
        if table[at, 1] == 0 or not is_weak:
            at += 1
            continue
        gone += 1
        _empty(table, hits, at)  # another may have moved up: the slot is looked at again
    return gone


@njit(types.int64(_TABLE, BYTES, types.int64), cache=True)
def close_gaps(table: Int64s, groups: UInt8s, end: int) -> int:
    """The new end of the groups, after those without an entry were overwritten by those behind them; -1 if damaged."""
    base = groups.ctypes.data
    at = to = 0
    while at < end:
        size = load_64(base + at + 8)
        if size < GROUP_BYTES or at + size > end:
            return -1
        slot = _slot_of(table, load_64(base + at))
        entry = table[slot, 1]
        if entry != 0 and place_of(entry) == at:
            if to != at:
                for word in range(0, size, 8):
                    store_64(base + to + word, load_64(base + at + word))
                table[slot, 1] = _entry(to, size, entry & MOST_ROWS_OF_A_KEY)
            to += size
        at += size
    return to


__all__ = [
    "GROUP_BYTES",
    "HITS",
    "MOST_HITS",
    "MOST_ROWS_OF_A_KEY",
    "READ_TABLE",
    "admit",
    "bytes_of",
    "close_gaps",
    "evict",
    "forget",
    "place_of",
    "probe",
]
