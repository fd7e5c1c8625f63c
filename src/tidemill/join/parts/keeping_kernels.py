"""Wanted rows of a region found in its pages and kept, while another process may overwrite it."""

import numpy as np
import numpy.typing as npt
from numba import njit, types

from tidemill.join.parts.kernels import Int64s
from tidemill.master.page_kernels import (
    DENSE,
    HEAD_WORDS,
    LOW_HALF,
    SHORT,
    code_in,
    kind_of,
    rows_of,
    used_words_of,
)
from tidemill.master.row_kernels import BYTES, INT64S, READ_INT64S, UInt8s, move_bytes

_READ_WORDS = types.Array(types.uint64, 1, "C", readonly=True)

ROWS, USED_BYTES = range(2)
"""Places in `kept`: master rows kept so far, and their bytes."""
COUNTED_PAGES = 16
"""For so many there is room in a list of first codes at least."""
_BEYOND = np.iinfo(np.int64).max
_NEAR = 2  # rows around a guess that are looked at first

FOUND, FULL, TORN = range(3)
"""What became of a region: its rows are kept, there is no room for them, or it was overwritten meanwhile."""


@njit(types.int64(_READ_WORDS, types.int64, types.int64), cache=True, inline="always")
def _row_start(words: npt.NDArray[np.uint64], head: int, row: int) -> int:
    """Byte of its page at which a row begins."""
    return int(np.int64((words[head + HEAD_WORDS + row // 2] >> np.uint64(32 * (row % 2))) & LOW_HALF))


@njit(
    types.int64(_READ_WORDS, READ_INT64S, types.int64, types.int64, types.boolean, INT64S, INT64S, INT64S),
    cache=True,
    nogil=True,
)
def _look_into(
    words: npt.NDArray[np.uint64],
    begin: Int64s,
    pages: int,
    row_words: int,
    is_short: bool,
    page_code: Int64s,
    page_row: Int64s,
    page_step: Int64s,
) -> int:
    """Rows of a region, or -1 if it is torn.

    Fills in the first code and the number of the first row of each page, and how far apart its rows lie; 0 if it tells
    where each of them starts. Rows of a dense page lie within it for sure.
    """
    rows = 0
    for page in range(pages):
        head, room = begin[page], begin[page + 1] - begin[page]
        told = words[head + 1]
        count, start = rows_of(told), HEAD_WORDS
        if count < 1 or is_short != (kind_of(told) & SHORT != 0):
            return -1
        if kind_of(told) & DENSE:
            end = HEAD_WORDS + count * row_words
            if row_words < 1 or end != used_words_of(told) or end > room:
                return -1
            page_step[page] = row_words
        else:
            if HEAD_WORDS + (count + 1) // 2 >= room:
                return -1
            start = _row_start(words, head, 0) >> 3
            if start >= room:
                return -1
            page_step[page] = 0
        page_code[page], page_row[page] = code_in(words[head + start], is_short), rows
        rows += count
    page_row[pages] = rows
    for page in range(pages, COUNTED_PAGES):
        page_code[page] = _BEYOND
    return rows


@njit(types.int64(READ_INT64S, types.int64, types.int64), cache=True, inline="always")
def _page_of(page_code: Int64s, pages: int, code: int) -> int:
    """The last page that begins before a code, or the first one.

    While pages are few, all are counted that do, and always as many: a loop without a branch that is eight comparisons
    at a time. With the number of pages for its end it took 45 ns longer.
    """
    if pages <= COUNTED_PAGES:
        before = 0
        for page in range(COUNTED_PAGES):
            before += page_code[page] < code
        return max(0, before - 1)
    low, high = 0, pages
    while high - low > COUNTED_PAGES:
        middle = (low + high) >> 1
        if page_code[middle] < code:
            low = middle + 1
        else:
            high = middle
    before = low
    for page in range(low, high):
        before += page_code[page] < code
    return max(0, before - 1)


@njit(
    types.int64(_READ_WORDS, types.int64, types.int64, types.int64, types.boolean, types.int64),
    cache=True, inline="always",
)  # fmt: skip
def _code_of(words: npt.NDArray[np.uint64], head: int, room: int, step: int, is_short: bool, row: int) -> int:
    """The code of a row of a page; of one that lies beyond the page, which is torn, any."""
    if step:
        return code_in(words[head + HEAD_WORDS + row * step], is_short)
    start = _row_start(words, head, row) >> 3
    return code_in(words[head + start], is_short) if start < room else 0


@njit(
    types.int64(_READ_WORDS, types.int64, types.int64, types.int64, types.boolean, types.int64, types.int64),
    cache=True, inline="always",
)  # fmt: skip
def _first_at_least(
    words: npt.NDArray[np.uint64], head: int, room: int, step: int, is_short: bool, rows: int, code: int
) -> int:
    """The first row of a page whose code is not smaller.

    Looks where the code would lie if codes were spread evenly, as hashes and numbered keys are, before it halves: the branch
    behind each look is guessed wrong every other time, and where the page tells starts, it takes two loads.
    """
    low, high = 0, rows
    if high > 2 * _NEAR:
        first = np.float64(_code_of(words, head, room, step, is_short, 0))
        last = np.float64(_code_of(words, head, room, step, is_short, high - 1))
        if first < np.float64(code) < last:
            guess = int((np.float64(code) - first) / (last - first) * np.float64(high - 1) + 0.5)
            guess = min(max(guess, 0), high - 1)
            # Numbered keys lie just there: a branch that is never guessed wrong.
            if _code_of(words, head, room, step, is_short, guess) == code and (
                guess == 0 or _code_of(words, head, room, step, is_short, guess - 1) < code
            ):
                return guess
            if _code_of(words, head, room, step, is_short, guess) < code:
                low = guess + 1
                if low + _NEAR < high and _code_of(words, head, room, step, is_short, low + _NEAR) >= code:
                    high = low + _NEAR + 1
            else:
                high = guess + 1
                if guess > _NEAR and _code_of(words, head, room, step, is_short, guess - _NEAR) < code:
                    low = guess - _NEAR + 1
    while low < high:
        middle = (low + high) >> 1
        if _code_of(words, head, room, step, is_short, middle) < code:
            low = middle + 1
        else:
            high = middle
    return low


@njit(
    types.float64(_READ_WORDS, types.int64, types.int64, types.boolean, types.int64),
    cache=True,
    inline="always",
)
def _rows_a_code(words: npt.NDArray[np.uint64], head: int, step: int, is_short: bool, rows: int) -> float:
    """How many rows of a dense page a code is further on, if codes are spread evenly; 0 for other pages."""
    if step == 0 or rows < 2:
        return 0.0
    first = code_in(words[head + HEAD_WORDS], is_short)
    last = code_in(words[head + HEAD_WORDS + (rows - 1) * step], is_short)
    return np.float64(rows - 1) / np.float64(last - first) if last > first else 0.0


@njit(
    types.int64(
        _READ_WORDS, READ_INT64S, types.int64, types.int64, types.int64, READ_INT64S, BYTES, INT64S, INT64S, INT64S,
        INT64S, INT64S, INT64S, INT64S, INT64S,
    ),
    cache=True, nogil=True,
)  # fmt: skip
def keep_rows(
    words: npt.NDArray[np.uint64],
    begin: Int64s,
    pages: int,
    last_open: int,
    fixed_bytes: int,
    codes: Int64s,
    rows: UInt8s,
    rows_at: Int64s,
    kept: Int64s,
    start: Int64s,
    matches: Int64s,
    page_code: Int64s,
    page_row: Int64s,
    page_step: Int64s,
    mark: Int64s,
) -> int:
    """What became of a region; rows of a code lie side by side, once.

    The region may be overwritten at any moment: whatever is found in it is believed only within its bounds, and the caller
    finds out afterwards.

    Args:
        words: The region.
        begin: Word with which each page begins, and the end.
        pages: How many there are.
        last_open: Of the layout of master rows.
        fixed_bytes: Of the same.
        codes: That wait for the region.
        rows: Gets the master rows that are kept.
        rows_at: Gets the place of each.
        kept: How many there are, and their bytes; moved on.
        start: Gets for each waiting code which of the kept rows is its first.
        matches: Gets how many it has.
        page_code: Room for a number of each page, and for `COUNTED_PAGES` at least.
        page_row: Room for a number of each page and one more.
        page_step: Room for a number of each page.
        mark: Room for a number of each row, none greater than that of the rows kept so far.
    """
    row_words = (fixed_bytes + 7) >> 3 if last_open < 0 else 0
    # Of all pages of a store: where codes become longer, all rows are written anew.
    is_short = kind_of(words[begin[0] + 1]) & SHORT != 0
    all_rows = _look_into(words, begin, pages, row_words, is_short, page_code, page_row, page_step)
    if all_rows < 0 or all_rows > len(mark):
        return TORN
    kept_before = kept[ROWS]
    source, target = words.ctypes.data, rows.ctypes.data
    halves = words.view(np.uint32)
    rows_a_code = np.empty(pages, dtype=np.float64)
    for page in range(pages):
        rows_a_code[page] = _rows_a_code(
            words, begin[page], page_step[page], is_short, page_row[page + 1] - page_row[page]
        )
    row_bytes = 8 * row_words
    for i in range(len(codes)):
        code = codes[i]
        page = _page_of(page_code, pages, code)
        head, room = begin[page], begin[page + 1] - begin[page]
        page_rows = page_row[page + 1] - page_row[page]
        expected = np.float64(code - page_code[page]) * rows_a_code[page]
        if 0.5 < expected < np.float64(page_rows) - 1.5:
            # Numbered keys of equally long rows lie just there, alone: most codes of most stores are found here.
            guess = int(expected + 0.5)
            word = head + HEAD_WORDS + guess * row_words
            is_found = code_in(words[word], is_short) == code
            is_alone = (code_in(words[word - row_words], is_short) != code) & (
                code_in(words[word + row_words], is_short) != code
            )
            number = page_row[page] + guess
            if is_found & is_alone:
                matches[i] = 1
                if mark[number] > kept_before:
                    start[i] = mark[number] - 1
                    continue
                if kept[ROWS] == len(rows_at) or kept[USED_BYTES] + row_bytes > len(rows):
                    return FULL
                start[i] = kept[ROWS]
                rows_at[kept[ROWS]] = kept[USED_BYTES]
                move_bytes(np.uintp(target + kept[USED_BYTES]), np.uintp(source + 8 * word), row_bytes)
                kept[ROWS] += 1
                kept[USED_BYTES] += row_bytes
                mark[number] = kept[ROWS]
                continue
        # Once for each kind, so that each is compiled for it.
        if page_step[page] and is_short:
            row = _first_at_least(words, head, room, page_step[page], True, page_rows, code)
        elif page_step[page]:
            row = _first_at_least(words, head, room, page_step[page], False, page_rows, code)
        else:
            row = _first_at_least(words, head, room, 0, is_short, page_rows, code)
        start[i], matches[i] = kept[ROWS], 0
        is_new = True
        while page < pages:
            if row >= page_row[page + 1] - page_row[page]:
                page, row = page + 1, 0
                continue
            head, room_bytes = begin[page], 8 * (begin[page + 1] - begin[page])
            if page_step[page]:
                at = 8 * (HEAD_WORDS + row * page_step[page])
            else:
                at = _row_start(words, head, row)
                if at + max(fixed_bytes, 8) > room_bytes:
                    return TORN
            if code_in(words[head + (at >> 3)], is_short) != code:
                break
            number = page_row[page] + row
            if matches[i] == 0 and mark[number] > kept_before:
                is_new = False
                start[i] = mark[number] - 1
            if is_new:
                end = fixed_bytes if last_open < 0 else np.int64(halves[(8 * head + at + last_open) >> 2])
                size = (end + 7) & ~7
                if at + size > room_bytes:
                    return TORN
                if kept[ROWS] == len(rows_at) or kept[USED_BYTES] + size > len(rows):
                    return FULL
                rows_at[kept[ROWS]] = kept[USED_BYTES]
                move_bytes(np.uintp(target + kept[USED_BYTES]), np.uintp(source + 8 * head + at), int(size))
                kept[ROWS] += 1
                kept[USED_BYTES] += size
                mark[number] = kept[ROWS]
            matches[i] += 1
            row += 1
    return FOUND


__all__ = ["COUNTED_PAGES", "FOUND", "FULL", "ROWS", "TORN", "USED_BYTES", "keep_rows"]
