"""Compiled loops over rows that wait by region of the disk."""

import numpy as np
from numba import njit, types

from tidemill.join.parts.kernels import Int32s, Int64s
from tidemill.master.addresses import fetch
from tidemill.master.row_kernels import BYTES, INT64S, READ_BYTES, READ_INT64S, UInt8s, move_bytes

HEADER_BYTES = 8  # before a row of open length: its slot and its size, so that the arena can be walked
ROWS, END, DEAD_BYTES, CLOCK, STRIPS = range(5)
"""Places in `state`: rows that wait, end of the arena, bytes in it of rows gone, age counter, strips in use."""

_INT32S = types.Array(types.int32, 1, "C")
_READ_INT32S = types.Array(types.int32, 1, "C", readonly=True)
_UINT8S = types.Array(types.uint8, 1, "C")


@njit(
    types.int64(_INT32S, _UINT8S, _READ_INT32S, _INT32S, INT64S, types.int64, types.int64),
    cache=True,
    inline="always",
)
def take_slot(
    strip_next: Int32s, strip_rows: UInt8s, free: Int32s, tail: Int32s, state: Int64s, shift: int, region: int
) -> np.int64:
    """The next slot of a region: in its first strip, or in a free one that becomes the first.

    Free strips are a stack, taken from its end: a list of them would cost a cache miss to follow. A strip that is not the
    first one is full, and counted so from the start.
    """
    slot = np.int64(tail[region])
    if slot & ((1 << shift) - 1) == 0:
        strip = np.int64(free[len(free) - 1 - state[STRIPS]])
        state[STRIPS] += 1
        strip_next[strip] = np.int32((slot - 1) >> shift)
        strip_rows[strip] = np.uint8(1 << shift)
        slot = strip << shift
    tail[region] = np.int32(slot + 1)
    return slot


@njit(
    types.void(
        BYTES, INT64S, _INT32S, _UINT8S, _READ_INT32S, INT64S, _INT32S, _INT32S, INT64S, INT64S, types.int64,
        types.int64, types.boolean, READ_INT64S, READ_INT64S, READ_BYTES, READ_INT64S, INT64S,
    ),
    cache=True, nogil=True,
)  # fmt: skip
def push(
    arena: UInt8s,
    slot_code: Int64s,
    strip_next: Int32s,
    strip_rows: UInt8s,
    free: Int32s,
    slot_at: Int64s,
    tail: Int32s,
    count: Int32s,
    since: Int64s,
    state: Int64s,
    shift: int,
    stride: int,
    keeps_codes: bool,
    codes: Int64s,
    regions: Int64s,
    rows: UInt8s,
    at: Int64s,
    slots: Int64s,
) -> None:
    """Let rows wait, each with the others of its region; `slots` gets where.

    `stride` is 0 when rows have open length; without `keeps_codes` a row holds its code itself.
    """
    target, source = arena.ctypes.data, rows.ctypes.data
    for i in range(len(codes)):
        region, size = regions[i], at[i + 1] - at[i]
        slot = take_slot(strip_next, strip_rows, free, tail, state, shift, region)
        slots[i] = slot
        if stride:
            place = slot * stride
        else:
            place = state[END] + HEADER_BYTES
            head_words = arena[state[END] : place].view(np.int32)
            head_words[0], head_words[1] = np.int32(slot), np.int32(size)
            slot_at[slot] = place
            state[END] = place + size
        move_bytes(np.uintp(target + place), np.uintp(source + at[i]), size)
        if keeps_codes:
            slot_code[slot] = codes[i]
        if count[region] == 0:
            since[region] = state[CLOCK]
            state[CLOCK] += 1
        count[region] += np.int32(1)
        state[ROWS] += 1


@njit(
    types.int64(
        _INT32S, _INT32S, _READ_INT32S, _UINT8S, READ_INT64S, types.int64, types.int64, types.int64,
        READ_INT64S, INT64S, INT64S,
    ),
    cache=True, nogil=True,
)  # fmt: skip
def pop(
    tail: Int32s,
    count: Int32s,
    strip_next: Int32s,
    strip_rows: UInt8s,
    slot_code: Int64s,
    first_code: int,
    code_step: int,
    shift: int,
    regions: Int64s,
    slots: Int64s,
    codes: Int64s,
) -> np.int64:
    """How many rows were taken off the lists of regions, region after region: all, and their slots stay theirs.

    Fewer where the lists hold fewer than were counted: then it would go around for ever. The lists are followed side by
    side, so that the processor waits for several of them at a time.
    """
    lists = len(regions)
    at = np.empty(lists, dtype=np.int64)
    place = np.empty(lists, dtype=np.int64)
    filled = 0
    base = slot_code.ctypes.data
    for r in range(lists):
        end = np.int64(tail[regions[r]])
        at[r] = (end - 1) >> shift
        place[r] = filled
        filled += count[regions[r]]
        tail[regions[r]] = np.int32(0)
        count[regions[r]] = np.int32(0)
        if at[r] >= 0:
            strip_rows[at[r]] = np.uint8(end - (at[r] << shift))
            fetch(base + 8 * ((at[r] << shift) * code_step))
    done = np.int64(0)
    before = np.int64(-1)
    while before < done < filled:
        before = done
        for r in range(lists):
            strip = at[r]
            if strip < 0:
                continue
            at[r] = strip_next[strip]
            if at[r] >= 0:
                fetch(base + 8 * ((at[r] << shift) * code_step))
            first, to = strip << shift, place[r]
            rows = np.int64(strip_rows[strip])
            for k in range(rows):
                slots[to + k] = first + k
                codes[to + k] = slot_code[(first + k) * code_step + first_code]
            place[r] = to + rows
            done += rows
    return done


@njit(
    types.void(BYTES, _UINT8S, _INT32S, INT64S, INT64S, types.int64, types.int64, READ_INT64S),
    cache=True, nogil=True,
)  # fmt: skip
def release(
    arena: UInt8s,
    strip_rows: UInt8s,
    free: Int32s,
    slot_at: Int64s,
    state: Int64s,
    shift: int,
    stride: int,
    slots: Int64s,
) -> None:
    """Give slots back whose rows have left; a strip is free when all of its rows have."""
    for i in range(len(slots)):
        slot = slots[i]
        if not stride:
            place = slot_at[slot]
            words = arena[place - HEADER_BYTES : place].view(np.int32)
            state[DEAD_BYTES] += words[1] + HEADER_BYTES
            words[0] = np.int32(-1)
        strip = slot >> shift
        strip_rows[strip] -= np.uint8(1)
        if strip_rows[strip] == 0:
            state[STRIPS] -= 1
            free[len(free) - 1 - state[STRIPS]] = np.int32(strip)
    state[ROWS] -= len(slots)


@njit(types.void(BYTES, INT64S, INT64S), cache=True, nogil=True)
def close_gaps(arena: UInt8s, slot_at: Int64s, state: Int64s) -> None:
    """Move rows of open length together, so that the space of those gone is at the end of the arena."""
    words = arena.view(np.int64)
    at = to = np.int64(0)
    while at < state[END]:
        header = arena[at : at + HEADER_BYTES].view(np.int32)
        slot, size = header[0], np.int64(header[1]) + HEADER_BYTES
        if slot >= 0:
            if to != at:
                for k in range(size >> 3):
                    words[(to >> 3) + k] = words[(at >> 3) + k]
                slot_at[slot] = to + HEADER_BYTES
            to += size
        at += size
    state[END] = to
    state[DEAD_BYTES] = 0


@njit(types.int64(_READ_INT32S, READ_INT64S, types.int64, types.int64, INT64S), cache=True, nogil=True)
def choose(count: Int32s, since: Int64s, oldest: int, densest: int, chosen: Int64s) -> np.int64:
    """How many regions were chosen: those that wait longest, then of the others those with most rows.

    Each of both is kept in order by insertion: a dozen among thousands, so that most are dismissed by one look.
    """
    old = np.int64(0)
    for region in range(len(count)):
        if count[region] == 0 or (old == oldest and (old == 0 or since[region] >= since[chosen[old - 1]])):
            continue
        at = old if old < oldest else old - 1
        while at > 0 and since[chosen[at - 1]] > since[region]:
            chosen[at] = chosen[at - 1]
            at -= 1
        chosen[at] = region
        old += np.int64(old < oldest)
    dense = np.int64(0)
    for region in range(len(count)):
        if count[region] == 0:
            continue
        if dense == densest and (dense == 0 or count[region] <= count[chosen[old + dense - 1]]):
            continue
        if old > 0 and since[region] <= since[chosen[old - 1]]:
            continue  # among the oldest already
        at = old + dense if dense < densest else old + dense - 1
        while at > old and count[chosen[at - 1]] < count[region]:
            chosen[at] = chosen[at - 1]
            at -= 1
        chosen[at] = region
        dense += np.int64(dense < densest)
    return old + dense


__all__ = [
    "CLOCK",
    "DEAD_BYTES",
    "END",
    "HEADER_BYTES",
    "ROWS",
    "STRIPS",
    "choose",
    "close_gaps",
    "pop",
    "push",
    "release",
    "take_slot",
]
