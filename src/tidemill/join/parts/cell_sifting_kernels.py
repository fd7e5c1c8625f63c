"""One compiled call for rows that have met the hot ones: those that missed wait in cells, the others close up to leave."""

import numpy as np
from numba import njit, types

from tidemill.join.parts.cell_kernels import (
    CELLS,
    CODE_BYTES,
    HEADER_BYTES,
    INT32S,
    QUEUE_BEGIN,
    QUEUE_ROWS,
    ROWS,
    STRIDE,
    USED,
    size_at,
    taken,
    top_of,
)
from tidemill.join.parts.kernels import Bools, Int32s, Int64s
from tidemill.join.parts.leaving_kernels import first_at_least
from tidemill.master.addresses import fetch, fetch_to_write, move_4, move_8, move_bytes, store_32, store_64
from tidemill.master.row_kernels import BYTES, INT64S, READ_BYTES, READ_FACTS, READ_INT64S, UInt8s

UNTIL, MISSES, KNOWN, MATCHED, MOST_MATCHES, MATCHES_BYTES = range(6)
"""Places in a result: rows that were looked at, of those the ones that wait, and the others. Of the latter how many have
a match, how many one of them has at most, and the bytes of all matches if that is one."""
_SOURCE, _WIDTH, _SLOT = range(3)
_AHEAD = 16  # rows
_READ_INT32S = types.Array(types.int32, 1, "C", readonly=True)
_READ_BOOLS = types.Array(types.boolean, 1, "C", readonly=True)


@njit(
    types.int64(
        READ_INT64S, _READ_BOOLS, types.int64, types.int64, READ_INT64S, INT64S, INT32S, INT32S, INT32S
    ),
    cache=True,
)
def _find_misses(
    first_codes: Int64s,
    continues: Bools,
    last_code: int,
    segment_pages: int,
    codes: Int64s,
    matches: Int64s,
    missing: Int32s,
    segments: Int32s,
    needs: Int32s,
) -> int:
    """How many rows missed, which, their segments, and how many pages from its first they need.

    The index knows of some codes that they do not exist; these have no match. No branch for the others at first: which
    row is a miss cannot be guessed.
    """
    count = 0
    for i in range(len(matches)):
        missing[count] = i
        count += int(matches[i] < 0)
    kept, pages = 0, np.int64(len(first_codes))
    for k in range(count):
        row = np.int64(missing[k])
        code = codes[row]
        begin = first_at_least(first_codes, np.int64(0), pages, code)
        end = begin
        while end < pages and first_codes[end] == code:
            end += 1
        if begin and code <= last_code and (begin == end or continues[begin]):
            begin -= 1
        if begin == end:
            matches[row] = 0
            continue
        segment = begin // segment_pages
        missing[kept], segments[kept], needs[kept] = row, segment, end - segment * segment_pages
        kept += 1
    return kept


@njit(
    types.int64(
        BYTES, INT64S, READ_INT64S, INT32S, INT32S, INT32S, INT32S, INT32S, READ_INT64S, READ_FACTS, READ_BYTES,
        _READ_INT32S, _READ_INT32S, _READ_INT32S, types.int64,
    ),
    cache=True,
)  # fmt: skip
def _let_wait(
    memory: UInt8s,
    state: Int64s,
    shape: Int64s,
    head: Int32s,
    tail: Int32s,
    count: Int32s,
    reach: Int32s,
    queue: Int32s,
    codes: Int64s,
    columns: Int64s,
    template: UInt8s,
    missing: Int32s,
    segments: Int32s,
    needs: Int32s,
    misses: int,
) -> int:
    """How many of the misses wait now, each in a cell behind the others of its segment."""
    top, stride, blank = top_of(memory), shape[STRIDE], template.ctypes.data
    misses = min(misses, state[CELLS] - state[USED])
    for k in range(misses):
        if k + _AHEAD < misses:  # behind which another one will stand
            fetch_to_write(top - tail[segments[k + _AHEAD]] * stride)
        cell, i, segment = taken(top, state, stride), np.int64(missing[k]), segments[k]
        address = top - cell * stride
        store_64(address, 0)
        if shape[CODE_BYTES]:
            store_64(address + HEADER_BYTES, codes[i])
        place = int(address + HEADER_BYTES + shape[CODE_BYTES])
        move_bytes(place, blank, len(template))
        for c in range(len(columns)):
            width = columns[c, _WIDTH]
            source, to = columns[c, _SOURCE] + i * width, place + columns[c, _SLOT]
            if width == 8:
                move_8(to, source)
            elif width == 4:
                move_4(to, source)
            else:
                move_bytes(to, source, width)
        if count[segment] == 0:
            head[segment] = cell
            queue[(state[QUEUE_BEGIN] + state[QUEUE_ROWS]) % len(queue)] = segment
            state[QUEUE_ROWS] += 1
        else:
            store_32(top - tail[segment] * stride, cell)
        tail[segment] = cell
        count[segment] += 1
        reach[segment] = max(reach[segment], needs[k])
    state[ROWS] += misses
    return int(misses)


@njit(
    types.void(READ_BYTES, types.int64, types.int64, types.int64, INT64S, INT64S, INT64S, INT64S), cache=True
)
def _close_up(
    memory: UInt8s,
    until: int,
    last_open: int,
    fixed_bytes: int,
    at: Int64s,
    matches: Int64s,
    known: Int64s,
    result: Int64s,
) -> None:
    """Rows that leave, and what their matches are."""
    base, count = memory.ctypes.data, 0
    for i in range(until):
        known[count], at[count], matches[count] = i, at[i], matches[i]
        count += int(matches[i] >= 0)
    result[KNOWN] = count
    matched = most = size = 0
    for i in range(count):
        matched += int(matches[i] > 0)
        most = max(most, matches[i])
    if last_open < 0:
        size = matched * size_at(base, last_open, fixed_bytes)
    else:
        for i in range(count):
            if i + _AHEAD < count:
                fetch(base + at[i + _AHEAD] + last_open)
            if matches[i] > 0:
                size += size_at(base + at[i], last_open, fixed_bytes)
    result[MATCHED], result[MOST_MATCHES], result[MATCHES_BYTES] = matched, most, size


@njit(
    types.void(
        BYTES, INT64S, READ_INT64S, INT32S, INT32S, INT32S, INT32S, INT32S, types.int64, READ_INT64S, _READ_BOOLS,
        types.int64, READ_INT64S, READ_FACTS, READ_BYTES, types.int64, types.int64, INT64S, INT64S, INT64S, INT64S,
    ),
    cache=True,
)  # fmt: skip
def sift(
    memory: UInt8s,
    state: Int64s,
    shape: Int64s,
    head: Int32s,
    tail: Int32s,
    count: Int32s,
    reach: Int32s,
    queue: Int32s,
    segment_pages: int,
    first_codes: Int64s,
    continues: Bools,
    last_code: int,
    codes: Int64s,
    columns: Int64s,
    template: UInt8s,
    last_open: int,
    fixed_bytes: int,
    at: Int64s,
    matches: Int64s,
    known: Int64s,
    result: Int64s,
) -> None:
    """Let rows wait that missed, as far as there are cells; the others close up.

    Args:
        memory: Of hot rows and cells; this and the next seven are those of `push`.
        state: The same.
        shape: The same; each row takes one cell.
        head: The same.
        tail: The same.
        count: The same.
        reach: The same.
        queue: The same.
        segment_pages: Pages of a segment.
        first_codes: Of each page, ascending.
        continues: Whether the page before ends with the code with which a page begins.
        last_code: Of all pages.
        codes: Of the stream rows.
        columns: Of the stream, all of fixed width and without NULLs: address, width, place in a row that waits.
        template: A row that waits, without its values.
        last_open: This and the next tell the size of a hot row.
        fixed_bytes: The same.
        at: As a probe of hot rows gave it; changed, as is the next.
        matches: The same; negative for a miss.
        known: Gets the numbers of rows that leave.
        result: What came of it.
    """
    missing, segments, needs = (
        np.empty(len(matches) + 1, dtype=np.int32),
        np.empty(len(matches) + 1, dtype=np.int32),
        np.empty(len(matches) + 1, dtype=np.int32),
    )
    misses = _find_misses(
        first_codes, continues, last_code, segment_pages, codes, matches, missing, segments, needs
    )
    waiting = _let_wait(
        memory, state, shape, head, tail, count, reach, queue, codes, columns, template, missing, segments, needs, misses
    )  # fmt: skip
    result[UNTIL] = len(matches) if waiting == misses else missing[waiting]
    result[MISSES] = waiting
    _close_up(memory, result[UNTIL], last_open, fixed_bytes, at, matches, known, result)


__all__ = ["KNOWN", "MATCHED", "MATCHES_BYTES", "MISSES", "MOST_MATCHES", "UNTIL", "sift"]
