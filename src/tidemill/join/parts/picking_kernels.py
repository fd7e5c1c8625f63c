"""Regions read one after the other in one compiled call, of which only the rows that are waited for are kept."""

import numpy as np
import numpy.typing as npt
from numba import njit, types

from tidemill.join.parts.kernels import Int64s
from tidemill.join.parts.leaving_kernels import first_at_least
from tidemill.join.parts.row_cache_kernels import row_size
from tidemill.master.board_kernels import copy_or_read
from tidemill.master.row_kernels import BYTES, INT64S, READ_BYTES, READ_INT64S, UInt8s, move_bytes

_PLAN = types.Array(types.int64, 2, "C")
_CONTENT = types.Array(types.uint8, 2, "C")
_WORDS = types.Array(types.uint64, 1, "C")
_READ_WORDS = types.Array(types.uint64, 1, "C", readonly=True)
_READ_UINT32S = types.Array(types.uint32, 1, "C", readonly=True)
_READ_UINT16S = types.Array(types.uint16, 1, "C", readonly=True)

ROWS, USED_BYTES = range(2)
"""Places in `kept`: master rows kept so far, and their bytes."""


@njit(
    types.boolean(
        READ_INT64S, INT64S, types.int64, READ_BYTES, types.int64, types.int64, READ_INT64S, BYTES, INT64S, INT64S,
        INT64S, INT64S,
    ),
    cache=True, nogil=True,
)  # fmt: skip
def _keep_rows(
    stored: Int64s,
    stored_at: Int64s,
    stored_rows: int,
    region: UInt8s,
    last_open: int,
    fixed_bytes: int,
    codes: Int64s,
    rows: UInt8s,
    rows_at: Int64s,
    kept: Int64s,
    start: Int64s,
    matches: Int64s,
) -> bool:
    """Whether the rows of all codes of a region found room; those of a code lie side by side, once.

    A code's place in `stored_at` turns negative when its rows are kept, and then tells where.
    """
    source, target = region.ctypes.data, rows.ctypes.data
    for i in range(len(codes)):
        first = first_at_least(stored, np.int64(0), np.int64(stored_rows), codes[i])
        end = first
        while end < stored_rows and stored[end] == codes[i]:
            end += 1
        matches[i] = end - first
        start[i] = kept[ROWS]
        if end == first:
            continue
        if stored_at[first] < 0:
            start[i] = -1 - stored_at[first]
            continue
        for row in range(first, end):
            size = row_size(region, stored_at[row], last_open, fixed_bytes)
            if kept[ROWS] == len(rows_at) or kept[USED_BYTES] + size > len(rows):
                return False
            rows_at[kept[ROWS]] = kept[USED_BYTES]
            move_bytes(np.uintp(target + kept[USED_BYTES]), np.uintp(source + stored_at[row]), int(size))
            kept[ROWS] += 1
            kept[USED_BYTES] += size
        stored_at[first] = -1 - start[i]
    return True


@njit(
    types.int64(
        _PLAN, _PLAN, _CONTENT, types.int64, READ_INT64S, READ_INT64S, _READ_UINT32S, _READ_UINT16S, _READ_WORDS,
        _WORDS, INT64S, INT64S, INT64S, types.int64, types.int64, READ_INT64S, READ_INT64S, BYTES, INT64S, INT64S,
        INT64S, INT64S,
    ),
    cache=True, nogil=True,
)  # fmt: skip
def pick(
    plan: Int64s,
    slots: Int64s,
    content: npt.NDArray[np.uint8],
    owner: int,
    edges: Int64s,
    begin: Int64s,
    block: npt.NDArray[np.uint32],
    file: npt.NDArray[np.uint16],
    salts: npt.NDArray[np.uint64],
    words: npt.NDArray[np.uint64],
    first_row: Int64s,
    stored: Int64s,
    stored_at: Int64s,
    last_open: int,
    fixed_bytes: int,
    first_code: Int64s,
    codes: Int64s,
    rows: UInt8s,
    rows_at: Int64s,
    kept: Int64s,
    start: Int64s,
    matches: Int64s,
) -> int:
    """Regions that are done: all, or those before the first that cannot be read or whose rows find no room.

    Args:
        plan: A line for each region, as in `copy_or_read`.
        slots: Of the board, and from here on as there.
        content: …
        owner: …
        edges: First page of each region, and the end.
        begin: Word with which each page would begin if all lay in one buffer, and the end.
        block: Of each page in its file.
        file: Of each page.
        salts: Of the files.
        words: Room for one region.
        first_row: Room for its pages.
        stored: Room for its codes.
        stored_at: Room for the places of its rows.
        last_open: Of the layout of master rows.
        fixed_bytes: Of the same.
        first_code: First of the waiting codes of each region, and their number.
        codes: That wait, region after region.
        rows: Gets the master rows that are kept.
        rows_at: Gets the place of each.
        kept: Gets how many there are, and their bytes.
        start: Gets for each waiting code which of the kept rows is its first.
        matches: Gets how many it has.
    """
    region = words.view(np.uint8)
    for i in range(len(plan)):
        first, end = edges[i], edges[i + 1]
        here = begin[first : end + 1] - begin[first]
        bad = copy_or_read(
            plan[i : i + 1], slots, content, owner, words, here, block[first:end], file[first:end], salts, first_row,
            stored, stored_at,
        )  # fmt: skip
        if bad != -1:
            return i
        kept_rows, kept_bytes = kept[ROWS], kept[USED_BYTES]
        low, high = first_code[i], first_code[i + 1]
        if not _keep_rows(
            stored, stored_at, first_row[end - first], region, last_open, fixed_bytes, codes[low:high], rows, rows_at,
            kept, start[low:high], matches[low:high],
        ):  # fmt: skip
            kept[ROWS], kept[USED_BYTES] = kept_rows, kept_bytes
            return i
    return len(plan)


__all__ = ["ROWS", "USED_BYTES", "pick"]
