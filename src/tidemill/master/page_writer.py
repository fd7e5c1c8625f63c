"""Sorted rows become pages: cut to size, checksummed, aligned, and listed in the index."""

import os
from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import numpy as np
import pyarrow as pa

from tidemill.master.groups import codes_of
from tidemill.master.index import PageIndex
from tidemill.master.keys import Int64s, KeyForm
from tidemill.master.layout import PAGE_ALIGNMENT_BYTES


class PageWriter:
    """Writes a pages file; leaving its context makes it safe on disk.

    Args:
        file: Replaced.
        schema: Of the pages; batches may have more columns, which are left out.
        form: Names the code column.
        page_bytes: Largest stored page; a row, or a group, larger than that gets a page of its own.
        keeps_groups: Rows of one code, side by side in a batch, stay in one page, sorted by code there.
    """

    def __init__(
        self, file: Path, schema: pa.Schema, form: KeyForm, page_bytes: int, *, keeps_groups: bool
    ) -> None:
        self.file_bytes = 0
        self.file_crc = 0
        self._file = file.open("wb")
        self._columns = schema.names
        self._form = form
        self._page_bytes = page_bytes
        self._keeps_groups = keeps_groups
        self._entries: list[tuple[int, ...]] = []

    @property
    def pages(self) -> int:
        return len(self._entries)

    def __enter__(self) -> "PageWriter":
        return self

    def __exit__(self, *failed: object) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def add(self, batch: pa.RecordBatch) -> list[Int64s]:
        """Write the rows; the codes of each page that this made."""
        batch = batch.select(self._columns)
        codes = codes_of(batch, self._form)
        written: list[Int64s] = []
        ends = (
            np.append(np.flatnonzero(codes[1:] != codes[:-1]) + 1, len(codes)) if self._keeps_groups else None
        )
        for page in _cut(batch, self._page_bytes, ends):
            ordered = (
                page.take(np.argsort(codes_of(page, self._form), kind="stable"))
                if self._keeps_groups
                else page
            )
            self._write(ordered)
            written.append(codes_of(ordered, self._form))
        return written

    def index(self) -> PageIndex:
        columns = np.array(self._entries, dtype=np.int64).reshape(-1, 6).T
        return PageIndex(*(np.ascontiguousarray(column) for column in columns))

    def _write(self, page: pa.RecordBatch) -> None:
        message = page.serialize()
        stored = message.to_pybytes() + bytes(-message.size % PAGE_ALIGNMENT_BYTES)
        codes = codes_of(page, self._form)
        crc = int(google_crc32c.value(message))
        self._entries.append(
            (int(codes[0]), int(codes[-1]), self.file_bytes, message.size, page.num_rows, crc)
        )
        self._file.write(stored)
        self.file_crc = google_crc32c.extend(self.file_crc, stored)
        self.file_bytes += len(stored)


def _cut(batch: pa.RecordBatch, page_bytes: int, ends: Int64s | None) -> Iterator[pa.RecordBatch]:
    """Slices whose stored size is at most `page_bytes`, or the least allowed; the last size guesses the next."""
    at, guess = 0, 64
    while at < batch.num_rows:
        rows = _allowed(at, guess, ends)
        page = batch.slice(at, rows)
        stored_bytes = pa.ipc.get_record_batch_size(page)
        while stored_bytes > page_bytes:
            fewer = _allowed(at, max(1, int(page.num_rows * page_bytes / stored_bytes * 0.99)), ends)
            if fewer >= page.num_rows:
                break
            page = page.slice(0, fewer)
            stored_bytes = pa.ipc.get_record_batch_size(page)
        yield page
        at += page.num_rows
        guess = max(1, int(page.num_rows * page_bytes / stored_bytes))


def _allowed(at: int, rows: int, ends: Int64s | None) -> int:
    """The largest number of rows up to `rows` that ends with a group; the whole first group when that is longer."""
    if ends is None:
        return rows
    first = int(np.searchsorted(ends, at, side="right"))
    last = int(np.searchsorted(ends, at + rows, side="right")) - 1
    return int(ends[max(first, last)]) - at


__all__ = ["PageWriter"]
