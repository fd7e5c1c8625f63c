"""As `meeting_kernels.py`, for hot rows that other processes add to meanwhile (`shared_cache_kernels.py`)."""

import numpy as np
from numba import njit, types

from tidemill.join.parts.kernels import Bools, Int32s, Int64s, UInt16s, home_slot
from tidemill.join.parts.meeting_kernels import READ_BOOLS, WAITS
from tidemill.join.parts.row_cache_kernels import AHEAD, ENTRY_WIDTH
from tidemill.join.parts.shared_cache_kernels import (
    GROUP_BYTES,
    HITS,
    MOST_HITS,
    MOST_ROWS_OF_A_KEY,
    READ_TABLE,
    bytes_of,
    place_of,
)
from tidemill.join.parts.sifting_kernels import (
    INT32S,
    KNOWN,
    MATCHED,
    MATCHES_BYTES,
    MET_AGAIN,
    MISSES,
    MOST_MATCHES,
    UNTIL,
    let_misses_wait,
)
from tidemill.master.addresses import fetch, load_64
from tidemill.master.row_kernels import CACHE_LINE_BYTES, INT64S, READ_BYTES, READ_INT64S, UInt8s


@njit(
    types.int64(
        READ_TABLE, HITS, READ_BYTES, READ_INT64S, READ_BOOLS, types.int64, types.int64, INT64S, INT64S, INT32S, INT64S
    ),
    cache=True, nogil=True,
)  # fmt: skip
def _part(
    table: Int64s,
    hits: UInt16s,
    groups: UInt8s,
    codes: Int64s,
    present: Bools,
    lowest: int,
    most: int,
    known: Int64s,
    at: Int64s,
    missing: Int32s,
    result: Int64s,
) -> int:
    """How many rows miss; the others are listed with their places. Ends before a miss that could not wait.

    Slots and hits are asked for some codes ahead, groups for half as many. An entry whose group has another code came too
    early, and is a miss. Hits are written to only where there was one: the line may be another core's.
    """
    capacity, base = table.shape[0], groups.ctypes.data
    slots, counts = table.ctypes.data, hits.ctypes.data
    home = np.empty(AHEAD, dtype=np.int64)
    until, misses, leaving, matched, matches_bytes, most_rows = len(codes), 0, 0, 0, 0, 0
    for i in range(-AHEAD, len(codes)):
        turn = i & (AHEAD - 1)
        slot = home[turn] if i >= 0 else np.int64(0)
        if i + AHEAD < len(codes):
            home[turn] = home_slot(codes[i + AHEAD], capacity)
            fetch(slots + ENTRY_WIDTH * home[turn])
            fetch(slots + ENTRY_WIDTH * home[turn] + CACHE_LINE_BYTES)
            fetch(counts + 2 * home[turn])
        if -AHEAD // 2 <= i < len(codes) - AHEAD // 2:
            soon = table[home[(i + AHEAD // 2) & (AHEAD - 1)], 1]
            fetch(base + place_of(soon))  # of a free slot: just before the groups
        if i < 0:
            continue
        code = codes[i]
        known[leaving] = i
        if not present[i]:
            at[leaving] = -1
            leaving += 1
            continue
        entry = table[slot, 1]
        while entry != 0 and table[slot, 0] != code:
            slot = slot + np.int64(1) if slot + 1 < capacity else np.int64(0)
            entry = table[slot, 1]
        if entry != 0 and load_64(base + place_of(entry)) == code:
            hits[slot] += np.uint16(hits[slot] < MOST_HITS)
            rows = int(entry & MOST_ROWS_OF_A_KEY)
            at[leaving] = place_of(entry) + GROUP_BYTES if rows else -1
            leaving += 1
            matched += int(rows > 0)
            matches_bytes += bytes_of(entry) - GROUP_BYTES
            most_rows = max(most_rows, rows)
        elif code < lowest:  # the index knows that it does not exist
            at[leaving] = -1
            leaving += 1
        elif misses == most:
            until = i
            break
        else:
            missing[misses] = i
            misses += 1
    result[UNTIL], result[MISSES], result[KNOWN] = until, misses, leaving
    result[MATCHED], result[MATCHES_BYTES], result[MOST_MATCHES] = matched, matches_bytes, most_rows
    return misses


@njit(
    types.void(READ_TABLE, HITS, READ_BYTES, READ_INT64S, READ_BOOLS, *WAITS, types.int64, INT64S, INT64S, INT64S),
    cache=True, nogil=True,
)  # fmt: skip
def meet(
    table: Int64s,
    hits: UInt16s,
    groups: UInt8s,
    codes: Int64s,
    present: Bools,
    first_codes: Int64s,
    counters: UInt8s,
    often: int,
    columns: Int64s,
    template: UInt8s,
    arena: UInt8s,
    slot_code: Int64s,
    strip_next: Int32s,
    strip_rows: UInt8s,
    free: Int32s,
    tail: Int32s,
    region_count: Int32s,
    since: Int64s,
    state: Int64s,
    shift: int,
    keeps_codes: bool,
    most: int,
    known: Int64s,
    at: Int64s,
    result: Int64s,
) -> None:
    """As `meet` of hot rows of one's own; `groups` hold the rows."""
    lowest = int(first_codes[0]) if len(first_codes) else 0  # without a region nobody is present
    missing = np.empty(len(codes) + 1, dtype=np.int32)
    count = _part(table, hits, groups, codes, present, lowest, most, known, at, missing, result)
    result[MET_AGAIN] = let_misses_wait(
        codes, missing, count, first_codes, counters, often, columns, template, arena, slot_code, strip_next,
        strip_rows, free, tail, region_count, since, state, shift, keeps_codes,
    )  # fmt: skip


__all__ = ["meet"]
