"""What the change rows of a batch leave of each key: the last one counts.

```
id  at  _op             id  _op
 7   1  insert           7  delete      its last change
 8   1  update_before    8  update      beats the removal at the same time: the row has new values
 8   1  update_after     9  delete      an update has given the row another key
 7   2  delete          10  update
 9   3  update_before
10   3  update_after
```
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.core.errors import SpecError, unknown_choice
from tidemill.core.units import format_count
from tidemill.master.batches import one_batch
from tidemill.master.changes import refuse_collision
from tidemill.master.hashing import Bools, Int64s
from tidemill.master.keys import CODE_COLUMN, KeyForm
from tidemill.master.source import open_source

if TYPE_CHECKING:
    from tidemill.master.store import MasterData

_PUTS = ["update", "u", "update_after", "update_postimage"]
_INSERTS = ["insert", "i"]
_REMOVES = ["delete", "d", "update_before", "update_preimage"]
_FAMILIES: list[Callable[[pa.DataType], bool]] = [
    pa.types.is_integer,
    pa.types.is_decimal,
    pa.types.is_date,
    pa.types.is_timestamp,
    lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
    lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind),
]
CHANGE_WORDS = _INSERTS + _PUTS + _REMOVES


def latest_changes(changes: pa.Table, master: "MasterData", operation: str, order: str | None) -> pa.Table:
    """One change a key at most, as `MasterData.apply` takes them; without `order` inserts of a key stay side by side.

    Args:
        changes: Rows with the store's columns, the operation, and perhaps others.
        master: The store that they are for.
        operation: Name of the column with the operation.
        order: Name of the column that tells which change of a key is the last, if any.
    """
    form = master.key_form
    needed = [*form.columns, operation, *([order] if order else [])]
    for name in needed:
        if name not in changes.column_names:
            raise unknown_choice("column of changes", name, changes.column_names)
    stored = [field for field in master.schema if not (form.is_hashed and field.name == CODE_COLUMN)]
    names = dict.fromkeys([*(f.name for f in stored if f.name in changes.column_names), *needed])
    given = open_source(changes.select(list(names)), form.columns)
    form.refuse_other_types(form.columns, [given.schema.field(name).type for name in form.columns])
    whole = one_batch(list(given.batches), given.schema)
    words = _words(whole.column(operation), operation)
    codes = form.codes([whole.column(name) for name in form.columns])[0]
    is_removed = pc.is_in(words, value_set=pa.array(_REMOVES)).to_numpy(zero_copy_only=False)
    ranks = _ranks(whole.column(order), order) if order else np.zeros(len(codes), dtype=np.int64)
    sequence = np.lexsort((~is_removed, ranks, codes))
    codes = codes[sequence]
    is_last = np.append(codes[1:] != codes[:-1], True)[: len(codes)]
    _refuse_collisions(whole, form, sequence, is_last)
    if order is None and not is_last.all():
        _refuse_unordered(words.take(sequence), is_last)
        is_last[:] = True
    kept = sequence[is_last]
    told = _told(words.take(kept), is_removed[kept], are_ordered=order is not None)
    rows = whole.take(kept)
    columns = {f.name: fitted(rows.column(f.name), f.type) for f in stored if f.name in rows.schema.names}
    return pa.table({**columns, operation: told})


def _words(column: "pa.Array[Any]", name: str) -> "pa.Array[Any]":
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise SpecError(
            f"the operation column {name!r} has type {column.type}",
            code="operation_type",
            next_move=f"give a string column with {', '.join(CHANGE_WORDS)}",
        )
    words = pc.utf8_lower(column.cast(pa.string()))
    unknown = column.filter(pc.invert(pc.is_in(words, value_set=pa.array(CHANGE_WORDS))))
    if len(unknown):
        examples = ", ".join(repr(value) for value in unknown.unique().slice(0, 3).to_pylist())
        raise SpecError(
            f"{format_count(len(unknown))} of {format_count(len(column))} changes have an unknown operation in "
            f"{name!r}: {examples}",
            code="unknown_operation",
            next_move=f"valid: {', '.join(CHANGE_WORDS)}",
            changes=len(unknown),
        )
    return words


def _ranks(column: "pa.Array[Any]", name: str) -> Int64s:
    if column.null_count:
        raise SpecError(
            f"{format_count(column.null_count)} of {format_count(len(column))} changes have NULL in the order column "
            f"{name!r}",
            code="null_order",
            next_move="name a column that tells for every change when it was made",
        )
    return cast("Int64s", pc.rank(column, tiebreaker="dense").to_numpy().astype(np.int64))


def _refuse_collisions(whole: pa.RecordBatch, form: KeyForm, sequence: Int64s, is_last: Bools) -> None:
    again = np.flatnonzero(~is_last)
    if form.is_hashed and len(again):
        keys = whole.select(form.columns)
        refuse_collision(form, keys.take(sequence[again]), keys.take(sequence[again + 1]))


def _refuse_unordered(words: "pa.Array[Any]", is_last: Bools) -> None:
    """Stop when a key comes several times with more than inserts: their order would decide, and nothing tells it."""
    again = ~is_last
    again[1:] |= ~is_last[:-1]
    is_insert = pc.is_in(words, value_set=pa.array(_INSERTS)).to_numpy(zero_copy_only=False)
    unclear = int(np.count_nonzero(again & ~is_insert))
    if unclear:
        raise SpecError(
            f"{format_count(unclear)} updates and deletes are for keys that have other changes beside them",
            code="changes_unordered",
            next_move="name the column that tells which change of a key is the last, with order=…",
            changes=unclear,
        )


def _told(words: "pa.Array[Any]", is_removed: Bools, *, are_ordered: bool) -> "pa.Array[Any]":
    """The operations in the words of `MasterData.apply`."""
    is_insert = pc.is_in(words, value_set=pa.array(_INSERTS)).to_numpy(zero_copy_only=False)
    kind = np.where(is_removed, 2, np.where(is_insert & (not are_ordered), 0, 1))
    return pa.array(["insert", "update", "delete"]).take(kind)


def fitted(column: "pa.Array[Any]", wanted: pa.DataType) -> "pa.Array[Any]":
    """The column in another type of the same family; as it is where a cast would be a guess, or lose something."""
    is_same_kind = any(kind(column.type) and kind(wanted) for kind in _FAMILIES)
    if column.type == wanted or not is_same_kind:
        return column
    if pa.types.is_timestamp(wanted) and bool(cast("Any", column.type).tz) != bool(cast("Any", wanted).tz):
        return column
    try:
        return column.cast(wanted)
    except pa.ArrowInvalid:
        return column


__all__ = ["CHANGE_WORDS", "fitted", "latest_changes"]
