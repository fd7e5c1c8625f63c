"""Blocks on local disk while staging is away."""

import fcntl
import os
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tidemill.core.block import Block, check_source_name, decode_block
from tidemill.core.errors import SourceError, StoreError
from tidemill.core.wire import FRAME_FORMAT, Kind, block_of, pack_block, pack_frame, read_frame


@dataclass(frozen=True, slots=True)
class _Place:
    number: int
    rows: int
    last_position: int
    offset: int
    length: int


class Spool:
    """An append-only file of blocks in number order; its space is freed when all of them are acknowledged.

    The file holds the frames that would have gone over the network: a hello that names the log for which
    the blocks were numbered, then blocks. It is not synced: after a power cut the blocks that are whole are
    used, and the rows of the others are read from the source again.
    """

    def __init__(self, folder: Path, source: str, schema: pa.Schema, *, max_bytes: int) -> None:
        self.path = folder / f"{check_source_name(source)}.spool"
        self._source, self._schema, self._max_bytes = source, schema, max_bytes
        self.log_id = ""
        self.used_bytes = 0
        self._places: deque[_Place] = deque()
        self._unsent = 0
        folder.mkdir(parents=True, exist_ok=True)
        self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._load()
        except BlockingIOError as error:
            os.close(self._handle)
            raise StoreError(
                f"the spool {self.path} is used by another process",
                code="spool_in_use",
                next_move="run one regulator a source, or give each its own spool_dir",
                path=str(self.path),
            ) from error

    def __len__(self) -> int:
        return len(self._places)

    @property
    def first_number(self) -> int:
        return self._places[0].number

    @property
    def last(self) -> tuple[int, int]:
        """(number, last position) of the newest block."""
        return self._places[-1].number, self._places[-1].last_position

    @property
    def rows(self) -> int:
        return sum(place.rows for place in self._places)

    @property
    def has_unsent(self) -> bool:
        return self._unsent < len(self._places)

    def append(self, block: Block, log_id: str) -> bool:
        """Whether the block is kept; False when there is no room for it."""
        content = pack_block(block)
        if self.used_bytes == 0:
            self.log_id = log_id
            content = pack_frame(Kind.HELLO, {"format": FRAME_FORMAT, "log_id": log_id}) + content
        if self.used_bytes + len(content) > self._max_bytes:
            return False
        try:
            written = os.pwrite(self._handle, content, self.used_bytes)
        except OSError:
            written = 0
        if written < len(content):  # a full disk is a full spool
            os.ftruncate(self._handle, self.used_bytes)
            return False
        length = len(pack_block(block))
        self.used_bytes += len(content)
        self._places.append(
            _Place(block.number, block.rows, block.last_position, self.used_bytes - length, length)
        )
        return True

    def next_unsent(self) -> Block:
        """The oldest block that was not sent since the last `rewind`."""
        place = self._places[self._unsent]
        self._unsent += 1
        return self._read(place.offset)[0]

    def rewind(self) -> None:
        """Send all again that is not acknowledged."""
        self._unsent = 0

    def drop_acked(self, last_number: int) -> int:
        """Rows of the blocks up to `last_number`, which are no longer kept."""
        rows = 0
        while self._places and self._places[0].number <= last_number:
            rows += self._places.popleft().rows
            self._unsent = max(self._unsent - 1, 0)
        if not self._places:
            self.clear()
        return rows

    def clear(self) -> None:
        self._places.clear()
        self._unsent = self.used_bytes = 0
        os.ftruncate(self._handle, 0)

    def close(self) -> None:
        os.close(self._handle)

    def _load(self) -> None:
        """Find the blocks of a previous life; from the first one that is not whole on, all are cut off."""
        size = os.fstat(self._handle).st_size
        try:
            while self.used_bytes < size:
                self._load_next()
        except (SourceError, EOFError):
            os.ftruncate(self._handle, self.used_bytes)

    def _load_next(self) -> None:
        if self.used_bytes == 0:
            reader = _FileReader(self._handle, 0)
            self.log_id = str(read_frame(reader).header.get("log_id"))
            self.used_bytes = reader.offset
            return
        block, end = self._read(self.used_bytes)
        decode_block(block, self._schema)
        if block.source != self._source or (self._places and block.number != self.last[0] + 1):
            raise EOFError("blocks that do not connect")
        self._places.append(
            _Place(block.number, block.rows, block.last_position, self.used_bytes, end - self.used_bytes)
        )
        self.used_bytes = end

    def _read(self, offset: int) -> tuple[Block, int]:
        reader = _FileReader(self._handle, offset)
        return block_of(read_frame(reader)), reader.offset


class _FileReader:
    def __init__(self, handle: int, offset: int) -> None:
        self._handle, self.offset = handle, offset

    def __call__(self, count: int) -> bytes:
        content = os.pread(self._handle, count, self.offset)
        if len(content) < count:
            raise EOFError("the spool ends in the middle of a block")
        self.offset += count
        return content


__all__ = ["Spool"]
