"""One compiled call for rows that have met the hot ones: those that missed wait, the others close up to leave.

The part for those that missed serves `meet` too, which looks for hot rows in the same call (`meeting_kernels.py`).
"""

import numpy as np
from numba import njit, types

from tidemill.join.parts.kernels import COUNTERS, MOST_COUNTED, Int32s, Int64s, mix
from tidemill.join.parts.leaving_kernels import first_at_least, keep_known
from tidemill.join.parts.waiting_kernels import CLOCK, ROWS, STRIPS
from tidemill.master.addresses import fetch, fetch_to_write, move_4, move_8, move_bytes
from tidemill.master.row_kernels import BYTES, INT64S, READ_BYTES, READ_FACTS, READ_INT64S, UInt8s

UNTIL, MISSES, MET_AGAIN, KNOWN, MATCHED, MOST_MATCHES, MATCHES_BYTES = range(7)
"""Places in a result: rows that were looked at, of those the ones that wait, of those the ones met often, and the others.

Of the latter how many have a match, how many one of them has at most, and the bytes of all matches."""
_SOURCE, _WIDTH, _SLOT = range(3)
_AHEAD = 8  # rows
_LOW_HALF = np.uint64(0xFFFFFFFF)
INT32S = types.Array(types.int32, 1, "C")
UINT8S = types.Array(types.uint8, 1, "C")
READ_INT32S = types.Array(types.int32, 1, "C", readonly=True)


@njit(types.int64(INT64S, READ_INT64S, types.int64, types.int64, INT32S, INT64S), cache=True)
def _find_misses(
    matches: Int64s, codes: Int64s, lowest: int, most: int, missing: Int32s, result: Int64s
) -> int:
    """How many rows missed, `most` at most, and which; the result says before which row they ended.

    The index knows that codes before the `lowest` do not exist: such rows have no match. No branch for the others: which
    row is a miss cannot be guessed.
    """
    count = 0
    for i in range(len(matches)):
        if codes[i] < lowest:
            matches[i] = max(matches[i], np.int64(0))
        missing[count] = i
        count += int(matches[i] < 0)
    result[UNTIL] = len(matches)
    if count > most:
        result[UNTIL] = missing[most]
        count = most
    return count


@njit(types.void(READ_INT64S, READ_INT64S, READ_INT32S, INT32S, types.int64), cache=True)
def _find_regions(first_codes: Int64s, codes: Int64s, missing: Int32s, regions: Int32s, count: int) -> None:
    """The region of each miss; none has a code before the first one.

    Codes are often spread evenly: then the first guess is right or next to it, and eleven steps of a search are saved.
    """
    if not count:  # nor need there be a region
        return
    last = np.int64(len(first_codes) - 1)
    lowest = float(first_codes[0])
    per_code = last / max(1.0, float(first_codes[last]) - lowest)
    for k in range(count):
        code = codes[missing[k]]
        guess = min(max((float(code) - lowest) * per_code, 0.0), float(last))
        region = np.int64(guess)
        region -= np.int64(first_codes[region] > code)
        if region < last:
            region += np.int64(first_codes[region + 1] <= code)
        is_found = region >= 0 and first_codes[region] <= code
        if not is_found or (region < last and first_codes[region + 1] <= code):
            at = first_at_least(first_codes, np.int64(0), np.int64(len(first_codes)), code)
            region = np.int64(at if at <= last and first_codes[at] == code else at - 1)
        regions[k] = region


@njit(types.int64(COUNTERS, READ_INT64S, READ_INT32S, types.int64, types.int64), cache=True)
def _count(counters: UInt8s, codes: Int64s, missing: Int32s, count: int, often: int) -> int:
    """How many misses were met more than `often`, this time included; as `count_keys`."""
    width = np.uint64(counters.shape[1])
    base, line = counters.ctypes.data, counters.shape[1]
    places = np.empty((_AHEAD, 2), dtype=np.int64)
    met_again = 0
    for k in range(count + _AHEAD):
        turn = k & (_AHEAD - 1)
        first, second = places[turn, 0], places[turn, 1]
        if k < count:
            h = mix(codes[missing[k]])
            places[turn, 0] = np.int64(((h & _LOW_HALF) * width) >> np.uint64(32))
            places[turn, 1] = np.int64(((h >> np.uint64(32)) * width) >> np.uint64(32))
            fetch(base + places[turn, 0])
            fetch(base + line + places[turn, 1])
        if k < _AHEAD:
            continue
        estimate = min(int(min(counters[0, first], counters[1, second])) + 1, MOST_COUNTED)
        counters[0, first] = max(int(counters[0, first]), estimate)
        counters[1, second] = max(int(counters[1, second]), estimate)
        met_again += estimate > often
    return met_again


@njit(
    types.void(
        READ_FACTS, READ_BYTES, BYTES, INT64S, INT32S, UINT8S, READ_INT32S, INT32S, INT32S, INT64S, INT64S,
        types.int64, types.boolean, READ_INT64S, READ_INT32S, READ_INT32S, types.int64,
    ),
    cache=True,
)  # fmt: skip
def _let_wait(
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
    codes: Int64s,
    missing: Int32s,
    regions: Int32s,
    count: int,
) -> None:
    """Write the misses to free slots, each beside the others of its region."""
    target, blank, stride = arena.ctypes.data, template.ctypes.data, len(template)
    last, unused = (1 << shift) - 1, len(free) - 1 - state[STRIPS]
    for k in range(count):
        if k + _AHEAD < count:  # written to soon
            fetch_to_write(int(target + np.int64(tail[regions[k + _AHEAD]]) * stride))
        i, region = np.int64(missing[k]), np.int64(regions[k])
        slot = np.int64(tail[region])
        if slot & last == 0:  # as `take_slot`, whose call with seven arrays costs as much as all the rest
            strip = np.int64(free[unused])
            unused -= 1
            strip_next[strip] = np.int32((slot - 1) >> shift)
            strip_rows[strip] = np.uint8(last + 1)
            slot = strip << shift
        tail[region] = np.int32(slot + 1)
        place = int(target + slot * stride)
        move_bytes(place, blank, stride)
        for c in range(len(columns)):
            width = columns[c, _WIDTH]
            source, to = columns[c, _SOURCE] + i * width, place + columns[c, _SLOT]
            if width == 8:
                move_8(to, source)
            elif width == 4:
                move_4(to, source)
            else:
                move_bytes(to, source, width)
        if keeps_codes:
            slot_code[slot] = codes[i]
        if region_count[region] == 0:
            since[region] = state[CLOCK]
            state[CLOCK] += 1
        region_count[region] += np.int32(1)
    state[ROWS] += count
    state[STRIPS] = len(free) - 1 - unused


@njit(
    types.int64(
        READ_INT64S, READ_INT32S, types.int64, READ_INT64S, COUNTERS, types.int64, READ_FACTS, READ_BYTES, BYTES,
        INT64S, INT32S, UINT8S, READ_INT32S, INT32S, INT32S, INT64S, INT64S, types.int64, types.boolean,
    ),
    cache=True,
)  # fmt: skip
def let_misses_wait(
    codes: Int64s,
    missing: Int32s,
    count: int,
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
) -> int:
    """How many of the first `count` in `missing` were met often, after all were counted and wait; arguments as of `sift`.

    Three short loops: one that does it all, with counters and slots asked for ahead in turn, was slower by a sixth.
    """
    regions = np.empty(count + 1, dtype=np.int32)
    _find_regions(first_codes, codes, missing, regions, count)
    met_again = _count(counters, codes, missing, count, often)
    _let_wait(
        columns, template, arena, slot_code, strip_next, strip_rows, free, tail, region_count, since, state, shift,
        keeps_codes, codes, missing, regions, count,
    )  # fmt: skip
    return met_again


@njit(
    types.void(
        INT64S, INT64S, INT64S, INT64S, READ_INT64S, READ_INT64S, COUNTERS, types.int64, READ_FACTS, READ_BYTES,
        BYTES, INT64S, INT32S, UINT8S, READ_INT32S, INT32S, INT32S, INT64S, INT64S, types.int64, types.boolean,
        types.int64, INT64S,
    ),
    cache=True, nogil=True,
)  # fmt: skip
def sift(
    at: Int64s,
    matches: Int64s,
    sizes: Int64s,
    known: Int64s,
    codes: Int64s,
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
    result: Int64s,
) -> None:
    """Count misses in the sketch and let them wait as far as there are slots; the others close up.

    Args:
        at: As a probe of hot rows gave it; changed, as are the next two.
        matches: The same; negative for a miss.
        sizes: The same.
        known: Gets the numbers of rows that leave.
        codes: Of the rows.
        first_codes: Of each region of the disk, ascending.
        counters: Of the sketch.
        often: Misses met more than so often are counted.
        columns: Of the stream, all of fixed width and without NULLs: address, width, slot in a row that waits.
        template: A row that waits, without its values.
        arena: This and the next ones are the waiting room's.
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
        result: What came of it.
    """
    missing = np.empty(len(matches) + 1, dtype=np.int32)
    lowest = int(first_codes[0]) if len(first_codes) else 0  # without a region nobody misses
    count = _find_misses(matches, codes, lowest, most, missing, result)
    result[MET_AGAIN] = let_misses_wait(
        codes, missing, count, first_codes, counters, often, columns, template, arena, slot_code, strip_next,
        strip_rows, free, tail, region_count, since, state, shift, keeps_codes,
    )  # fmt: skip
    result[MISSES] = count
    until = result[UNTIL]
    count = keep_known(at[:until], matches[:until], sizes[:until], known)
    result[KNOWN] = count
    for i in range(count):
        result[MATCHED] += matches[i] > 0
        result[MOST_MATCHES] = max(result[MOST_MATCHES], matches[i])
        result[MATCHES_BYTES] += sizes[i]


__all__ = [
    "KNOWN",
    "MATCHED",
    "MATCHES_BYTES",
    "MET_AGAIN",
    "MISSES",
    "MOST_MATCHES",
    "UNTIL",
    "let_misses_wait",
    "sift",
]
