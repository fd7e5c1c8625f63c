"""Bytes of the staging log: entries, index records and the head, each with its checksum."""

import struct
from dataclasses import dataclass
from typing import Any, Final

import google_crc32c
import numpy as np

from tidemill.core.block import Block
from tidemill.core.errors import StoreError

LOG_FORMAT: Final = 1
_ENTRY = struct.Struct("<4sIIIIH2xQQqq32s")
_ENTRY_MAGIC = b"TMLE"
_ENTRY_CHECKED = 8  # the checksum covers all after magic and checksum
ENTRY_HEADER_BYTES = _ENTRY.size
_HEAD = struct.Struct("<4sHxxQQI")
_HEAD_MAGIC = b"TMLH"
HEAD_BYTES = _HEAD.size
INDEX_DTYPE = np.dtype(
    [("offset", "<u8"), ("length", "<u4"), ("rows", "<u4"), ("total_rows", "<u8"), ("crc", "<u8")]
)
INDEX_BYTES = INDEX_DTYPE.itemsize
_INDEX = struct.Struct("<QIIQQ")


class Damaged(Exception):  # noqa: N818 - becomes a StoreError where file and entry are known
    """Bytes that are not what was written."""


@dataclass(frozen=True, slots=True)
class LogHead:
    """The durable end of a log: entries 0 .. entries-1 with so many rows together."""

    entries: int
    rows: int


@dataclass(frozen=True, slots=True)
class EntryHeader:
    length: int
    source_bytes: int
    body_bytes: int
    rows: int
    entry: int
    number: int
    last_position: int
    received_at_ns: int
    digest: bytes


def padded(count: int) -> int:
    """Bytes up to the next multiple of eight, where Arrow buffers may begin."""
    return -(-count // 8) * 8


def entry_length(block: Block) -> int:
    return ENTRY_HEADER_BYTES + padded(len(block.source.encode())) + padded(len(block.body))


def pack_entry(block: Block, entry: int, received_at_ns: int) -> bytes:
    source = block.source.encode()
    header = _ENTRY.pack(
        _ENTRY_MAGIC,
        0,
        entry_length(block),
        len(block.body),
        block.rows,
        len(source),
        entry,
        block.number,
        block.last_position,
        received_at_ns,
        block.digest,
    )
    checked = b"".join(
        (
            header[_ENTRY_CHECKED:],
            source.ljust(padded(len(source)), b"\0"),
            block.body.ljust(padded(len(block.body)), b"\0"),
        )
    )
    return b"".join((_ENTRY_MAGIC, struct.pack("<I", google_crc32c.value(checked)), checked))


def unpack_entry_header(content: bytes) -> EntryHeader:
    """The header of an entry, sizes plausible but its checksum not yet verified."""
    if len(content) < ENTRY_HEADER_BYTES:
        raise Damaged(f"{len(content)} bytes where a header of {ENTRY_HEADER_BYTES} belongs")
    magic, _, length, body_bytes, rows, source_bytes, entry, number, position, received, digest = (
        _ENTRY.unpack_from(content)
    )
    if magic != _ENTRY_MAGIC or length != ENTRY_HEADER_BYTES + padded(source_bytes) + padded(body_bytes):
        raise Damaged("no entry begins here")
    return EntryHeader(length, source_bytes, body_bytes, rows, entry, number, position, received, digest)


def unpack_entry(content: bytes, expected_entry: int) -> Block:
    """The block in an entry, its checksum verified."""
    header = unpack_entry_header(content)
    if len(content) != header.length:
        raise Damaged(f"{len(content)} bytes where the header says {header.length}")
    if google_crc32c.value(content[_ENTRY_CHECKED:]) != struct.unpack_from("<I", content, 4)[0]:
        raise Damaged("the checksum does not match")
    if header.entry != expected_entry:
        raise Damaged(f"this is entry {header.entry}")
    body_at = ENTRY_HEADER_BYTES + padded(header.source_bytes)
    source = content[ENTRY_HEADER_BYTES : ENTRY_HEADER_BYTES + header.source_bytes].decode()
    body = content[body_at : body_at + header.body_bytes]
    return Block(source, header.number, header.rows, header.last_position, body, header.digest)


def pack_index(offset: int, length: int, rows: int, total_rows: int) -> bytes:
    """One index record; `total_rows` counts from the log's beginning through this entry."""
    return _INDEX.pack(offset, length, rows, total_rows, _index_crc(offset, length, rows, total_rows))


def index_record_is_whole(record: Any) -> bool:
    """Whether a record of an index array carries the right checksum."""
    return int(record["crc"]) == _index_crc(
        *(int(record[name]) for name in ("offset", "length", "rows", "total_rows"))
    )


def _index_crc(offset: int, length: int, rows: int, total_rows: int) -> int:
    return int(google_crc32c.value(struct.pack("<QIIQ", offset, length, rows, total_rows)))


def pack_head(head: LogHead) -> bytes:
    bare = _HEAD.pack(_HEAD_MAGIC, LOG_FORMAT, head.entries, head.rows, 0)
    return bare[:-4] + struct.pack("<I", google_crc32c.value(bare[:-4]))


def unpack_head(content: bytes) -> LogHead:
    if (
        len(content) != HEAD_BYTES
        or google_crc32c.value(content[:-4]) != struct.unpack("<I", content[-4:])[0]
    ):
        raise Damaged("the head does not match its checksum")
    magic, version, entries, rows, _ = _HEAD.unpack(content)
    if magic != _HEAD_MAGIC or version != LOG_FORMAT:
        raise Damaged(f"head of format {version} where {LOG_FORMAT} belongs")
    return LogHead(entries, rows)


def damaged_entry(path: object, entry: int, offset: int, why: object) -> StoreError:
    return StoreError(
        f"entry {entry} at byte {offset} of {path} is damaged: {why}",
        code="entry_damaged",
        next_move="restore the segment from a backup, or start a new log and let the sources send again",
        path=str(path),
        entry=entry,
        offset=offset,
    )


__all__ = [
    "ENTRY_HEADER_BYTES",
    "HEAD_BYTES",
    "INDEX_BYTES",
    "INDEX_DTYPE",
    "LOG_FORMAT",
    "Damaged",
    "EntryHeader",
    "LogHead",
    "damaged_entry",
    "entry_length",
    "index_record_is_whole",
    "pack_entry",
    "pack_head",
    "pack_index",
    "padded",
    "unpack_entry",
    "unpack_entry_header",
    "unpack_head",
]
