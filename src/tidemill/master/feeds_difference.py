"""A table read again: what differs from the store becomes changes, in bounded memory.

The rows are sorted by code through files, as for a build, and met with the store's pages in the same order:

```
source ─▶ sort ─▶ ▢▢▢▢▢│▢▢▢▢│…   up to the lower of the last codes of both   only in the source, or other bytes: update
store  ─▶ pages ─▶ ▢▢▢│▢▢▢▢▢▢│…   they are compared key by key, byte by byte   only in the store: delete
```
Equal rows have equal bytes (`rows.py`), so no column is decoded that did not change. A key whose rows come in another
order counts as changed.
"""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tidemill.core.errors import SpecError, StoreError
from tidemill.master.build import coded
from tidemill.master.feeds_kernels import same_rows
from tidemill.master.feeds_latest import fitted
from tidemill.master.groups import codes_of, whole_groups
from tidemill.master.hashing import Bools, Int64s
from tidemill.master.keys import CODE_COLUMN
from tidemill.master.rows import RowLayout, UInt8s
from tidemill.master.sort import ExternalSort
from tidemill.master.source import Source, open_source

if TYPE_CHECKING:
    from tidemill.master.store import MasterData

_PAGES_AT_A_TIME = 256
OPERATION = "_op"


class TooManyChangesError(Exception):
    """The changes do not fit into memory: who wants them does better to build all anew."""


class ReRead:
    """The rows of a source, sorted beside a store and ready to be compared with it."""

    def __init__(self, master: "MasterData", source: Source, folder: Path, memory_bytes: int) -> None:
        self._master = master
        self._memory_bytes = memory_bytes
        # Without packing: a new value may not fit that of the store.
        self._layout = RowLayout.of(master.schema, first=master.key)
        given = open_source(source, master.key_columns)
        self._names = [name for name in master.schema.names if not self._is_code(name)]
        self._schema = pa.schema([master.schema.field(name) for name in self._names])
        self._refuse_other_columns(given.schema)
        form = master.key_form
        # Half for the sort, half for the changes that are found.
        self._sort = ExternalSort(folder / "runs", master.schema, form.code_column, memory_bytes // 2)
        for batch in given.batches:
            self._sort.add(coded(self._fitted(batch), form, master.schema))

    @property
    def has_rows(self) -> bool:
        return self._sort.rows > 0

    def changes(self) -> pa.Table:
        """What `MasterData.apply` needs to make the store equal to the source; `TooManyChangesError` beyond memory."""
        found: list[pa.Table] = []
        held_bytes = 0
        for part in self._parts():
            held_bytes += part.nbytes
            if held_bytes > self._memory_bytes // 2:
                raise TooManyChangesError
            found.append(part)
        schema = self._schema.append(pa.field(OPERATION, pa.string()))
        return pa.concat_tables([schema.empty_table(), *found])

    def rows(self) -> pa.RecordBatchReader:
        """All rows of the source once more."""
        batches = (batch.select(self._names).cast(self._schema) for batch in self._sort.in_order())
        return pa.RecordBatchReader.from_batches(self._schema, batches)

    def _parts(self) -> Iterator[pa.Table]:
        """Changes, a stretch of codes at a time."""
        empty = _Side.empty(self._layout)
        news, olds = self._new_sides(), self._old_sides()
        new, old = next(news, empty), next(olds, empty)
        while new.rows or old.rows:
            limit = min(side.last_code for side in (new, old) if side.rows)
            new_part, new = new.cut(limit)
            old_part, old = old.cut(limit)
            yield from self._compared(old_part, new_part)
            new = new if new.rows else next(news, empty)
            old = old if old.rows else next(olds, empty)

    def _compared(self, old: "_Side", new: "_Side") -> Iterator[pa.Table]:
        old_codes, old_start = np.unique(old.codes, return_index=True)
        new_codes, new_start = np.unique(new.codes, return_index=True)
        old_rows, new_rows = (np.diff(s, append=n) for s, n in ((old_start, old.rows), (new_start, new.rows)))
        _, in_old, in_new = np.intersect1d(old_codes, new_codes, assume_unique=True, return_indices=True)
        as_many = old_rows[in_old] == new_rows[in_new]
        in_old, in_new, rows = in_old[as_many], in_new[as_many], old_rows[in_old[as_many]]
        same = old.equals(new, _spread(old_start[in_old], rows), _spread(new_start[in_new], rows))
        begin = np.cumsum(rows) - rows
        is_unchanged = np.zeros(len(new_codes), dtype=np.bool_)
        if len(rows):
            is_unchanged[in_new] = np.logical_and.reduceat(same, begin)
        is_gone = ~np.isin(old_codes, new_codes, assume_unique=True)
        if is_gone.any():
            yield self._table(old, old_start[is_gone], np.array(["delete"]))
        changed, rows = new_start[~is_unchanged], new_rows[~is_unchanged]
        if len(changed):
            words = np.full(int(rows.sum()), "insert")
            words[np.cumsum(rows) - rows] = "update"  # replaces what the key had; its other rows follow
            yield self._table(new, _spread(changed, rows), words)

    def _table(self, side: "_Side", numbers: Int64s, words: "np.typing.NDArray[np.str_]") -> pa.Table:
        rows = side.layout.decode(side.buffer, side.at[numbers], self._names)
        told = pa.array(np.broadcast_to(words, len(numbers)), pa.string())
        return pa.Table.from_batches([rows]).append_column(OPERATION, told).replace_schema_metadata(None)

    def _new_sides(self) -> "Iterator[_Side]":
        layout = self._layout
        for batch in whole_groups(self._sort.in_order(), self._master.key_form):
            if batch.num_rows:
                buffer, at = layout.encode(batch)
                yield _Side(codes_of(batch, self._master.key_form), buffer, at[:-1], layout)

    def _old_sides(self) -> "Iterator[_Side]":
        """The store's rows, cut where no code continues."""
        master = self._master
        cuts = np.append(np.flatnonzero(~master.continues), master.pages)
        first = 0
        while first < master.pages:
            at = min(int(np.searchsorted(cuts, first + _PAGES_AT_A_TIME)), len(cuts) - 1)
            rows = master.read_rows(first, int(cuts[at]) - first)
            buffer, begins = rows.buffer, rows.at
            if not master.packing.is_plain:
                buffer, edges = self._layout.encode(master.layout.decode(buffer, begins))
                begins = edges[:-1]
            yield _Side(rows.codes, buffer, begins, self._layout)
            first = int(cuts[at])

    def _fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with the store's columns in their types."""
        columns = []
        for name in self._names:
            wanted = self._master.schema.field(name).type
            column = fitted(batch.column(name), wanted)
            if column.type != wanted:
                raise SpecError(
                    f"column {name!r} of the source is {column.type}, the store has {wanted}",
                    code="other_columns",
                    next_move="cast it, or build the master data anew",
                    column=name,
                )
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, self._names)

    def _is_code(self, name: str) -> bool:
        return self._master.key_form.is_hashed and name == CODE_COLUMN

    def _refuse_other_columns(self, given: pa.Schema) -> None:
        if sorted(given.names) != sorted(self._names):
            raise SpecError(
                f"the source has the columns {given.names}, the store has {self._names}",
                code="other_columns",
                next_move="give the same columns, or build the master data anew",
            )


@dataclass(frozen=True)
class _Side:
    """Rows of one side, in order of code; no code has more of them elsewhere."""

    codes: Int64s
    buffer: UInt8s
    at: Int64s
    layout: RowLayout

    @classmethod
    def empty(cls, layout: RowLayout) -> "_Side":
        none = np.empty(0, dtype=np.int64)
        return cls(none, np.empty(0, dtype=np.uint8), none, layout)

    @property
    def rows(self) -> int:
        return len(self.codes)

    @property
    def last_code(self) -> int:
        return int(self.codes[-1])

    def cut(self, limit: int) -> "tuple[_Side, _Side]":
        """Rows up to a code, and the others."""
        end = int(np.searchsorted(self.codes, limit, side="right"))
        return (
            _Side(self.codes[:end], self.buffer, self.at[:end], self.layout),
            _Side(self.codes[end:], self.buffer, self.at[end:], self.layout),
        )

    def equals(self, other: "_Side", numbers: Int64s, other_numbers: Int64s) -> Bools:
        """Which of these rows are the same as those of the other side, pair by pair."""
        same = np.empty(len(numbers), dtype=np.bool_)
        same_rows(*self._words(numbers), *other._words(other_numbers), same)  # noqa: SLF001
        return same

    def _words(self, numbers: Int64s) -> "tuple[np.typing.NDArray[np.uint64], Int64s, Int64s]":
        at = self.at[numbers]
        whole = self.buffer[: len(self.buffer) // 8 * 8].view(np.uint64)
        return whole, at // 8, self.layout.sizes(self.buffer, at) // 8


def _spread(first: Int64s, count: Int64s) -> Int64s:
    """Numbers from each `first` on, `count` of them.

    >>> _spread(np.array([3, 9]), np.array([2, 1])).tolist()
    [3, 4, 9]
    """
    before = np.cumsum(count) - count
    return np.repeat(first - before, count) + np.arange(int(count.sum()))


@contextmanager
def folder_beside(path: Path) -> Iterator[Path]:
    """A folder of the store for the sorted rows, empty; a `StoreError` when another re-read has it."""
    with (path / ".reread.lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StoreError(
                f"another re-read for {path} is running",
                code="reread_running",
                next_move="wait for it, then try again",
                retryable=True,
                path=str(path),
            ) from error
        folder = path / ".reread"
        shutil.rmtree(folder, ignore_errors=True)  # left by one that died
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder)


__all__ = ["OPERATION", "ReRead", "TooManyChangesError", "folder_beside"]
