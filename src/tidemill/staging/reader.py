"""Reading a staging log while another process writes it."""

import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.core.block import decode_block
from tidemill.core.errors import SourceError, StoreError
from tidemill.staging.records import (
    HEAD_BYTES,
    Damaged,
    LogHead,
    damaged_entry,
    index_record_is_whole,
    unpack_entry,
    unpack_head,
)
from tidemill.staging.segment import (
    HEAD_FILE,
    list_segments,
    read_index,
    read_log_file,
    read_start,
    segment_path,
)

_HEAD_TRIES = 50  # a read may meet the writer in the middle of its 28 bytes; the next one does not


class LogReader:
    """Entries of a log up to its durable end, verified one by one.

    Needs no lock and never looks beyond the head: later entries could vanish in a power cut. Holds one file
    handle and one entry at a time.
    """

    def __init__(self, path: Path | str) -> None:
        self._folder = Path(path)
        self.log_id, self.schema, _, _ = read_log_file(self._folder)
        self._head_handle = os.open(self._folder / HEAD_FILE, os.O_RDONLY)

    def close(self) -> None:
        if self._head_handle >= 0:
            os.close(self._head_handle)
            self._head_handle = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def first_entry(self) -> int:
        """The oldest entry that is still there."""
        return list_segments(self._folder)[0]

    def head(self) -> LogHead:
        """The durable end of the log."""
        return read_head(self._head_handle, self._folder)

    def limit(self, start_entry: int, max_rows: int) -> int:
        """The furthest end so that start..end holds at most `max_rows`; one entry at least when there is one."""
        head = self.head()
        if start_entry >= head.entries:
            return start_entry
        goal = self._rows_before(start_entry, head) + max_rows
        if goal >= head.rows:
            return head.entries
        end = start_entry
        for first, last in self._segments(start_entry, head.entries):
            totals = self._index(first, last)["total_rows"]
            end = first + int(np.searchsorted(totals, goal, side="right"))
            if end < last:
                break
        return max(end, start_entry + 1)

    def rows_between(self, start_entry: int, end_entry: int) -> int:
        """Rows in entries start..end-1."""
        head = self.head()
        self._check_range(start_entry, end_entry, head)
        return self._rows_before(end_entry, head) - self._rows_before(start_entry, head)

    def rows_before(self, entry: int) -> int:
        """Rows in all entries before this one since the log began, those already let go included."""
        return self._rows_before(entry, self.head())

    def read(self, start_entry: int, end_entry: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Each entry from start to end-1 with its rows, after checksum, digest and full validation."""
        self._check_range(start_entry, end_entry, self.head())
        for first, last in self._segments(start_entry, end_entry):
            index = self._index(first, last)
            path = segment_path(self._folder, first)
            with self._open(path, first) as file:
                for entry in range(max(first, start_entry), last):
                    record = index[entry - first]
                    yield entry, self._read_entry(file.fileno(), path, entry, record)

    def _read_entry(self, handle: int, path: Path, entry: int, record: Any) -> pa.RecordBatch:
        offset, length = int(record["offset"]), int(record["length"])
        try:
            if not index_record_is_whole(record):
                raise Damaged("its index record does not match its checksum")  # noqa: TRY301 - one place adds the facts
            block = unpack_entry(os.pread(handle, length, offset), entry)
            return decode_block(block, self.schema)
        except (Damaged, SourceError) as error:
            raise damaged_entry(path, entry, offset, error) from error

    def _rows_before(self, entry: int, head: LogHead) -> int:
        if entry >= head.entries:
            return head.rows
        first = max((s for s in list_segments(self._folder) if s <= entry), default=None)
        if first is None:
            raise self._trimmed(entry)
        if first == entry:
            try:
                return read_start(self._folder, first).rows_before
            except FileNotFoundError as error:  # the writer trims while we look
                raise self._trimmed(entry) from error
        record = self._index(first, entry)[-1]
        if not index_record_is_whole(record):
            raise damaged_entry(
                segment_path(self._folder, first), entry - 1, int(record["offset"]), "index record"
            )
        return int(record["total_rows"])

    def _segments(self, start_entry: int, end_entry: int) -> list[tuple[int, int]]:
        """(first entry, end within the range) of the segments that hold start..end."""
        firsts = list_segments(self._folder)
        if firsts[0] > start_entry:
            raise self._trimmed(start_entry)
        ends = [*firsts[1:], end_entry]
        return [
            (first, min(last, end_entry))
            for first, last in zip(firsts, ends, strict=True)
            if first < end_entry and last > start_entry
        ]

    def _index(self, first: int, end: int) -> npt.NDArray[np.void]:
        try:
            return read_index(self._folder, first, end - first)
        except FileNotFoundError as error:
            raise self._trimmed(first) from error

    def _open(self, path: Path, first: int) -> BinaryIO:
        try:
            return path.open("rb")
        except FileNotFoundError as error:
            raise self._trimmed(first) from error

    def _check_range(self, start_entry: int, end_entry: int, head: LogHead) -> None:
        if not 0 <= start_entry <= end_entry <= head.entries:
            raise StoreError(
                f"entries {start_entry} to {end_entry} were asked of the log in {self._folder}, which has {head.entries}",
                code="beyond_head",
                next_move="check that the position belongs to this log",
                start_entry=start_entry,
                end_entry=end_entry,
                entries=head.entries,
            )

    def _trimmed(self, entry: int) -> StoreError:
        return StoreError(
            f"entry {entry} of the log in {self._folder} was trimmed: the oldest left is {self.first_entry}",
            code="trimmed",
            next_move="resume from the warehouse's position",
            entry=entry,
            first_entry=self.first_entry,
        )


def read_head(handle: int, folder: Path) -> LogHead:
    """The head behind an open file."""
    for _ in range(_HEAD_TRIES):
        try:
            return unpack_head(os.pread(handle, HEAD_BYTES, 0))
        except Damaged as error:
            why = error
    raise StoreError(
        f"{folder / HEAD_FILE}: {why}",
        code="head_damaged",
        next_move="restore it from a backup, or start a new log and let the sources send again",
        path=str(folder / HEAD_FILE),
    )


__all__ = ["LogHead", "LogReader", "read_head"]
