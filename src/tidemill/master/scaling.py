"""Floats that are whole numbers of tenths, hundredths or the like: prices in cents, weights in grams.

```
858.63   stored 85863, two places      0.5   stored 5, one place      42.0   stored 42, no place
```
A whole number divided by a power of ten is rounded to the nearest float, which is the one that a decimal text reads as. So
one division gives back the very same bits; where it does not (NaN, infinities, -0.0, thirds), the column is not packed so.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.master.short_numbers import DoesNotFitError, Int64s, bytes_for, in_bytes, is_held

MOST_PLACES = 6
_MOST_BYTES = 6
"""Up to 2^50 a float times its power of ten is less than a half away from the whole number it came from, so that rounding
finds that number, with more places than needed too. Six bytes stay below."""
_FIRST_ROWS = 1024  # of a batch, by which most columns that are not of this kind are known

Float64s = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Scaled:
    """Floats as whole numbers in so many bytes, to be divided by ten so many times.

    >>> Scaled(2, places=2).pack(pa.array([0.25, None, -1.0])).to_pylist() == [bytes([25, 0]), None, bytes([156, 255])]
    True
    """

    width: int
    places: int
    longest_bytes: ClassVar[int] = 0
    bytes_held: ClassVar[int] = 0

    @property
    def form(self) -> str:
        return f"scaled {self.width} of {self.places}"

    @property
    def divisor(self) -> int:
        return int(10**self.places)

    def holding(self, column: "pa.Array[Any]") -> "Scaled | None":
        """Itself, if it holds the column too."""
        return None if self._numbers(column) is None else self

    def pack(self, column: "pa.Array[Any]") -> "pa.Array[Any]":
        """The column in bytes of this width."""
        numbers = self._numbers(column)
        if numbers is None:
            raise DoesNotFitError
        return in_bytes(numbers, self.width, column)

    def _numbers(self, column: "pa.Array[Any]") -> Int64s | None:
        numbers = _whole(_floats(column), self.places)
        if numbers is None or not len(numbers):
            return numbers
        return numbers if is_held(int(numbers.min()), int(numbers.max()), self.width) else None


class ScaleSurvey:
    """The fewest places that all values of a column need, as far as it was seen."""

    def __init__(self) -> None:
        self._places = self._low = self._high = 0
        self.is_possible = True

    def add(self, column: "pa.Array[Any]") -> None:
        if self.is_possible and len(column):
            values = _floats(column)
            self._add(values[:_FIRST_ROWS])
            self._add(values[_FIRST_ROWS:])

    def _add(self, values: Float64s) -> None:
        """Note some values; more places only multiply the numbers of those before."""
        while self.is_possible and len(values):
            numbers = _whole(values, self._places)
            if numbers is not None:
                self._low = min(self._low, int(numbers.min()))
                self._high = max(self._high, int(numbers.max()))
                break
            self._places += 1
            self._low, self._high = 10 * self._low, 10 * self._high
            self.is_possible = self._places <= MOST_PLACES
        self.is_possible = self.is_possible and self._width is not None

    @property
    def _width(self) -> int | None:
        return bytes_for(self._low, self._high, fewer_than=_MOST_BYTES + 1)

    def scaled(self) -> Scaled | None:
        """How all values are held; None where they are not."""
        width = self._width
        return Scaled(width, self._places) if self.is_possible and width is not None else None


def may_be_scaled(stored: pa.DataType) -> bool:
    """Whether values of a plain type are floats of eight bytes."""
    return pa.types.is_float64(stored)


def _floats(column: Any) -> Float64s:
    """The values, 0 for NULL."""
    values: Float64s = column.fill_null(0.0).to_numpy()
    return values


def _whole(values: Float64s, places: int) -> Int64s | None:
    """The numbers that the division by a power of ten makes these very values; None where one has none that is short."""
    power = 10.0**places
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = np.rint(values * power)
        if not (np.abs(rounded) < 2.0 ** (8 * _MOST_BYTES)).all():  # NaN is not less either
            return None
    numbers = rounded.astype(np.int64)
    # From whole numbers, as a decode has them: those know no -0.0.
    is_same = (numbers / power).view(np.int64) == values.view(np.int64)
    return numbers if is_same.all() else None


__all__ = ["MOST_PLACES", "ScaleSurvey", "Scaled", "may_be_scaled"]
