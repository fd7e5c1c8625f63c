"""The sparse index: one entry a page, mapped from its file, searched for whole arrays of codes.

It is thin, 16 bytes a page of up to 1 MiB, since joins hold it within their budget: 1.2 MB for the 75,000 pages of ten
million rows. What else there is to know of a page stands in the page.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.core.errors import StoreError
from tidemill.core.files import write_atomically
from tidemill.core.passing import NEXT_MOVE, may_pass
from tidemill.master.hashing import Bools, Int64s
from tidemill.master.layout import INDEX_FILE, Manifest


@dataclass(frozen=True)
class PageIndex:
    """Where each page lies, and with which code it begins."""

    first_code: Int64s
    offset: npt.NDArray[np.uint32]
    """In blocks of 4,096 bytes."""
    file: npt.NDArray[np.uint16]
    """Number in the manifest's list."""
    blocks: npt.NDArray[Any]
    """Length in blocks, in the narrowest unsigned type that holds them all."""
    continues: Bools
    """Whether the page before ends with the code with which this one begins."""
    last_code: int
    """With which the last page ends; of no meaning for pages in a given order."""

    @classmethod
    def of(
        cls,
        first_code: Int64s,
        offset: Int64s,
        file: Int64s,
        blocks: Int64s,
        continues: Bools,
        last_code: int,
    ) -> "PageIndex":
        """The index with each column in the type that it is stored in."""
        width = np.min_scalar_type(int(blocks.max(initial=1)))
        columns = (offset.astype(np.uint32), file.astype(np.uint16), blocks.astype(width), continues)
        return cls(first_code, *columns, last_code)

    @property
    def pages(self) -> int:
        return len(self.first_code)

    @property
    def bytes_held(self) -> int:
        return sum(column.nbytes for column in self._columns().values())

    def _columns(self) -> dict[str, npt.NDArray[Any]]:
        return {name: column for name, column in vars(self).items() if name != "last_code"}

    def locate(self, codes: Int64s) -> tuple[Int64s, Int64s]:
        """First page and number of pages that can hold each code; 0 pages when none can.

        For pages in order of code. A code with 2 pages or more certainly exists: the last one begins with it.
        """
        end = np.searchsorted(self.first_code, codes, side="right")
        first = np.searchsorted(self.first_code, codes, side="left")
        # A code with which no page begins can be inside the page before only; so can rows of one that continues.
        reaches_back = first == end
        if len(self.continues):
            reaches_back |= self.continues[np.minimum(first, len(self.continues) - 1)]
        reaches_back &= codes <= self.last_code
        first = np.maximum(first - reaches_back, 0)
        return first, end - first

    def write(self, folder: Path) -> tuple[int, int]:
        """Bytes and CRC-32C of the index file, now safe on disk."""
        # Arrow packs booleans into bits, which cannot be mapped as NumPy has them.
        columns = {**self._columns(), "continues": self.continues.view(np.uint8)}
        return write_columns(folder / INDEX_FILE, columns)

    @classmethod
    def read(cls, folder: Path, manifest: Manifest) -> "PageIndex":
        columns = read_columns(folder / INDEX_FILE, manifest.index_file_bytes, manifest.index_file_crc)
        continues = columns.pop("continues").view(np.bool_)
        return cls(**columns, continues=continues, last_code=manifest.last_code)


def write_columns(file: Path, columns: Mapping[str, npt.NDArray[Any]]) -> tuple[int, int]:
    """Bytes and CRC-32C of the file that now holds these columns as one Arrow batch."""
    return write_batch(
        file, pa.RecordBatch.from_arrays([pa.array(c) for c in columns.values()], list(columns))
    )


def write_batch(file: Path, batch: pa.RecordBatch) -> tuple[int, int]:
    """Bytes and CRC-32C of the file that now holds the batch."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    content = sink.getvalue()
    write_atomically(file, content.to_pybytes())
    return content.size, int(google_crc32c.value(content))


def read_columns(file: Path, file_bytes: int, file_crc: int) -> dict[str, npt.NDArray[Any]]:
    """The columns of such a file, mapped: processes that open the same store share them."""
    batch = read_batch(file, file_bytes, file_crc)
    return {name: batch.column(name).to_numpy() for name in batch.schema.names}


def read_batch(file: Path, file_bytes: int, file_crc: int) -> pa.RecordBatch:
    """The batch of such a file, mapped; a `StoreError` when it is not what its manifest says."""
    try:
        content = pa.memory_map(str(file)).read_buffer()
    except (OSError, pa.ArrowInvalid) as error:
        raise StoreError(
            f"cannot read {file}: {error}",
            code="unreadable",
            next_move=NEXT_MOVE if may_pass(error) else "restore the file, or build the master data again",
            retryable=may_pass(error),
            file=str(file),
        ) from error
    if content.size != file_bytes or google_crc32c.value(content) != file_crc:
        raise StoreError(
            f"{file} differs from what its manifest promises ({content.size} of {file_bytes} bytes)",
            code="index_corrupt",
            next_move="restore the file, or build the master data again",
            file=str(file),
        )
    return pa.ipc.open_file(content).get_batch(0)


__all__ = ["PageIndex", "read_batch", "read_columns", "write_batch", "write_columns"]
