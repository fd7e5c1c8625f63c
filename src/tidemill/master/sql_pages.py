"""Pages of a table that has none: ranges of keys, cut in one ordered pass, and where each code lies.

```
table in key order   ───────┬──────────┬────────┬───────▶
page                   0    │    1     │   2    │  3        first and last key of each: what a read asks for
code → page            integers: by the keys themselves; others: every code and its page, 12 bytes a key
```
"""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.master.batches import one_batch
from tidemill.master.groups import CodeCollisionError
from tidemill.master.hashing import Int64s, hash_columns
from tidemill.master.keys import KeyForm
from tidemill.master.sort import ExternalSort
from tidemill.master.sql_engine import only_batch
from tidemill.master.sql_table import DIGEST, SIZE

_CODES = pa.schema([("code", pa.int64()), ("page", pa.int32())])
_ENTRY_BYTES = 8 + 4


@dataclass(frozen=True)
class TablePages:
    """First and last key of each page, its rows and bytes, and how a code finds its page."""

    first_key: pa.RecordBatch
    last_key: pa.RecordBatch
    first_code: Int64s
    last_code: Int64s
    rows: Int64s
    bytes: Int64s
    """As rows in one piece (`master/rows.py`)."""
    codes: "CodePages | None"
    """None for integer keys, which are in order of their codes."""
    digest: int
    """Of all values of all rows, whatever the order of rows with equal keys."""

    @property
    def bytes_held(self) -> int:
        keys = self.first_key.nbytes + self.last_key.nbytes
        numbers = self.first_code.nbytes + self.last_code.nbytes + self.rows.nbytes + self.bytes.nbytes
        return keys + numbers + (self.codes.bytes_held if self.codes else 0)

    def locate(self, codes: Int64s) -> tuple[Int64s, Int64s]:
        """The page that can hold each code and 1, or 0 and 0: no key lies in two pages."""
        if self.codes is not None:
            return self.codes.locate(codes)
        if not len(self.rows):
            return np.zeros_like(codes), np.zeros_like(codes)
        page = np.minimum(np.searchsorted(self.last_code, codes, side="left"), len(self.rows) - 1)
        within = (self.first_code[page] <= codes) & (codes <= self.last_code[page])
        return np.where(within, page, 0).astype(np.int64), within.astype(np.int64)


class CodePages:
    """Every code with its page, in memory, or in a mapped temporary file when that is beyond `memory_bytes`."""

    def __init__(self, entries: ExternalSort, memory_bytes: int) -> None:
        is_mapped = entries.rows * _ENTRY_BYTES > memory_bytes
        self._codes: Int64s = _room(entries.rows, np.dtype(np.int64), is_mapped=is_mapped)
        self._pages: npt.NDArray[np.int32] = _room(entries.rows, np.dtype(np.int32), is_mapped=is_mapped)
        done = 0
        for batch in entries.in_order():
            part = slice(done, done + batch.num_rows)
            self._codes[part] = batch.column("code").to_numpy()
            self._pages[part] = batch.column("page").to_numpy()
            # One entry a key: a code twice stands for two keys.
            if (np.diff(self._codes[max(0, done - 1) : part.stop]) == 0).any():
                raise CodeCollisionError
            done = part.stop
        self.bytes_held = 0 if is_mapped else entries.rows * _ENTRY_BYTES
        self.mapped_bytes = entries.rows * _ENTRY_BYTES - self.bytes_held

    def locate(self, codes: Int64s) -> tuple[Int64s, Int64s]:
        if not len(self._codes):
            return np.zeros_like(codes), np.zeros_like(codes)
        at = np.minimum(np.searchsorted(self._codes, codes, side="left"), len(self._codes) - 1)
        found = self._codes[at] == codes
        return np.where(found, self._pages[at], 0).astype(np.int64), found.astype(np.int64)


def cut_pages(
    batches: Iterator[pa.RecordBatch],
    form: KeyForm,
    *,
    fixed_row_bytes: int,
    page_bytes: int,
    memory_bytes: int,
) -> TablePages:
    """Pages of about `page_bytes`, from the keys in order; all rows of a key lie in one, however long it gets.

    Args:
        batches: Keys, open-length bytes and digests as `Table.survey` gives them.
        form: How keys become codes; a `CodeCollisionError` asks for another seed.
        fixed_row_bytes: Of every row, before its values of open length.
        page_bytes: A page ends with the key that reaches it.
        memory_bytes: What sorting codes may take, and above which the codes are mapped from a file.
    """
    with tempfile.TemporaryDirectory(prefix="tidemill-codes-") as folder:
        cutter = _Cutter(form, fixed_row_bytes, page_bytes, Path(folder), memory_bytes)
        for batch in batches:
            if batch.num_rows:
                cutter.add(batch)
        return cutter.pages(memory_bytes)


class _Cutter:
    def __init__(
        self, form: KeyForm, fixed_row_bytes: int, page_bytes: int, folder: Path, memory_bytes: int
    ) -> None:
        self._form = form
        self._fixed_row_bytes = fixed_row_bytes
        self._page_bytes = page_bytes
        self._key_schema = pa.schema(list(zip(form.columns, form.types, strict=True)))
        self._entries = ExternalSort(folder / "codes", _CODES, "code", memory_bytes)
        self._bytes_before = 0
        self._last_row: pa.RecordBatch | None = None
        self._last_slot = -1
        self._first_keys: list[pa.RecordBatch] = []
        self._last_keys: list[pa.RecordBatch] = []
        self._rows: list[Int64s] = []
        self._bytes: list[Int64s] = []
        self._pages = 0
        self._digest = 0

    def add(self, batch: pa.RecordBatch) -> None:
        keys = only_batch(pa.Table.from_batches([batch]), self._key_schema)
        sizes = self._row_bytes(batch)
        self._digest = (self._digest + _sum_of(batch.column(DIGEST))) % 2**64
        starts = self._starts(keys)
        before = self._bytes_before + np.cumsum(sizes) - sizes
        self._bytes_before = int(before[-1] + sizes[-1])
        # A key belongs where its first row begins; rows before the first start go on with the last key.
        slots = np.full(batch.num_rows, self._last_slot, dtype=np.int64)
        if len(starts):
            lengths = np.diff(np.append(starts, batch.num_rows))
            slots[starts[0] :] = np.repeat(before[starts] // self._page_bytes, lengths)
        cuts = np.flatnonzero(np.append(self._last_slot, slots[:-1]) != slots)
        pages = np.zeros(batch.num_rows, dtype=np.int64)
        pages[cuts] = 1
        pages = self._pages - 1 + np.cumsum(pages)
        if self._last_row is not None:
            self._last_keys.append(one_batch([self._last_row, keys], self._key_schema).take(cuts))
        else:
            self._last_keys.append(keys.take(cuts[1:] - 1))
        self._first_keys.append(keys.take(cuts))
        self._count(pages, sizes)
        if self._form.is_hashed:
            self._enter(keys.take(starts), pages[starts])
        self._pages += len(cuts)
        self._last_slot, self._last_row = int(slots[-1]), keys.slice(batch.num_rows - 1)

    def pages(self, memory_bytes: int) -> TablePages:
        if self._last_row is not None:
            self._last_keys.append(self._last_row)
        first, last = (one_batch(keys, self._key_schema) for keys in (self._first_keys, self._last_keys))
        rows, sizes = (np.concatenate([np.zeros(0, np.int64), *parts]) for parts in (self._rows, self._bytes))
        codes = CodePages(self._entries, memory_bytes) if self._form.is_hashed else None
        (first_code, _), (last_code, _) = (self._form.codes(keys.columns) for keys in (first, last))
        return TablePages(first, last, first_code, last_code, rows, sizes, codes, self._digest)

    def _row_bytes(self, batch: pa.RecordBatch) -> Int64s:
        open_bytes = batch.column(SIZE).to_numpy()
        return (self._fixed_row_bytes + open_bytes + 7) & ~np.int64(7)

    def _starts(self, keys: pa.RecordBatch) -> Int64s:
        """Rows whose key is not that of the row before."""
        known = [self._last_row] if self._last_row is not None else []
        both = one_batch([*known, keys], self._key_schema)
        same = self._form.same(_columns(both, 0, -1), _columns(both, 1, None))
        return np.flatnonzero(~same if known else np.append(True, ~same))

    def _count(self, pages: Int64s, sizes: Int64s) -> None:
        """Rows and bytes of each page; the first one may go on with the page before."""
        first = int(pages[0])
        rows = np.bincount(pages - first)
        held = np.bincount(pages - first, weights=sizes).astype(np.int64)
        if first < self._pages:
            self._rows[-1][-1] += rows[0]
            self._bytes[-1][-1] += held[0]
            rows, held = rows[1:], held[1:]
        if len(rows):
            self._rows.append(rows)
            self._bytes.append(held)

    def _enter(self, keys: pa.RecordBatch, pages: Int64s) -> None:
        codes, _ = self._form.codes(keys.columns)
        entries = [pa.array(codes), pa.array(pages.astype(np.int32))]
        self._entries.add(pa.RecordBatch.from_arrays(entries, schema=_CODES))


def _columns(batch: pa.RecordBatch, begin: int, end: int | None) -> Sequence["pa.Array[Any]"]:
    return [column[begin:end] for column in batch.columns]


def _sum_of(digests: "pa.Array[Any]") -> int:
    values = hash_columns([digests], 0) if pa.types.is_string(digests.type) else digests.to_numpy()
    return int(np.sum(values.view(np.uint64), dtype=np.uint64))


def _room(entries: int, kind: np.dtype[Any], *, is_mapped: bool) -> npt.NDArray[Any]:
    if not is_mapped:
        return np.empty(entries, dtype=kind)
    with tempfile.TemporaryFile(prefix="tidemill-codes-") as file:
        # The mapping keeps the file, which has no name any more.
        return np.memmap(file, dtype=kind, mode="w+", shape=(entries,))


__all__ = ["CodePages", "TablePages", "cut_pages"]
