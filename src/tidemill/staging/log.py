"""The staging log: an append-only, checksummed, bounded queue of blocks on disk."""

import base64
import contextlib
import errno
import fcntl
import os
import time
import uuid
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa

from tidemill.core.block import Block, check_plain_schema
from tidemill.core.errors import InternalError, StoreError
from tidemill.core.files import sync_folder, write_atomically, write_sealed
from tidemill.core.units import format_bytes
from tidemill.staging.reader import read_head
from tidemill.staging.records import (
    INDEX_BYTES,
    LOG_FORMAT,
    LogHead,
    entry_length,
    pack_entry,
    pack_head,
    pack_index,
)
from tidemill.staging.recovery import recover
from tidemill.staging.retention import read_consumed
from tidemill.staging.segment import (
    HEAD_FILE,
    LOCK_FILE,
    LOG_FILE,
    create_segment,
    index_path,
    list_segments,
    read_log_file,
    segment_path,
)

DEFAULT_MAX_BYTES = 4 * 2**30
DEFAULT_SEGMENT_BYTES = 64 * 2**20


class StagingLog:
    """The one writer of a log.

    An append is one write and one fdatasync for all its blocks, then index and head. The head tells readers
    the durable end; it is itself not synced, since opening finds the entries behind a stale head again.
    So bytes at or beyond the head that are not whole are a torn tail and are cut off, and bytes below it
    that are not whole are damage and stop the opening.
    """

    def __init__(self, path: Path | str, *, max_bytes: int | None = None) -> None:
        self.path = Path(path)
        self.log_id, self.schema, stored_max_bytes, segment_bytes = read_log_file(self.path)
        self.max_bytes = max_bytes or stored_max_bytes
        # a quarter of the queue at most, so that trimming whole segments makes room in steps
        self._segment_bytes = min(segment_bytes, max(self.max_bytes // 4, 1))
        self._files = contextlib.ExitStack()
        self._data = self._index = self._head = -1
        self._data_end = self._older_bytes = self._segment_first = 0
        self.head = LogHead(0, 0)
        self._lock()
        try:
            self._recover()
        except BaseException:
            self._files.close()
            raise

    @classmethod
    def create(
        cls,
        path: Path | str,
        schema: pa.Schema,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        segment_bytes: int = DEFAULT_SEGMENT_BYTES,
    ) -> Self:
        """A new, empty log for rows of `schema`, open for writing."""
        folder = Path(path)
        check_plain_schema(schema)
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / LOG_FILE).exists():
            raise StoreError(
                f"there is a staging log in {folder} already",
                code="log_exists",
                next_move="open it, or give another folder",
                path=str(folder),
            )
        create_segment(folder, 0, 0, {})
        write_atomically(folder / HEAD_FILE, pack_head(LogHead(0, 0)))
        record = {
            "format": LOG_FORMAT,
            "log_id": str(uuid.uuid4()),
            "schema": base64.b64encode(schema.remove_metadata().serialize().to_pybytes()).decode(),
            "max_bytes": max_bytes,
            "segment_bytes": segment_bytes,
        }
        write_sealed(folder / LOG_FILE, record)  # last: a log without it was never finished
        return cls(folder)

    @classmethod
    def open(cls, path: Path | str, *, max_bytes: int | None = None) -> Self:
        """The log in `path`, recovered and open for writing; `max_bytes` overrides what it was created with."""
        return cls(path, max_bytes=max_bytes)

    def append(self, blocks: Sequence[Block]) -> None:
        """Make all blocks durable together, or none: numbers must continue each source's without a gap."""
        self._check_usable()
        self._check_order(blocks)
        size = sum(map(entry_length, blocks))
        if size > self.room_bytes:
            raise self._full(size)
        if self._data_end + size > self._segment_bytes and self.head.entries > self._segment_first:
            self._roll()
        self._write(blocks)

    def last_block(self, source: str) -> tuple[int, int] | None:
        """(number, last position) of the newest block of `source` in the log, trimmed ones included."""
        return self._sources.last_block(source)

    def recent_digest(self, source: str, number: int) -> bytes | None:
        """The digest of a block in the log, as long as it is among the newest of its source."""
        return self._sources.recent_digest(source, number)

    @property
    def segment_first(self) -> int:
        """First entry of the segment that is written now; it changes when a new one begins."""
        return self._segment_first

    @property
    def used_bytes(self) -> int:
        return self._older_bytes + self._data_end

    @property
    def room_bytes(self) -> int:
        return self.max_bytes - self.used_bytes

    @property
    def is_full(self) -> bool:
        return self.room_bytes <= 0

    def trim(self) -> int:
        """Segments deleted because the warehouse has all of their entries."""
        self._check_usable()
        consumed = min(read_consumed(self.path, self.log_id), self.head.entries)
        if consumed == self.head.entries > self._segment_first:
            self._roll()
        firsts = list_segments(self.path)
        gone = [first for first, after in pairwise(firsts) if after <= consumed]
        for first in gone:  # oldest first: a crash between leaves no hole
            size = segment_path(self.path, first).stat().st_size
            segment_path(self.path, first).unlink()
            index_path(self.path, first).unlink(missing_ok=True)
            self._older_bytes -= size
        if gone:
            sync_folder(self.path)
        return len(gone)

    def close(self) -> None:
        self._files.close()
        self._usable = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, blocks: Sequence[Block]) -> None:
        received_at_ns = time.time_ns()
        entry, rows, offset = self.head.entries, self.head.rows, self._data_end
        data, index = [], []
        for block in blocks:
            data.append(pack_entry(block, entry, received_at_ns))
            rows += block.rows
            index.append(pack_index(offset, len(data[-1]), block.rows, rows))
            offset += len(data[-1])
            entry += 1
        index_end = (self.head.entries - self._segment_first) * INDEX_BYTES
        try:
            _write_all(self._data, b"".join(data), self._data_end)
            self._usable = False  # after a failed sync the kernel's pages cannot be trusted
            os.fdatasync(self._data)
            self._usable = True
            _write_all(self._index, b"".join(index), index_end)
            os.pwrite(self._head, pack_head(LogHead(entry, rows)), 0)
        except OSError as error:
            self._cut_back(index_end)
            raise self._disk_error(error) from error
        self.head, self._data_end = LogHead(entry, rows), offset
        for block in blocks:
            self._sources.remember(block)

    def _cut_back(self, index_end: int) -> None:
        try:
            os.ftruncate(self._data, self._data_end)
            os.ftruncate(self._index, index_end)
            os.pwrite(self._head, pack_head(self.head), 0)
        except OSError:
            self._usable = False

    def _roll(self) -> None:
        """Continue in a new segment; head and index of the old one are made durable first."""
        old_bytes, first = self._data_end, self.head.entries
        try:
            os.fdatasync(self._index)
            os.fdatasync(self._head)
            create_segment(self.path, first, self.head.rows, self._sources.last_blocks())
        except OSError as error:
            raise self._disk_error(error) from error
        self._open_segment(first)
        self._older_bytes += old_bytes

    def _open_segment(self, first: int) -> None:
        self._close_segment()
        self._segment_first = first
        self._data = os.open(segment_path(self.path, first), os.O_RDWR)
        self._index = os.open(index_path(self.path, first), os.O_RDWR | os.O_CREAT, 0o644)
        self._data_end = os.fstat(self._data).st_size

    def _close_segment(self) -> None:
        for handle in (self._data, self._index):
            if handle >= 0:
                os.close(handle)
        self._data = self._index = -1

    def _lock(self) -> None:
        handle = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(handle, 32, 0).decode().strip() or "unknown"
            os.close(handle)
            raise StoreError(
                f"the staging log in {self.path} is already open by pid {holder}",
                code="log_in_use",
                next_move="stop that process, or give another folder",
                path=str(self.path),
                holder=holder,
            ) from error
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        self._files.callback(os.close, handle)

    def _recover(self) -> None:
        """Go on where the last writer ended: cut a torn tail, mend index and head."""
        for leftover in self.path.glob(".*.tmp"):
            leftover.unlink()
        self._head = os.open(self.path / HEAD_FILE, os.O_RDWR)
        self._files.callback(os.close, self._head)
        self._files.callback(self._close_segment)
        found = recover(self.path, read_head(self._head, self.path))
        self._sources, self._older_bytes, self.head = found.sources, found.older_bytes, found.head
        self._open_segment(found.segment_first)
        self._data_end = found.data_end
        os.ftruncate(self._data, found.data_end)
        os.fdatasync(self._data)  # entries behind a stale head may be in the kernel's memory only
        if index_path(self.path, found.segment_first).read_bytes() != found.index:
            _write_all(self._index, found.index, 0)
            os.ftruncate(self._index, len(found.index))
        os.pwrite(self._head, pack_head(found.head), 0)
        self._usable = True

    def _check_order(self, blocks: Sequence[Block]) -> None:
        last = self._sources.last_blocks()
        for block in blocks:
            expected = last.get(block.source, (0, 0))[0] + 1
            if block.number != expected:
                raise InternalError(
                    f"block {block.number} of {block.source} was appended where {expected} belongs",
                    code="block_out_of_order",
                    expected_number=expected,
                )
            last[block.source] = (block.number, block.last_position)

    def _check_usable(self) -> None:
        if not self._usable:
            raise StoreError(
                f"the staging log in {self.path} is closed or failed to write",
                code="log_closed",
                next_move="open it again: opening recovers it",
            )

    def _full(self, size: int) -> StoreError:
        fits_never = size > self.max_bytes
        return StoreError(
            f"{format_bytes(size)} do not fit: {format_bytes(self.used_bytes)} of {format_bytes(self.max_bytes)} are used",
            code="over_queue" if fits_never else "queue_full",
            next_move="give the log more max_bytes"
            if fits_never
            else "wait until the warehouse has consumed some",
            retryable=not fits_never,
            used_bytes=self.used_bytes,
            max_bytes=self.max_bytes,
        )

    def _disk_error(self, error: OSError) -> StoreError:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return StoreError(
            f"cannot write the staging log in {self.path}: {error.strerror}",
            code="disk_full" if full else "disk_error",
            next_move="free space on that disk" if full else "check the disk, then open the log again",
            retryable=full and self._usable,
            path=str(self.path),
        )


def _write_all(handle: int, content: bytes, offset: int) -> None:
    view = memoryview(content)
    while view:
        written = os.pwrite(handle, view, offset)
        view, offset = view[written:], offset + written


__all__ = ["DEFAULT_MAX_BYTES", "DEFAULT_SEGMENT_BYTES", "StagingLog"]
