"""Whole numbers in fewer than eight bytes, as packed columns keep them."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

SHORT_CODE_BYTES = 4
"""Of a code that a row begins with, where all codes of a store fit; else it has eight."""
_NUMBER_BYTES = 8

Int64s = npt.NDArray[np.int64]


class DoesNotFitError(Exception):
    """A column has a value that its packing cannot hold."""


def bytes_for(low: int, high: int, *, fewer_than: int) -> int | None:
    """The fewest bytes that hold these, with their signs, and a quarter more; None where that saves nothing.

    >>> bytes_for(-3, 5_000_000, fewer_than=8), bytes_for(0, 2**40, fewer_than=4)
    (3, None)
    """
    widths = range(1, fewer_than)
    return next((width for width in widths if is_held(low + low // 4, high + high // 4, width)), None)


def is_held(low: int, high: int, width: int) -> bool:
    """Whether so many bytes hold both, with their signs."""
    limit = 1 << (8 * width - 1)
    return -limit <= low and high < limit


def in_bytes(numbers: Int64s, width: int, column: "pa.Array[Any]") -> "pa.Array[Any]":
    """The low bytes of each number, NULL where the column is."""
    lowest = np.ascontiguousarray(numbers.view(np.uint8).reshape(-1, _NUMBER_BYTES)[:, :width])
    valid = column.is_valid().buffers()[1] if column.null_count else None
    buffers = [valid, pa.py_buffer(lowest.data)]
    return pa.Array.from_buffers(pa.binary(width), len(numbers), buffers, column.null_count)


__all__ = ["SHORT_CODE_BYTES", "DoesNotFitError", "bytes_for", "in_bytes", "is_held"]
