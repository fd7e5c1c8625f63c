"""Branches: which rows of a batch go to which table, as rows or as sums. Arrow in, Arrow out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

REASON_COLUMN = "_reject"
"""Why a row was rejected; NULL for accepted rows."""

Which = Literal["accepted", "rejected", "all"]


@dataclass(frozen=True)
class Rows:
    """A branch that appends rows to a table.

    Columns are taken by the table's names, or by the names that `rename` gives for them.

    >>> branch = Rows("sales", pa.schema([("id", pa.int64())]))
    >>> branch.of(pa.record_batch({"id": [1, 2], "_reject": [None, "no price"]})).to_pydict()
    {'id': [1]}
    """

    table: str
    schema: pa.Schema
    which: Which = "accepted"
    rename: Mapping[str, str] = field(default_factory=dict)
    mode: Literal["append"] = "append"
    keys: tuple[str, ...] = ()

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """What the table gets from `batch`, in the table's schema."""
        chosen = choose(batch, self.which)
        columns = [chosen.column(self.rename.get(name, name)) for name in self.schema.names]
        return in_schema(columns, self.schema)


@dataclass(frozen=True)
class Sums:
    """A branch that adds to a cumulative aggregate: one row a group, the loader adds it to what is there.

    Each task sums its own rows; sums of sums are exact for integers and decimals, so it does not matter how a
    batch was cut into tasks.

    >>> schema = pa.schema([("store", pa.int64()), ("sales", pa.int64()), ("pieces", pa.int64())])
    >>> branch = Sums("per_store", schema, keys=("store",), sums={"sales": None, "pieces": "quantity"})
    >>> rows = pa.record_batch({"store": [7, 7, 8], "quantity": [2, 3, 1], "_reject": [None, None, None]})
    >>> branch.of(rows).to_pylist()
    [{'store': 7, 'sales': 2, 'pieces': 5}, {'store': 8, 'sales': 1, 'pieces': 1}]
    """

    table: str
    schema: pa.Schema
    keys: tuple[str, ...]
    sums: Mapping[str, str | None]
    """Column of the table to the column that is summed for it, or None to count rows."""
    which: Which = "accepted"
    mode: Literal["add"] = "add"

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        chosen = pa.Table.from_batches([choose(batch, self.which)])
        grouped = chosen.group_by(list(self.keys), use_threads=False).aggregate(
            [((), "count_all") if summed is None else (summed, "sum") for summed in self.sums.values()]
        )
        by_name = dict(zip(self.sums, grouped.columns[len(self.keys) :], strict=True))
        by_name |= {key: grouped.column(key) for key in self.keys}
        columns = [by_name[name].combine_chunks() for name in self.schema.names]
        return in_schema(columns, self.schema)


Branch = Rows | Sums


def choose(batch: pa.RecordBatch, which: Which) -> pa.RecordBatch:
    """The accepted, the rejected or all rows of a batch."""
    if which == "all":
        return batch
    reasons = batch.column(REASON_COLUMN)
    keep = pc.is_null(reasons) if which == "accepted" else pc.is_valid(reasons)
    return batch.filter(keep)


def count_fates(batch: pa.RecordBatch) -> dict[str, int]:
    """Rows accepted, and rows rejected by reason as `rejected: <reason>`."""
    counted = pc.value_counts(batch.column(REASON_COLUMN))
    reasons, counts = counted.field(0).to_pylist(), counted.field(1).to_pylist()
    return {
        "accepted" if reason is None else f"rejected: {reason}": int(str(count))
        for reason, count in zip(reasons, counts, strict=True)
    }


def in_schema(columns: "Sequence[pa.Array[Any]]", schema: pa.Schema) -> pa.RecordBatch:
    """The columns as a batch of exactly this schema; a value that does not fit is an error, never changed."""
    cast = [c if c.type == f.type else c.cast(f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(cast, schema=schema)


__all__ = ["REASON_COLUMN", "Branch", "Rows", "Sums", "count_fates"]
