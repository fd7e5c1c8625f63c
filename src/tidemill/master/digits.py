"""Framed strings whose middle has nothing but digits: the number is stored, and written out again when it is read.

```
article number 0000048271 of the season     5 bytes for the ten digits
```
All numbers of so many digits fit, so a column that counts on stays as it is. One with another character goes back to its frame.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.master.framing import Framed, UInt8s
from tidemill.master.short_numbers import DoesNotFitError, Int64s, in_bytes

MOST_DIGITS = 18
"""Of a number that 64 bits hold with its sign."""
_LEAST_SAVED_BYTES = 2
"""Or writing the digits costs more than a shorter row saves."""
_ZERO, _NINE = np.uint8(ord("0")), 9


@dataclass(frozen=True)
class Digits:
    """The number between the bytes with which all values begin and end.

    >>> Digits(Framed(4, b"SKU-", b"")).pack(pa.array(["SKU-0258", None])).to_pylist() == [bytes([2, 1]), None]
    True
    """

    frame: Framed

    @property
    def digits(self) -> int:
        return self.frame.width

    @cached_property
    def width(self) -> int:
        """Bytes of the largest number; it has no sign."""
        return -(-(10**self.digits - 1).bit_length() // 8)

    @property
    def is_worth_it(self) -> bool:
        return self.digits <= MOST_DIGITS and self.digits - self.width >= _LEAST_SAVED_BYTES

    @property
    def form(self) -> str:
        return f"digits {self.width} as {self.frame.form}"

    @property
    def values(self) -> "pa.Array[Any]":
        """Those of the frame, as they are kept in a file."""
        return self.frame.values

    @property
    def longest_bytes(self) -> int:
        return self.frame.longest_bytes

    @property
    def bytes_held(self) -> int:
        return self.frame.bytes_held

    def holding(self, column: "pa.Array[Any]") -> "Digits | Framed | None":
        """Itself, if it holds the column too; else the frame, if that does."""
        middles = self.frame.middles(column)
        if middles is None:
            return None
        return self if are_digits(middles).all() else self.frame

    def pack(self, column: "pa.Array[Any]") -> "pa.Array[Any]":
        """The column in bytes of this width."""
        middles = self.frame.middles(column)
        if middles is None or not are_digits(middles).all():
            raise DoesNotFitError
        numbers = _numbers(middles)
        if column.null_count:
            is_valid: Any = column.is_valid()
            found, numbers = numbers, np.zeros(len(column), dtype=np.int64)
            numbers[is_valid.to_numpy(zero_copy_only=False)] = found
        return in_bytes(numbers, self.width, column)


def are_digits(values: UInt8s) -> "npt.NDArray[np.bool_]":
    """At which places all lines have a digit."""
    above_zero = values - _ZERO  # what is less than a zero wraps around
    is_digit: npt.NDArray[np.bool_] = above_zero.max(axis=0, initial=0) <= _NINE
    return is_digit


def _numbers(middles: UInt8s) -> Int64s:
    """The number of each line, the first digit first."""
    numbers = np.zeros(len(middles), dtype=np.int64)
    for place in range(middles.shape[1]):
        numbers *= 10
        numbers += middles[:, place] - _ZERO
    return numbers


__all__ = ["MOST_DIGITS", "Digits", "are_digits"]
