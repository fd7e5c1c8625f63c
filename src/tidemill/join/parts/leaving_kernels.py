"""Compiled loops that bring rows and their matches together as far as output has room."""

import numpy as np
from numba import njit, types

from tidemill.join.parts.kernels import Int64s
from tidemill.join.parts.row_cache_kernels import row_size
from tidemill.master.row_kernels import BYTES, INT64S, READ_BYTES, READ_INT64S, UInt8s, move_bytes

PAIR_WORK_BYTES = 16
NEXT, NEXT_MATCH, PAIRS, USED_BYTES, STAGED = range(5)
"""Places in a cursor: the row that comes next, which of its matches, pairs made, bytes that they will take,
and where the next match lies (`pair_up`) or the staging area ends (`stage`)."""


@njit(
    types.void(
        types.int64, types.int64, types.int64, READ_BYTES, READ_INT64S, READ_INT64S, READ_INT64S, types.int64,
        types.int64, types.int64, INT64S, INT64S, INT64S,
    ),
    cache=True, nogil=True,
)  # fmt: skip
def pair_up(
    per_match: int,
    if_matched: int,
    if_not: int,
    rows: UInt8s,
    at: Int64s,
    matches: Int64s,
    stream_sizes: Int64s,
    limit_bytes: int,
    last_open: int,
    fixed_bytes: int,
    cursor: Int64s,
    pair_row: Int64s,
    pair_at: Int64s,
) -> None:
    """Pairs of stream row and master row, from the cursor on, until one more would not fit.

    The matches of a row lie side by side from `at`. `per_match`, `if_matched` and `if_not` say how many pairs a
    row gives for each match, once when it has one, once when it has none. Stream rows
    take `stream_sizes` each, or all the same when there is one. The first pair always fits.
    """
    while cursor[NEXT] < len(at):
        i = cursor[NEXT]
        wanted = matches[i] * per_match if matches[i] > 0 else if_not
        if matches[i] > 0 and if_matched:
            wanted = 1
        while cursor[NEXT_MATCH] < wanted:
            place = np.int64(-1)
            stream_bytes = stream_sizes[i] if len(stream_sizes) > 1 else stream_sizes[0]
            size = np.int64(stream_bytes + PAIR_WORK_BYTES + fixed_bytes)
            if matches[i] > 0 and per_match:
                place = cursor[STAGED] if cursor[NEXT_MATCH] > 0 else at[i]
                row_bytes = row_size(rows, place, last_open, fixed_bytes)
                size = stream_bytes + PAIR_WORK_BYTES + row_bytes
            is_first = cursor[PAIRS] == 0
            if cursor[PAIRS] == len(pair_row) or (not is_first and cursor[USED_BYTES] + size > limit_bytes):
                return
            pair_row[cursor[PAIRS]] = i
            pair_at[cursor[PAIRS]] = place
            cursor[PAIRS] += 1
            cursor[USED_BYTES] += size
            cursor[NEXT_MATCH] += 1
            if place >= 0:
                cursor[STAGED] = place + row_bytes
        cursor[NEXT] += 1
        cursor[NEXT_MATCH] = 0


@njit(
    types.void(
        types.int64, types.int64, types.int64, READ_BYTES, READ_INT64S, READ_INT64S, READ_INT64S, READ_INT64S,
        READ_INT64S, types.int64, types.int64, types.int64, BYTES, INT64S, INT64S, INT64S,
    ),
    cache=True, nogil=True,
)  # fmt: skip
def stage(
    per_match: int,
    if_matched: int,
    if_not: int,
    page: UInt8s,
    page_at: Int64s,
    start: Int64s,
    matches: Int64s,
    given: Int64s,
    stream_sizes: Int64s,
    last_open: int,
    fixed_bytes: int,
    limit_bytes: int,
    staging: UInt8s,
    cursor: Int64s,
    pair_row: Int64s,
    pair_at: Int64s,
) -> None:
    """As `pair_up`, for matches in a run of pages; each is copied to the staging area, if there is one.

    `matches` are those in this run; `given` those that a row had before it. The cursor has the end of the staging
    area behind the bytes that the output takes. Without a staging area places are those in the pages.
    """
    base, target = page.ctypes.data, staging.ctypes.data
    while cursor[NEXT] < len(start):
        i = cursor[NEXT]
        wanted = matches[i] * per_match if matches[i] > 0 else np.int64(0)
        if per_match == 0 and matches[i] + given[i] > 0:
            wanted = if_matched
        if matches[i] + given[i] == 0:
            wanted = if_not
        while cursor[NEXT_MATCH] < wanted:
            place, size = np.int64(-1), np.int64(fixed_bytes)
            if per_match and matches[i] > 0:
                row = start[i] + cursor[NEXT_MATCH]
                place = page_at[row]
                if len(staging) == 0 and row + 1 < len(page_at):
                    size = (
                        page_at[row + 1] - place
                    )  # or more, at the end of a page: without a look at the row
                else:
                    size = row_size(page, place, last_open, fixed_bytes)
            stream_bytes = stream_sizes[i] if len(stream_sizes) > 1 else stream_sizes[0]
            need = size + stream_bytes + PAIR_WORK_BYTES
            is_copied = place >= 0 and len(staging) > 0
            if cursor[PAIRS] == len(pair_row) or (is_copied and cursor[STAGED] + size > len(staging)):
                return
            if cursor[USED_BYTES] > 0 and cursor[USED_BYTES] + need > limit_bytes:
                return
            pair_row[cursor[PAIRS]] = i
            pair_at[cursor[PAIRS]] = place
            if is_copied:
                move_bytes(np.uintp(target + cursor[STAGED]), np.uintp(base + place), int(size))
                pair_at[cursor[PAIRS]] = cursor[STAGED]
                cursor[STAGED] += size
            cursor[PAIRS] += 1
            cursor[USED_BYTES] += need
            cursor[NEXT_MATCH] += 1
        cursor[NEXT] += 1
        cursor[NEXT_MATCH] = 0


@njit(types.int64(READ_INT64S, READ_INT64S, READ_INT64S, types.int64, INT64S), cache=True, nogil=True)
def place_singles(page_at: Int64s, start: Int64s, matches: Int64s, first: int, pair_at: Int64s) -> int:
    """How many of the rows from `first` on have a match, where each has one at most; their places, -1 for one without."""
    matched = 0
    for k in range(len(pair_at)):
        has_match = matches[first + k] > 0
        pair_at[k] = page_at[start[first + k]] if has_match else np.int64(-1)
        matched += int(has_match)
    return matched


@njit(types.int64(INT64S, INT64S, INT64S, INT64S), cache=True, nogil=True)
def keep_known(at: Int64s, matches: Int64s, sizes: Int64s, known: Int64s) -> int:
    """How many rows met a hot row or are known to have no match (`matches` of 0 or more): they close up.

    `known` gets their numbers. No branch: which row is a hit cannot be guessed.
    """
    count = 0
    for i in range(len(at)):
        known[count] = i
        at[count], matches[count], sizes[count] = at[i], matches[i], sizes[i]
        count += matches[i] >= 0
    return count


@njit(types.boolean(READ_INT64S, READ_INT64S, READ_INT64S, types.boolean, INT64S), cache=True, nogil=True)
def add_up_ends(
    matches: Int64s, sizes: Int64s, stream_sizes: Int64s, leaves_unmatched: bool, ends: Int64s
) -> bool:
    """Whether no row has more than one match; then `ends` gets the bytes of output up to and with each row.

    Stream rows take `stream_sizes` each, or all the same when there is one.
    """
    end, most = np.int64(0), np.int64(0)
    step = 1 if len(stream_sizes) > 1 else 0
    for i in range(len(matches)):
        most = max(most, matches[i])
        leaves = 1 if leaves_unmatched else matches[i]
        end += (sizes[i] + stream_sizes[i * step] + PAIR_WORK_BYTES) * leaves
        ends[i] = end
    return bool(most <= 1)


@njit(types.int64(READ_INT64S, types.int64, types.int64, types.int64), cache=True, inline="always")
def first_at_least(stored: Int64s, low: np.int64, high: np.int64, code: np.int64) -> np.int64:
    """The first place from low to high, where codes ascend, whose code is not smaller.

    Looks where the code would lie if codes were spread evenly, as hashes and numbered keys are, before it halves.
    """
    for _ in range(2):
        if high - low < 16:
            break
        first, last = np.float64(stored[low]), np.float64(stored[high - 1])
        if not first < np.float64(code) < last:
            break
        guess = low + np.int64((np.float64(code) - first) / (last - first) * np.float64(high - 1 - low))
        guess = min(max(guess, low), high - np.int64(1))
        if stored[guess] < code:
            low = guess + 1
            if low + 8 < high and stored[low + 8] >= code:
                high = low + 9
        else:
            high = guess + 1
            if high - 9 > low and stored[high - 9] < code:
                low = high - 8
    while low < high:
        middle = (low + high) >> 1
        if stored[middle] < code:
            low = middle + 1
        else:
            high = middle
    return low


@njit(types.void(READ_INT64S, READ_INT64S, READ_INT64S, READ_INT64S, INT64S, INT64S), cache=True, nogil=True)
def find(stored: Int64s, begin: Int64s, end: Int64s, codes: Int64s, start: Int64s, matches: Int64s) -> None:
    """Where the rows of each code start between its own `begin` and `end`, where codes ascend, and how many."""
    for i in range(len(codes)):
        low = first_at_least(stored, begin[i], end[i], codes[i])
        start[i] = low
        while low < end[i] and stored[low] == codes[i]:
            low += 1
        matches[i] = low - start[i]


@njit(types.void(READ_INT64S, READ_INT64S, INT64S), cache=True, nogil=True)
def last_not_after(first_codes: Int64s, codes: Int64s, found: Int64s) -> None:
    """The last place whose code is not greater, where codes ascend and differ; -1 when there is none."""
    for i in range(len(codes)):
        at = first_at_least(first_codes, np.int64(0), np.int64(len(first_codes)), codes[i])
        found[i] = at if at < len(first_codes) and first_codes[at] == codes[i] else at - 1


__all__ = [
    "NEXT",
    "NEXT_MATCH",
    "PAIRS",
    "PAIR_WORK_BYTES",
    "STAGED",
    "USED_BYTES",
    "add_up_ends",
    "find",
    "first_at_least",
    "keep_known",
    "last_not_after",
    "pair_up",
    "place_singles",
    "stage",
]
