"""The compiled loop of a disk round: what waits for a segment meets the rows of that segment.

For each segment: find its codes, count what waits for each, keep rows by the cache inequality, then let the waiting
rows leave in the order in which they came, beside copies of their matches in a staging area, until that is full.
"""

import numpy as np
import numpy.typing as npt
from numba import njit, types

from tidemill.join.parts import cell_kernels as cells
from tidemill.join.parts.cell_kernels import (
    INT32S,
    code_of,
    copy_row,
    is_marked,
    mark,
    release,
    size_at,
    top_of,
)
from tidemill.join.parts.kept_kernels import keep, slot_address
from tidemill.join.parts.kernels import Int32s, Int64s, mix
from tidemill.master.addresses import fetch, load_32, move_bytes, store_32
from tidemill.master.row_kernels import BYTES, CACHE_LINE_BYTES, INT64S, READ_BYTES, READ_INT64S, UInt8s

(
    RUN,
    IS_BEGUN,
    ROWS_LEFT,
    NEXT_MATCH,
    PAIRS,
    OUTPUT_BYTES,
    STAGED,
    MATCHED,
    UNMATCHED,
    TOO_WIDE,
    WANTS_ROOM,
) = range(11)
"""Places in a cursor: which segment of those read, whether it was begun, its rows that are left, the match of the first
that is next; pairs made, bytes that they will take, end of the staging area; rows that finished; bytes of a pair that
is wider than the whole staging area; whether keys that should turn hot asked for more room."""
PER_MATCH, IF_MATCHED, IF_NOT, COPIES, KEEPS_ROWS, ADMITS, IS_LAST, MASTER_OPEN, MASTER_FIXED = range(9)
"""Places in a rule: pairs for each match, once if there is one, once if there is none; whether matches are copied, hot
rows hold rows, codes may turn hot, no pages follow in which rows could match; and what tells the size of a master row."""
PAIR_BYTES = 8 + 8 + 8
_FLOATS = types.Array(types.float64, 1, "C", readonly=True)


@njit(types.void(READ_INT64S, types.int64, types.int64, INT32S, types.int64), cache=True, inline="always")
def _index_codes(codes: Int64s, begin: int, end: int, slots: Int32s, capacity: int) -> None:
    """A hash table of rows with which a code begins; rows of a code are neighbours, in whatever order codes come."""
    slots[:capacity] = 0
    for row in range(begin, end):
        if row > begin and codes[row] == codes[row - 1]:
            continue
        slot = int(mix(codes[row])) & (capacity - 1)
        while slots[slot]:
            slot = (slot + 1) & (capacity - 1)
        slots[slot] = row - begin + 1


@njit(types.int64(READ_INT64S, types.int64, INT32S, types.int64, types.int64), cache=True, inline="always")
def _first_row(codes: Int64s, begin: int, slots: Int32s, capacity: int, code: int) -> int:
    """Row with which a code begins, counted from `begin`, or -1."""
    slot = int(mix(code)) & (capacity - 1)
    while slots[slot] and codes[begin + slots[slot] - 1] != code:
        slot = (slot + 1) & (capacity - 1)
    return int(slots[slot]) - 1


@njit(types.int64(READ_INT64S, types.int64, types.int64), cache=True, inline="always")
def _rows_of_code(codes: Int64s, first: int, end: int) -> int:
    last = first
    while last < end and codes[last] == codes[first]:
        last += 1
    return last - first


@njit(
    types.void(
        types.int64, types.int64, READ_INT64S, types.int64, types.int64, READ_INT64S, READ_INT64S, types.int64,
        types.int64, INT32S, types.int64, INT32S,
    ),
    cache=True,
)  # fmt: skip
def _count_waiting(
    top: int,
    stride: int,
    shape: Int64s,
    cell: int,
    source: int,
    codes: Int64s,
    at: Int64s,
    begin: int,
    end: int,
    slots: Int32s,
    capacity: int,
    met: Int32s,
) -> None:
    """How many rows from a cell on wait for each code; what was read for them is asked for, since it comes from elsewhere."""
    met[: end - begin] = 0
    while cell:
        row = _first_row(codes, begin, slots, capacity, code_of(top, cell, shape))
        if row >= 0:
            if met[row] == 0:
                fetch(source + at[begin + row])
                fetch(source + at[begin + row] + CACHE_LINE_BYTES)
            met[row] += 1
        cell = load_32(top - cell * stride)


@njit(
    types.void(BYTES, READ_INT64S, READ_INT64S, types.int64, types.int64, INT32S, types.float64, types.int64),
    cache=True,
)
def _fetch_slots(
    memory: UInt8s,
    state: Int64s,
    codes: Int64s,
    begin: int,
    end: int,
    met: Int32s,
    waiting_row_bytes: float,
    fixed_bytes: int,
) -> None:
    """Ask for the slots of codes that may turn hot: they lie anywhere."""
    for row in range(end - begin):
        if met[row] * waiting_row_bytes > fixed_bytes:
            fetch(slot_address(memory, state, codes[begin + row]))


@njit(
    types.void(
        BYTES, INT64S, READ_INT64S, INT32S, INT32S, INT32S, INT32S, READ_INT64S, READ_INT64S, READ_BYTES, READ_INT64S,
        READ_INT64S, INT32S, INT32S, READ_INT64S, _FLOATS, BYTES, INT64S, INT64S, INT64S, INT64S,
    ),
    cache=True,
)  # fmt: skip
def serve(
    memory: UInt8s,
    state: Int64s,
    shape: Int64s,
    head: Int32s,
    tail: Int32s,
    count: Int32s,
    reach: Int32s,
    segments: Int64s,
    first_row: Int64s,
    pages: UInt8s,
    codes: Int64s,
    at: Int64s,
    slots: Int32s,
    met: Int32s,
    rule: Int64s,
    worth: npt.NDArray[np.float64],
    staging: UInt8s,
    cursor: Int64s,
    pair_stream: Int64s,
    pair_master: Int64s,
    pair_cell: Int64s,
) -> None:
    """Go on from the cursor until all segments are served or the staging area is full.

    `segments` are those read, `first_row` says with which row of `codes` and `at` each begins, and `pages` has the rows.
    `slots` is room for a hash table of the codes of a segment, a power of two and twice its rows or more, `met` for a
    count of each. `worth` has the bytes of a waiting row, and the hits that are as good as one. Pairs get places in the
    staging area, -1 for no match, and the cell of the stream row, minus it where the row had a pair before.
    """
    top, source, target = top_of(memory), pages.ctypes.data, staging.ctypes.data
    stride, capacity = shape[cells.STRIDE], len(slots)
    while cursor[RUN] < len(segments):
        segment = segments[cursor[RUN]]
        begin, end = first_row[cursor[RUN]], first_row[cursor[RUN] + 1]
        if not cursor[WANTS_ROOM]:
            _index_codes(codes, begin, end, slots, capacity)
        if not cursor[IS_BEGUN]:
            cursor[IS_BEGUN] = 1
            cursor[ROWS_LEFT] = count[segment]
            if rule[ADMITS]:
                if not cursor[WANTS_ROOM]:  # or they were counted before
                    _count_waiting(
                        top,
                        stride,
                        shape,
                        int(head[segment]),
                        source,
                        codes,
                        at,
                        begin,
                        end,
                        slots,
                        capacity,
                        met,
                    )
                    _fetch_slots(memory, state, codes, begin, end, met, worth[0], rule[MASTER_FIXED])
                for row in range(end - begin):
                    if met[row]:
                        keep(
                            memory, state, pages, at, begin + row, _rows_of_code(codes, begin + row, end),
                            codes[begin + row], rule[MASTER_OPEN], rule[MASTER_FIXED], met[row] * worth[0],
                            met[row] * worth[1], rule[KEEPS_ROWS] != 0,
                        )  # fmt: skip
                if (
                    state[cells.WANTED_KEYS] and not cursor[WANTS_ROOM]
                ):  # once: the same keys are met again with more room
                    cursor[WANTS_ROOM], cursor[IS_BEGUN] = 1, 0
                    return
        while cursor[ROWS_LEFT]:
            cell = int(head[segment])
            address = top - cell * stride
            first = _first_row(codes, begin, slots, capacity, code_of(top, cell, shape))
            matches = _rows_of_code(codes, begin + first, end) if first >= 0 else 0
            had_match = matches > 0 or is_marked(address)
            if matches and rule[PER_MATCH]:
                wanted = matches
            elif matches:
                wanted = rule[IF_MATCHED]
            else:
                wanted = rule[IF_NOT] if rule[IS_LAST] and not had_match else 0
            staged = -1
            stream_size = size_at(
                address + cells.HEADER_BYTES + shape[cells.CODE_BYTES],
                shape[cells.LAST_OPEN],
                shape[cells.FIXED],
            )
            while cursor[NEXT_MATCH] < wanted:
                place, size = 0, rule[MASTER_FIXED] * rule[COPIES]
                needed = stream_size if staged < 0 else 0
                if matches and rule[COPIES]:
                    place = at[begin + first + cursor[NEXT_MATCH]]
                    size = size_at(source + place, rule[MASTER_OPEN], rule[MASTER_FIXED])
                    needed += size
                output = size + stream_size + PAIR_BYTES
                if (
                    cursor[PAIRS] == len(pair_stream)
                    or cursor[STAGED] + needed > len(staging)
                    or (cursor[PAIRS] and cursor[OUTPUT_BYTES] + output > len(staging))
                ):
                    cursor[TOO_WIDE] = needed if cursor[PAIRS] == 0 else 0
                    return
                if staged < 0:
                    staged = cursor[STAGED]
                    copy_row(top, cell, target + staged, stream_size, shape)
                    cursor[STAGED] += stream_size
                pair = cursor[PAIRS]
                pair_stream[pair] = staged
                pair_master[pair] = -1
                pair_cell[pair] = cell if cursor[NEXT_MATCH] == 0 else -cell
                if matches:
                    pair_master[pair] = cursor[STAGED]
                    if rule[COPIES]:
                        move_bytes(target + cursor[STAGED], source + place, size)
                        cursor[STAGED] += size
                cursor[PAIRS] += 1
                cursor[OUTPUT_BYTES] += output
                cursor[NEXT_MATCH] += 1
            cursor[NEXT_MATCH] = 0
            cursor[ROWS_LEFT] -= 1
            following = load_32(address)
            if rule[IS_LAST] or (matches and not rule[PER_MATCH]):
                head[segment] = following
                count[segment] -= 1
                state[cells.ROWS] -= 1
                release(top, state, stride, cell)
                cursor[MATCHED if had_match else UNMATCHED] += 1
            else:
                if had_match:
                    mark(address)
                if following:  # to the end of the line: the pages that follow are for all rows once more
                    head[segment] = following
                    store_32(top - tail[segment] * stride, cell)
                    store_32(address, 0)
                    tail[segment] = cell
        if count[segment] == 0:
            head[segment] = tail[segment] = reach[segment] = 0
        cursor[RUN] += 1
        cursor[IS_BEGUN] = cursor[WANTS_ROOM] = 0


__all__ = [
    "ADMITS",
    "COPIES",
    "IF_MATCHED",
    "IF_NOT",
    "IS_BEGUN",
    "IS_LAST",
    "KEEPS_ROWS",
    "MASTER_FIXED",
    "MASTER_OPEN",
    "MATCHED",
    "NEXT_MATCH",
    "OUTPUT_BYTES",
    "PAIRS",
    "PAIR_BYTES",
    "PER_MATCH",
    "ROWS_LEFT",
    "RUN",
    "STAGED",
    "TOO_WIDE",
    "UNMATCHED",
    "WANTS_ROOM",
    "serve",
]
