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
from tidemill.join.parts.kept_kernels import ENTRY_BYTES, keep
from tidemill.join.parts.kernels import Int32s, Int64s
from tidemill.join.parts.segment_kernels import (
    are_rising,
    count_waiting,
    first_row,
    index_codes,
    next_met,
    rows_of_code,
    rows_per_code,
)
from tidemill.master.addresses import load_32, move_bytes, store_32
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
    IS_NOTED,
) = range(12)
"""Places in a cursor: which segment of those read, whether it was begun, its rows that are left, the match of the first
that is next; pairs made, bytes that they will take, end of the staging area; rows that finished; bytes of a pair that
is wider than the whole staging area; whether keys that should turn hot asked for more room; whether it was noted for each
row that waits where its match lies."""
PER_MATCH, IF_MATCHED, IF_NOT, COPIES, KEEPS_ROWS, ADMITS, IS_LAST, MASTER_OPEN, MASTER_FIXED = range(9)
"""Places in a rule: pairs for each match, once if there is one, once if there is none; whether matches are copied, hot
rows hold rows, codes may turn hot, no pages follow in which rows could match; and what tells the size of a master row."""
PAIR_BYTES = 8 + 8 + 8
_FLOATS = types.Array(types.float64, 1, "C", readonly=True)


@njit(types.int64(READ_INT64S, types.float64), cache=True, inline="always")
def _least_met(rule: Int64s, waiting_row_bytes: float) -> int:
    """How many must wait for a code before it can turn hot: with fewer, they take no more than an entry and one row."""
    least_bytes = ENTRY_BYTES
    if rule[KEEPS_ROWS] and rule[MASTER_OPEN] < 0:
        least_bytes += size_at(0, rule[MASTER_OPEN], rule[MASTER_FIXED])
    met = 1
    while met * waiting_row_bytes <= least_bytes:
        met += 1
    return met


@njit(
    types.void(
        types.int64, INT64S, READ_INT64S, INT32S, INT32S, types.int64, types.int64, READ_INT64S, types.int64, INT32S,
        READ_INT64S, BYTES, INT64S, INT64S, INT64S, INT64S,
    ),
    cache=True,
)  # fmt: skip
def _leave_with_one(
    top: int,
    state: Int64s,
    shape: Int64s,
    head: Int32s,
    count: Int32s,
    segment: int,
    source: int,
    at: Int64s,
    begin: int,
    found: Int32s,
    rule: Int64s,
    staging: UInt8s,
    cursor: Int64s,
    pair_stream: Int64s,
    pair_master: Int64s,
    pair_cell: Int64s,
) -> None:
    """Let rows leave until one has not one match, as was noted, or there is no room: rows of fixed length, all in pairs."""
    stride, skipped = shape[cells.STRIDE], cells.HEADER_BYTES + shape[cells.CODE_BYTES]
    stream_size = size_at(0, shape[cells.LAST_OPEN], shape[cells.FIXED])
    master_size = size_at(0, rule[MASTER_OPEN], rule[MASTER_FIXED])
    output, target = stream_size + master_size + PAIR_BYTES, staging.ctypes.data
    pair, staged, left, cell = cursor[PAIRS], cursor[STAGED], cursor[ROWS_LEFT], int(head[segment])
    most = min(
        left,
        len(pair_stream) - pair,
        (len(staging) - staged) // (stream_size + master_size),
        (len(staging) - cursor[OUTPUT_BYTES]) // output,
    )
    done = 0
    while done < most and left - done <= len(found):
        row = int(found[left - done - 1])
        if row < 0:
            break
        address = top - cell * stride
        following = load_32(address)
        move_bytes(target + staged, address + skipped, stream_size)
        pair_stream[pair + done], pair_cell[pair + done] = staged, cell
        staged += stream_size
        move_bytes(target + staged, source + at[begin + row], master_size)
        pair_master[pair + done] = staged
        staged += master_size
        release(top, state, stride, cell)
        cell = following
        done += 1
    cursor[PAIRS] += done
    cursor[OUTPUT_BYTES] += done * output
    cursor[STAGED] = staged
    cursor[ROWS_LEFT] -= done
    cursor[MATCHED] += done
    head[segment] = cell
    count[segment] -= done
    state[cells.ROWS] -= done


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
    first_row_of: Int64s,
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

    `segments` are those read, `first_row_of` says with which row of `codes` and `at` each begins, and `pages` has the rows.
    `slots` is room for a hash table of the codes of a segment, a power of two and twice its rows or more, or for notes;
    `met` for a count of each. `worth` has the bytes of a waiting row, and the hits that are as good as one. Pairs get places in the
    staging area, -1 for no match, and the cell of the stream row, minus it where the row had a pair before.
    """
    top, source, target = top_of(memory), pages.ctypes.data, staging.ctypes.data
    stride, least_met = shape[cells.STRIDE], _least_met(rule, worth[0])
    reach_bytes = CACHE_LINE_BYTES
    if rule[MASTER_OPEN] < 0:
        reach_bytes = max(1, rule[MASTER_FIXED]) - 1
    are_equal = shape[cells.LAST_OPEN] < 0 and rule[MASTER_OPEN] < 0
    is_plain = are_equal and rule[PER_MATCH] and rule[COPIES] and rule[IS_LAST]
    while cursor[RUN] < len(segments):
        segment = segments[cursor[RUN]]
        begin, end = first_row_of[cursor[RUN]], first_row_of[cursor[RUN] + 1]
        is_rising = are_rising(codes, begin, end)
        slope = rows_per_code(codes, begin, end)
        if not is_rising and not cursor[WANTS_ROOM]:
            index_codes(codes, begin, end, slots)
        if not cursor[IS_BEGUN]:
            cursor[IS_BEGUN] = 1
            cursor[ROWS_LEFT] = count[segment]
            if rule[ADMITS]:
                if not cursor[WANTS_ROOM]:  # or they were counted before
                    count_waiting(
                        memory, state, shape, int(head[segment]), int(count[segment]), source, reach_bytes, codes, at,
                        begin, end, is_rising, slope, slots, met, least_met,
                    )  # fmt: skip
                    cursor[IS_NOTED] = int(is_rising)
                row = next_met(met, 0, end - begin, least_met)
                while row < end - begin:
                    keep(
                        memory, state, pages, at, begin + row, rows_of_code(codes, begin + row, end),
                        codes[begin + row], rule[MASTER_OPEN], rule[MASTER_FIXED], met[row] * worth[0],
                        met[row] * worth[1], rule[KEEPS_ROWS] != 0,
                    )  # fmt: skip
                    row = next_met(met, row + 1, end - begin, least_met)
                if (
                    state[cells.WANTED_KEYS] and not cursor[WANTS_ROOM]
                ):  # once: the same keys are met again with more room
                    cursor[WANTS_ROOM], cursor[IS_BEGUN] = 1, 0
                    return
        while cursor[ROWS_LEFT]:
            if is_plain and cursor[IS_NOTED] and not cursor[NEXT_MATCH]:
                _leave_with_one(
                    top, state, shape, head, count, segment, source, at, begin, slots, rule, staging, cursor,
                    pair_stream, pair_master, pair_cell,
                )  # fmt: skip
                if not cursor[ROWS_LEFT]:
                    break
            cell = int(head[segment])
            address = top - cell * stride
            first = first_row(codes, begin, end, is_rising, slope, slots, code_of(top, cell, shape))
            matches = rows_of_code(codes, begin + first, end) if first >= 0 else 0
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
        cursor[IS_BEGUN] = cursor[WANTS_ROOM] = cursor[IS_NOTED] = 0


__all__ = [
    "ADMITS",
    "COPIES",
    "IF_MATCHED",
    "IF_NOT",
    "IS_BEGUN",
    "IS_LAST",
    "IS_NOTED",
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
