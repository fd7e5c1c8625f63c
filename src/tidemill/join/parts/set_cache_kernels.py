"""Compiled loops over hot rows in sets of eight: found with one look, replaced where they lie."""

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]  # ships no types
from numba import njit, types
from numba.extending import intrinsic

from tidemill.join.parts.kernels import Bools, Int32s, Int64s, UInt8s, UInt16s, UInt32s, home_slot
from tidemill.join.parts.meeting_kernels import READ_BOOLS, WAITS
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
from tidemill.master.addresses import fetch, store_16
from tidemill.master.row_kernels import BYTES, INT64S, READ_BYTES, READ_INT64S, move_bytes

WAYS = 8
EMPTY = -(2**31)
"""In the place of a code: no short code is as low, for all have a quarter of their range to spare."""
MOST_HITS = 127
ENTRIES, EVICTED = range(2)
"""Places in a state: codes that are there, and those that made room for others."""
# What is known of a code: hits (7 bits), whether it does not exist, and number of the last look that found it (8 bits).
ABSENT, _LOOK_AT, _LOOKS = 128, 8, 256
HIGHEST = 2**31 - 1
AHEAD = 32  # codes; a power of two
LEAST_TO_REPLACE = 2
"""Meetings of who takes the place of another: one is chance."""
CODE_BYTES, FACT_BYTES = 4 * WAYS, 2 * WAYS  # of a set
FACTS = types.Array(types.uint16, 1, "C")
READ_UINT32S = types.Array(types.uint32, 1, "C", readonly=True)


def _finder() -> Any:
    """An intrinsic: which of the eight numbers of 32 bits at an address is the one sought, or 8."""

    @intrinsic
    def find(_: Any, address: Any, sought: Any) -> Any:  # noqa: ARG001 - numba tells arguments apart by name
        def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
            lane, wide = ir.IntType(32), ir.IntType(64)
            eight = ir.VectorType(lane, WAYS)
            found = builder.load(builder.inttoptr(arguments[0], eight.as_pointer()), align=4)
            first = builder.insert_element(
                ir.Constant(eight, ir.Undefined), builder.trunc(arguments[1], lane), lane(0)
            )
            order = ir.Constant(ir.VectorType(lane, WAYS), [0] * WAYS)
            same = builder.icmp_signed("==", found, builder.shuffle_vector(first, first, order))
            mask = builder.zext(builder.bitcast(same, ir.IntType(WAYS)), wide)
            return builder.cttz(builder.or_(mask, wide(1 << WAYS)), ir.IntType(1)(1))

        return types.int64(types.int64, types.int64), generate

    return find


find_code = _finder()


@njit(
    types.int64(
        INT32S, FACTS, types.int64, types.int64, READ_INT64S, READ_BOOLS, types.int64, types.int64, INT64S, INT64S,
        INT32S, INT64S,
    ),
    cache=True, nogil=True,
)  # fmt: skip
def _part(
    set_codes: Int32s,
    facts: UInt16s,
    row_bytes: int,
    look: int,
    codes: Int64s,
    present: Bools,
    lowest: int,
    most: int,
    known: Int64s,
    at: Int64s,
    missing: Int32s,
    result: Int64s,
) -> int:
    """As `_part` of `meeting_kernels`: how many rows miss; the others are listed with their places."""
    sets, base, fact_base = len(set_codes) // WAYS, set_codes.ctypes.data, facts.ctypes.data
    home = np.empty(AHEAD, dtype=np.int64)
    for k in range(min(AHEAD, len(codes))):
        home[k] = home_slot(codes[k], sets)
        fetch(base + CODE_BYTES * home[k])
        fetch(fact_base + FACT_BYTES * home[k])
    until, misses, leaving, matched = len(codes), 0, 0, 0
    looked = (look % _LOOKS) << _LOOK_AT
    # Who misses writes too, lest there be a branch; but not to a place that another process may just be filling.
    waste = np.empty(1, dtype=np.uint16)
    nowhere = waste.ctypes.data
    for i in range(len(codes)):
        turn, code = i & (AHEAD - 1), codes[i]
        here = home[turn]
        if i + AHEAD < len(codes):
            home[turn] = home_slot(codes[i + AHEAD], sets)
            fetch(base + CODE_BYTES * home[turn])
            fetch(fact_base + FACT_BYTES * home[turn])
        known[leaving] = i
        if not present[i]:
            at[leaving] = -1
            leaving += 1
            continue
        way = find_code(base + CODE_BYTES * here, code)
        is_hit = int((way < WAYS) & (code > EMPTY) & (code <= HIGHEST) & (sets > 0))
        slot = WAYS * here + (way & (WAYS - 1))
        is_miss = (1 - is_hit) & int(code >= lowest)  # the index knows that codes before do not exist
        if misses == most and is_miss:
            until = i
            break
        fact = np.int64(facts[slot])
        hits = fact & MOST_HITS
        counted = looked | (fact & ABSENT) | (hits + np.int64(hits < MOST_HITS))
        store_16(fact_base + 2 * slot if is_hit else nowhere, int(counted))
        has_row = is_hit & int((fact & ABSENT) == 0)
        at[leaving] = slot * row_bytes if has_row else np.int64(-1)
        missing[misses] = i
        misses += is_miss
        leaving += 1 - is_miss
        matched += has_row
    result[UNTIL], result[MISSES], result[KNOWN] = until, misses, leaving
    result[MATCHED], result[MATCHES_BYTES], result[MOST_MATCHES] = (
        matched,
        matched * row_bytes,
        min(1, matched),
    )
    return misses


@njit(
    types.void(
        INT32S, FACTS, types.int64, types.int64, READ_INT64S, READ_BOOLS, *WAITS, types.int64, INT64S, INT64S, INT64S
    ),
    cache=True, nogil=True,
)  # fmt: skip
def meet(
    set_codes: Int32s,
    facts: UInt16s,
    row_bytes: int,
    look: int,
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
    """As `meet` of `meeting_kernels`; `look` is the number of this call."""
    lowest = int(first_codes[0]) if len(first_codes) else 0  # without a region nobody is present
    missing = np.empty(len(codes) + 1, dtype=np.int32)
    count = _part(set_codes, facts, row_bytes, look, codes, present, lowest, most, known, at, missing, result)
    result[MET_AGAIN] = let_misses_wait(
        codes, missing, count, first_codes, counters, often, columns, template, arena, slot_code, strip_next,
        strip_rows, free, tail, region_count, since, state, shift, keeps_codes,
    )  # fmt: skip


@njit(
    types.void(INT32S, FACTS, types.int64, types.int64, READ_INT64S, READ_BOOLS, INT64S, INT64S, INT64S),
    cache=True, nogil=True,
)  # fmt: skip
def probe(
    set_codes: Int32s,
    facts: UInt16s,
    row_bytes: int,
    look: int,
    codes: Int64s,
    present: Bools,
    at: Int64s,
    rows: Int64s,
    sizes: Int64s,
) -> None:
    """Where the row of each code lies, and how many there are: 0 for one known not to exist, -1 for a miss; its bytes."""
    sets, base = len(set_codes) // WAYS, set_codes.ctypes.data
    for i in range(len(codes)):
        at[i], rows[i], sizes[i] = -1, 0, 0
        if not present[i]:
            continue
        here = home_slot(codes[i], sets)
        way = find_code(base + CODE_BYTES * here, codes[i])
        if way == WAYS or codes[i] <= EMPTY or codes[i] > HIGHEST or sets == 0:
            rows[i] = -1
            continue
        slot = WAYS * here + way
        fact = np.int64(facts[slot])
        hits = fact & MOST_HITS
        facts[slot] = np.uint16(
            ((look % _LOOKS) << _LOOK_AT) | (fact & ABSENT) | (hits + np.int64(hits < MOST_HITS))
        )
        if fact & ABSENT == 0:
            at[i], rows[i], sizes[i] = slot * row_bytes, 1, row_bytes


@njit(types.int64(READ_INT64S, READ_UINT32S, types.int64, INT32S), cache=True, nogil=True)
def met_often(codes: Int64s, met: UInt32s, least_met: int, often: Int32s) -> int:
    """How many codes may become hot; their numbers are listed.

    Most were met too seldom: they are left out without a branch, and no line of memory is asked for them.
    """
    count = 0
    for k in range(len(codes)):
        often[count] = k
        count += int((met[k] >= least_met) & (codes[k] > EMPTY) & (codes[k] <= HIGHEST))
    return count


@njit(types.int64(FACTS, types.int64, types.int64, types.int64, types.int64), cache=True, inline="always")
def _weakest(
    facts: UInt16s, first: int | np.int64, hits: int | np.int64, look: int, under_way: int
) -> np.int64:
    """The slot of a set with the fewest hits, fewer than `hits`, that no look under way has found; -1 if there is none."""
    weakest, fewest = np.int64(-1), np.int64(hits)
    for slot in range(first, first + WAYS):
        fact = np.int64(facts[slot])
        looks_since = (look - (fact >> _LOOK_AT)) % _LOOKS
        if fact & MOST_HITS < fewest and looks_since >= under_way:
            weakest, fewest = np.int64(slot), fact & MOST_HITS
    return weakest


@njit(
    types.void(
        INT32S, FACTS, BYTES, INT64S, READ_BYTES, READ_INT64S, READ_INT64S, READ_INT64S, READ_INT64S, READ_UINT32S,
        types.int64, types.int64, types.int64, types.int64,
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
    least_met: int,
    row_bytes: int,
    look: int,
    under_way: int,
) -> None:
    """Copy the rows of codes that were met often enough to free slots, or over rows that were met less often.

    `look` is the number of the last one; rows that the last `under_way` of them have found stay where they are.
    """
    sets, base, fact_base = len(set_codes) // WAYS, set_codes.ctypes.data, facts.ctypes.data
    source, target = page.ctypes.data, rows.ctypes.data
    often = np.empty(len(codes) + 1, dtype=np.int32)
    count = met_often(codes, met, least_met, often) if sets else 0
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
        place, hits = base + CODE_BYTES * here, min(np.int64(met[k]), np.int64(MOST_HITS))
        if find_code(place, codes[k]) < WAYS:
            continue
        way = find_code(place, EMPTY)
        slot = WAYS * here + way
        if way == WAYS:
            slot = (
                _weakest(facts, WAYS * here, hits, look, under_way)
                if hits >= LEAST_TO_REPLACE
                else np.int64(-1)
            )
            if slot < 0:
                continue
            state[ENTRIES] -= 1
            state[EVICTED] += 1
        if matches[k] > 0:
            move_bytes(np.uintp(target + slot * row_bytes), np.uintp(source + page_at[start[k]]), row_bytes)
        long_ago = ((look + _LOOKS // 2) % _LOOKS) << _LOOK_AT
        set_codes[slot] = np.int32(codes[k])
        facts[slot] = np.uint16(long_ago | (0 if matches[k] > 0 else ABSENT) | hits)
        state[ENTRIES] += 1


@njit(types.void(FACTS), cache=True, nogil=True)
def halve_hits(facts: UInt16s) -> None:
    for slot in range(len(facts)):
        fact = np.int64(facts[slot])
        facts[slot] = np.uint16(fact - ((fact & MOST_HITS) + 1 >> 1))


@njit(types.void(INT32S, FACTS, BYTES, types.int64, types.int64, types.int64, INT64S), cache=True, nogil=True)
def rehash(
    set_codes: Int32s, facts: UInt16s, rows: UInt8s, row_bytes: int, sets: int, new_sets: int, state: Int64s
) -> None:
    """Put the codes of so many sets into as many as there shall be, where they are; each set keeps those with most hits.

    Sets share out the range of hashes evenly, so codes keep their order: none passes one that is still to move, if the last
    ones go first to a larger number of sets, and the first ones to a smaller.
    """
    base, content = set_codes.ctypes.data, rows.ctypes.data
    codes, known = np.empty(WAYS, dtype=np.int32), np.empty(WAYS, dtype=np.uint16)
    moved = np.empty(WAYS * row_bytes, dtype=np.uint8)
    aside = moved.ctypes.data
    entries = 0
    for turn in range(sets):
        here = turn if new_sets <= sets else sets - 1 - turn
        first = WAYS * here
        move_bytes(np.uintp(aside), np.uintp(content + first * row_bytes), WAYS * row_bytes)
        for way in range(WAYS):
            codes[way], known[way] = set_codes[first + way], facts[first + way]
            set_codes[first + way], facts[first + way] = np.int32(EMPTY), np.uint16(0)
        for way in range(WAYS):
            if codes[way] == EMPTY:
                continue
            if new_sets == 0:
                state[EVICTED] += 1
                continue
            there = home_slot(np.int64(codes[way]), new_sets)
            free = find_code(base + CODE_BYTES * there, EMPTY)
            slot = WAYS * there + free
            if free == WAYS:
                hits = np.int64(known[way]) & MOST_HITS
                slot = _weakest(facts, WAYS * there, hits, 0, 0)
                state[EVICTED] += 1
                if slot < 0:
                    continue
                entries -= 1
            entries += 1
            set_codes[slot], facts[slot] = codes[way], known[way]
            move_bytes(np.uintp(content + slot * row_bytes), np.uintp(aside + way * row_bytes), row_bytes)
    state[ENTRIES] = entries


__all__ = [
    "ABSENT",
    "AHEAD",
    "CODE_BYTES",
    "EMPTY",
    "ENTRIES",
    "EVICTED",
    "FACTS",
    "FACT_BYTES",
    "HIGHEST",
    "LEAST_TO_REPLACE",
    "MOST_HITS",
    "READ_UINT32S",
    "WAYS",
    "admit",
    "find_code",
    "halve_hits",
    "meet",
    "met_often",
    "probe",
    "rehash",
]
