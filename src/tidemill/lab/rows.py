"""Rows of the join benchmark as Arrow: output in one schema, whoever made them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.lab.streams import STREAM_SCHEMA

MASTER_FIELDS: list[tuple[str, pa.DataType]] = [
    ("name", pa.string()),
    ("supplier", pa.string()),
    ("supplier_id", pa.int64()),
    ("price", pa.float64()),
    ("stock", pa.int64()),
    ("shelf", pa.int32()),
    ("listed_on", pa.date32()),
]
MASTER_NAMES = [name for name, _ in MASTER_FIELDS]
OUTPUT_SCHEMA = pa.schema([*STREAM_SCHEMA, *(pa.field(n, t) for n, t in MASTER_FIELDS)])


def columns_of_rows(rows: Sequence[tuple[object, ...]]) -> "list[pa.Array[Any]]":
    """Columns from Python rows, the way that a client of a row store gets them."""
    columns = zip(*rows, strict=True) if rows else [[] for _ in MASTER_FIELDS]
    return [pa.array(list(c), t) for c, (_, t) in zip(columns, MASTER_FIELDS, strict=True)]


def beside(stream: pa.RecordBatch, master: "Sequence[pa.Array[Any]]") -> pa.RecordBatch:
    """Stream columns, then master columns, in the benchmark's output schema."""
    return pa.RecordBatch.from_arrays([*stream.columns, *master], schema=OUTPUT_SCHEMA)


def gather(
    stream: pa.RecordBatch, master: pa.RecordBatch, positions: npt.NDArray[np.int64]
) -> pa.RecordBatch:
    """Each stream row beside the master row at its position, or NULLs where that is negative."""
    picked = master.select(MASTER_NAMES).take(pa.array(positions, pa.int64(), mask=positions < 0))
    return beside(stream, picked.columns)


__all__ = ["MASTER_NAMES", "OUTPUT_SCHEMA", "beside", "columns_of_rows", "gather"]
