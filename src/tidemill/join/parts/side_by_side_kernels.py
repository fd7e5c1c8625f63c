"""One compiled call for a whole batch of output: a head for Arrow, stream columns, master columns."""

import numpy as np
from numba import njit, types

from tidemill.join.parts.kernels import Int64s
from tidemill.join.parts.row_taker import take_fixed
from tidemill.master.column_kernels import (
    IS_FULL,
    SIZE,
    TARGET,
    VALUES_TARGET,
    get_columns,
    get_presence,
    get_validity,
)
from tidemill.master.lent import columns_of, name_column, put_head
from tidemill.master.row_kernels import (
    BIT,
    BYTES,
    CACHE_LINE_BYTES,
    PLACE,
    READ_BYTES,
    READ_FACTS,
    READ_INT64S,
    UInt8s,
)
from tidemill.master.value_kernels import get_values


@njit(types.int64(types.int64), cache=True, inline="always")
def _whole_lines(size: int) -> int:
    return (size + CACHE_LINE_BYTES - 1) & -CACHE_LINE_BYTES


@njit(
    types.int64(READ_FACTS, BYTES, types.int64, types.int64, READ_BYTES, READ_INT64S, READ_FACTS), cache=True
)
def _put_rows(
    head: Int64s, room: UInt8s, begin: int, first: int, rows: UInt8s, at: Int64s, columns: Int64s
) -> int:
    """Where the columns of rows end that were put behind `begin`; the first of them is column `first` of the batch.

    Behind `begin` itself lies which rows are there, if some are absent.
    """
    base, count = room.ctypes.data, len(columns)
    bits = _whole_lines((len(at) + 7) >> 3)
    found = np.empty((count + 1, 5), dtype=np.int64)
    data = begin + (1 + count) * bits
    absent = get_columns(rows, at, columns, room[data:], found)
    values = data
    for c in range(count):
        values = max(values, data + found[c, TARGET] + _whole_lines(found[c, SIZE]))
    end = values + found[count, VALUES_TARGET]
    assert end <= len(room)
    if end > values:
        get_values(rows, at, columns, found, room[data:], room[values:])
    if absent:
        get_presence(at, room[begin : begin + bits])
    for c in range(count):
        nulls, bitmap = absent, 0
        if not found[c, IS_FULL]:
            place = begin + (1 + c) * bits
            nulls = get_validity(rows, at, columns[c, PLACE], columns[c, BIT], room[place : place + bits])
            bitmap = base + place
        elif absent:
            bitmap = base + begin
        places = base + data + found[c, TARGET], base + values + found[c, VALUES_TARGET]
        name_column(head, base, first + c, nulls, bitmap, places[0], places[1])
    return int(end)


@njit(types.void(READ_FACTS, BYTES, types.int64, types.int64, READ_INT64S), cache=True)
def _put_marks(head: Int64s, room: UInt8s, begin: int, column: int, at: Int64s) -> None:
    """Which rows are there, as the last column of the batch, if it has one more."""
    if column < columns_of(head):
        get_presence(at, room[begin : begin + ((len(at) + 7) >> 3)])
        base = room.ctypes.data
        name_column(head, base, column, 0, 0, base + begin, 0)


@njit(
    types.void(READ_FACTS, READ_FACTS, READ_INT64S, READ_BYTES, READ_INT64S, READ_FACTS, BYTES),
    cache=True,
    nogil=True,
)
def put_beside_batch(
    head: Int64s,
    sources: Int64s,
    numbers: Int64s,
    rows: UInt8s,
    at: Int64s,
    columns: Int64s,
    room: UInt8s,
) -> None:
    """Stream rows by number, out of columns of fixed width without NULLs, beside master rows by place."""
    base = room.ctypes.data
    end = put_head(head, base, len(at))
    lines = np.empty((len(sources), 3), dtype=np.int64)
    for c in range(len(sources)):
        lines[c, 0], lines[c, 1], lines[c, 2] = sources[c, 0], sources[c, 1], base + end
        name_column(head, base, c, 0, 0, base + end, 0)
        end += _whole_lines(sources[c, 1] * len(at))
    assert end <= len(room)
    take_fixed(lines, numbers)
    _put_rows(head, room, end, len(sources), rows, at, columns)
    _put_marks(head, room, end, len(sources) + len(columns), at)


@njit(
    types.void(READ_FACTS, READ_BYTES, READ_INT64S, READ_FACTS, READ_BYTES, READ_INT64S, READ_FACTS, BYTES),
    cache=True,
    nogil=True,
)
def put_beside_rows(
    head: Int64s,
    stream_rows: UInt8s,
    stream_at: Int64s,
    stream_columns: Int64s,
    rows: UInt8s,
    at: Int64s,
    columns: Int64s,
    room: UInt8s,
) -> None:
    """Stream rows by place beside master rows by place."""
    end = put_head(head, room.ctypes.data, len(at))
    end = _put_rows(head, room, end, 0, stream_rows, stream_at, stream_columns)
    begin = _whole_lines(end)
    _put_rows(head, room, begin, len(stream_columns), rows, at, columns)
    _put_marks(head, room, begin, len(stream_columns) + len(columns), at)


__all__ = ["put_beside_batch", "put_beside_rows"]
