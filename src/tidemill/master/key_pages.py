"""Which page holds a key, when pages are in an order of their own: every code with its page, mapped from disk.

```
keys.bin      codes, ascending (8 B each) │ their pages (4 B each)
blocks.arrow  for each 4,096 entries: first code, CRC-32C          (checked at open, in memory)
```
The file is mapped and never read as a whole: a lookup touches, and at the first touch verifies, only the blocks
that it needs.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.core.errors import StoreError
from tidemill.core.passing import NEXT_MOVE, may_pass
from tidemill.master.hashing import Int64s
from tidemill.master.index import read_columns, write_columns
from tidemill.master.layout import BLOCKS_FILE, KEYS_FILE, Manifest
from tidemill.master.sort import ExternalSort

SCHEMA = pa.schema([("code", pa.int64()), ("page", pa.int32())])
ENTRY_BYTES = 8 + 4
BLOCK_ENTRIES = 4096


class KeyPages:
    """Finds the one page of each code."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._file = folder / KEYS_FILE
        blocks = read_columns(folder / BLOCKS_FILE, manifest.blocks_file_bytes, manifest.blocks_file_crc)
        self._first, self._crc = blocks["first_code"], blocks["crc"]
        self._verified = np.zeros(len(self._first), dtype=np.bool_)
        entries = manifest.distinct_keys
        content = _mapped(self._file, manifest.keys_file_bytes)
        self._codes: Int64s = np.frombuffer(content, np.int64, entries)
        self._pages: npt.NDArray[np.int32] = np.frombuffer(content, np.int32, entries, entries * 8)
        self.mapped_bytes = manifest.keys_file_bytes
        self.bytes_held = self._first.nbytes + self._crc.nbytes + self._verified.nbytes

    def locate(self, codes: Int64s) -> tuple[Int64s, Int64s]:
        """The page of each code and 1, or 0 and 0 when there is none."""
        if not len(self._codes):
            return np.zeros_like(codes), np.zeros_like(codes)
        block = np.searchsorted(self._first, codes, side="right") - 1
        self._verify(np.unique(block[block >= 0]))
        at = np.searchsorted(self._codes, codes, side="left")
        # The search passes blocks that were not verified: what it found must lie where the verified first codes say.
        if bool(((block >= 0) & (at // BLOCK_ENTRIES != block) & (at != self._end(block))).any()):
            self._verify(np.arange(len(self._first)))
        at = np.minimum(at, len(self._codes) - 1)
        found = (self._codes[at] == codes) & (block >= 0)
        return np.where(found, self._pages[at], 0).astype(np.int64), found.astype(np.int64)

    def _end(self, block: Int64s) -> Int64s:
        return np.minimum((block + 1) * BLOCK_ENTRIES, len(self._codes))

    def _verify(self, blocks: Int64s) -> None:
        for block in blocks[~self._verified[blocks]].tolist():
            entries = slice(block * BLOCK_ENTRIES, (block + 1) * BLOCK_ENTRIES)
            if _crc_of(self._codes[entries], self._pages[entries]) != self._crc[block]:
                raise self._corrupt(block)
            self._verified[block] = True

    def _corrupt(self, block: int) -> StoreError:
        return StoreError(
            f"block {block} of {self._file} at offset {block * BLOCK_ENTRIES * 8} fails its checksum",
            code="keys_corrupt",
            next_move="restore the file from a copy, or build the master data again",
            file=str(self._file),
            block=block,
        )


def write_key_pages(folder: Path, sort: ExternalSort) -> tuple[int, int, int]:
    """Bytes of the keys file, bytes and CRC-32C of the blocks file; both are now safe on disk."""
    first: list[int] = []
    crcs: list[int] = []
    file = folder / KEYS_FILE
    with file.open("wb") as codes_part, file.open("r+b") as pages_part:
        pages_part.seek(sort.rows * 8)
        for codes, pages in _blocks(sort.in_order()):
            codes_part.write(codes.tobytes())
            pages_part.write(pages.tobytes())
            first.append(int(codes[0]))
            crcs.append(_crc_of(codes, pages))
        codes_part.flush()
        pages_part.flush()
        os.fsync(codes_part.fileno())  # of the file: what the other handle wrote as well
    columns = {"first_code": np.array(first, dtype=np.int64), "crc": np.array(crcs, dtype=np.int64)}
    return sort.rows * ENTRY_BYTES, *write_columns(folder / BLOCKS_FILE, columns)


def _blocks(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[Int64s, npt.NDArray[np.int32]]]:
    """The entries in blocks of `BLOCK_ENTRIES`, the last one shorter."""
    codes, pages = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32)
    for batch in batches:
        codes = np.concatenate([codes, batch.column("code").to_numpy()])
        pages = np.concatenate([pages, batch.column("page").to_numpy()])
        whole = len(codes) - len(codes) % BLOCK_ENTRIES
        for at in range(0, whole, BLOCK_ENTRIES):
            yield codes[at : at + BLOCK_ENTRIES], pages[at : at + BLOCK_ENTRIES]
        codes, pages = codes[whole:], pages[whole:]
    if len(codes):
        yield codes, pages


def _crc_of(codes: Int64s, pages: npt.NDArray[np.int32]) -> int:
    return int(google_crc32c.extend(google_crc32c.value(codes.tobytes()), pages.tobytes()))


def _mapped(file: Path, file_bytes: int) -> memoryview:
    try:
        content = pa.memory_map(str(file)).read_buffer() if file_bytes else pa.py_buffer(b"")
    except (OSError, pa.ArrowInvalid) as error:
        raise StoreError(
            f"cannot read {file}: {error}",
            code="unreadable",
            next_move=NEXT_MOVE if may_pass(error) else "restore the file, or build the master data again",
            retryable=may_pass(error),
            file=str(file),
        ) from error
    if content.size != file_bytes:
        raise StoreError(
            f"{file} has {content.size} bytes, its manifest promises {file_bytes}",
            code="keys_cut",
            next_move="restore the file, or build the master data again",
            file=str(file),
            size_bytes=content.size,
        )
    return memoryview(content)


__all__ = ["SCHEMA", "KeyPages", "write_key_pages"]
