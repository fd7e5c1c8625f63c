"""What a set of data offers to an experiment, and the master store that is kept between runs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import pyarrow as pa

from tidemill.core.errors import StoreError
from tidemill.master import MasterData
from tidemill.master.order import OrderBy
from tidemill.model.workload import Workload

ROWS_AT_A_TIME = 250_000
VERSION = 1
"""In the names of stores: what an older generator left is not taken for ours."""
_CODE_BYTES = 8
_NULL_BITS_BYTES = 1


class DataSet(Protocol):
    """Master data and a stream that asks for it, both drawn from a seed."""

    @property
    def name(self) -> str:
        """Of the store; equal names hold equal rows."""

    @property
    def workload(self) -> Workload:
        """In numbers, as a model takes it."""

    @property
    def key(self) -> str:
        """The column that both sides are joined on."""

    @property
    def master_order(self) -> OrderBy | None:
        """Of the pages where it is not that of keys."""

    @property
    def stream_schema(self) -> pa.Schema: ...

    def master(self, folder: Path) -> pa.RecordBatchReader:
        """All rows; `folder` is for files that their making needs."""

    def stream(self, folder: Path) -> Iterator[pa.RecordBatch]:
        """Rows without end, the same each time."""


def open_master(data: DataSet, folder: Path) -> MasterData:
    """The store of a set, built unless an earlier run has left it."""
    path = folder / f"{data.name}-v{VERSION}.store"
    try:
        return MasterData.open(path)
    except StoreError:
        return MasterData.build(
            data.master(folder),
            key=data.key,
            path=path,
            page_bytes=data.workload.page_bytes,
            order_by=data.master_order,
            pack=False,
        )


def filler(rows: int, width: int, random: np.random.Generator) -> "pa.Array[Any]":
    """Random bytes that give rows their size."""
    buffer = pa.py_buffer(random.bytes(rows * width))
    array = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), rows, [None, buffer])
    return cast("pa.Array[Any]", array)


def schema_of(**kinds: pa.DataType) -> pa.Schema:
    """Columns by name; spelled out, since lists of mixed types have none."""
    return pa.schema(list(kinds.items()))


def filler_bytes(row_bytes: int) -> int:
    """What a stored row of a key and a filler must be filled with to take so many bytes.

    >>> filler_bytes(120)
    111
    """
    return max(1, row_bytes - _CODE_BYTES - _NULL_BITS_BYTES)


def spans(rows: int) -> Iterator[tuple[int, int]]:
    """Start and length of pieces that fit into memory."""
    for first in range(0, rows, ROWS_AT_A_TIME):
        yield first, min(ROWS_AT_A_TIME, rows - first)


__all__ = ["DataSet", "filler", "filler_bytes", "open_master", "schema_of", "spans"]
