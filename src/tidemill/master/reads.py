"""Pages from disk: neighbours with one read, several reads in flight, nothing believed before its checksum fits."""

import errno
import os
import time
import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import google_crc32c
import numpy as np
import pyarrow as pa

from tidemill.core.errors import SpecError, StoreError
from tidemill.master.index import Int64s, PageIndex
from tidemill.master.layout import PAGE_ALIGNMENT_BYTES, RUN_BYTES


class _Place(NamedTuple):
    page: int
    offset: int
    length: int
    crc: int


_Run = list[_Place]


class PageReader:
    """Reads pages of one file and counts what that took.

    A run of neighbouring pages comes with one read into one buffer, which lives as long as a batch
    that points into it. With `reads_in_flight` above 1 that many runs are read by threads while the
    caller works on the one before: `os.preadv` lets go of the interpreter. `direct` asks the kernel to
    keep out its page cache; buffers are then aligned to device blocks, 4 KiB more for each run.
    """

    def __init__(
        self, file: Path, index: PageIndex, schema: pa.Schema, *, direct: bool, reads_in_flight: int
    ) -> None:
        if reads_in_flight < 1:
            raise SpecError(
                f"reads_in_flight is {reads_in_flight}",
                code="reads_in_flight",
                next_move="give 1 or more",
            )
        self.pages_read = 0
        self.bytes_read = 0
        self.read_seconds = 0.0
        """Seconds that callers waited: reads that overlap with their work cost nothing here."""
        self.direct = direct
        self.reads_in_flight = reads_in_flight
        self.file = file
        self._index = index
        self._schema = schema
        self._slack_bytes = PAGE_ALIGNMENT_BYTES if direct else 0
        self._handle = _opened(file, direct=direct)
        self._pool = ThreadPoolExecutor(reads_in_flight, "page-reads") if reads_in_flight > 1 else None
        # On the reader itself: a read under way keeps it alive, so its handle is not closed under that read.
        self._release = weakref.finalize(self, _release, self._pool, self._handle)

    def close(self) -> None:
        """Let reads that are under way end, then give threads and file back; idempotent."""
        if self._pool is not None:
            self._pool.shutdown()
        self._release()
        self._handle = -1  # the number may soon be another file's

    @property
    def size_bytes(self) -> int:
        return os.fstat(self._handle).st_size

    def pages(self, wanted: Int64s) -> Iterator[pa.RecordBatch]:
        """The pages in the order asked for; at most `reads_in_flight` runs are read ahead."""
        outside = wanted[(wanted < 0) | (wanted >= len(self._index.offset))]
        if len(outside):
            raise self.corrupt(
                int(outside[0]), f"is not among the {len(self._index.offset)} pages of the store"
            )
        contents = self._contents(_runs(wanted, self._index))
        while True:
            started = time.perf_counter()
            try:
                # Made whole at once: the clock must not run while the caller works.
                batches = self._decoded(*next(contents, ([], None)))
            finally:
                self.read_seconds += time.perf_counter() - started
            if not batches:
                return
            yield from batches

    def buffer_bytes(self, wanted: Int64s) -> int:
        """Memory that reading these pages at once takes."""
        return sum(_span(run) + self._slack_bytes for run in _runs(wanted, self._index))

    def _contents(self, runs: Iterator[_Run]) -> Iterator[tuple[_Run, pa.Buffer]]:
        """Each run with its bytes; the next ones are under way while the caller works."""
        if self._pool is None:
            yield from ((run, self._read(run)) for run in runs)
            return
        ahead = deque((run, self._pool.submit(self._read, run)) for run in islice(runs, self.reads_in_flight))
        while ahead:
            run, future = ahead.popleft()
            content = future.result()
            ahead.extend((r, self._pool.submit(self._read, r)) for r in islice(runs, 1))
            yield run, content

    def _read(self, run: _Run) -> pa.Buffer:
        size = _span(run)
        memory = pa.allocate_buffer(size + self._slack_bytes)
        skipped = -memory.address % PAGE_ALIGNMENT_BYTES if self.direct else 0
        room = memoryview(memory)[skipped : skipped + size]
        try:
            read_bytes = os.preadv(self._handle, [room], run[0].offset)
        except OSError as error:
            raise self.corrupt(run[0].page, f"cannot be read: {error}") from error
        # As a foreign buffer the bytes cannot be written any more.
        return pa.foreign_buffer(memory.address + skipped, read_bytes, memory)

    def _decoded(self, run: _Run, content: pa.Buffer | None) -> list[pa.RecordBatch]:
        if content is None:
            return []
        self.bytes_read += content.size
        self.pages_read += len(run)
        return [self._checked(place, content, run[0].offset) for place in run]

    def _checked(self, place: _Place, content: pa.Buffer, start: int) -> pa.RecordBatch:
        at = place.offset - start
        if content.size < at + place.length:
            missing = at + place.length - content.size
            raise self.corrupt(place.page, f"is cut: the file ends {missing} bytes too early")
        stored = content.slice(at, place.length)
        found_crc = google_crc32c.value(stored)
        if found_crc != place.crc:
            raise self.corrupt(place.page, f"has checksum {found_crc:08x}, the index says {place.crc:08x}")
        return pa.ipc.read_record_batch(stored, self._schema)

    def corrupt(self, page: int, what: str) -> StoreError:
        offset = int(self._index.offset[page]) if 0 <= page < len(self._index.offset) else -1
        return StoreError(
            f"page {page} of {self.file} at offset {offset} {what}",
            code="page_corrupt",
            next_move="restore the file from a copy, or build the master data again",
            file=str(self.file),
            page=page,
            offset=offset,
        )


def _runs(pages: Int64s, index: PageIndex) -> Iterator[_Run]:
    """Places of the pages, neighbours together as far as one read of `RUN_BYTES` reaches."""
    columns = (pages, index.offset[pages], index.length[pages], index.crc[pages])
    run: _Run = []
    for place in map(_Place._make, zip(*(column.tolist() for column in columns), strict=True)):
        reach = place.offset + place.length - run[0].offset if run else 0
        if run and (place.page != run[-1].page + 1 or reach > RUN_BYTES):
            yield run
            run = []
        run.append(place)
    if run:
        yield run


def _span(run: _Run) -> int:
    """Bytes of a read, in whole blocks: pages lie at multiples of the alignment."""
    size = run[-1].offset + run[-1].length - run[0].offset
    return size + -size % PAGE_ALIGNMENT_BYTES


def _release(pool: ThreadPoolExecutor | None, handle: int) -> None:
    # May run inside a garbage collection, in any thread and at any line: it must not wait for a thread.
    if pool is not None:
        pool.shutdown(wait=False)
    os.close(handle)


def _opened(file: Path, *, direct: bool) -> int:
    try:
        return os.open(file, os.O_RDONLY | (os.O_DIRECT if direct else 0))
    except OSError as error:
        if direct and error.errno == errno.EINVAL:
            raise StoreError(
                f"the file system of {file} has no direct I/O",
                code="no_direct_io",
                next_move="open the master data with direct=False, or keep it on a local disk",
                file=str(file),
            ) from error
        raise StoreError(
            f"cannot open {file}: {error.strerror}",
            code="unreadable",
            next_move="restore the file, or build the master data again",
            file=str(file),
        ) from error


def cyclic(pages: int, from_page: int) -> Int64s:
    """All page numbers once, from one of them on and around.

    >>> cyclic(4, 3).tolist()
    [3, 0, 1, 2]
    """
    return (np.arange(pages, dtype=np.int64) + from_page) % max(1, pages)


__all__ = ["PageReader", "cyclic"]
