"""Compiled loops of the row format: columns into rows, rows into columns, rows from place to place.

Every buffer starts at a multiple of eight bytes and every row in it too, so that slots of 2, 4 and 8 bytes are read
through views. Strings have no alignment: they move in overlapping pieces of up to 16 bytes, never beyond their end,
which is three times as fast as a loop over bytes for the lengths that names and addresses have.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

UInt8s = npt.NDArray[np.uint8]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

READ_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
BYTES = types.Array(types.uint8, 1, "C")
READ_INT64S = types.Array(types.int64, 1, "C", readonly=True)
INT64S = types.Array(types.int64, 1, "C")
INT32S = types.Array(types.int32, 1, "C")

BLOCK_ROWS = (
    2048  # of a decode: their rows stay in the second-level cache while column after column is gathered
)


def _mover(size: int) -> Any:
    """An intrinsic that copies exactly `size` bytes between any two addresses."""

    @intrinsic
    def move(_: Any, to: Any, come_from: Any) -> Any:  # noqa: ARG001 - numba tells arguments apart by name
        def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
            pointer = ir.VectorType(ir.IntType(8), size).as_pointer()
            target, source = (builder.inttoptr(argument, pointer) for argument in arguments)
            builder.store(builder.load(source, align=1), target, align=1)
            return context.get_dummy_value()

        return types.void(types.uintp, types.uintp), generate

    return move


_move_16, _move_8, _move_4, _move_2, _move_1 = (_mover(size) for size in (16, 8, 4, 2, 1))


@njit(types.void(types.uintp, types.uintp, types.int64), cache=True, inline="always")
def move_bytes(to: int, come_from: int, size: int) -> None:
    """Copy `size` bytes between two addresses that do not overlap."""
    if size >= 16:
        done = 0
        while done + 16 <= size:
            _move_16(to + np.uintp(done), come_from + np.uintp(done))
            done += 16
        if done < size:
            _move_16(to + np.uintp(size - 16), come_from + np.uintp(size - 16))
    elif size >= 8:
        _move_8(to, come_from)
        _move_8(to + np.uintp(size - 8), come_from + np.uintp(size - 8))
    elif size >= 4:
        _move_4(to, come_from)
        _move_4(to + np.uintp(size - 4), come_from + np.uintp(size - 4))
    elif size >= 2:
        _move_2(to, come_from)
        _move_2(to + np.uintp(size - 2), come_from + np.uintp(size - 2))
    elif size == 1:
        _move_1(to, come_from)


@njit(types.void(BYTES, READ_INT64S, types.int64, types.int64, READ_BYTES), cache=True, nogil=True)
def put_fixed(rows: UInt8s, at: Int64s, offset: int, width: int, values: UInt8s) -> None:
    """Write one value of `width` bytes into each row."""
    count = len(at) - 1
    if width == 8:
        words, sources = rows.view(np.uint64), values.view(np.uint64)
        for i in range(count):
            words[(at[i] + offset) >> 3] = sources[i]
    elif width == 4:
        halves, small = rows.view(np.uint32), values.view(np.uint32)
        for i in range(count):
            halves[(at[i] + offset) >> 2] = small[i]
    else:
        to, come_from = rows.ctypes.data, values.ctypes.data
        for i in range(count):
            move_bytes(np.uintp(to + at[i] + offset), np.uintp(come_from + i * width), width)


@njit(types.void(BYTES, READ_INT64S, INT64S, types.int64, READ_INT64S, READ_BYTES), cache=True, nogil=True)
def put_open(rows: UInt8s, at: Int64s, cursor: Int64s, slot: int, offsets: Int64s, values: UInt8s) -> None:
    """Write values of open length behind what each row has already, and where they end into their slot."""
    ends = rows.view(np.uint32)
    to, come_from = rows.ctypes.data, values.ctypes.data
    for i in range(len(at) - 1):
        size = offsets[i + 1] - offsets[i]
        move_bytes(np.uintp(to + at[i] + cursor[i]), np.uintp(come_from + offsets[i]), size)
        cursor[i] += size
        ends[(at[i] + slot) >> 2] = np.uint32(cursor[i])


@njit(types.void(BYTES, READ_INT64S, types.int64, types.int64, READ_BYTES), cache=True, nogil=True)
def put_validity(rows: UInt8s, at: Int64s, place: int, bit: int, is_valid: UInt8s) -> None:
    """Set one bit in each row whose value is not NULL."""
    for i in range(len(at) - 1):
        rows[at[i] + place] |= np.uint8((is_valid[i] != 0) << bit)


@njit(types.int64(READ_BYTES, READ_INT64S, types.int64, BYTES), cache=True, nogil=True)
def all_valid(rows: UInt8s, at: Int64s, place: int, everywhere: UInt8s) -> int:
    """How many rows are absent (negative); `everywhere` keeps the bits that are set in every other one."""
    absent = 0
    for i in range(len(at)):
        if at[i] < 0:
            absent += 1
        else:
            for k in range(len(everywhere)):
                everywhere[k] &= rows[at[i] + place + k]
    return absent


@njit(
    types.void(READ_BYTES, READ_INT64S, READ_INT64S, READ_INT64S, READ_INT64S, BYTES), cache=True, nogil=True
)
def get_fixed(rows: UInt8s, at: Int64s, offsets: Int64s, widths: Int64s, places: Int64s, out: UInt8s) -> None:
    """Gather columns of fixed width: column c into `out` from `places[c]` on; absent rows give zeros."""
    words, halves = rows.view(np.uint64), rows.view(np.uint32)
    base, target = rows.ctypes.data, out.ctypes.data
    for begin in range(0, len(at), BLOCK_ROWS):
        until = min(len(at), begin + BLOCK_ROWS)
        for c in range(len(offsets)):
            offset, width, place = offsets[c], widths[c], places[c]
            if width == 8:
                column = out[place : place + len(at) * 8].view(np.uint64)
                for i in range(begin, until):
                    column[i] = words[(at[i] + offset) >> 3] if at[i] >= 0 else np.uint64(0)
            elif width == 4:
                narrow = out[place : place + len(at) * 4].view(np.uint32)
                for i in range(begin, until):
                    narrow[i] = halves[(at[i] + offset) >> 2] if at[i] >= 0 else np.uint32(0)
            else:
                for i in range(begin, until):
                    if at[i] >= 0:
                        source = np.uintp(base + at[i] + offset)
                        move_bytes(np.uintp(target + place + i * width), source, width)
                    else:
                        out[place + i * width : place + (i + 1) * width] = 0


@njit(types.int64(READ_BYTES, READ_INT64S, types.int64, types.int64, BYTES), cache=True, nogil=True)
def get_validity(rows: UInt8s, at: Int64s, place: int, bit: int, out: UInt8s) -> int:
    """The number of NULLs; `out` becomes the bitmap as Arrow has it."""
    nulls = 0
    for begin in range(0, len(at), 8):
        bits = 0
        for i in range(begin, min(len(at), begin + 8)):
            if at[i] >= 0 and (rows[at[i] + place] >> bit) & 1:
                bits |= 1 << (i - begin)
            else:
                nulls += 1
        out[begin >> 3] = np.uint8(bits)
    return nulls


@njit(types.void(READ_BYTES, READ_INT64S, types.int64, BYTES), cache=True, nogil=True)
def get_bits(rows: UInt8s, at: Int64s, offset: int, out: UInt8s) -> None:
    """Booleans, a byte each in their row, as the bitmap that Arrow has."""
    for begin in range(0, len(at), 8):
        bits = 0
        for i in range(begin, min(len(at), begin + 8)):
            if at[i] >= 0 and rows[at[i] + offset] != 0:
                bits |= 1 << (i - begin)
        out[begin >> 3] = np.uint8(bits)


@njit(types.int64(READ_BYTES, READ_INT64S, types.int64, types.int64, INT32S), cache=True, nogil=True)
def get_ends(rows: UInt8s, at: Int64s, first: int, slot: int, offsets: Int32s) -> int:
    """Bytes of one column of open length, or -1 when 32 bits cannot count them; `offsets` as Arrow has them.

    A value begins where the one before it ends: `first` is where the first one begins if positive, else minus the
    slot of the column before.
    """
    ends = rows.view(np.uint32)
    total = np.int64(0)
    offsets[0] = 0
    for i in range(len(at)):
        if at[i] >= 0:
            begin = first if first >= 0 else np.int64(ends[(at[i] - first) >> 2])
            total += np.int64(ends[(at[i] + slot) >> 2]) - begin
            if total > np.int64(2**31 - 1):
                return -1
        offsets[i + 1] = np.int32(total)
    return total


@njit(types.void(READ_BYTES, READ_INT64S, types.int64, INT32S, BYTES), cache=True, nogil=True)
def get_open(rows: UInt8s, at: Int64s, first: int, offsets: Int32s, out: UInt8s) -> None:
    """Gather the bytes of one column of open length to the places that `get_ends` gave."""
    ends = rows.view(np.uint32)
    base, target = rows.ctypes.data, out.ctypes.data
    for i in range(len(at)):
        size = offsets[i + 1] - offsets[i]
        if size > 0:
            begin = first if first >= 0 else np.int64(ends[(at[i] - first) >> 2])
            move_bytes(np.uintp(target + offsets[i]), np.uintp(base + at[i] + begin), size)


@njit(types.void(READ_BYTES, READ_INT64S, types.int64, types.int64, INT64S), cache=True, nogil=True)
def row_sizes(rows: UInt8s, at: Int64s, slot: int, fixed_bytes: int, sizes: Int64s) -> None:
    """Bytes of each row, a multiple of eight; 0 of absent ones. `slot` is that of the last value of open length, or -1."""
    ends = rows.view(np.uint32)
    for i in range(len(at)):
        if at[i] < 0:
            sizes[i] = 0
        else:
            end = fixed_bytes if slot < 0 else np.int64(ends[(at[i] + slot) >> 2])
            sizes[i] = (end + 7) & ~np.int64(7)


@njit(types.void(READ_BYTES, READ_INT64S, READ_INT64S, BYTES, READ_INT64S), cache=True, nogil=True)
def copy_rows(rows: UInt8s, at: Int64s, sizes: Int64s, out: UInt8s, to: Int64s) -> None:
    """Copy rows of known sizes to new places in another buffer."""
    base, target = rows.ctypes.data, out.ctypes.data
    for i in range(len(at)):
        move_bytes(np.uintp(target + to[i]), np.uintp(base + at[i]), sizes[i])


__all__ = [
    "all_valid",
    "copy_rows",
    "get_bits",
    "get_ends",
    "get_fixed",
    "get_open",
    "get_validity",
    "move_bytes",
    "put_fixed",
    "put_open",
    "put_validity",
    "row_sizes",
]
