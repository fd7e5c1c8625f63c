"""Open master data, find the pages of keys, read them and trust nothing that fails its checksum."""

import os
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.core.errors import StoreError
from tidemill.master.batches import one_batch
from tidemill.master.build import Progress, build_version
from tidemill.master.index import Int64s, PageIndex
from tidemill.master.layout import PAGES_FILE, RUN_BYTES, Manifest, current_version, version_folder
from tidemill.master.source import Source

_Place = tuple[int, int, int, int]
"""Page, offset, length, CRC-32C."""


class MasterData:
    """One version of a master store: its pages in key order and where they are.

    A handle pins its version: a later build does not change what it reads. It pickles as path and
    version, so workers reopen it in milliseconds. Counters (`pages_read`, `bytes_read`,
    `read_seconds`) belong to the handle.
    """

    def __init__(self, path: Path, version: int, manifest: Manifest, index: PageIndex, file: int) -> None:
        self.path = path
        self.version = version
        self.manifest = manifest
        self.schema = manifest.schema
        self.key = manifest.key
        self.rows = manifest.rows
        self.row_bytes = manifest.row_bytes
        self.pages = manifest.pages
        self.longest_page_bytes = manifest.longest_page_bytes
        self.index_bytes = index.bytes_held
        self.pages_read = 0
        self.bytes_read = 0
        self.read_seconds = 0.0
        self._index = index
        self._file = file
        self._pages_file = version_folder(path, version) / PAGES_FILE
        self._close = weakref.finalize(self, os.close, file)

    @classmethod
    def build(
        cls,
        source: Source,
        *,
        key: str,
        path: str | Path,
        page_bytes: int = 16 * 1024,
        progress: Progress | None = None,
    ) -> "MasterData":
        """A handle on the new version, which readers find as current from now on.

        Args:
            source: A pyarrow Table, a RecordBatchReader, or one or more Parquet paths. Sorted in
                memory: meant for tables that fit there, up to some ten million rows.
            key: Integer column; several rows may share a key, none may be NULL. Stored as int64.
            path: Folder of the store; a build that dies leaves the version before it current.
            page_bytes: Largest stored page; a single row larger than that gets a page of its own.
            progress: Called with rows written and rows in all.
        """
        folder = Path(path)
        return cls.open(
            folder, build_version(source, key=key, path=folder, page_bytes=page_bytes, progress=progress)
        )

    @classmethod
    def open(cls, path: str | Path, version: int | None = None) -> "MasterData":
        """A handle on the current version, or on the one named."""
        # Resolved: a worker that reopens the pickled handle may stand in another folder.
        folder = Path(path).resolve()
        chosen = current_version(folder) if version is None else version
        version_path = version_folder(folder, chosen)
        manifest = Manifest.read(version_path)
        index = PageIndex.read(version_path, manifest)
        return cls(folder, chosen, manifest, index, _open_pages(version_path / PAGES_FILE, manifest))

    def __reduce__(self) -> tuple[Any, ...]:
        return MasterData.open, (self.path, self.version)

    def __repr__(self) -> str:
        return f"MasterData({str(self.path)!r}, version={self.version}, rows={self.rows:,}, key={self.key!r})"

    @property
    def identity(self) -> str:
        """Names the content: equal for handles on the same version, different after a rebuild."""
        return f"{self.version:06d}-{self.manifest.pages_file_crc:08x}-{self.manifest.index_file_crc:08x}"

    def close(self) -> None:
        """Give the file back now rather than when the handle is collected."""
        self._close()

    def locate(self, keys: Int64s) -> tuple[Int64s, Int64s]:
        """First page and number of pages that can hold each key; 0 pages when none can."""
        return self._index.locate(keys)

    def page_rows(self, page: int) -> int:
        return int(self._index.rows[page])

    def read_page(self, page: int) -> pa.RecordBatch:
        return self.read_pages([page])[0]

    def read_pages(self, pages: Sequence[int] | npt.NDArray[np.int64]) -> list[pa.RecordBatch]:
        """The pages in the order asked for; neighbours come with one read."""
        started = time.perf_counter()
        wanted = np.asarray(pages, dtype=np.int64)
        outside = wanted[(wanted < 0) | (wanted >= self.pages)]
        if len(outside):
            raise self._corrupt(int(outside[0]), f"is not among the {self.pages} pages of the store")
        found: list[pa.RecordBatch] = []
        for run in self._runs(wanted):
            found.extend(self._read_run(run))
        self.pages_read += len(wanted)
        self.read_seconds += time.perf_counter() - started
        return found

    def lookup(self, keys: Int64s) -> tuple[Int64s, pa.RecordBatch]:
        """All rows with these keys, and for each row the position of its key in `keys`.

        Holds every page that is touched at once: for small sets of keys, tests and tools.
        """
        first, count = self.locate(keys)
        pages = np.unique(_ranges(first, count))
        batch = one_batch(self.read_pages(pages), self.schema)
        stored_keys = batch.column(self.key).to_numpy()
        start = np.searchsorted(stored_keys, keys, side="left")
        matches = np.searchsorted(stored_keys, keys, side="right") - start
        return np.repeat(np.arange(len(keys)), matches), batch.take(_ranges(start, matches))

    def _runs(self, pages: Int64s) -> Iterator[list[_Place]]:
        """Places of the pages, neighbours together as far as one read of `RUN_BYTES` reaches."""
        index = self._index
        columns = (pages, index.offset[pages], index.length[pages], index.crc[pages])
        run: list[_Place] = []
        for place in zip(*(column.tolist() for column in columns), strict=True):
            page, offset, length, _ = place
            if run and (page != run[-1][0] + 1 or offset + length - run[0][1] > RUN_BYTES):
                yield run
                run = []
            run.append(place)
        if run:
            yield run

    def _read_run(self, run: list[_Place]) -> Iterator[pa.RecordBatch]:
        start = run[0][1]
        size = run[-1][1] + run[-1][2] - start
        try:
            content = pa.py_buffer(os.pread(self._file, size, start))
        except OSError as error:
            raise self._corrupt(run[0][0], f"cannot be read: {error}") from error
        self.bytes_read += content.size
        for page, offset, length, crc in run:
            if content.size < offset - start + length:
                raise self._corrupt(page, f"is cut: the file ends {size - content.size} bytes too early")
            stored = content.slice(offset - start, length)
            found_crc = google_crc32c.value(stored)
            if found_crc != crc:
                raise self._corrupt(page, f"has checksum {found_crc:08x}, the index says {crc:08x}")
            yield pa.ipc.read_record_batch(stored, self.schema)

    def _corrupt(self, page: int, what: str) -> StoreError:
        offset = int(self._index.offset[page]) if 0 <= page < self.pages else -1
        return StoreError(
            f"page {page} of {self._pages_file} at offset {offset} {what}",
            code="page_corrupt",
            next_move="restore the file from a copy, or build the master data again",
            file=str(self._pages_file),
            page=page,
            offset=offset,
        )


def _open_pages(file: Path, manifest: Manifest) -> int:
    try:
        handle = os.open(file, os.O_RDONLY)
    except OSError as error:
        raise StoreError(
            f"cannot open {file}: {error.strerror}",
            code="unreadable",
            next_move="restore the file, or build the master data again",
            file=str(file),
        ) from error
    size = os.fstat(handle).st_size
    if size != manifest.pages_file_bytes:
        os.close(handle)
        raise StoreError(
            f"{file} has {size} bytes, its manifest promises {manifest.pages_file_bytes}",
            code="pages_cut",
            next_move="restore the file, or build the master data again",
            file=str(file),
            size_bytes=size,
        )
    return handle


def _ranges(first: Int64s, count: Int64s) -> Int64s:
    """first, first + 1, … for each pair, one after the other."""
    before = np.cumsum(count) - count
    return np.repeat(first - before, count) + np.arange(int(count.sum()))


__all__ = ["MasterData"]
