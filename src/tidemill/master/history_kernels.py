"""The compiled loop that takes changes of versions in the order in which they came."""

import numpy as np
import numpy.typing as npt
from numba import njit, types

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

INSERT, UPDATE, DELETE = 0, 1, 2

_READ_INT64S = types.Array(types.int64, 1, "C", readonly=True)
_READ_BOOLS = types.Array(types.boolean, 1, "C", readonly=True)
_INT64S = types.Array(types.int64, 1, "C")
_BOOLS = types.Array(types.boolean, 1, "C")


@njit(types.int64(_INT64S, types.int64, types.int64, _READ_INT64S, types.int64), cache=True, nogil=True)
def _place(kept: Int64s, low: int, high: int, begins: Int64s, time: int) -> int:
    """The first place from `low` to before `high` whose version begins at that time or later, else `high`."""
    while low < high:
        middle = (low + high) // 2
        if begins[kept[middle]] < time:
            low = middle + 1
        else:
            high = middle
    return low


@njit(
    types.void(
        _READ_INT64S,
        _READ_INT64S,
        _READ_INT64S,
        _READ_INT64S,
        _READ_BOOLS,
        _INT64S,
        _BOOLS,
        _INT64S,
        _INT64S,
        _BOOLS,
    ),
    cache=True,
    nogil=True,
)
def revise(
    stored_start: Int64s,
    change_start: Int64s,
    operations: Int64s,
    begins: Int64s,
    has_begin: Bools,
    ends: Int64s,
    has_end: Bools,
    kept: Int64s,
    kept_start: Int64s,
    overlaps: Bools,
) -> None:
    """What is left of each key after its changes: `kept` gets the numbers of versions, the newest of a key first.

    Versions are numbered: the stored ones of all keys, the newest of a key first, then the changes. `ends` and
    `has_end` are altered where one version closes another; `overlaps` marks changes that do not fit in, which are
    left out.
    """
    stored_rows = len(begins) - len(operations)
    base = 0
    for key in range(len(stored_start) - 1):
        kept_start[key] = base
        end = base
        for row in range(stored_start[key + 1] - 1, stored_start[key] - 1, -1):
            kept[end] = row
            end += 1
        for change in range(change_start[key], change_start[key + 1]):
            row, operation = stored_rows + change, operations[change]
            if operation == DELETE and not has_begin[row]:
                end = base
                continue
            place = _place(kept, base, end, begins, begins[row])
            is_there = place < end and begins[kept[place]] == begins[row]
            if is_there and operation == INSERT:
                overlaps[change] = True
                continue
            if is_there:
                for k in range(place, end - 1):
                    kept[k] = kept[k + 1]
                end -= 1
            if operation == DELETE:
                continue
            if place < end and not has_end[row]:
                ends[row], has_end[row] = begins[kept[place]], True
            if place > base and not has_end[kept[place - 1]]:
                ends[kept[place - 1]], has_end[kept[place - 1]] = begins[row], True
            if (place < end and ends[row] > begins[kept[place]]) or (
                place > base and ends[kept[place - 1]] > begins[row]
            ):
                overlaps[change] = True
                continue
            for k in range(end, place, -1):
                kept[k] = kept[k - 1]
            kept[place] = row
            end += 1
        for k in range((end - base) // 2):
            kept[base + k], kept[end - 1 - k] = kept[end - 1 - k], kept[base + k]
        base = end
    kept_start[len(stored_start) - 1] = base


__all__ = ["DELETE", "INSERT", "UPDATE", "revise"]
