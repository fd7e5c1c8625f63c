"""What a log holds when it is opened: the end of its last segment, its index, and its sources."""

from dataclasses import dataclass
from pathlib import Path

from tidemill.staging.records import Damaged, LogHead, damaged_entry, pack_index
from tidemill.staging.segment import list_segments, read_start, scan_entries, segment_path
from tidemill.staging.sources import SourceMemory


@dataclass(frozen=True, slots=True)
class Recovered:
    """The state to go on from; bytes of the last segment at `data_end` and later are a torn tail."""

    segment_first: int
    head: LogHead
    data_end: int
    index: bytes
    older_bytes: int
    sources: SourceMemory


def recover(folder: Path, durable: LogHead) -> Recovered:
    """Scan the last segment (and the one before it, for digests) without changing anything.

    Entries below `durable` that are not whole are damage and raise a `StoreError`: they were synced before
    the head said so. What is not whole from there on was never acknowledged and may go.
    """
    *older, first = list_segments(folder)
    sources = SourceMemory()
    for one in older[-1:]:
        _scan(folder, one, first, sources)
    sources.learn(read_start(folder, first).sources)
    index, data_end, head = _scan(folder, first, durable.entries, sources)
    older_bytes = sum(segment_path(folder, one).stat().st_size for one in older)
    return Recovered(first, head, data_end, index, older_bytes, sources)


def _scan(
    folder: Path, first: int, durable_entries: int, sources: SourceMemory
) -> tuple[bytes, int, LogHead]:
    """(index, end, head) of the whole entries of one segment, each remembered."""
    path, start = segment_path(folder, first), read_start(folder, first)
    index, end, entries, rows = bytearray(), start.data_offset, first, start.rows_before
    why = "the file ends before it"
    try:
        for entry, offset, length, block in scan_entries(path, end, first):
            rows += block.rows
            index += pack_index(offset, length, block.rows, rows)
            entries, end = entry + 1, offset + length
            sources.remember(block)
    except Damaged as error:
        why = str(error)
    if entries < durable_entries:
        raise damaged_entry(path, entries, end, why)
    return bytes(index), end, LogHead(entries, rows)


__all__ = ["Recovered", "recover"]
