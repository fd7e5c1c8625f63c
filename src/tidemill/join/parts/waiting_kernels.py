"""Compiled loops over rows that wait by region of the disk."""

import numpy as np
import numpy.typing as npt
from numba import njit, types

from tidemill.join.parts.kernels import Int32s, Int64s
from tidemill.master.row_kernels import BYTES, INT64S, READ_BYTES, READ_INT64S, UInt8s, move_bytes

HEADER_BYTES = 8  # before a row of open length: its slot and its size, so that the arena can be walked
FREE, ROWS, END, DEAD_BYTES, CLOCK = range(5)
"""Places in `state`: first free slot, rows that wait, end of the arena, bytes in it of rows gone, age counter."""

_INT32S = types.Array(types.int32, 1, "C")
_READ_INT32S = types.Array(types.int32, 1, "C", readonly=True)


@njit(
    types.void(
        BYTES, INT64S, _INT32S, INT64S, _INT32S, _INT32S, INT64S, INT64S, types.int64,
        READ_INT64S, READ_INT64S, READ_BYTES, READ_INT64S,
    ),
    cache=True, nogil=True,
)  # fmt: skip
def push(
    arena: UInt8s,
    slot_code: Int64s,
    slot_next: Int32s,
    slot_at: Int64s,
    head: Int32s,
    count: Int32s,
    since: Int64s,
    state: Int64s,
    stride: int,
    codes: Int64s,
    regions: Int64s,
    rows: UInt8s,
    at: Int64s,
) -> None:
    """Let rows wait, each in front of the others of its region. `stride` is 0 when rows have open length."""
    target, source = arena.ctypes.data, rows.ctypes.data
    for i in range(len(codes)):
        slot = state[FREE]
        state[FREE] = slot_next[slot]
        size = at[i + 1] - at[i]
        if stride:
            place = slot * stride
        else:
            place = state[END] + HEADER_BYTES
            head_words = arena[state[END] : place].view(np.int32)
            head_words[0], head_words[1] = np.int32(slot), np.int32(size)
            slot_at[slot] = place
            state[END] = place + size
        move_bytes(np.uintp(target + place), np.uintp(source + at[i]), size)
        region = regions[i]
        slot_code[slot] = codes[i]
        slot_next[slot] = head[region]
        head[region] = np.int32(slot)
        if count[region] == 0:
            since[region] = state[CLOCK]
            state[CLOCK] += 1
        count[region] += np.int32(1)
        state[ROWS] += 1


@njit(types.void(_INT32S, _INT32S, _READ_INT32S, READ_INT64S, INT64S), cache=True, nogil=True)
def pop(head: Int32s, count: Int32s, slot_next: Int32s, regions: Int64s, slots: Int64s) -> None:
    """Take all rows of regions off their lists, region after region; their slots stay theirs."""
    filled = 0
    for r in range(len(regions)):
        at = head[regions[r]]
        while at >= 0:
            slots[filled] = at
            filled += 1
            at = slot_next[at]
        head[regions[r]] = np.int32(-1)
        count[regions[r]] = np.int32(0)


@njit(types.void(BYTES, _INT32S, READ_INT64S, INT64S, types.int64, READ_INT64S), cache=True, nogil=True)
def release(
    arena: UInt8s, slot_next: Int32s, slot_at: Int64s, state: Int64s, stride: int, slots: Int64s
) -> None:
    """Give slots back whose rows have left."""
    for i in range(len(slots)):
        slot = slots[i]
        if not stride:
            place = slot_at[slot]
            words = arena[place - HEADER_BYTES : place].view(np.int32)
            state[DEAD_BYTES] += words[1] + HEADER_BYTES
            words[0] = np.int32(-1)
        slot_next[slot] = np.int32(state[FREE])
        state[FREE] = slot
        state[ROWS] -= 1


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


__all__ = ["CLOCK", "DEAD_BYTES", "END", "FREE", "HEADER_BYTES", "ROWS", "close_gaps", "pop", "push", "release"]
