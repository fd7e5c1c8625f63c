"""Open master data, find the pages of keys, read them and trust nothing that fails its checksum."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.core.errors import StoreError
from tidemill.core.units import parse_bytes
from tidemill.master.apply import apply_changes
from tidemill.master.build import BuildOptions, Progress
from tidemill.master.builders import SparkRows, builder_of
from tidemill.master.changed_codes import codes_between
from tidemill.master.compact import compact_version, is_worth_it
from tidemill.master.expire import Expired, expire_versions
from tidemill.master.hashing import Int64s
from tidemill.master.history import History
from tidemill.master.index import PageIndex
from tidemill.master.key_pages import KeyPages
from tidemill.master.keys import KeyForm
from tidemill.master.layout import (
    PAGE_ALIGNMENT_BYTES,
    Manifest,
    current_version,
    refuse_expired,
    version_folder,
)
from tidemill.master.lookup import rows_between, rows_of_keys
from tidemill.master.order import OrderBy
from tidemill.master.packing import Packing
from tidemill.master.reads import PageReader, PageRows, Reading, cyclic
from tidemill.master.rows import RowLayout
from tidemill.master.source import Source


class MasterData:
    """One version of a master store: its pages, in order of key or in a given one, and where they are.

    A handle pins its version: a later build does not change what it reads. It pickles as path and
    version, so workers reopen it in milliseconds. Counters (`pages_read`, `bytes_read`,
    `read_seconds`) belong to the handle.

    `key_columns` are what the user called the key. `key` is the int64 column of the pages by which rows
    are told apart and sorted: the key itself when it is one integer column, else a column of 64-bit
    hashes; where two real keys must be compared, `key_form` does it. `layout` says how rows lie in pages,
    the code first.
    """

    def __init__(
        self,
        path: Path,
        version: int,
        manifest: Manifest,
        index: PageIndex,
        reader: PageReader,
        packing: Packing,
    ) -> None:
        self.path = path
        self.version = version
        self.manifest = manifest
        self.schema = manifest.schema
        self.key_form = KeyForm.of_schema(self.schema, manifest.key_columns[0])
        self.key_columns = self.key_form.columns
        self.key = self.key_form.code_column
        self.history = History.of_schema(self.schema)
        """How the versions of a key lie in its row, for data with valid-from and valid-to; else None."""
        self.packing = packing
        self.layout = RowLayout.of(self.schema, first=self.key, packing=packing)
        self.rows = manifest.rows
        self.row_bytes = manifest.row_bytes
        self.stored_row_bytes = manifest.stored_row_bytes or max(self.row_bytes, self.layout.least_row_bytes)
        self.pages = manifest.pages
        self.longest_page_bytes = manifest.longest_page_bytes
        """In whole blocks, as it is read."""
        self.page_columns_bytes = (
            self.longest_page_bytes + self.layout.grows_bytes * manifest.most_rows_of_a_page
        )
        self.page_order = manifest.page_order
        self._key_pages = (
            KeyPages(version_folder(path, version), manifest) if self.page_order == "given" else None
        )
        self.index_bytes = index.bytes_held + (self._key_pages.bytes_held if self._key_pages else 0)
        self.index_bytes += packing.bytes_held
        self.mapped_key_bytes = self._key_pages.mapped_bytes if self._key_pages else 0
        self.index = index
        self._reader = reader

    @classmethod
    def build(
        cls,
        source: Source | SparkRows,
        *,
        key: str | Sequence[str],
        path: str | Path,
        page_bytes: int = 16 * 1024,
        memory: str | int = "512 MB",
        order_by: OrderBy | None = None,
        history: tuple[str, str] | None = None,
        pack: bool | None = None,
        progress: Progress | None = None,
    ) -> "MasterData":
        """A handle on the new version, which readers find as current from now on.

        Args:
            source: A pyarrow Table, a RecordBatchReader, one or more Parquet paths, or a Spark DataFrame, whose
                tasks sort and write in parallel (`spark/master_build.py`); may be far bigger than memory.
            key: One column or several; integers (stored as int64), strings, binaries, decimals, dates
                or timestamps. Several rows may share a key, none may be NULL.
            path: Folder of the store; a build that dies leaves the version before it current.
            page_bytes: Largest stored page; a single row larger than that gets a page of its own.
            memory: What sorting may take; rows beyond it are sorted through files beside the new version. Spark's
                tasks sort within the memory of their session instead.
            order_by: Pages in another order than that of keys, as the papers' tables by popularity: a column,
                largest values first, or row numbers of the source in the order wanted. All rows of a key
                lie in one page, and an index on disk finds it.
            history: Columns valid-from (included) and valid-to (excluded, NULL for still valid) when rows are versions of
                their keys: timestamps, dates or integers. All versions of a key become one row (`master/history.py`),
                of which joins take the one valid at a stream row's time (`join/as_of.py`).
            pack: Store whole numbers in as few bytes as they need and values that repeat by their numbers
                (`master/packing.py`): less to read, and more rows in the same memory. None for: from 64 MiB on. Not with a
                history, and not from a Spark DataFrame.
            progress: Called with rows done and rows in all, while they are read and while they are written: a row
                that is read but not written counts half. While a source that does not know its length is read,
                rows in all are those read so far.
        """
        folder = Path(path)
        columns = (key,) if isinstance(key, str) else tuple(key)
        options = BuildOptions(page_bytes, parse_bytes(memory), order_by, progress, history, pack)
        return cls.open(folder, builder_of(source)(source, key=columns, path=folder, options=options))

    @classmethod
    def open(
        cls,
        path: str | Path,
        version: int | None = None,
        *,
        direct: bool = False,
        reads_in_flight: int = 1,
    ) -> "MasterData":
        """A handle on the current version, or on the one named.

        Args:
            path: Folder of the store.
            version: None for the current one.
            direct: Read past the page cache, as when the store is far bigger than the machine's memory.
            reads_in_flight: Runs of pages that are read at a time, by threads when more than one.
        """
        # Resolved: a worker that reopens the pickled handle may stand in another folder.
        folder = Path(path).resolve()
        chosen = current_version(folder) if version is None else version
        try:
            return cls._opened(folder, chosen, direct=direct, reads_in_flight=reads_in_flight)
        except StoreError:
            # A version that has just been followed by another may expire while it is opened.
            if version is not None or current_version(folder) == chosen:
                raise
        return cls.open(folder, direct=direct, reads_in_flight=reads_in_flight)

    @classmethod
    def _opened(cls, folder: Path, chosen: int, *, direct: bool, reads_in_flight: int) -> "MasterData":
        version_path = version_folder(folder, chosen)
        refuse_expired(folder, chosen)
        manifest = Manifest.read(version_path)
        index = PageIndex.read(version_path, manifest)
        reader = PageReader(folder, manifest, index, direct=direct, reads_in_flight=reads_in_flight)
        packed = (manifest.packed_file_bytes, manifest.packed_file_crc)
        packing = Packing.read(version_path, manifest.packed, *packed, has_nulls=manifest.has_nulls)
        return cls(folder, chosen, manifest, index, reader, packing)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.path, self.version, self._reader.direct, self._reader.reads_in_flight)

    def __repr__(self) -> str:
        return f"MasterData({str(self.path)!r}, version={self.version}, rows={self.rows:,}, key={self.key_columns})"

    @property
    def identity(self) -> str:
        """Names the content: equal for handles on the same version, different after a rebuild."""
        return f"{self.version:06d}-{self.manifest.files_digest:08x}-{self.manifest.index_file_crc:08x}"

    @property
    def garbage_share(self) -> float:
        """Of the bytes of its pages files, what this version does not use."""
        in_files = sum(file.bytes for file in self.manifest.files)
        used = int(self.index.blocks.sum(dtype=np.int64)) * PAGE_ALIGNMENT_BYTES
        return 1 - used / in_files if in_files else 0.0

    def apply(
        self,
        changes: Source,
        *,
        operation: str = "_op",
        progress: Progress | None = None,
        positions: Mapping[str, int] | None = None,
    ) -> "MasterData":
        """A handle on a new version with these changes, which readers find as current from now on.

        This handle, and every other that is open, keeps its own version. Work and bytes written grow with the pages
        that the changes touch. Past 30 % of garbage, or 64 files, the new version is compacted at once.

        Args:
            changes: Rows with the store's columns, and one that names the operation: insert adds a row to its key,
                update replaces all rows of its key (and adds one that is new), delete removes all rows of its key
                and needs the key alone. Changes of one key count in the order given. Held in memory. In a store with a
                history they name versions instead of rows (`master/history_changes.py`).
            operation: Name of that column; it holds insert, update, delete, or i, u, d.
            progress: Called with pages done and pages touched.
            positions: How far feeds have come with these changes, by their names: kept in the manifest (`feeds.py`).
        """
        changed = self._on(apply_changes(self, changes, operation, progress, positions))
        return changed.compact() if is_worth_it(changed) else changed

    def changed_codes(self, since: int) -> Int64s | None:
        """Codes of the keys that changed after version `since` up to this one, ascending; None when not known.

        Not known after a build, from a version that is not before this one or too far before it, and when the
        changes were more than a million. A code that is not among them has the same rows in both versions.
        """
        return codes_between(self.path, since, self.version)

    def compact(self, *, progress: Progress | None = None) -> "MasterData":
        """A handle on a version with the same rows in full pages of one file, in the order of a sweep.

        The same version when there is nothing to gain.
        """
        is_compact = len(self.manifest.files) <= 1 and self.garbage_share == 0
        return self if is_compact else self._on(compact_version(self, progress))

    def repacked(self, packing: Packing) -> "MasterData":
        """A handle on a version with the same rows, packed otherwise."""
        return self._on(compact_version(self, None, packing))

    def expire(self, *, keep_last: int = 2, older_than: timedelta = timedelta(hours=1)) -> Expired:
        """Remove old versions of the store, and pages files to which none refers any more.

        The current version stays, and so does each that a batch of a stream has claimed. Handles that are open keep
        what they have.

        Args:
            keep_last: So many of the newest versions stay.
            older_than: Only versions go that have not been current for so long.
        """
        return expire_versions(self.path, keep_last=keep_last, older_than=older_than)

    def _on(self, version: int) -> "MasterData":
        reader = self._reader
        return self.open(self.path, version, direct=reader.direct, reads_in_flight=reader.reads_in_flight)

    def close(self) -> None:
        """Give the file back now rather than when the handle is collected."""
        self._reader.close()

    def locate(self, keys: Int64s) -> tuple[Int64s, Int64s]:
        """First page and number of pages that can hold each code; 0 pages when none can.

        For pages in a given order the number is 0 or 1, and 1 says that the code exists.
        """
        return (self._key_pages or self.index).locate(keys)

    @property
    def pages_read(self) -> int:
        return self._reader.pages_read

    @property
    def bytes_read(self) -> int:
        return self._reader.bytes_read

    @property
    def reads(self) -> int:
        """Runs of neighbouring pages that were asked for: what a disk with an arm seeks for."""
        return self._reader.reads

    @property
    def read_seconds(self) -> float:
        """Seconds spent waiting for pages that were read and checked."""
        return self._reader.read_seconds

    @property
    def first_codes(self) -> Int64s:
        """Code with which each page begins; ascending when pages are in order of key."""
        return self.index.first_code

    @property
    def continues(self) -> "npt.NDArray[np.bool_]":
        """Whether the page before ends with the code with which a page begins."""
        return self.index.continues

    def begin_pages(self, pages: Int64s) -> Reading:
        """Rows of pages in the order of their numbers, on their way into one buffer, as by `begin_read`."""
        return self._reader.begin(pages)

    def begin_read(self, first_page: int, pages: int) -> Reading:
        """Rows of neighbouring pages on their way: in a thread when several reads may be in flight."""
        return self._reader.begin(self._run(first_page, pages))

    def read_rows(self, first_page: int, pages: int) -> PageRows:
        """Rows of neighbouring pages as they lie on disk, verified."""
        return self.begin_read(first_page, pages).result()

    def run_buffer_bytes(self, first_page: int, pages: int) -> int:
        """Memory that `read_rows` takes at most."""
        return self._reader.buffer_bytes(self._run(first_page, pages))

    def gather_rows(self, pages: Sequence[int] | Int64s) -> PageRows:
        """Rows of any pages as they lie on disk, verified, in one buffer and in the order asked for."""
        return self._reader.together(self._known(pages))

    def read_batch(self, pages: Sequence[int] | Int64s) -> pa.RecordBatch:
        """All rows of the pages, in the order asked for."""
        return self.read_paged(pages)[0]

    def read_paged(self, pages: Sequence[int] | Int64s) -> tuple[pa.RecordBatch, Int64s]:
        """Like `read_batch`, with the number of the first row of each page, and of all rows."""
        rows = self.gather_rows(pages)
        return self.layout.decode(rows.buffer, rows.at), rows.page_start

    def read_page(self, page: int) -> pa.RecordBatch:
        return self.read_batch([page])

    def read_pages(self, pages: Sequence[int] | Int64s) -> list[pa.RecordBatch]:
        """The pages in the order asked for; neighbours come with one read."""
        return list(self.batches(self._known(pages)))

    def buffer_bytes(self, pages: Sequence[int] | Int64s) -> int:
        """Memory that reading these pages at once takes at most, before they are decoded."""
        return self._reader.buffer_bytes(self._known(pages))

    def rows_buffer_bytes(self, pages: Sequence[int] | Int64s) -> int:
        """Memory that `begin_pages` takes at most."""
        return self._reader.buffer_bytes(np.asarray(pages, dtype=np.int64))

    def scan(self, from_page: int = 0) -> Iterator[pa.RecordBatch]:
        """Every page once, from one of them on and around; holds no more than the reads in flight."""
        return self.batches(cyclic(self.pages, from_page))

    def batches(self, pages: Int64s) -> Iterator[pa.RecordBatch]:
        """Each page as a batch: decoded with its run, since a decode costs as much for one page as for two."""
        for rows in self._reader.in_runs(pages):
            batch = self.layout.decode(rows.buffer, rows.at)
            starts = rows.page_start.tolist()
            yield from (batch.slice(begin, end - begin) for begin, end in pairwise(starts))

    def _run(self, first_page: int, pages: int) -> slice:
        if not 0 <= first_page <= first_page + pages <= self.pages:
            raise self._no_such_page(first_page if first_page < 0 else self.pages)
        return slice(first_page, first_page + pages)

    def _known(self, pages: Sequence[int] | Int64s) -> Int64s:
        wanted = np.asarray(pages, dtype=np.int64)
        outside = wanted[(wanted < 0) | (wanted >= self.pages)]
        if len(outside):
            raise self._no_such_page(int(outside[0]))
        return wanted

    def _no_such_page(self, page: int) -> StoreError:
        return StoreError(
            f"page {page} is not among the {self.pages} pages of {self.path}",
            code="no_such_page",
            next_move="ask for pages that locate() of the same handle gave",
            page=page,
        )

    def read_range(self, first: Any, last: Any) -> Iterator[pa.RecordBatch]:
        """Rows with keys from `first` to `last`, both included, in key order, page by page.

        For keys of one integer column: hashes keep no order of their keys.
        """
        return rows_between(self, first, last)

    def lookup(self, keys: Any) -> tuple[Int64s, pa.RecordBatch]:
        """All rows with these keys, and for each row the position of its key in `keys`.

        Holds every page that is touched at once: for small sets of keys, tests and tools.

        Args:
            keys: An Arrow or NumPy array; of composite keys one array a column, side by side.
        """
        return rows_of_keys(self, keys)


def _reopen(path: Path, version: int, direct: bool, reads_in_flight: int) -> MasterData:
    return MasterData.open(path, version, direct=direct, reads_in_flight=reads_in_flight)


__all__ = ["MasterData"]
