"""Changes to master data: read, checked, and put together to what they leave of each key.

```
insert  adds a row to its key            i
update  replaces all rows of its key     u     adds the row when the key is new
delete  removes all rows of its key      d     needs the key alone; nothing happens when there is none
```
Changes of one key count in the order in which they come. Only the last update or delete of a key, and the inserts
after it, leave a trace.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.core.errors import SpecError, StoreError
from tidemill.core.units import format_count
from tidemill.master.batches import one_batch
from tidemill.master.hashing import Bools, Int64s
from tidemill.master.keys import CODE_COLUMN, KeyForm
from tidemill.master.source import Source, open_source

OPERATIONS = ["insert", "update", "delete"]
_LETTERS = [word[0] for word in OPERATIONS]
_INSERT, _DELETE = 0, 2


@dataclass(frozen=True)
class Changes:
    """What all changes together mean, for each code that they name."""

    codes: Int64s
    """Ascending, each once."""
    replaces: Bools
    """Whether the rows that the store has of a code go."""
    row_start: Int64s
    """Number of the first new row of each code, and of all new rows."""
    rows: pa.RecordBatch
    """New rows, in order of code, with the columns of pages."""
    keys: pa.RecordBatch
    """The key of each code."""

    def part(self, begin: int, end: int) -> "Changes":
        """Those of the codes numbered from `begin` to before `end`."""
        row_start = self.row_start[begin : end + 1]
        rows = self.rows.slice(int(row_start[0]), int(row_start[-1] - row_start[0]))
        keys = self.keys.slice(begin, end - begin)
        return Changes(self.codes[begin:end], self.replaces[begin:end], row_start - row_start[0], rows, keys)

    @property
    def rows_of_code(self) -> Int64s:
        return np.diff(self.row_start)


def read_changes(source: Source, form: KeyForm, schema: pa.Schema, operation: str) -> Changes:
    """The changes, held in memory; a `SpecError` names what is wrong with any of them.

    Args:
        source: As for a build, with a column that names the operation.
        form: Of the store's key.
        schema: Of the store's pages.
        operation: Name of that column.
    """
    return _together(*checked_changes(source, form, schema, operation), form)


def checked_changes(
    source: Source, form: KeyForm, schema: pa.Schema, operation: str, delete_columns: Sequence[str] = ()
) -> tuple[pa.RecordBatch, Int64s, Int64s]:
    """The changes as rows of `schema`, their codes, ascending, and their operations; those of a code as they came.

    Args:
        source: As for `read_changes`.
        form: Of the store's key.
        schema: Of the rows, with the codes if there are any.
        operation: Name of the column that names the operation.
        delete_columns: What deletes need beside the key.
    """
    given = open_source(source, form.columns)
    columns = [name for name in schema.names if not (form.is_hashed and name == CODE_COLUMN)]
    missing = _refuse_other_columns(given.schema, schema, columns, operation)
    whole = one_batch(list(given.batches), given.schema)
    operations = _operations(whole.column(operation), operation)
    _refuse_missing(operations, missing, whole.schema, delete_columns)
    codes = form.codes([whole.column(name) for name in form.columns])[0]
    order = np.argsort(codes, kind="stable")
    rows, codes = _stored(whole, schema, codes).take(order), codes[order]
    _refuse_two_keys(rows, 1 + np.flatnonzero(codes[1:] == codes[:-1]), form)
    return rows, codes, operations[order]


def _together(rows: pa.RecordBatch, codes: Int64s, operations: Int64s, form: KeyForm) -> Changes:
    is_first = np.ones(len(codes), dtype=np.bool_)
    is_first[1:] = codes[1:] != codes[:-1]
    first = np.flatnonzero(is_first)
    group = np.cumsum(is_first) - 1
    numbers = np.arange(len(codes))
    clears = np.where(operations == _INSERT, -1, numbers)
    last_cleared = np.maximum.reduceat(clears, first) if len(first) else clears
    stays = (numbers >= last_cleared[group]) & (operations != _DELETE)
    new_rows = np.bincount(group[stays], minlength=len(first))
    return Changes(
        codes=codes[first],
        replaces=last_cleared >= 0,
        row_start=np.concatenate([[0], np.cumsum(new_rows)]),
        rows=rows.filter(pa.array(stays)),
        keys=rows.select(form.columns).take(first),
    )


def _stored(whole: pa.RecordBatch, schema: pa.Schema, codes: Int64s) -> pa.RecordBatch:
    arrays: list[pa.Array[Any]] = []
    for field in schema:
        if field.name in whole.schema.names:
            arrays.append(whole.column(field.name))
        elif field.name == CODE_COLUMN:
            arrays.append(pa.array(codes))
        else:
            arrays.append(pa.nulls(whole.num_rows, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _operations(column: "pa.Array[Any]", name: str) -> Int64s:
    """0, 1 or 2 for each row, as in `OPERATIONS`."""
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise SpecError(
            f"the operation column {name!r} has type {column.type}",
            code="operation_type",
            next_move=f"give a string column with {', '.join(OPERATIONS)} or {', '.join(_LETTERS)}",
        )
    words = pc.utf8_lower(column.cast(pa.string()))
    found = pc.index_in(words, value_set=pa.array(OPERATIONS + _LETTERS))
    unknown = column.filter(found.is_null())
    if len(unknown):
        examples = ", ".join(repr(value) for value in unknown.unique().slice(0, 3).to_pylist())
        raise SpecError(
            f"{format_count(len(unknown))} of {format_count(len(column))} changes have an unknown operation in "
            f"{name!r}: {examples}",
            code="unknown_operation",
            next_move=f"valid: {', '.join(OPERATIONS)}, or {', '.join(_LETTERS)}",
            changes=len(unknown),
        )
    return cast("Int64s", found.to_numpy().astype(np.int64)) % len(OPERATIONS)


def _refuse_other_columns(
    given: pa.Schema, stored: pa.Schema, columns: Sequence[str], operation: str
) -> list[str]:
    """Columns of the store that the changes lack; one with another type, or not of the store, is refused."""
    if operation not in given.names:
        raise SpecError(
            f"the changes have no column {operation!r} that names the operation",
            code="no_operation",
            next_move=f"add it with {', '.join(OPERATIONS)} in it, or name the column with operation=…",
        )
    strange = [
        f"{field.name!r} is {field.type}, the store has {stored.field(field.name).type}"
        for field in given
        if field.name in columns and field.type != stored.field(field.name).type
    ]
    strange += [
        f"{name!r} is not a column of the store" for name in given.names if name not in (*columns, operation)
    ]
    if strange:
        raise SpecError(
            f"the changes do not fit the store: {'; '.join(strange)}",
            code="changes_schema",
            next_move="give the store's columns in its types, and the operation",
        )
    return [name for name in columns if name not in given.names]


def _refuse_missing(
    operations: Int64s, missing: list[str], given: pa.Schema, delete_columns: Sequence[str]
) -> None:
    need = int(np.count_nonzero(operations != _DELETE))
    if (missing and need) or any(name in missing for name in delete_columns):
        changes = f"{format_count(need)} inserts and updates" if need else "deletes"
        enough = " and ".join(["the key", *map(repr, delete_columns)])
        raise SpecError(
            f"{changes} lack the columns {missing}; the changes have {given.names}",
            code="changes_schema",
            next_move=f"give all columns of the store: only deletes do with {enough} alone",
            missing=missing,
        )


def _refuse_two_keys(rows: pa.RecordBatch, again: Int64s, form: KeyForm) -> None:
    """Stop when rows have the code of the row before them but another key."""
    if form.is_hashed and len(again):
        keys = rows.select(form.columns)
        refuse_collision(form, keys.take(again - 1), keys.take(again))


def refuse_collision(form: KeyForm, some: pa.RecordBatch, others: pa.RecordBatch) -> None:
    """Stop when rows of equal codes, side by side in two batches, have different keys."""
    same = form.same(some.columns, others.columns)
    if not same.all():
        at = int(np.flatnonzero(~same)[0])
        pair = [tuple(batch.slice(at, 1).to_pylist()[0].values()) for batch in (some, others)]
        raise StoreError(
            f"keys {pair[0]} and {pair[1]} have the same hash under seed {form.seed} of this store",
            code="hash_collides",
            next_move="build the master data again with these changes in it: a build finds another seed",
        )


__all__ = ["OPERATIONS", "Changes", "checked_changes", "read_changes", "refuse_collision"]
