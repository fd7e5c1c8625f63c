"""Compiled loops over hot rows, the lower part of a memory that waiting rows share: probe, keep, judge, make room.

```
│ table: code, entry │ rows of a code side by side, another code's, … ▶ │
entry   place of the first row, in eights from the first of all (32 bits) │ rows (16) │ hits (16); 0 is a free slot
```
"""

import numpy as np
from numba import njit, types

from tidemill.join.parts.cell_kernels import (
    CAPACITY,
    ENTRIES,
    HOT_BYTES,
    LIMIT,
    WANTED_BYTES,
    WANTED_KEYS,
    size_at,
)
from tidemill.join.parts.kernels import Bools, Int64s, home_slot
from tidemill.master.addresses import fetch, load_64, move_bytes, store_64
from tidemill.master.page_kernels import code_in
from tidemill.master.row_kernels import BYTES, INT64S, READ_BYTES, READ_INT64S, UInt8s

ENTRY_BYTES = 16
MOST_ROWS_OF_A_KEY = 2**16 - 1
_MOST_HITS = 2**16 - 1
_AHEAD = 32  # codes
_READ_BOOLS = types.Array(types.boolean, 1, "C", readonly=True)


@njit(types.int64(types.int64, types.int64, types.int64), cache=True, inline="always")
def _slot_of(base: int, capacity: int, code: int) -> int:
    """Address of the slot of a code, or of the free slot where it would go."""
    slot = int(home_slot(code, capacity))
    while load_64(base + slot * ENTRY_BYTES + 8) != 0 and load_64(base + slot * ENTRY_BYTES) != code:
        slot = slot + 1 if slot + 1 < capacity else 0
    return base + slot * ENTRY_BYTES


@njit(types.int64(BYTES, READ_INT64S, types.int64), cache=True, inline="always")
def slot_address(memory: UInt8s, state: Int64s, code: int) -> int:
    """Where the search for a code begins."""
    return memory.ctypes.data + int(home_slot(code, state[CAPACITY])) * ENTRY_BYTES


@njit(types.boolean(types.int64, types.int64), cache=True, inline="always")
def is_crowded(entries: int, capacity: int) -> bool:
    """Whether so many entries are too many: searches end at a free slot, and soon only where a quarter is free."""
    return 4 * entries > 3 * capacity


@njit(types.int64(types.int64), cache=True, inline="always")
def _rows_in(entry: int) -> int:
    return (entry >> 16) & MOST_ROWS_OF_A_KEY


@njit(types.int64(types.int64), cache=True, inline="always")
def _place_in(entry: int) -> int:
    """Bytes from the first of all rows."""
    return ((entry >> 32) & 0xFFFFFFFF) << 3


@njit(types.int64(types.int64, types.int64, types.int64), cache=True, inline="always")
def _entry(place: int, rows: int, hits: int) -> int:
    return ((place >> 3) << 32) | (rows << 16) | min(hits, _MOST_HITS)


@njit(types.void(BYTES, READ_INT64S, READ_INT64S, _READ_BOOLS, INT64S, INT64S), cache=True)
def probe(memory: UInt8s, state: Int64s, codes: Int64s, present: Bools, at: Int64s, rows: Int64s) -> None:
    """Where the rows of each code begin, and how many there are: -1 for a miss, 0 where no code is present.

    Slots are asked for some codes ahead, so that the processor waits for many of them at a time; `at` has them meanwhile.
    """
    base, capacity, count = memory.ctypes.data, state[CAPACITY], len(codes)
    first, end = capacity * ENTRY_BYTES, base + capacity * ENTRY_BYTES
    for i in range(-_AHEAD, count):
        if i + _AHEAD < count:
            slot = base + int(home_slot(codes[i + _AHEAD], capacity)) * ENTRY_BYTES
            at[i + _AHEAD] = slot
            fetch(slot)
        if i < 0:
            continue
        slot, code = at[i], codes[i]
        at[i], rows[i] = -1, -1 if present[i] else 0
        if not present[i]:
            continue
        entry = load_64(slot + 8)
        while entry != 0 and load_64(slot) != code:
            slot += ENTRY_BYTES
            if slot == end:
                slot = base
            entry = load_64(slot + 8)
        if entry != 0:
            at[i], rows[i] = first + _place_in(entry), _rows_in(entry)
            store_64(slot + 8, entry + (1 if entry & _MOST_HITS < _MOST_HITS else 0))


@njit(
    types.void(
        BYTES, INT64S, READ_BYTES, READ_INT64S, types.int64, types.int64, types.int64, types.int64, types.int64,
        types.float64, types.float64, types.boolean,
    ),
    cache=True, inline="always",
)  # fmt: skip
def keep(
    memory: UInt8s,
    state: Int64s,
    pages: UInt8s,
    at: Int64s,
    start: int,
    rows: int,
    code: int,
    last_open: int,
    fixed_bytes: int,
    waiting_bytes: float,
    hits: float,
    keeps_rows: bool,
) -> None:
    """The cache inequality: copy the rows of a code if those that waited for it took more memory, and there is room."""
    source, size = pages.ctypes.data, 0
    if rows > MOST_ROWS_OF_A_KEY:
        return
    if keeps_rows:
        for r in range(start, start + rows):
            size += size_at(source + at[r], last_open, fixed_bytes)
    if waiting_bytes <= size + ENTRY_BYTES:
        return
    base, capacity = memory.ctypes.data, state[CAPACITY]
    slot = _slot_of(base, capacity, code)
    if load_64(slot + 8) != 0:
        return
    end = capacity * ENTRY_BYTES + state[HOT_BYTES] + size
    if end > state[LIMIT] or is_crowded(state[ENTRIES] + 1, capacity):
        state[WANTED_BYTES] += size
        state[WANTED_KEYS] += 1
        return
    to = end - size
    if keeps_rows:
        for r in range(start, start + rows):
            row_bytes = size_at(source + at[r], last_open, fixed_bytes)
            move_bytes(base + to, source + at[r], row_bytes)
            to += row_bytes
    store_64(slot, code)
    store_64(slot + 8, _entry(state[HOT_BYTES], rows, int(hits)))
    state[ENTRIES] += 1
    state[HOT_BYTES] += size


@njit(types.int64(types.int64, types.int64, types.int64, types.int64), cache=True, inline="always")
def _group_size(row: int, rows: int, last_open: int, fixed_bytes: int) -> int:
    size = 0
    for _ in range(rows):
        size += size_at(row + size, last_open, fixed_bytes)
    return size


@njit(types.void(types.int64, types.int64, types.int64), cache=True)
def _forget(base: int, capacity: int, slot: int) -> None:
    """Empty a slot; entries behind it that would no longer be found move up."""
    free = behind = slot
    while True:
        behind = behind + 1 if behind + 1 < capacity else 0
        code, entry = load_64(base + behind * ENTRY_BYTES), load_64(base + behind * ENTRY_BYTES + 8)
        if entry == 0:
            break
        home = home_slot(code, capacity)
        from_home = behind - home if behind >= home else behind - home + capacity
        from_free = behind - free if behind >= free else behind - free + capacity
        if from_home >= from_free:
            store_64(base + free * ENTRY_BYTES, code)
            store_64(base + free * ENTRY_BYTES + 8, entry)
            free = behind
    store_64(base + free * ENTRY_BYTES + 8, 0)


@njit(types.int64(types.int64, types.int64, types.int64, types.int64, types.int64, types.boolean), cache=True)
def _moved_together(
    base: int, capacity: int, end: int, last_open: int, fixed_bytes: int, is_short: bool
) -> int:
    """The new end of the rows, after those without an entry were overwritten by those behind them."""
    first = base + capacity * ENTRY_BYTES
    at = to = 0
    while at < end:
        slot = _slot_of(base, capacity, code_in(np.uint64(load_64(first + at)), is_short))
        entry = load_64(slot + 8)
        if entry == 0 or _place_in(entry) != at:
            at += size_at(first + at, last_open, fixed_bytes)
            continue
        size = _group_size(first + at, _rows_in(entry), last_open, fixed_bytes)
        if to != at:
            for word in range(0, size, 8):
                store_64(first + to + word, load_64(first + at + word))
            store_64(slot + 8, _entry(to, _rows_in(entry), entry & _MOST_HITS))
        at += size
        to += size
    return to


@njit(
    types.int64(
        BYTES, INT64S, types.int64, types.int64, types.boolean, types.float64, types.float64, types.boolean
    ),
    cache=True,
)  # fmt: skip
def judge(
    memory: UInt8s,
    state: Int64s,
    last_open: int,
    fixed_bytes: int,
    is_short: bool,
    waiting_row_bytes: float,
    waiting_per_hit: float,
    keeps_rows: bool,
) -> int:
    """How many codes went: those for which fewer bytes would wait than their rows take. Hits of the others are halved."""
    base, capacity = memory.ctypes.data, state[CAPACITY]
    first, before = base + capacity * ENTRY_BYTES, state[ENTRIES]
    slot = 0
    while slot < capacity:
        entry = load_64(base + slot * ENTRY_BYTES + 8)
        if entry != 0:
            size = ENTRY_BYTES
            if keeps_rows:
                size += _group_size(first + _place_in(entry), _rows_in(entry), last_open, fixed_bytes)
            if (entry & _MOST_HITS) * waiting_per_hit * waiting_row_bytes < size:
                _forget(base, capacity, slot)
                state[ENTRIES] -= 1
                continue  # another may have moved up
        slot += 1
    for slot in range(capacity):
        entry = load_64(base + slot * ENTRY_BYTES + 8)
        store_64(base + slot * ENTRY_BYTES + 8, entry - (entry & _MOST_HITS) + ((entry & _MOST_HITS) >> 1))
    if keeps_rows and state[ENTRIES] < before:
        state[HOT_BYTES] = _moved_together(base, capacity, state[HOT_BYTES], last_open, fixed_bytes, is_short)
    return int(before - state[ENTRIES])


@njit(types.void(BYTES, INT64S, types.int64), cache=True)
def widen_table(memory: UInt8s, state: Int64s, capacity: int) -> None:
    """Give the table more slots: rows move up, and the old table lies behind them meanwhile. All must fit."""
    base, old = memory.ctypes.data, state[CAPACITY]
    rows, shift = state[HOT_BYTES], (capacity - old) * ENTRY_BYTES
    for word in range(rows - 8, -8, -8):
        store_64(base + old * ENTRY_BYTES + word + shift, load_64(base + old * ENTRY_BYTES + word))
    aside = base + capacity * ENTRY_BYTES + rows
    # The old table itself may lie under rows by now only beyond its end: they moved up, away from it.
    for word in range(0, old * ENTRY_BYTES, 8):
        store_64(aside + word, load_64(base + word))
    for word in range(0, capacity * ENTRY_BYTES, 8):
        store_64(base + word, 0)
    for slot in range(old):
        code, entry = load_64(aside + slot * ENTRY_BYTES), load_64(aside + slot * ENTRY_BYTES + 8)
        if entry != 0:
            free = _slot_of(base, capacity, code)
            store_64(free, code)
            store_64(free + 8, entry)
    state[CAPACITY] = capacity


__all__ = ["ENTRY_BYTES", "is_crowded", "judge", "keep", "probe", "slot_address", "widen_table"]
