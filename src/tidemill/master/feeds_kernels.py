"""The compiled loop of a difference: rows of two buffers compared in words of eight bytes."""

import numpy as np
import numpy.typing as npt
from numba import njit, types

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]

_READ_WORDS = types.Array(types.uint64, 1, "C", readonly=True)
_READ_INT64S = types.Array(types.int64, 1, "C", readonly=True)
_BOOLS = types.Array(types.boolean, 1, "C")


@njit(
    types.void(_READ_WORDS, _READ_INT64S, _READ_INT64S, _READ_WORDS, _READ_INT64S, _READ_INT64S, _BOOLS),
    cache=True,
    nogil=True,
)
def same_rows(
    old: UInt64s,
    old_at: Int64s,
    old_words: Int64s,
    new: UInt64s,
    new_at: Int64s,
    new_words: Int64s,
    same: Bools,
) -> None:
    """Mark in `same` which pairs of rows are equal; places and lengths are in words."""
    for i in range(len(same)):
        same[i] = old_words[i] == new_words[i]
        word = 0
        while same[i] and word < old_words[i]:
            same[i] = old[old_at[i] + word] == new[new_at[i] + word]
            word += 1


__all__ = ["same_rows"]
