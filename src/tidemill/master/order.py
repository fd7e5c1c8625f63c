"""Pages in a given order, such as popularity: each row gets a rank, rows of a key the best one among them."""

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pyarrow as pa

from tidemill.core.errors import SpecError, unknown_choice
from tidemill.master.groups import codes_of
from tidemill.master.keys import Int64s, KeyForm

RANK_COLUMN = "_rank"
_LAST = np.iinfo(np.int64).max

OrderBy = str | Int64s
"""A column, largest values first, or for each place in the new order the number of the source row there."""


def ranked(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, order_by: OrderBy
) -> Iterator[pa.RecordBatch]:
    """The batches with each row's own rank; lower ranks come first."""
    if RANK_COLUMN in schema.names:
        raise SpecError(
            f"the source has a column {RANK_COLUMN!r}, the name under which a build keeps ranks",
            code="column_twice",
            next_move="rename it",
        )
    ranks_of = _ByColumn(schema, order_by) if isinstance(order_by, str) else _ByPermutation(order_by)
    for batch in batches:
        yield batch.append_column(RANK_COLUMN, pa.array(ranks_of(batch), pa.int64()))
    ranks_of.refuse_unused()


def rank_groups(batch: pa.RecordBatch, form: KeyForm) -> pa.RecordBatch:
    """The batch, in which whole groups of equal codes lie side by side, with one rank a group."""
    codes = codes_of(batch, form)
    ranks = cast("Int64s", batch.column(RANK_COLUMN).to_numpy())
    starts = np.flatnonzero(np.append(True, codes[1:] != codes[:-1]))
    best = np.repeat(np.minimum.reduceat(ranks, starts), np.diff(np.append(starts, len(codes))))
    return batch.set_column(batch.schema.names.index(RANK_COLUMN), RANK_COLUMN, pa.array(best))


class _ByColumn:
    """Largest values first, NULL and NaN last."""

    def __init__(self, schema: pa.Schema, name: str) -> None:
        if name not in schema.names:
            raise unknown_choice("order column", name, schema.names)
        kind = schema.field(name).type
        self._name = name
        self._is_float = pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        if not (self._is_float or pa.types.is_integer(kind) or pa.types.is_temporal(kind)):
            raise SpecError(
                f"order column {name!r} has type {kind}",
                code="order_type",
                next_move="give a column of numbers, dates or timestamps",
                column=name,
            )

    def __call__(self, batch: pa.RecordBatch) -> Int64s:
        column: pa.Array[Any] = batch.column(self._name)
        if not self._is_float and pa.types.is_temporal(column.type):
            column = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
        # As floats of 64 bits: an order of popularity need not tell 2**53 from 2**53 + 1.
        values = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        bits = np.ascontiguousarray(values + 0.0).view(np.int64)
        rising = bits ^ ((bits >> 63) & np.int64(_LAST))  # in the order of the floats they come from
        return np.where(np.isnan(values), _LAST, ~rising)

    def refuse_unused(self) -> None:
        """Every row has a value or none: nothing can be left over."""


class _ByPermutation:
    """The place of each source row, counted as they come."""

    def __init__(self, rows_in_order: Int64s) -> None:
        self._place = np.full(len(rows_in_order), -1, dtype=np.int64)
        within = (rows_in_order >= 0) & (rows_in_order < len(rows_in_order))
        self._place[rows_in_order[within]] = np.flatnonzero(within)
        self._done = 0
        if (self._place < 0).any():
            raise _no_permutation(f"does not name each row from 0 to {len(rows_in_order) - 1} once")

    def __call__(self, batch: pa.RecordBatch) -> Int64s:
        begin, self._done = self._done, self._done + batch.num_rows
        if self._done > len(self._place):
            raise _no_permutation(f"has {len(self._place)} places, the source has more rows")
        return self._place[begin : self._done]

    def refuse_unused(self) -> None:
        if self._done < len(self._place):
            raise _no_permutation(f"has {len(self._place)} places, the source has {self._done} rows")


def _no_permutation(why: str) -> SpecError:
    return SpecError(
        f"order_by {why}", code="order_permutation", next_move="give each row number of the source once"
    )


__all__ = ["RANK_COLUMN", "OrderBy", "rank_groups", "ranked"]
