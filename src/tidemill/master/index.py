"""The sparse index: one entry a page, held in memory, searched for whole arrays of keys."""

import os
from dataclasses import dataclass
from pathlib import Path

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.core.errors import StoreError
from tidemill.master.layout import INDEX_FILE, Manifest

Int64s = npt.NDArray[np.int64]

SCHEMA = pa.schema(
    [
        ("first_key", pa.int64()),
        ("last_key", pa.int64()),
        ("offset", pa.int64()),
        ("length", pa.int64()),
        ("rows", pa.int64()),
        ("crc", pa.int64()),
    ]
)


@dataclass(frozen=True)
class PageIndex:
    """Where each page lies, which keys it spans and what its checksum must be."""

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
        """First page and number of pages that can hold each key; 0 pages when none can.

        A key with 2 pages or more certainly exists: the first page then ends with it.
        """
        first = np.searchsorted(self.last_key, keys, side="left").astype(np.int64, copy=False)
        end = np.searchsorted(self.first_key, keys, side="right").astype(np.int64, copy=False)
        return first, np.maximum(end - first, 0)

    def write(self, folder: Path) -> tuple[int, int]:
        """Bytes and CRC-32C of the index file, now safe on disk."""
        columns = [pa.array(vars(self)[name]) for name in SCHEMA.names]
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, SCHEMA) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
        content = sink.getvalue()
        with (folder / INDEX_FILE).open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        return content.size, int(google_crc32c.value(content))

    @classmethod
    def read(cls, folder: Path, manifest: Manifest) -> "PageIndex":
        file = folder / INDEX_FILE
        try:
            content = file.read_bytes()
        except OSError as error:
            raise StoreError(
                f"cannot read {file}: {error}",
                code="unreadable",
                next_move="restore the file, or build the master data again",
                file=str(file),
            ) from error
        if (
            len(content) != manifest.index_file_bytes
            or google_crc32c.value(content) != manifest.index_file_crc
        ):
            raise StoreError(
                f"{file} differs from what its manifest promises ({len(content)} of {manifest.index_file_bytes} bytes)",
                code="index_corrupt",
                next_move="restore the file, or build the master data again",
                file=str(file),
            )
        batch = pa.ipc.open_file(pa.py_buffer(content)).get_batch(0)
        # Copies: views would keep the file's bytes alive besides the columns.
        return cls(**{name: batch.column(name).to_numpy().copy() for name in SCHEMA.names})


__all__ = ["Int64s", "PageIndex"]
