"""Rows of equal codes side by side: counted, kept together, and proved to have equal keys."""

from collections.abc import Iterator
from typing import cast

import numpy as np
import pyarrow as pa

from tidemill.master.batches import one_batch
from tidemill.master.keys import Int64s, KeyForm


class CodeCollisionError(Exception):
    """Two different keys of the source have the same code under this seed."""


class KeyCounts:
    """Counts of batches that come in order of code; proves that each code stands for one key."""

    def __init__(self, form: KeyForm) -> None:
        self.rows = 0
        self.row_bytes = 0
        self.distinct_keys = 0
        self.most_rows_of_a_key = 0
        self._form = form
        self._rows_of_last = 0
        self._last_row: pa.RecordBatch | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        codes = codes_of(batch, self._form)
        goes_on = self._refuse_collisions(batch, codes)
        starts = np.flatnonzero(np.append(not goes_on, codes[1:] != codes[:-1]))
        ends = np.append(starts[1:], len(codes))
        before_first = int(starts[0]) if len(starts) else len(codes)
        self._rows_of_last += before_first
        sizes = ends - starts if len(starts) else starts
        self.most_rows_of_a_key = max(self.most_rows_of_a_key, self._rows_of_last, int(sizes.max(initial=0)))
        if len(starts):
            self._rows_of_last = int(sizes[-1])
        self.distinct_keys += len(starts)
        self.rows += batch.num_rows
        self.row_bytes += batch.nbytes
        self._last_row = batch.slice(batch.num_rows - 1)

    def _refuse_collisions(self, batch: pa.RecordBatch, codes: Int64s) -> bool:
        """Whether the batch goes on with the code that the batch before ended with."""
        goes_on = self._last_row is not None and codes_of(self._last_row, self._form)[0] == codes[0]
        if self._form.is_hashed:
            again = np.flatnonzero(codes[1:] == codes[:-1])
            if not self._are_same(batch.take(again), batch.take(again + 1)):
                raise CodeCollisionError
            if goes_on and not self._are_same(cast("pa.RecordBatch", self._last_row), batch.slice(0, 1)):
                raise CodeCollisionError
        return goes_on

    def _are_same(self, some: pa.RecordBatch, others: pa.RecordBatch) -> bool:
        keys = [[rows.column(name) for name in self._form.columns] for rows in (some, others)]
        return bool(self._form.same(*keys).all())


def whole_groups(batches: Iterator[pa.RecordBatch], form: KeyForm) -> Iterator[pa.RecordBatch]:
    """The same rows in batches that never end between two rows of one code."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        codes = codes_of(batch, form)
        cuts = np.flatnonzero(codes[1:] != codes[:-1])
        if held and codes_of(held[-1], form)[-1] != codes[0]:
            yield one_batch(held, batch.schema)
            held = []
        until = int(cuts[-1]) + 1 if len(cuts) else 0
        if until:
            yield one_batch([*held, batch.slice(0, until)], batch.schema)
            held = []
        held.append(batch.slice(until))
    if held:
        yield one_batch(held, held[0].schema)


def codes_of(batch: pa.RecordBatch, form: KeyForm) -> Int64s:
    return cast("Int64s", batch.column(form.code_column).to_numpy())


__all__ = ["CodeCollisionError", "KeyCounts", "codes_of", "whole_groups"]
