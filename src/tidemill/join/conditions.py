"""Join conditions other than equal keys: ranges, and whatever a vectorised function says of a pair."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.core.errors import SpecError, unknown_choice
from tidemill.join.output import Columns, How, OutputPlan
from tidemill.join.parts.kernels import Bools, Int64s
from tidemill.join.parts.window import Window
from tidemill.master.keys import KeyForm

WORK_BYTES_PER_WAITING_ROW = 40
"""Its value, the value in order, its place in that order, twice while it is sorted."""

Predicate = Callable[[pa.RecordBatch, pa.RecordBatch], npt.NDArray[np.bool_]]


class Condition(ABC):
    """Which pairs of a stream row and a master row belong together; NULLs belong to nothing."""

    @abstractmethod
    def check(self, stream_schema: pa.Schema, master_schema: pa.Schema) -> None:
        """Refuse columns that are not there or cannot be compared."""

    @abstractmethod
    def candidates(self, window: Window, master_rows: pa.RecordBatch) -> "Candidates":
        """The pairs to look at for these master rows, in an order that the same rows give again."""

    def holds(self, stream_rows: pa.RecordBatch, master_rows: pa.RecordBatch) -> Bools:  # noqa: ARG002
        """Which candidates, side by side, are pairs; all of them unless a subclass says otherwise."""
        return np.ones(stream_rows.num_rows, dtype=np.bool_)


@dataclass(frozen=True)
class Candidates:
    """For each master row a range of waiting rows, by age or by value."""

    start: Int64s
    end_of_pairs: Int64s
    numbers: Int64s | None
    oldest: int

    @property
    def total(self) -> int:
        return int(self.end_of_pairs[-1]) if len(self.end_of_pairs) else 0

    def block(self, begin: int, until: int) -> tuple[Int64s, Int64s]:
        """Row numbers and master rows of the candidates from `begin` to `until`."""
        wanted = np.arange(begin, until)
        row = np.searchsorted(self.end_of_pairs, wanted, side="right")
        before = np.where(row > 0, self.end_of_pairs[row - 1], 0)
        place = self.start[row] + wanted - before
        return (self.oldest + place if self.numbers is None else self.numbers[place]), row


@dataclass(frozen=True)
class Between(Condition):
    """A stream value between two master columns, both ends included.

    >>> str(Between("sold_at", "valid_from", "valid_to"))
    "Between(stream_column='sold_at', low='valid_from', high='valid_to')"
    """

    stream_column: str
    low: str
    high: str

    def check(self, stream_schema: pa.Schema, master_schema: pa.Schema) -> None:
        _check_columns(self.stream_column, [self.low, self.high], stream_schema, master_schema)

    def candidates(self, window: Window, master_rows: pa.RecordBatch) -> Candidates:
        low, low_known = _values(master_rows.column(self.low))
        high, high_known = _values(master_rows.column(self.high))
        return _in_ranges(window, self.stream_column, low, high, low_known & high_known)


@dataclass(frozen=True)
class Near(Condition):
    """A stream value no farther than `within` from a master column."""

    stream_column: str
    master_column: str
    within: float

    def check(self, stream_schema: pa.Schema, master_schema: pa.Schema) -> None:
        _check_columns(self.stream_column, [self.master_column], stream_schema, master_schema)
        if not self.within >= 0:
            raise SpecError(
                f"within={self.within} of {self.master_column!r}",
                code="condition_within",
                next_move="give a distance of zero or more",
            )

    def candidates(self, window: Window, master_rows: pa.RecordBatch) -> Candidates:
        middle, known = _values(master_rows.column(self.master_column))
        if middle.dtype == np.float64 or not float(self.within).is_integer():
            exact = middle.astype(np.float64)
            return _in_ranges(window, self.stream_column, exact - self.within, exact + self.within, known)
        ends, within = np.iinfo(np.int64), int(min(self.within, 2**62))
        # Saturated: a range must not wrap around the ends of its type.
        low = np.where(middle < ends.min + within, ends.min, middle - within)
        high = np.where(middle > ends.max - within, ends.max, middle + within)
        return _in_ranges(window, self.stream_column, low, high, known)


@dataclass(frozen=True)
class Where(Condition):
    """Whatever `predicate` says of rows side by side; it sees every pair, in blocks, and must not keep them.

    Args:
        predicate: Gets stream rows and master rows of equal length, gives a boolean array.
        called: Names the condition in snapshots, since functions cannot be compared.
    """

    predicate: Predicate
    called: str

    def __str__(self) -> str:
        return f"Where({self.called})"

    def check(self, stream_schema: pa.Schema, master_schema: pa.Schema) -> None:
        """Nothing is known before it runs."""

    def candidates(self, window: Window, master_rows: pa.RecordBatch) -> Candidates:
        rows = master_rows.num_rows
        return Candidates(
            np.zeros(rows, dtype=np.int64), np.arange(1, rows + 1) * window.rows, None, window.oldest
        )

    def holds(self, stream_rows: pa.RecordBatch, master_rows: pa.RecordBatch) -> Bools:
        said = np.asarray(self.predicate(stream_rows, master_rows))
        if said.dtype != np.bool_ or said.shape != (stream_rows.num_rows,):
            raise SpecError(
                f"the condition {self.called!r} gave {said.dtype} of shape {said.shape} for {stream_rows.num_rows} pairs",
                code="condition_result",
                next_move="give one boolean for each pair, False where a value is NULL",
            )
        return said


def plan_without_key(
    stream_schema: pa.Schema,
    master_schema: pa.Schema,
    *,
    master_key: str,
    how: How,
    columns: Columns | None,
    matched_as: str | None,
) -> OutputPlan:
    """A plan for a stream that needs no column like the master key."""
    form = KeyForm.of_schema(master_schema, master_key)
    stand_ins = [f"_key {n} of the master data" for n in range(len(form.columns))]
    fields = [pa.field(name, kind) for name, kind in zip(stand_ins, form.types, strict=True)]
    plan = OutputPlan.of(
        pa.schema([*stream_schema, *fields]),
        master_schema,
        stream_key=stand_ins,
        master_key=master_key,
        how=how,
        columns=columns,
        matched_as=matched_as,
    )
    output = pa.schema([field for field in plan.output_schema if field.name not in stand_ins])
    return replace(plan, stream_schema=stream_schema, output_schema=output)


def refuse_conditions(name: str, who_can: list[str]) -> SpecError:
    return SpecError(
        f"a {name} join finds master rows by their key and takes no other condition",
        code="condition_of_keyed_join",
        next_move=f"use one of {', '.join(who_can)}",
        given=name,
        valid=who_can,
    )


def _in_ranges(
    window: Window,
    column: str,
    low: npt.NDArray[Any],
    high: npt.NDArray[Any],
    known: Bools,
) -> Candidates:
    values, present = _values(window.column(column))
    numbers = np.flatnonzero(present)
    order = numbers[np.argsort(values[numbers], kind="stable")]
    in_order = values[order]
    start = np.searchsorted(in_order, low, side="left").astype(np.int64)
    until = np.searchsorted(in_order, high, side="right")
    count = np.where(known, np.maximum(until - start, 0), 0)
    return Candidates(start, np.cumsum(count), window.oldest + order, window.oldest)


def _values(column: "pa.Array[Any]") -> tuple[npt.NDArray[Any], Bools]:
    """Comparable numbers, and where there is one; NULL and not-a-number are none."""
    as_type = pa.float64() if pa.types.is_floating(column.type) else pa.int64()
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    as_numbers: pa.Array[Any] = column.cast(as_type)
    numbers = as_numbers.fill_null(0).to_numpy(zero_copy_only=False)
    known = np.asarray(column.is_valid().to_numpy(zero_copy_only=False))
    return numbers, known & ~np.isnan(numbers) if as_type == pa.float64() else known


def _check_columns(
    stream_column: str, master_columns: list[str], stream_schema: pa.Schema, master_schema: pa.Schema
) -> None:
    if stream_column not in stream_schema.names:
        raise unknown_choice("stream column", stream_column, stream_schema.names)
    kinds = [stream_schema.field(stream_column).type]
    for name in master_columns:
        if name not in master_schema.names:
            raise unknown_choice("master column", name, master_schema.names)
        kinds.append(master_schema.field(name).type)
    all_numbers = all(
        (pa.types.is_integer(kind) and kind != pa.uint64()) or pa.types.is_floating(kind) for kind in kinds
    )
    all_times = len(set(kinds)) == 1 and (pa.types.is_timestamp(kinds[0]) or pa.types.is_date(kinds[0]))
    if not all_numbers and not all_times:
        raise SpecError(
            f"{stream_column!r} and {master_columns} have types {', '.join(map(str, kinds))}",
            code="condition_type",
            next_move="compare numbers (no uint64) with numbers, or dates and timestamps of one type",
            types=[str(kind) for kind in kinds],
        )


__all__ = [
    "WORK_BYTES_PER_WAITING_ROW",
    "Between",
    "Candidates",
    "Condition",
    "Near",
    "Where",
    "plan_without_key",
    "refuse_conditions",
]
