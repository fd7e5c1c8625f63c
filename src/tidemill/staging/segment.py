"""One segment of the staging log: a data file, its index, and what was known of the sources at its start."""

import base64
import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.core.block import Block
from tidemill.core.errors import StoreError
from tidemill.core.files import read_sealed, write_atomically
from tidemill.staging.records import (
    ENTRY_HEADER_BYTES,
    INDEX_BYTES,
    INDEX_DTYPE,
    LOG_FORMAT,
    padded,
    unpack_entry,
    unpack_entry_header,
)

LOG_FILE, HEAD_FILE, LOCK_FILE = "log.json", "head", "writer.lock"
_START = struct.Struct("<4sHHI")  # magic, format, zero, JSON bytes; then a checksum of this and the JSON
_CRC = struct.Struct("<I")
_PREFIX_BYTES = _START.size + _CRC.size
_START_MAGIC = b"TMLS"
_NAME = re.compile(r"(\d{20})\.seg")


@dataclass(frozen=True, slots=True)
class SegmentStart:
    """What the beginning of a segment remembers, so that trimmed segments take nothing along.

    Attributes:
        first_entry: Number of its first entry.
        rows_before: Rows in all entries before it.
        sources: Last block number and position of each source seen before it.
        data_offset: Byte where its first entry begins.
    """

    first_entry: int
    rows_before: int
    sources: dict[str, tuple[int, int]]
    data_offset: int


def segment_path(folder: Path, first_entry: int) -> Path:
    return folder / f"{first_entry:020d}.seg"


def index_path(folder: Path, first_entry: int) -> Path:
    return folder / f"{first_entry:020d}.idx"


def list_segments(folder: Path) -> list[int]:
    """First entry numbers of the segments that are there, in order."""
    return sorted(int(match[1]) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name)))


def create_segment(
    folder: Path, first_entry: int, rows_before: int, sources: dict[str, tuple[int, int]]
) -> None:
    """Write an empty segment that is there wholly or not at all, its index first."""
    text = json.dumps({"first_entry": first_entry, "rows_before": rows_before, "sources": sources}).encode()
    text = text.ljust(padded(len(text)))
    index_path(folder, first_entry).write_bytes(b"")
    start = _START.pack(_START_MAGIC, LOG_FORMAT, 0, len(text))
    crc = _CRC.pack(google_crc32c.value(start + text))
    write_atomically(segment_path(folder, first_entry), start + crc + text)


def read_start(folder: Path, first_entry: int) -> SegmentStart:
    path = segment_path(folder, first_entry)
    with path.open("rb") as file:
        prefix = file.read(_PREFIX_BYTES).ljust(_PREFIX_BYTES, b"\0")
        magic, version, _, size = _START.unpack_from(prefix)
        text = file.read(size) if magic == _START_MAGIC else b""
    crc = google_crc32c.value(prefix[: _START.size] + text)
    if magic != _START_MAGIC or version != LOG_FORMAT or crc != _CRC.unpack_from(prefix, _START.size)[0]:
        raise StoreError(
            f"the beginning of {path} is damaged or of another format than {LOG_FORMAT}",
            code="segment_damaged",
            next_move="restore the segment from a backup",
            path=str(path),
        )
    fields = json.loads(text)
    sources = {name: (number, position) for name, (number, position) in fields["sources"].items()}
    return SegmentStart(fields["first_entry"], fields["rows_before"], sources, _PREFIX_BYTES + size)


def read_index(folder: Path, first_entry: int, entries: int) -> npt.NDArray[np.void]:
    """The first `entries` index records of a segment."""
    with index_path(folder, first_entry).open("rb") as file:
        content = file.read(entries * INDEX_BYTES)
    if len(content) < entries * INDEX_BYTES:
        raise StoreError(
            f"the index {index_path(folder, first_entry)} has {len(content) // INDEX_BYTES} of {entries} records",
            code="index_short",
            next_move="start the receiver: it rebuilds the index",
            retryable=True,
        )
    return np.frombuffer(content, dtype=INDEX_DTYPE)


def scan_entries(path: Path, offset: int, first_entry: int) -> Iterator[tuple[int, int, int, Block]]:
    """(entry, offset, length, block) of each whole entry from `offset` on; `Damaged` where one is not.

    Reads one entry at a time, so that memory does not follow the segment's size.
    """
    with path.open("rb") as file:
        file.seek(offset)
        entry = first_entry
        while header_bytes := file.read(ENTRY_HEADER_BYTES):
            header = unpack_entry_header(header_bytes)
            content = header_bytes + file.read(header.length - ENTRY_HEADER_BYTES)
            yield entry, offset, header.length, unpack_entry(content, entry)
            offset += header.length
            entry += 1


def read_log_file(folder: Path) -> tuple[str, pa.Schema, int, int]:
    """(log_id, schema, max_bytes, segment_bytes) of the log in `folder`."""
    if not (folder / LOG_FILE).exists():
        raise StoreError(
            f"there is no staging log in {folder}",
            code="no_log",
            next_move="create it with StagingLog.create",
            path=str(folder),
        )
    fields = read_sealed(folder / LOG_FILE)
    if fields["format"] != LOG_FORMAT:
        raise StoreError(
            f"the staging log in {folder} has format {fields['format']}, this release reads {LOG_FORMAT}",
            code="log_format",
            next_move="use the release that wrote it",
        )
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(fields["schema"])))
    return fields["log_id"], schema, fields["max_bytes"], fields["segment_bytes"]


__all__ = [
    "HEAD_FILE",
    "LOCK_FILE",
    "LOG_FILE",
    "SegmentStart",
    "create_segment",
    "index_path",
    "list_segments",
    "read_index",
    "read_log_file",
    "read_start",
    "scan_entries",
    "segment_path",
]
