"""Looks at all values of a column for a frame around them."""

from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.master.digits import Digits, are_digits
from tidemill.master.framing import MOST_VALUE_BYTES, Framed, UInt8s, equally_long

_DIGITS = b"0123456789"


class FrameSurvey:
    """What all values of a column have in common, as far as it was seen."""

    def __init__(self) -> None:
        self._first: UInt8s | None = None
        self._is_same = np.empty(0, dtype=np.bool_)
        self._has_digits = True
        self.is_possible = True

    def add(self, column: "pa.Array[Any]") -> None:
        values = equally_long(column) if self.is_possible else None
        if values is None or not len(values):
            self.is_possible &= values is not None
            return
        if self._first is None:
            self._first, self._is_same = values[0].copy(), np.ones(values.shape[1], dtype=np.bool_)
        if values.shape[1] != len(self._first) or len(self._first) > MOST_VALUE_BYTES:
            self.is_possible = False
            return
        self._is_same &= (values == self._first).all(axis=0)
        self._has_digits = self._has_digits and are_digits(values[:, self._middle])

    def framed(self) -> Framed | None:
        """The frame of all values; None where they differ in length, or nothing would be left to store.

        Digits at the inner edges count as differing: numbers that start with zeros go on to those that do not.
        """
        if not self.is_possible or self._first is None or self._is_same.all():
            return None
        first, differs = self._first.tobytes(), self._middle
        begins = first[: differs.start].rstrip(_DIGITS)
        ends = first[differs.stop :].lstrip(_DIGITS)
        return Framed(len(first) - len(begins) - len(ends), begins, ends)

    def packed(self) -> Framed | Digits | None:
        """The frame, or the digits in it where there is nothing else."""
        framed = self.framed()
        if framed is None or self._first is None or framed.width == 1:
            return framed
        # Where values differ only since later batches, those before are as the first one is.
        has_digits = self._has_digits and are_digits(self._first[self._middle])
        return Digits(framed) if has_digits else framed

    @property
    def _middle(self) -> slice:
        """From the first place at which values differ to behind the last one."""
        differs = np.flatnonzero(~self._is_same)
        return slice(int(differs[0]), int(differs[-1]) + 1) if len(differs) else slice(0)


__all__ = ["FrameSurvey"]
