"""Looks at all rows of a build and says how their columns can be packed."""

from typing import Any

import pyarrow as pa

from tidemill.master.frame_survey import FrameSurvey
from tidemill.master.packing import (
    MOST_VALUES,
    NOT_PACKED,
    Coded,
    Narrow,
    Packed,
    Packing,
    may_be_coded,
    may_be_narrow,
    nulls_in,
    numbers_range,
    plain_column,
)
from tidemill.master.plain import plain_type
from tidemill.master.scaling import ScaleSurvey, may_be_scaled
from tidemill.master.short_numbers import SHORT_CODE_BYTES, bytes_for

LEAST_BYTES = 64 * 2**20
"""Of all rows together: a smaller store fits into memory, and is swept in a moment, as it is."""
_LEAST_GAIN = 8
"""Times its own bytes that a dictionary must save."""


class Survey:
    """Ranges of whole numbers, decimal places of floats, values that repeat, and what all of them have in common.

    Args:
        schema: Of the rows.
        code_column: Holds the codes. In four bytes, if it is one of the rows as they are given, or as it is.
    """

    def __init__(self, schema: pa.Schema, code_column: str) -> None:
        fields = [field for field in schema if field.name != code_column]
        self.rows = self.bytes = 0
        self._code_column = code_column if code_column in schema.names else None
        self._codes_range = (0, 0)
        self._has_nulls = False
        self._ranges = {field.name: (0, 0) for field in fields if may_be_narrow(field.type)}
        self._scales = {
            field.name: ScaleSurvey() for field in fields if may_be_scaled(plain_type(field.type))
        }
        self._values: dict[str, pa.Array[Any]] = {}
        self._value_bytes = dict.fromkeys((f.name for f in fields if may_be_coded(f.type)), 0)
        self._frames = {name: FrameSurvey() for name in self._value_bytes}
        self._widths = {
            name: plain_column(pa.array([], schema.field(name).type)).type.bit_width // 8
            for name in self._ranges
        }

    def add(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        self.bytes += batch.nbytes
        self._has_nulls = self._has_nulls or any(nulls_in(column) for column in batch.columns)
        if self._code_column is not None:
            low, high = numbers_range(batch.column(self._code_column))
            self._codes_range = min(low, self._codes_range[0]), max(high, self._codes_range[1])
        for name, (low, high) in self._ranges.items():
            new_low, new_high = numbers_range(plain_column(batch.column(name)))
            self._ranges[name] = min(low, new_low), max(high, new_high)
        for name, scale in self._scales.items():
            if scale.is_possible:
                scale.add(plain_column(batch.column(name)))
        for name, frame in self._frames.items():
            column = plain_column(batch.column(name))
            frame.add(column)
            if name in self._value_bytes:
                self._add_values(name, column)

    def _add_values(self, name: str, column: Any) -> None:
        """Note the values of a column, as long as they are few."""
        found = column.unique().drop_null()
        if name in self._values:
            found = pa.concat_arrays([self._values[name], found]).unique()
        self._value_bytes[name] += column.nbytes
        self._values[name] = found
        # A quarter of the numbers is left for values that changes bring.
        if 4 * len(found) > 3 * MOST_VALUES or not Coded(2, found).is_possible:
            del self._values[name], self._value_bytes[name]

    def frame_of(self, name: str) -> Packed | None:
        """What all values of a column have in common."""
        return self._frames[name].packed()

    def packing(self, *, wanted: bool | None) -> Packing:
        """How the rows are best packed.

        Args:
            wanted: None for: if the rows take 64 MiB or more, and a dictionary saves much more than it takes.
        """
        if wanted is False or (wanted is None and self.bytes < LEAST_BYTES):
            return NOT_PACKED
        columns: dict[str, Packed] = {}
        if self._code_column is not None and bytes_for(*self._codes_range, fewer_than=SHORT_CODE_BYTES + 1):
            columns[self._code_column] = Narrow(SHORT_CODE_BYTES)
        for name, (low, high) in self._ranges.items():
            narrow = Narrow.for_range(low, high, of_bytes=self._widths[name])
            if narrow is not None:
                columns[name] = narrow
        for name, scale in self._scales.items():
            scaled = scale.scaled()
            if scaled is not None:
                columns[name] = scaled
        for name in self._frames:
            framed, coded = self.frame_of(name), self._coded(name, wanted=wanted)
            repeats = coded is not None and 2 * len(coded.values) < self.rows
            how = coded if framed is None or repeats else framed
            if how is not None:
                columns[name] = how
        return Packing(columns, self._has_nulls)

    def _coded(self, name: str, *, wanted: bool | None) -> Coded | None:
        """The dictionary of a column, if it saves enough."""
        if name not in self._values:
            return None
        values = self._values[name]
        coded = Coded(1 if 4 * len(values) < 3 * 2**7 else 2, values)
        saved = self._value_bytes[name] - self.rows * coded.width
        return coded if saved >= (0 if wanted else _LEAST_GAIN * coded.bytes_held) else None


__all__ = ["LEAST_BYTES", "Survey"]
