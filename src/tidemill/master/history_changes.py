"""Changes of versions, as changes of the rows that hold all versions of a key.

```
insert  adds a version                                        i
update  replaces the version with the same valid-from         u     adds one when there is none
delete  removes it; all of the key where valid-from is NULL   d     needs the key and valid-from alone
```
Changes of one key count in the order in which they come. A version without an end that meets a later one, stored or
new, ends where that one begins: so a feed of "from now on" rows needs no other change to close what was valid before.
A version that is deleted opens none again. What overlaps in any other way is refused.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tidemill.master.batches import one_batch
from tidemill.master.changes import Changes, checked_changes
from tidemill.master.hashing import Bools, Int64s
from tidemill.master.history import HISTORY_COLUMN, History
from tidemill.master.history_fold import Unfit, fold_rows
from tidemill.master.history_kernels import DELETE, revise
from tidemill.master.history_times import numbers_of, times_of
from tidemill.master.keys import CODE_COLUMN
from tidemill.master.source import Source

if TYPE_CHECKING:
    from tidemill.master.store import MasterData

_KEYS_AT_A_TIME = 4096
"""Of which the pages are held while the histories wanted are taken from them."""


def read_history_changes(source: Source, master: "MasterData", history: History, operation: str) -> Changes:
    """The changes, held in memory with the histories that they touch; a `SpecError` names what is wrong with any."""
    form = master.key_form
    needs = (history.valid_from,)
    rows, codes, operations = checked_changes(source, form, history.flat_schema(form), operation, needs)
    starts = np.append(_starts(codes), len(codes))
    codes = codes[starts[:-1]]
    keys = rows.select(form.columns).take(starts[:-1])
    unfit = _refuse_unfit(rows, operations, history, master)
    stored_start, stored = _stored_versions(master, history, keys)
    new = pa.RecordBatch.from_arrays(rows.select(stored.schema.names).columns, schema=stored.schema)
    both = one_batch([stored, new], stored.schema)
    begins, has_begin = numbers_of(both.column(history.valid_from))
    ends, has_end = numbers_of(both.column(history.valid_to))
    ends, has_end = ends.copy(), has_end.copy()  # versions that others close get a new end
    kept, kept_start = np.empty(both.num_rows, dtype=np.int64), np.empty_like(stored_start)
    overlaps = np.zeros(rows.num_rows, dtype=np.bool_)
    revise(stored_start, starts, operations, begins, has_begin, ends, has_end, kept, kept_start, overlaps)
    unfit.add(rows, "overlapping_versions", overlaps)
    unfit.refuse()
    kept, versions = kept[: kept_start[-1]], np.diff(kept_start)
    revised = _with_ends(both.take(kept), history, ends[kept], has_end[kept])
    if form.is_hashed:
        revised = revised.append_column(CODE_COLUMN, pa.array(np.repeat(codes, versions), pa.int64()))
    return Changes(
        codes=codes,
        replaces=np.ones(len(codes), dtype=np.bool_),
        row_start=np.concatenate([[0], np.cumsum(versions > 0)]),
        rows=fold_rows(revised, kept_start[:-1][versions > 0], history, form),
        keys=keys,
    )


def _starts(codes: Int64s) -> Int64s:
    is_first = np.ones(len(codes), dtype=np.bool_)
    is_first[1:] = codes[1:] != codes[:-1]
    return np.flatnonzero(is_first)


def _refuse_unfit(rows: pa.RecordBatch, operations: Int64s, history: History, master: "MasterData") -> Unfit:
    """Stop when a new version lacks its begin, or ends before it; else the tally, for what may still be found."""
    unfit = Unfit(master.key_form, rows.num_rows)
    is_new: Bools = operations != DELETE
    begins, has_begin = numbers_of(rows.column(history.valid_from))
    ends, has_end = numbers_of(rows.column(history.valid_to))
    unfit.add(rows, "null_valid_from", is_new & ~has_begin)
    unfit.add(rows, "empty_version", is_new & has_begin & has_end & (ends <= begins))
    unfit.refuse()
    return unfit


def _stored_versions(
    master: "MasterData", history: History, keys: pa.RecordBatch
) -> tuple[Int64s, pa.RecordBatch]:
    """Where the versions of each key start (and the end of the last one), and all of them, the newest of a key first."""
    found: list[pa.RecordBatch] = []
    counts = np.zeros(keys.num_rows, dtype=np.int64)
    for at in range(0, max(1, keys.num_rows), _KEYS_AT_A_TIME):
        part = keys.slice(at, _KEYS_AT_A_TIME)
        position, rows = master.lookup(part.columns)
        order = np.argsort(position)
        rows = rows.take(order)
        value, _ = history.unfold(rows.column(HISTORY_COLUMN))
        counts[at + position[order]] = np.bincount(value, minlength=len(order))
        found.append(history.flat(rows))
    return np.concatenate([[0], np.cumsum(counts)]), one_batch(found, found[0].schema)


def _with_ends(rows: pa.RecordBatch, history: History, ends: Int64s, has_end: Bools) -> pa.RecordBatch:
    numbers: pa.Array[Any] = pa.array(ends, mask=~has_end)
    column = times_of(numbers, history.schema.field(history.valid_to).type)
    return rows.set_column(rows.schema.names.index(history.valid_to), history.valid_to, column)


__all__ = ["read_history_changes"]
