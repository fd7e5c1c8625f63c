"""Flat rows in order of code become one row a key, which holds all of its versions; unfit ones are counted and refused."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.core.errors import SpecError
from tidemill.core.units import format_bytes, format_count
from tidemill.master.groups import KeyCounts, codes_of, whole_groups
from tidemill.master.hashing import Bools, Int64s
from tidemill.master.history import HISTORY_COLUMN, History
from tidemill.master.history_times import numbers_of
from tidemill.master.keys import CODE_COLUMN, KeyForm

_EXAMPLES = 3
_MOST_BYTES = 2**31 - 1


@dataclass
class Unfit:
    """Versions that no history can have, counted over all batches, with keys of the first ones."""

    form: KeyForm
    rows: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    keys: dict[str, list[Any]] = field(default_factory=dict)

    def add(self, rows: pa.RecordBatch, what: str, where: Bools) -> None:
        """Count rows that are unfit for a reason."""
        found = np.flatnonzero(where)
        if len(found):
            self.counts[what] = self.counts.get(what, 0) + len(found)
            examples = self.keys.setdefault(what, [])
            wanted = found[: _EXAMPLES - len(examples)]
            keys = rows.select(self.form.columns).take(wanted).to_pylist()
            examples += [tuple(key.values()) if len(key) > 1 else next(iter(key.values())) for key in keys]

    def refuse(self) -> None:
        """Stop with the first of these reasons that any row has."""
        for what, (told, next_move) in _REASONS.items():
            if what in self.counts:
                keys = ", ".join(repr(key) for key in self.keys[what])
                raise SpecError(
                    f"{format_count(self.counts[what])} of {format_count(self.rows)} versions {told}; "
                    f"keys such as {keys}",
                    code=what,
                    next_move=next_move,
                    versions=self.counts[what],
                    keys=self.keys[what],
                )


_REASONS = {
    "null_valid_from": ("have NULL where their validity begins", "give it, or leave those rows out"),
    "empty_version": ("end before they begin, or right then", "give a later end, or NULL for still valid"),
    "overlapping_versions": (
        "begin before the version before them ends",
        "let each version end where the next one begins; NULL as end is for the last one of a key",
    ),
}


class Folding:
    """Batches of flat rows on their way to one row a key.

    Args:
        history: Of the store.
        form: Of its key.
    """

    def __init__(self, history: History, form: KeyForm) -> None:
        self.rows = 0
        """Flat ones, so far."""
        self._history = history
        self._form = form

    def fold(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of pages; a `SpecError` at the end when any version is unfit.

        Args:
            batches: In order of code, which this proves to stand for one key each.
        """
        proof, unfit = KeyCounts(self._form), Unfit(self._form)
        for batch in whole_groups(batches, self._form):
            proof.add(batch)
            self.rows += batch.num_rows
            unfit.rows = self.rows
            codes = codes_of(batch, self._form)
            begins, _ = numbers_of(batch.column(self._history.valid_from))
            order = np.lexsort((~begins, codes))  # the newest first
            rows = batch.take(order)
            starts = self._check(rows, codes, unfit)
            if not unfit.counts:
                yield fold_rows(rows, starts, self._history, self._form)
        unfit.refuse()

    def _check(self, rows: pa.RecordBatch, codes: Int64s, unfit: Unfit) -> Int64s:
        """Where the rows of each key start; what is wrong with any of them is counted."""
        begins, has_begin = numbers_of(rows.column(self._history.valid_from))
        ends, has_end = numbers_of(rows.column(self._history.valid_to))
        is_first = np.append(True, codes[1:] != codes[:-1])
        unfit.add(rows, "null_valid_from", ~has_begin)
        unfit.add(rows, "empty_version", has_begin & has_end & (ends <= begins))
        # A version overlaps the one after it, which lies before it here.
        late = ~is_first[1:] & (~has_end[1:] | (ends[1:] > begins[:-1]))
        unfit.add(rows, "overlapping_versions", np.append(late, False))
        return np.flatnonzero(is_first)


def fold_rows(rows: pa.RecordBatch, starts: Int64s, history: History, form: KeyForm) -> pa.RecordBatch:
    """One row for each start, which holds the versions from there to the next start.

    Args:
        rows: Flat, those of a key side by side, the newest first.
        starts: Number of the first row of each key.
        history: Of the store.
        form: Of its key.
    """
    ends = (history.valid_from, history.valid_to)
    columns = [
        _numbers(rows.column(name)) if name in ends else rows.column(name) for name in history.schema.names
    ]
    versions = pa.RecordBatch.from_arrays(columns, schema=history.layout.schema)
    content, at = history.layout.encode(versions)
    if len(content) > _MOST_BYTES:
        raise SpecError(
            f"{format_count(rows.num_rows)} versions that must be held at once take {format_bytes(len(content))}",
            code="history_too_long",
            next_move="build with less memory, or leave out keys with very many versions",
        )
    places = np.append(at[starts], len(content)).astype(np.int32)
    buffers = [None, pa.py_buffer(places.data), pa.py_buffer(content.data)]
    found: dict[str, pa.Array[Any]] = {
        HISTORY_COLUMN: pa.Array.from_buffers(pa.binary(), len(starts), buffers, 0)
    }
    first = rows.select([*form.columns, *([CODE_COLUMN] if form.is_hashed else [])]).take(starts)
    found.update(zip(first.schema.names, first.columns, strict=True))
    schema = history.page_schema(form)
    return pa.RecordBatch.from_arrays([found[name] for name in schema.names], schema=schema)


def _numbers(column: "pa.Array[Any]") -> "pa.Array[Any]":
    numbers, present = numbers_of(column)
    return pa.array(numbers, mask=~present)


__all__ = ["Folding", "Unfit", "fold_rows"]
