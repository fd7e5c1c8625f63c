"""Stretches of pages from the board or from disk, verified and posted, in one compiled call without the interpreter."""

import numpy as np
import numpy.typing as npt
from numba import njit, types

from tidemill.master.addresses import move_bytes
from tidemill.master.page_kernels import Int64s, UInt16s, UInt32s, UInt64s, open_pages
from tidemill.master.read_kernels import NOT_READ, pread

_READ_INT64S = types.Array(types.int64, 1, "C", readonly=True)
_INT64S = types.Array(types.int64, 1, "C")
_PLAN = types.Array(types.int64, 2, "C")
_SLOTS = types.Array(types.int64, 2, "C")
_CONTENT = types.Array(types.uint8, 2, "C")
_WORDS = types.Array(types.uint64, 1, "C")
_READ_WORDS = types.Array(types.uint64, 1, "C", readonly=True)
_READ_UINT32S = types.Array(types.uint32, 1, "C", readonly=True)
_READ_UINT16S = types.Array(types.uint16, 1, "C", readonly=True)

HANDLE, OFFSET, PLACE, BYTES, NUMBER, FROM_SLOT, FROM_TICKET, TO_SLOT, TO_TICKET, WAS_READ = range(10)
"""Of a stretch: file and offset, place in the buffer, bytes; its number on the board, the slot to copy it from with the
ticket that it had (-1: none), the slot and ticket under which it is posted if it is read, and whether it was."""
TICKET, OWNER, SLOT_NUMBER, SIZE = range(4)


@njit(types.int64(_PLAN, types.int64, types.int64), cache=True, inline="always")
def _read(plan: Int64s, i: int, target: int) -> int:
    """Bytes read of a stretch: all of them, or something went wrong."""
    done = 0
    while done < plan[i, BYTES]:
        place, left = np.uintp(target + plan[i, PLACE] + done), np.uintp(plan[i, BYTES] - done)
        count = pread(np.int32(plan[i, HANDLE]), place, left, plan[i, OFFSET] + done)
        if count <= 0:
            break
        done += count
    plan[i, WAS_READ] = 1
    return done


@njit(
    types.int64(
        _PLAN, _SLOTS, _CONTENT, types.int64, _WORDS, _READ_INT64S, _READ_UINT32S, _READ_UINT16S, _READ_WORDS, _INT64S,
        _INT64S, _INT64S,
    ),
    cache=True, nogil=True,
)  # fmt: skip
def copy_or_read(
    plan: Int64s,
    slots: Int64s,
    content: npt.NDArray[np.uint8],
    owner: int,
    words: UInt64s,
    begin: Int64s,
    block: UInt32s,
    file: UInt16s,
    salts: UInt64s,
    first_row: Int64s,
    codes: Int64s,
    at: Int64s,
) -> int:
    """What `open_pages` answers, after stretches were copied from the board or else read; or `NOT_READ`.

    A copy that was overwritten meanwhile is found by its ticket or its checksums, and read from disk.

    Args:
        plan: A line for each stretch.
        slots: Of the board: ticket, owner, number and size of each.
        content: Of the board's slots.
        owner: This process.
        words: The buffer.
        begin: From here on as in `open_pages`.
        block: …
        file: …
        salts: …
        first_row: …
        codes: …
        at: …
    """
    target = words.ctypes.data
    board, slot_bytes = content.ctypes.data, content.shape[1]
    for i in range(len(plan)):
        slot = plan[i, FROM_SLOT]
        if slot >= 0:
            move_bytes(target + plan[i, PLACE], board + slot * slot_bytes, plan[i, BYTES])
            if slots[slot, TICKET] == plan[i, FROM_TICKET] and slots[slot, SLOT_NUMBER] == plan[i, NUMBER]:
                continue
        if _read(plan, i, target) < plan[i, BYTES]:
            return NOT_READ
    bad = open_pages(words, begin, block, file, salts, first_row, codes, at)
    if bad >= 0:
        for i in range(len(plan)):
            if not plan[i, WAS_READ] and _read(plan, i, target) < plan[i, BYTES]:
                return NOT_READ
        bad = open_pages(words, begin, block, file, salts, first_row, codes, at)
    if bad < 0:
        for i in range(len(plan)):
            slot = plan[i, TO_SLOT]
            if plan[i, WAS_READ] and slot >= 0 and plan[i, BYTES] <= slot_bytes:
                slots[slot, TICKET] = 0
                move_bytes(board + slot * slot_bytes, target + plan[i, PLACE], plan[i, BYTES])
                slots[slot, OWNER], slots[slot, SLOT_NUMBER], slots[slot, SIZE] = (
                    owner,
                    plan[i, NUMBER],
                    plan[i, BYTES],
                )
                slots[slot, TICKET] = plan[i, TO_TICKET]
    return bad


__all__ = ["copy_or_read"]
