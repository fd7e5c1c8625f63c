"""Compiled loops of the window: a hash of waiting rows that forgets its oldest rows for nothing."""

import numpy as np
from numba import njit, types

from tidemill.join.parts.kernels import Int64s, home_slot

FROM_THE_HEAD = -2
"""Cursor value: the chain of this master row was not yet entered."""

_READ_INT64S = types.Array(types.int64, 1, "C", readonly=True)
_INT64S = types.Array(types.int64, 1, "C")


@njit(types.void(_INT64S, _INT64S, _INT64S, types.int64, _READ_INT64S), cache=True)
def chain_rows(heads: Int64s, older: Int64s, ring_keys: Int64s, first_number: int, keys: Int64s) -> None:
    """Put rows at the heads of their chains; row i gets number `first_number` + i.

    Chains run from new to old, and rows leave oldest first: a number below the oldest ends a chain,
    so leaving costs nothing and a place of the ring is used again without touching any chain.
    """
    for i in range(len(keys)):
        number = first_number + i
        at = number % len(ring_keys)
        slot = home_slot(keys[i], len(heads))
        ring_keys[at] = keys[i]
        older[at] = heads[slot]
        heads[slot] = number


@njit(
    types.int64(
        _READ_INT64S, _READ_INT64S, _READ_INT64S, types.int64, _READ_INT64S, _INT64S, _INT64S, _INT64S
    ),
    cache=True,
)
def probe_chains(
    heads: Int64s,
    older: Int64s,
    ring_keys: Int64s,
    oldest: int,
    master_keys: Int64s,
    cursor: Int64s,
    numbers: Int64s,
    master_rows: Int64s,
) -> int:
    """Number of pairs found from the cursor on, as many as `numbers` holds; the cursor moves behind them.

    The cursor is a master row and the next row number of its chain; past the last master row when
    nothing is left.
    """
    count = 0
    row, number = cursor[0], cursor[1]
    while row < len(master_keys):
        if number == FROM_THE_HEAD:
            number = heads[home_slot(master_keys[row], len(heads))]
        while number >= oldest:
            if count == len(numbers):
                cursor[0], cursor[1] = row, number
                return count
            at = number % len(ring_keys)
            if ring_keys[at] == master_keys[row]:
                numbers[count] = number
                master_rows[count] = row
                count += 1
            number = older[at]
        row += 1
        number = np.int64(FROM_THE_HEAD)
    cursor[0], cursor[1] = row, number
    return count


__all__ = ["FROM_THE_HEAD", "chain_rows", "probe_chains"]
