"""Regions taken one after the other in one compiled call, of which only the rows that are waited for are kept."""

import numpy as np
import numpy.typing as npt
from numba import njit, types

from tidemill.join.parts.keeping_kernels import COUNTED_PAGES, FOUND, ROWS, USED_BYTES, keep_rows
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
from tidemill.master.row_kernels import BYTES, INT64S, READ_INT64S, UInt8s

_PLAN = types.Array(types.int64, 2, "C")
_WORDS = types.Array(types.uint64, 1, "C")
_READ_WORDS = types.Array(types.uint64, 1, "C", readonly=True)
_READ_UINT32S = types.Array(types.uint32, 1, "C", readonly=True)
_READ_UINT16S = types.Array(types.uint16, 1, "C", readonly=True)
_FLAGS = types.Array(types.uint8, 2, "C")
_BOOLS = types.Array(types.boolean, 1, "C")


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
        scratch: Room for three numbers for each page, one for each row and 33 more.
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
    scratch = scratch[16:]
    page_code, scratch = scratch[: COUNTED_PAGES + most_pages], scratch[COUNTED_PAGES + most_pages :]
    page_step, page_row = scratch[:most_pages], scratch[most_pages : 2 * most_pages + 1]
    mark = scratch[2 * most_pages + 1 :]
    # Once: a region knows by the size of a number that it is of one before it.
    mark[:] = 0
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
                    start[low:high], matches[low:high], page_code, page_row, page_step, mark,
                )  # fmt: skip
                was_overwritten = entry and load_shared(tickets.ctypes.data + 8 * slot) != entry // len(
                    tickets
                )
                if was_overwritten or became != FOUND:
                    kept[ROWS], kept[USED_BYTES] = kept_rows, kept_bytes
                    mark[:] = 0
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


__all__ = ["pick"]
