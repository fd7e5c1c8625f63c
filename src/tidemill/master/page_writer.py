"""Sorted rows become pages: cut to size, sealed, aligned, and listed in the index."""

import os
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.core.errors import SpecError
from tidemill.core.units import format_bytes
from tidemill.master.hashing import Int64s
from tidemill.master.index import PageIndex
from tidemill.master.layout import PAGE_ALIGNMENT_BYTES, PageFile
from tidemill.master.page_kernels import (
    BLOCK_WORDS,
    DENSE,
    LINED,
    MAY_END,
    MUST_END,
    SHORT,
    cut_pages,
    fill_pages,
    page_sizes,
)
from tidemill.master.rows import RowLayout
from tidemill.master.short_numbers import SHORT_CODE_BYTES

UInt8s = npt.NDArray[np.uint8]
_MOST_PAGE_BYTES = 2**32 - 8


def kind_for(layout: RowLayout) -> int:
    """The kind of page for rows of a layout."""
    kind = LINED | DENSE if layout.last_open_offset < 0 else LINED
    return kind | SHORT if layout.code_bytes == SHORT_CODE_BYTES else kind


class PageWriter:
    """Writes a pages file; leaving its context makes it safe on disk.

    Args:
        file: Replaced.
        layout: Of the rows, with the code first; batches may have more columns, which are left out.
        page_bytes: Largest stored page; a row, or a group, larger than that gets a page of its own.
        keeps_groups: Rows of one code, side by side in a batch, stay in one page, sorted by code there.
        number: Of the file in the manifest's list.
    """

    def __init__(
        self, file: Path, layout: RowLayout, page_bytes: int, *, keeps_groups: bool = False, number: int = 0
    ) -> None:
        self.pages = 0
        self.most_rows_of_a_page = 0
        self.rows = self.row_bytes = 0
        self._bytes = 0
        self._crc = 0
        self._salt = int.from_bytes(os.urandom(8), "little")
        self._file = file.open("wb")
        self._layout = layout
        self._kind = kind_for(layout)
        self._page_bytes = page_bytes
        self._keeps_groups = keeps_groups
        self._number = number
        self._last_code: int | None = None
        self._entries: list[tuple[npt.NDArray[Any], ...]] = []

    def __enter__(self) -> "PageWriter":
        return self

    def __exit__(self, *failed: object) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def add(self, batch: pa.RecordBatch) -> tuple[Int64s, Int64s]:
        """Write the rows; the code of each as it was written, and its page."""
        rows, at = self._layout.encode(batch.select(self._layout.schema.names))
        return self.add_rows(rows, at[:-1], at[1:])

    def add_rows(
        self, rows: UInt8s, at: Int64s, end: Int64s, *, stretch: Int64s | None = None
    ) -> tuple[Int64s, Int64s]:
        """Like `add`, of rows that lie encoded from `at` to `end`, in order of code or in groups.

        Rows of different stretches, given as ascending numbers, share no page, and the pages of one are equally full.
        """
        if not len(at):
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        self.rows += len(at)
        self.row_bytes += int((end - at).sum())
        words = rows[: int(end.max())].view(np.uint64)
        codes = words.view(np.int64)[at >> 3]
        if self._kind & SHORT:
            codes = codes.astype(np.int32).astype(np.int64)
        first = self._cut(codes, end - at, stretch)
        page = np.repeat(np.arange(len(first) - 1), np.diff(first))
        if self._keeps_groups:
            order = np.lexsort((codes, page))
            at, end, codes = at[order], end[order], codes[order]
        self._write(words, np.ascontiguousarray(at), np.ascontiguousarray(end), codes, first)
        written = self.pages
        self.pages += len(first) - 1
        return codes, page + written

    def index(self) -> PageIndex:
        empty = tuple(np.empty(0, dtype=kind) for kind in (np.int64, np.int64, np.int64, np.bool_))
        first, offset, blocks, continues = (
            np.concatenate(parts) for parts in zip(empty, *self._entries, strict=True)
        )
        file = np.full(len(first), self._number)
        return PageIndex.of(first, offset, file, blocks, continues, self._last_code or 0)

    def finished(self, name: str) -> PageFile:
        """What the manifest says of the file under its final name, once the context was left."""
        return PageFile(name, self._bytes, self._crc, self._salt)

    def _cut(self, codes: Int64s, sizes: Int64s, stretch: Int64s | None) -> Int64s:
        """First row of each page, and the number of rows."""
        ends = np.full(len(codes), MAY_END, dtype=np.uint8)
        limits = np.full(len(codes), self._page_bytes)
        if self._keeps_groups:
            ends[:-1] = codes[1:] != codes[:-1]
        if stretch is not None:
            ends[:-1][stretch[1:] != stretch[:-1]] = MUST_END
            limits = _even_limits(sizes, stretch, self._page_bytes, self._kind)
        ends[-1] = MUST_END
        first = np.empty(len(codes) + 1, dtype=np.int64)
        pages = cut_pages(np.ascontiguousarray(sizes), ends, limits, self._kind, first)
        first[pages] = len(codes)
        return first[: pages + 1]

    def _write(
        self, words: npt.NDArray[np.uint64], at: Int64s, end: Int64s, codes: Int64s, first: Int64s
    ) -> None:
        sizes = page_sizes(np.add.reduceat(end - at, first[:-1]), np.diff(first), self._kind)
        if int(sizes.max()) > _MOST_PAGE_BYTES:
            raise SpecError(
                f"rows that must share a page take {format_bytes(int(sizes.max()))}",
                code="page_too_large",
                next_move=f"keep values of a row, and rows of a key in a given order, below {format_bytes(_MOST_PAGE_BYTES)}",
            )
        blocks = -(-sizes // PAGE_ALIGNMENT_BYTES)
        end_block = np.cumsum(blocks)
        offset = end_block - blocks
        first_block = self._bytes // PAGE_ALIGNMENT_BYTES
        pages = np.zeros(int(end_block[-1]) * BLOCK_WORDS, dtype=np.uint64)
        fill_pages(words, at, end, first, offset * BLOCK_WORDS, self._salt, first_block, self._kind, pages)
        stored = pa.py_buffer(pages.data)
        self._file.write(stored)
        self._crc = google_crc32c.extend(self._crc, stored)
        self._bytes += stored.size
        first_codes, last_codes = codes[first[:-1]], codes[first[1:] - 1]
        continues = first_codes == np.roll(last_codes, 1)
        continues[0] = self._last_code == int(first_codes[0])
        self._last_code = int(last_codes[-1])
        self.most_rows_of_a_page = max(self.most_rows_of_a_page, int(np.diff(first).max()))
        self._entries.append((first_codes, offset + first_block, blocks, continues))


def _even_limits(sizes: Int64s, stretch: Int64s, page_bytes: int, kind: int) -> Int64s:
    """For each row the size of pages with which its stretch fills the fewest equally.

    A page that outgrew its size by one row becomes two halves with room for more, not a full page and a row.
    """
    first = np.flatnonzero(np.append(True, stretch[1:] != stretch[:-1]))
    rows = np.diff(np.append(first, len(stretch)))
    in_all = page_sizes(np.add.reduceat(sizes, first), rows, kind)
    pages = -(-in_all // page_bytes)
    # The longest row more than an equal share, lest rounding makes one page too many.
    limits = np.minimum(in_all // pages + np.maximum.reduceat(sizes, first) + 16, page_bytes)
    return np.repeat(limits, rows)


__all__ = ["PageWriter"]
