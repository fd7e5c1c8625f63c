"""The sparse index: one entry a page, mapped from its file, searched for whole arrays of codes."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import google_crc32c
import numpy as np
import pyarrow as pa

from tidemill.core.errors import StoreError
from tidemill.core.files import write_atomically
from tidemill.master.hashing import Int64s
from tidemill.master.layout import INDEX_FILE, Manifest


@dataclass(frozen=True)
class PageIndex:
    """Where each page lies, which codes it spans and what its checksum must be."""

    first_key: Int64s
    last_key: Int64s
    offset: Int64s
    length: Int64s
    rows: Int64s
    crc: Int64s

    @property
    def bytes_held(self) -> int:
        return sum(column.nbytes for column in vars(self).values())

    def locate(self, keys: Int64s) -> tuple[Int64s, Int64s]:
        """First page and number of pages that can hold each code; 0 pages when none can.

        For pages in order of code. A code with 2 pages or more certainly exists: the first page then
        ends with it.
        """
        first = np.searchsorted(self.last_key, keys, side="left").astype(np.int64, copy=False)
        end = np.searchsorted(self.first_key, keys, side="right").astype(np.int64, copy=False)
        return first, np.maximum(end - first, 0)

    def write(self, folder: Path) -> tuple[int, int]:
        """Bytes and CRC-32C of the index file, now safe on disk."""
        return write_columns(folder / INDEX_FILE, vars(self))

    @classmethod
    def read(cls, folder: Path, manifest: Manifest) -> "PageIndex":
        return cls(**read_columns(folder / INDEX_FILE, manifest.index_file_bytes, manifest.index_file_crc))


def write_columns(file: Path, columns: Mapping[str, Int64s]) -> tuple[int, int]:
    """Bytes and CRC-32C of the file that now holds these columns as one Arrow batch."""
    batch = pa.RecordBatch.from_arrays([pa.array(c) for c in columns.values()], list(columns))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    content = sink.getvalue()
    write_atomically(file, content.to_pybytes())
    return content.size, int(google_crc32c.value(content))


def read_columns(file: Path, file_bytes: int, file_crc: int) -> dict[str, Int64s]:
    """The columns of such a file, mapped: processes that open the same store share them."""
    try:
        content = pa.memory_map(str(file)).read_buffer()
    except (OSError, pa.ArrowInvalid) as error:
        raise StoreError(
            f"cannot read {file}: {error}",
            code="unreadable",
            next_move="restore the file, or build the master data again",
            file=str(file),
        ) from error
    if content.size != file_bytes or google_crc32c.value(content) != file_crc:
        raise StoreError(
            f"{file} differs from what its manifest promises ({content.size} of {file_bytes} bytes)",
            code="index_corrupt",
            next_move="restore the file, or build the master data again",
            file=str(file),
        )
    batch = pa.ipc.open_file(content).get_batch(0)
    return {name: batch.column(name).to_numpy() for name in batch.schema.names}


__all__ = ["Int64s", "PageIndex", "read_columns", "write_columns"]
