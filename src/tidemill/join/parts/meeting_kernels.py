"""One compiled call for rows that arrive where no code has two master rows: hits are listed to leave, misses wait.

`probe` and `sift` tell each other of every row where its matches lie, how many there are and their bytes: 24 bytes written
and read up to three times. With one match at most, the place says it all, and only those that leave have one.
"""

import numpy as np
from numba import njit, types

from tidemill.join.parts.kernels import COUNTERS, Bools, Int32s, Int64s, home_slot
from tidemill.join.parts.row_cache_kernels import AHEAD, ENTRY_WIDTH, bytes_of, hit, place_of, rows_of
from tidemill.join.parts.sifting_kernels import (
    INT32S,
    KNOWN,
    MATCHED,
    MATCHES_BYTES,
    MET_AGAIN,
    MISSES,
    MOST_MATCHES,
    READ_INT32S,
    UINT8S,
    UNTIL,
    let_misses_wait,
)
from tidemill.master.addresses import fetch
from tidemill.master.row_kernels import (
    BYTES,
    CACHE_LINE_BYTES,
    INT64S,
    READ_BYTES,
    READ_FACTS,
    READ_INT64S,
    UInt8s,
)

_TABLE = types.Array(types.int64, 2, "C")
READ_BOOLS = types.Array(types.boolean, 1, "C", readonly=True)
WAITS = (
    READ_INT64S, COUNTERS, types.int64, READ_FACTS, READ_BYTES, BYTES, INT64S, INT32S, UINT8S, READ_INT32S, INT32S,
    INT32S, INT64S, INT64S, types.int64, types.boolean,
)  # fmt: skip
"""What rows that miss are told by: regions, sketch, waiting room."""


@njit(
    types.int64(_TABLE, READ_INT64S, READ_BOOLS, types.int64, types.int64, INT64S, INT64S, INT32S, INT64S),
    cache=True, nogil=True,
)  # fmt: skip
def _part(
    table: Int64s,
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

    Slots are asked for some codes ahead, as in `probe`, and the line behind a slot too: a code that is not hot is looked for
    in five slots on average, of which a line has four. 31 ns a row without, 24 with it. Which row is a miss cannot be
    guessed: both lists are written to, and one of them goes on.
    """
    capacity, slots = table.shape[0], table.ctypes.data
    home = np.empty(AHEAD, dtype=np.int64)
    for k in range(min(AHEAD, len(codes))):
        home[k] = home_slot(codes[k], capacity)
        fetch(slots + ENTRY_WIDTH * home[k])
        fetch(slots + ENTRY_WIDTH * home[k] + CACHE_LINE_BYTES)
    until, misses, leaving, matched, matches_bytes, most_rows = len(codes), 0, 0, 0, 0, 0
    for i in range(len(codes)):
        turn, code = i & (AHEAD - 1), codes[i]
        slot = home[turn]
        if i + AHEAD < len(codes):
            home[turn] = home_slot(codes[i + AHEAD], capacity)
            fetch(slots + ENTRY_WIDTH * home[turn])
            fetch(slots + ENTRY_WIDTH * home[turn] + CACHE_LINE_BYTES)
        known[leaving] = i
        if not present[i]:
            at[leaving] = -1
            leaving += 1
            continue
        entry = table[slot, 1]
        while entry != 0 and table[slot, 0] != code:
            slot = slot + np.int64(1) if slot + 1 < capacity else np.int64(0)
            entry = table[slot, 1]
        is_miss = int((entry == 0) & (code >= lowest))  # the index knows that codes before do not exist
        if misses == most and is_miss:
            until = i
            break
        table[slot, 1] = hit(entry)
        at[leaving] = place_of(entry)
        missing[misses] = i
        misses += is_miss
        leaving += 1 - is_miss
        rows = int(rows_of(entry))
        matched += int(rows > 0)
        matches_bytes += int(bytes_of(entry))
        most_rows = max(most_rows, rows)
    result[UNTIL], result[MISSES], result[KNOWN] = until, misses, leaving
    result[MATCHED], result[MATCHES_BYTES], result[MOST_MATCHES] = matched, matches_bytes, most_rows
    return misses


@njit(
    types.void(_TABLE, READ_INT64S, READ_BOOLS, *WAITS, types.int64, INT64S, INT64S, INT64S),
    cache=True, nogil=True,
)  # fmt: skip
def meet(
    table: Int64s,
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
    """What `probe` and then `sift` do, where each code has one match at most.

    Args:
        table: Of hot rows.
        codes: Of the rows that arrive.
        present: Where there is one.
        first_codes: This and the next ones as for `sift`.
        counters: The same.
        often: The same.
        columns: The same.
        template: The same.
        arena: The same.
        slot_code: The same.
        strip_next: The same.
        strip_rows: The same.
        free: The same.
        tail: The same.
        region_count: The same.
        since: The same.
        state: The same.
        shift: The same.
        keeps_codes: The same.
        most: Rows that can wait.
        known: Gets the numbers of rows that leave.
        at: Gets where their matches lie, -1 for one that has none.
        result: What came of it, as of `sift`.
    """
    lowest = int(first_codes[0]) if len(first_codes) else 0  # without a region nobody is present
    missing = np.empty(len(codes) + 1, dtype=np.int32)
    count = _part(table, codes, present, lowest, most, known, at, missing, result)
    result[MET_AGAIN] = let_misses_wait(
        codes, missing, count, first_codes, counters, often, columns, template, arena, slot_code, strip_next,
        strip_rows, free, tail, region_count, since, state, shift, keeps_codes,
    )  # fmt: skip


__all__ = ["READ_BOOLS", "WAITS", "meet"]
