"""Times as whole numbers: what a version's validity is stored and compared in.

A timestamp with a zone is an instant, one without is the wall clock, a date is midnight on the wall clock, an integer is
whatever the user counts. Times of one kind compare exactly whatever their units: a time in a finer unit than the
validity's is rounded down, which moves it over no bound that the coarser unit can express.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tidemill.core.errors import SpecError
from tidemill.master.hashing import Bools, Int64s

TIME_KINDS = ["timestamps", "dates", "integers"]
_TICKS_PER_S = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_S_PER_DAY = 86_400
_LEAST, _MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@dataclass(frozen=True)
class TimeScale:
    """What the numbers of a time column mean.

    >>> day, second = TimeScale.of(pa.date32(), "day"), TimeScale.of(pa.timestamp("s"), "at")
    >>> times = pa.array([86_399, 86_400, None], pa.timestamp("s"))
    >>> [part.tolist() for part in day.read(times, second)]
    [[0, 1, 0], [True, True, False]]
    """

    kind: Literal["instant", "wall clock", "integer"]
    ticks_per_day: int

    @classmethod
    def of(cls, found: pa.DataType, name: str) -> "TimeScale":
        """The scale of a column of this type; a `SpecError` when it holds no times."""
        if isinstance(found, pa.TimestampType):
            return cls("instant" if found.tz else "wall clock", _TICKS_PER_S[found.unit] * _S_PER_DAY)
        if pa.types.is_date(found):
            return cls("wall clock", 1 if pa.types.is_date32(found) else _TICKS_PER_S["ms"] * _S_PER_DAY)
        if pa.types.is_integer(found) and found != pa.uint64():
            return cls("integer", 1)
        raise SpecError(
            f"time column {name!r} has type {found}",
            code="time_type",
            next_move=f"give one of these: {', '.join(TIME_KINDS)} (of at most 63 bits)",
            column=name,
            found=str(found),
        )

    def read(self, column: "pa.Array[Any]", scale: "TimeScale") -> tuple[Int64s, Bools]:
        """Times of another scale of the same kind as numbers of this one, and where there is one.

        Times beyond what this scale can express become its largest number; those before it have no number.
        """
        numbers, present = numbers_of(column)
        if scale.ticks_per_day > self.ticks_per_day:
            return numbers // (scale.ticks_per_day // self.ticks_per_day), present
        factor = self.ticks_per_day // scale.ticks_per_day
        if factor > 1:
            present = present & (numbers >= -(-_LEAST // factor))
            numbers = np.where(numbers > _MOST // factor, _MOST, numbers * factor)
        return numbers, present


def numbers_of(column: "pa.Array[Any]") -> tuple[Int64s, Bools]:
    """The times as they count, 0 for NULL, and where there is one."""
    present = column.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    numbers: pa.Array[Any] = column.cast(pa.int64())
    if numbers.null_count:
        numbers = numbers.fill_null(0)
    return np.ascontiguousarray(numbers.to_numpy()), present


def times_of(numbers: "pa.Array[Any]", kind: pa.DataType) -> "pa.Array[Any]":
    """Numbers that `numbers_of` gave, in the type that they came from."""
    if pa.types.is_date32(kind):
        numbers = numbers.cast(pa.int32())
    return numbers.cast(kind)


__all__ = ["TIME_KINDS", "TimeScale", "numbers_of", "times_of"]
