"""Compiled loops over sets of hot rows that several processes map: found and added beside each other, all else alone.

While others look, only free places are filled: the row first, then what is known of it, the code last. Whoever finds a code
then finds its row. Who misses has written nothing (`set_cache_kernels._part`).
"""

import numpy as np
from numba import njit, types

from tidemill.join.parts.kernels import Int32s, Int64s, UInt16s, UInt32s, home_slot
from tidemill.join.parts.set_cache_kernels import (
    ABSENT,
    AHEAD,
    CODE_BYTES,
    EMPTY,
    FACT_BYTES,
    FACTS,
    HIGHEST,
    MOST_HITS,
    READ_UINT32S,
    WAYS,
    find_code,
    met_often,
)
from tidemill.join.parts.sifting_kernels import INT32S
from tidemill.master.addresses import fetch, load_shared, store_shared_32
from tidemill.master.row_kernels import BYTES, INT64S, READ_BYTES, READ_INT64S, UInt8s, move_bytes

ENTRIES, REFUSED, LEAST_MET, PROBED = range(4)
"""Places in the state: codes that are there, those that found their set full since room was made, how often a code must have been
met to become hot, codes looked for since hits were halved."""


@njit(
    types.void(
        INT32S, FACTS, BYTES, INT64S, READ_BYTES, READ_INT64S, READ_INT64S, READ_INT64S, READ_INT64S, READ_UINT32S,
        types.int64,
    ),
    cache=True, nogil=True,
)  # fmt: skip
def admit(
    set_codes: Int32s,
    facts: UInt16s,
    rows: UInt8s,
    state: Int64s,
    page: UInt8s,
    page_at: Int64s,
    start: Int64s,
    matches: Int64s,
    codes: Int64s,
    met: UInt32s,
    row_bytes: int,
) -> None:
    """Copy the rows of codes that were met often enough to free places. One process at a time."""
    sets, base, fact_base = len(set_codes) // WAYS, set_codes.ctypes.data, facts.ctypes.data
    source, target = page.ctypes.data, rows.ctypes.data
    often = np.empty(len(codes) + 1, dtype=np.int32)
    count = met_often(codes, met, state[LEAST_MET], often)
    home = np.empty(AHEAD, dtype=np.int64)
    for i in range(count + AHEAD):
        turn = i & (AHEAD - 1)
        here = home[turn]
        if i < count:
            home[turn] = home_slot(codes[often[i]], sets)
            fetch(base + CODE_BYTES * home[turn])
            fetch(fact_base + FACT_BYTES * home[turn])
        if i < AHEAD:
            continue
        k = often[i - AHEAD]
        place = base + CODE_BYTES * here
        if find_code(place, codes[k]) < WAYS:
            continue
        way = find_code(place, EMPTY)
        if way == WAYS:
            state[REFUSED] += 1
            continue
        slot = WAYS * here + way
        if matches[k] > 0:
            move_bytes(np.uintp(target + slot * row_bytes), np.uintp(source + page_at[start[k]]), row_bytes)
        hits = min(np.int64(met[k]), np.int64(MOST_HITS))
        facts[slot] = np.uint16((0 if matches[k] > 0 else ABSENT) | hits)
        store_shared_32(place + 4 * way, codes[k])
        state[ENTRIES] += 1


@njit(types.void(INT64S), cache=True)
def see_what_others_wrote(state: Int64s) -> None:
    """After codes were found, before their rows are looked at: on some processors those might be older."""
    load_shared(state.ctypes.data)


# From here on nobody else may look at the sets.


@njit(types.int64(INT32S, FACTS), cache=True, nogil=True)
def let_weakest_go(set_codes: Int32s, facts: UInt16s) -> int:
    """How many codes went: of each set without a free place the one with the fewest hits."""
    gone = 0
    for first in range(0, len(set_codes), WAYS):
        weakest, fewest, is_full = first, np.int64(MOST_HITS + 1), True
        for slot in range(first, first + WAYS):
            hits = np.int64(facts[slot]) & MOST_HITS
            is_full &= set_codes[slot] != EMPTY
            if hits < fewest:
                weakest, fewest = slot, hits
        if is_full:
            set_codes[weakest] = EMPTY
            gone += 1
    return gone


@njit(types.int64(INT32S, READ_INT64S), cache=True, nogil=True)
def forget(set_codes: Int32s, codes: Int64s) -> int:
    """How many of these codes were hot; they are no longer."""
    gone, base = 0, set_codes.ctypes.data
    for i in range(len(codes)):
        if codes[i] <= EMPTY or codes[i] > HIGHEST:
            continue
        here = home_slot(codes[i], len(set_codes) // WAYS)
        way = find_code(base + CODE_BYTES * here, codes[i])
        if way < WAYS:
            set_codes[WAYS * here + way] = EMPTY
            gone += 1
    return gone


__all__ = [
    "ENTRIES",
    "LEAST_MET",
    "PROBED",
    "REFUSED",
    "admit",
    "forget",
    "let_weakest_go",
    "see_what_others_wrote",
]
