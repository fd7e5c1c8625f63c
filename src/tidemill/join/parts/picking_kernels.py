"""Regions taken one after the other in one compiled call, of which only the rows that are waited for are kept."""

import numpy as np
import numpy.typing as npt
from numba import njit, types

from tidemill.join.parts.kernels import Int64s
from tidemill.master.addresses import load_shared, store_shared
from tidemill.master.board_kernels import (
    NUMBER,
    POLL_US,
    is_as_written,
    is_claimed,
    neighbours,
    now_ns,
    posted_slot,
    read_run,
    sleep_us,
    wait_for_others,
)
from tidemill.master.page_kernels import HEAD_WORDS, LOW_HALF
from tidemill.master.row_kernels import BYTES, INT64S, READ_INT64S, UInt8s, move_bytes

_PLAN = types.Array(types.int64, 2, "C")
_WORDS = types.Array(types.uint64, 1, "C")
_READ_WORDS = types.Array(types.uint64, 1, "C", readonly=True)
_READ_UINT32S = types.Array(types.uint32, 1, "C", readonly=True)
_READ_UINT16S = types.Array(types.uint16, 1, "C", readonly=True)
_FLAGS = types.Array(types.uint8, 2, "C")
_BOOLS = types.Array(types.boolean, 1, "C")

ROWS, USED_BYTES = range(2)
"""Places in `kept`: master rows kept so far, and their bytes."""
_COUNTED_PAGES = 16
_NEAR = 2  # rows around a guess that are looked at first

FOUND, FULL, TORN = range(3)
"""What became of a region: its rows are kept, there is no room for them, or it was overwritten meanwhile."""


@njit(types.int64(_READ_WORDS, types.int64, types.int64), cache=True, inline="always")
def _row_start(words: npt.NDArray[np.uint64], head: int, row: int) -> int:
    """Byte of its page at which a row begins."""
    return int((words[head + HEAD_WORDS + row // 2] >> np.uint64(32 * (row % 2))) & LOW_HALF)


@njit(types.int64(_READ_WORDS, READ_INT64S, types.int64, INT64S, INT64S), cache=True, nogil=True)
def _look_into(
    words: npt.NDArray[np.uint64], begin: Int64s, pages: int, page_code: Int64s, page_row: Int64s
) -> int:
    """Rows of a region, or -1 if it is torn; fills in the first code and the number of the first row of each page."""
    rows = 0
    for page in range(pages):
        head, room = begin[page], begin[page + 1] - begin[page]
        count = int(words[head + 1] & LOW_HALF)
        if count < 1 or HEAD_WORDS + (count + 1) // 2 >= room:
            return -1
        start = _row_start(words, head, 0) >> 3
        if start >= room:
            return -1
        page_code[page], page_row[page] = np.int64(words[head + start]), rows
        rows += count
    page_row[pages] = rows
    return rows


@njit(types.int64(READ_INT64S, types.int64, types.int64), cache=True, inline="always")
def _page_of(page_code: Int64s, pages: int, code: int) -> int:
    """The last page that begins before a code, or the first one. Counted without a branch while pages are few."""
    low, high = 0, pages
    while high - low > _COUNTED_PAGES:
        middle = (low + high) >> 1
        if page_code[middle] < code:
            low = middle + 1
        else:
            high = middle
    before = low
    for page in range(low, high):
        before += page_code[page] < code
    return max(0, before - 1)


@njit(types.int64(_READ_WORDS, types.int64, types.int64, types.int64), cache=True, inline="always")
def _code_of(words: npt.NDArray[np.uint64], head: int, room: int, row: int) -> int:
    """The code of a row of a page; of one that lies beyond the page, which is torn, any."""
    start = _row_start(words, head, row) >> 3
    return int(np.int64(words[head + start])) if start < room else 0


@njit(types.int64(_READ_WORDS, types.int64, types.int64, types.int64, types.int64), cache=True, nogil=True)
def _first_at_least(words: npt.NDArray[np.uint64], head: int, room: int, rows: int, code: int) -> int:
    """The first row of a page whose code is not smaller.

    Looks where the code would lie if codes were spread evenly, as hashes and numbered keys are, before it halves: each look
    takes two loads, and the branch behind it is guessed wrong every other time.
    """
    low, high = 0, rows
    if high > 2 * _NEAR:
        first = np.float64(_code_of(words, head, room, 0))
        last = np.float64(_code_of(words, head, room, high - 1))
        if first < np.float64(code) < last:
            guess = int((np.float64(code) - first) / (last - first) * np.float64(high - 1) + 0.5)
            guess = min(max(guess, 0), high - 1)
            # Numbered keys lie just there: a branch that is never guessed wrong.
            if _code_of(words, head, room, guess) == code and (
                guess == 0 or _code_of(words, head, room, guess - 1) < code
            ):
                return guess
            if _code_of(words, head, room, guess) < code:
                low = guess + 1
                if low + _NEAR < high and _code_of(words, head, room, low + _NEAR) >= code:
                    high = low + _NEAR + 1
            else:
                high = guess + 1
                if guess > _NEAR and _code_of(words, head, room, guess - _NEAR) < code:
                    low = guess - _NEAR + 1
    while low < high:
        middle = (low + high) >> 1
        if _code_of(words, head, room, middle) < code:
            low = middle + 1
        else:
            high = middle
    return low


@njit(
    types.int64(
        _READ_WORDS, READ_INT64S, types.int64, types.int64, types.int64, READ_INT64S, BYTES, INT64S, INT64S, INT64S,
        INT64S, INT64S, INT64S, INT64S,
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
        page_code: Room for a number of each page.
        page_row: Room for a number of each page and one more.
        mark: Room for a number of each row.
    """
    all_rows = _look_into(words, begin, pages, page_code, page_row)
    if all_rows < 0 or all_rows > len(mark):
        return TORN
    mark[:all_rows] = 0
    source, target = words.ctypes.data, rows.ctypes.data
    halves = words.view(np.uint32)
    for i in range(len(codes)):
        code = codes[i]
        page = _page_of(page_code, pages, code)
        row = _first_at_least(
            words, begin[page], begin[page + 1] - begin[page], page_row[page + 1] - page_row[page], code
        )
        start[i], matches[i] = kept[ROWS], 0
        is_new = True
        while page < pages:
            if row >= page_row[page + 1] - page_row[page]:
                page, row = page + 1, 0
                continue
            head, room_bytes = begin[page], 8 * (begin[page + 1] - begin[page])
            at = _row_start(words, head, row)
            if at + max(fixed_bytes, 8) > room_bytes:
                return TORN
            if np.int64(words[head + (at >> 3)]) != code:
                break
            number = page_row[page] + row
            if matches[i] == 0 and mark[number] > 0:
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


@njit(
    types.int64(
        _PLAN, READ_INT64S, READ_INT64S, _READ_UINT32S, _READ_UINT16S, _READ_WORDS,
        INT64S, INT64S, INT64S, _WORDS, types.int64, types.int64, types.int64, INT64S,
        INT64S, _FLAGS, INT64S, INT64S, types.int64,
        INT64S, types.int64, types.int64, READ_INT64S, READ_INT64S, BYTES, INT64S, INT64S, INT64S, INT64S, _BOOLS,
    ),
    cache=True, nogil=True,
)  # fmt: skip
def pick(
    plan: Int64s,
    edges: Int64s,
    begin: Int64s,
    block: npt.NDArray[np.uint32],
    file: npt.NDArray[np.uint16],
    salts: npt.NDArray[np.uint64],
    posted: Int64s,
    claimed: Int64s,
    tickets: Int64s,
    content: npt.NDArray[np.uint64],
    slot_words: int,
    first_slot: int,
    slots: int,
    turn: Int64s,
    held: Int64s,
    wanted: UInt8s,
    beats: Int64s,
    places: Int64s,
    seat: int,
    scratch: Int64s,
    last_open: int,
    fixed_bytes: int,
    first_code: Int64s,
    codes: Int64s,
    rows: UInt8s,
    rows_at: Int64s,
    kept: Int64s,
    start: Int64s,
    matches: Int64s,
    is_done: npt.NDArray[np.bool_],
) -> int:
    """-1 when all regions are done; else the one that cannot be read, fails its checksum or finds no room.

    Regions that another process has posted are taken first, those that one is reading last.

    Args:
        plan: A line for each region, as in `board_kernels`.
        edges: First page of each region, and the end.
        begin: Word with which each page would begin if all lay in one buffer, and the end.
        block: Of each page in its file.
        file: Of each page.
        salts: Of the files.
        posted: Of the board, or empty for one who reads alone.
        claimed: Of the board.
        tickets: Of the board.
        content: All slots, one after the other.
        slot_words: Of a slot.
        first_slot: That this call may write to.
        slots: How many it may write to.
        turn: How many have been written; moved on.
        held: Of the board.
        wanted: Of the board.
        beats: Of the board.
        places: Of the board.
        seat: Of this process.
        scratch: Room for two numbers and as many for each page, a number for each row and 16 more.
        last_open: Of the layout of master rows.
        fixed_bytes: Of the same.
        first_code: First of the waiting codes of each region, and their number.
        codes: That wait, region after region.
        rows: Gets the master rows that are kept.
        rows_at: Gets the place of each.
        kept: Gets how many there are, and their bytes.
        start: Gets for each waiting code which of the kept rows is its first.
        matches: Gets how many it has.
        is_done: Gets which regions are done.
    """
    is_shared = len(posted) > 0
    most_pages = 0
    for i in range(len(plan)):
        most_pages = max(most_pages, edges[i + 1] - edges[i])
    clock, vector = scratch[:2], scratch[2:16]
    page_code, page_row = scratch[16 : 16 + most_pages], scratch[16 + most_pages : 17 + 2 * most_pages]
    mark = scratch[17 + 2 * most_pages :]
    left = len(plan)
    while left:
        left_before = left
        i = 0
        while i < len(plan):
            if is_done[i]:
                i += 1
                continue
            entry = 0
            if is_shared:
                store_shared(places.ctypes.data + 8 * seat, plan[i, NUMBER])
                store_shared(beats.ctypes.data + 8 * seat, now_ns(clock))
                entry = posted_slot(posted, tickets, plan[i, NUMBER])
            count, slot = 1, 0
            if entry:
                slot = entry % len(tickets)
            elif is_shared and is_claimed(claimed, clock, plan[i, NUMBER]):
                i += 1
                continue
            else:
                unused = slots - turn[0] % slots
                count = neighbours(plan, i, unused, posted, claimed, tickets, clock, is_done)
                slot = first_slot + turn[0] % slots
                if is_shared:
                    wait_for_others(slot, count, slots, held, wanted, beats, places, seat, clock)
                    for k in range(count):
                        store_shared(tickets.ctypes.data + 8 * (slot + k), 0)
                        held[slot + k] = plan[i + k, NUMBER]
                if not read_run(
                    plan, i, count, content.ctypes.data + 8 * slot * slot_words, 8 * slot_words, vector
                ):
                    return i
            for k in range(i, i + count):
                first, end = edges[k], edges[k + 1]
                here = begin[first : end + 1] - begin[first]
                words = content[slot * slot_words : slot * slot_words + here[end - first]]
                if not entry:
                    if not is_as_written(words, here, block[first:end], file[first:end], salts):
                        return k
                    turn[0] += 1
                    if is_shared:
                        store_shared(tickets.ctypes.data + 8 * slot, turn[0])
                        store_shared(posted.ctypes.data + 8 * plan[k, NUMBER], turn[0] * len(tickets) + slot)
                        store_shared(claimed.ctypes.data + 8 * plan[k, NUMBER], 0)
                kept_rows, kept_bytes = kept[ROWS], kept[USED_BYTES]
                low, high = first_code[k], first_code[k + 1]
                became = keep_rows(
                    words, here, end - first, last_open, fixed_bytes, codes[low:high], rows, rows_at, kept,
                    start[low:high], matches[low:high], page_code, page_row, mark,
                )  # fmt: skip
                was_overwritten = entry and load_shared(tickets.ctypes.data + 8 * slot) != entry // len(
                    tickets
                )
                if was_overwritten or became != FOUND:
                    kept[ROWS], kept[USED_BYTES] = kept_rows, kept_bytes
                    if not was_overwritten:
                        return k
                else:
                    is_done[k] = True
                    left -= 1
                    if is_shared:
                        wanted[seat, plan[k, NUMBER]] = 0
                slot += 1
            i += count
        if left == left_before:
            sleep_us(np.uint32(POLL_US))
    return -1


__all__ = ["FOUND", "FULL", "ROWS", "TORN", "USED_BYTES", "keep_rows", "pick"]
