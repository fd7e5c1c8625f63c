"""Framed strings whose middle has nothing but digits: each takes half a byte.

```
article number 0000048271 of the season     five bytes for the ten digits
```
All digits have the same upper half in ASCII, and so have the six characters behind them: a time such as 12:30:59 is stored so
too, and no row, damaged or not, gives anything but ASCII. A value with another character takes the column back to its frame.

The number that the digits are takes five bytes for ten digits too, and at most one byte less for up to eighteen. But writing
it out, even eight digits at a time by products and shifts, took 14 ns a value more; spread halves take no more than a copy.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.master.framing import Framed, UInt8s, in_bytes_of_rows
from tidemill.master.short_numbers import DoesNotFitError

_UPPER_HALF, _UPPER_HALF_OF_DIGITS, _LOWER_HALF = (np.uint8(bits) for bits in (0xF0, 0x30, 0x0F))
_HALF_BITS = np.uint8(4)


@dataclass(frozen=True)
class Digits:
    """Halves of bytes between the bytes with which all values begin and end.

    >>> Digits(Framed(3, b"SKU-", b"")).pack(pa.array(["SKU-258", None])).to_pylist() == [bytes([0x52, 0x08]), None]
    True
    """

    frame: Framed

    @property
    def width(self) -> int:
        return (self.frame.width + 1) // 2

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
        return self if are_digits(middles) else self.frame

    def pack(self, column: "pa.Array[Any]") -> "pa.Array[Any]":
        """The column in bytes of this width."""
        middles = self.frame.middles(column)
        if middles is None or not are_digits(middles):
            raise DoesNotFitError
        stored = middles[:, 0::2] & _LOWER_HALF
        stored[:, : middles.shape[1] // 2] |= middles[:, 1::2] << _HALF_BITS
        return in_bytes_of_rows(stored, column)


def are_digits(values: UInt8s) -> bool:
    """Whether there is nothing but digits, and what comes behind them in ASCII."""
    return bool(((values & _UPPER_HALF) == _UPPER_HALF_OF_DIGITS).all())


__all__ = ["Digits", "are_digits"]
