"""Rows by their keys, for tools and tests: single keys, many at once, or a range."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tidemill.core.errors import SpecError
from tidemill.master.hashing import Int64s

if TYPE_CHECKING:
    from tidemill.master.store import MasterData


def rows_between(master: "MasterData", first: Any, last: Any) -> Iterator[pa.RecordBatch]:
    """Rows with keys from `first` to `last`, both included, in key order, page by page."""
    if master.key_form.is_hashed or master.page_order != "key":
        raise SpecError(
            f"pages of {master.path} are not in order of key {list(master.key_columns)}",
            code="no_key_order",
            next_move="use lookup(keys), or scan() and filter",
        )
    (begin, _), (end, count) = (master.locate(np.array([key], dtype=np.int64)) for key in (first, last))
    for page in master.batches(np.arange(int(begin[0]), int(end[0] + count[0]), dtype=np.int64)):
        keys = page.column(master.key).to_numpy()
        at = int(np.searchsorted(keys, first, side="left"))
        rows = int(np.searchsorted(keys, last, side="right")) - at
        if rows > 0:
            yield page.slice(at, rows)


def rows_of_keys(master: "MasterData", keys: Any) -> tuple[Int64s, pa.RecordBatch]:
    """All rows with these keys, and for each row the position of its key in `keys`."""
    given = keys if isinstance(keys, list | tuple) else [keys]
    columns: list[pa.Array[Any]] = [pa.array(column) for column in given]
    form = master.key_form
    form.refuse_other_types(master.key_columns, [column.type for column in columns])
    codes, present = form.codes(columns)
    asked = np.flatnonzero(present)
    first, count = master.locate(codes[asked])
    batch = master.read_batch(np.unique(_ranges(first, count)))
    stored = batch.column(master.key).to_numpy()
    order = np.argsort(stored, kind="stable")
    start = np.searchsorted(stored, codes[asked], side="left", sorter=order)
    matches = np.searchsorted(stored, codes[asked], side="right", sorter=order) - start
    position = asked[np.repeat(np.arange(len(asked)), matches)]
    rows = batch.take(order[_ranges(start, matches)])
    if not form.is_hashed:
        return position, rows
    found = [rows.column(name) for name in form.columns]
    met = np.flatnonzero(form.same([column.take(position) for column in columns], found))
    return position[met], rows.take(met).drop_columns([master.key])


def _ranges(first: Int64s, count: Int64s) -> Int64s:
    """first, first + 1, … for each pair, one after the other."""
    before = np.cumsum(count) - count
    return np.repeat(first - before, count) + np.arange(int(count.sum()))


__all__ = ["rows_between", "rows_of_keys"]
