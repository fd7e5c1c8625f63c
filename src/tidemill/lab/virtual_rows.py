"""Rows of a workload, made from its numbers: master data that is built once and kept, and a stream without end."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.core.errors import SpecError
from tidemill.master import MasterData
from tidemill.model.workload import Workload
from tidemill.testing.zipf import Zipf

STREAM_BATCH_ROWS = 50_000
_VERSION = 1  # in the names of stores: one that an older generator left is not taken for ours
_KEY_BYTES = 8


def open_store(workload: Workload, folder: Path) -> MasterData:
    """The master data of a workload, in key order; built if the folder does not have it."""
    path = folder / (
        f"virtual-v{_VERSION}-{workload.master_rows}-{workload.master_row_bytes}-"
        f"{workload.rows_per_key:g}-{workload.page_bytes}.store"
    )
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        rows = np.arange(workload.master_rows)
        keys = np.minimum((rows / workload.rows_per_key).astype(np.int64), workload.master_keys - 1)
        table = pa.Table.from_batches([_rows(keys, workload.master_row_bytes, "value")])
        MasterData.build(table, key="key", path=part, page_bytes=workload.page_bytes, pack=False).close()
        try:
            part.rename(path)
        except OSError:  # another process was first
            shutil.rmtree(part)
    return MasterData.open(path)


def as_stored(workload: Workload, master: MasterData) -> Workload:
    """The same workload with the pages that the store has, and the columns of the stream."""
    return replace(
        workload,
        page_bytes=master.longest_page_bytes,
        page_rows=master.rows / max(1, master.pages),
        stream_columns=len(stream_schema(workload)),
    )


def stream_schema(workload: Workload) -> pa.Schema:
    return _rows(np.zeros(0, dtype=np.int64), workload.stream_row_bytes, "event").schema


def stream_batches(workload: Workload, seed: int) -> Iterator[pa.RecordBatch]:
    """Stream rows for ever; keys that do not exist lie behind all that do, so that an index knows them."""
    keys = workload.master_keys
    draw = Zipf(keys, exponent=workload.zipf_exponent, seed=seed, spread=not workload.popular_first)
    random = np.random.default_rng(seed + 2)
    while True:
        asked = draw.draw(STREAM_BATCH_ROWS)
        if workload.matched_share < 1:
            asked[random.random(len(asked)) >= workload.matched_share] += keys
        yield _rows(asked, workload.stream_row_bytes, "event")


def _rows(keys: npt.NDArray[np.int64], row_bytes: int, payload: str) -> pa.RecordBatch:
    """Rows of a key and a payload that together take `row_bytes`."""
    width = row_bytes - _KEY_BYTES
    if width < 0:
        raise SpecError(
            f"rows of {row_bytes} bytes have no room for a key",
            code="row_too_narrow",
            next_move=f"give rows of {_KEY_BYTES} bytes or more",
            row_bytes=row_bytes,
        )
    columns: list[pa.Array[Any]] = [pa.array(keys)]
    if width:
        zeros = pa.py_buffer(bytes(len(keys) * width))
        columns.append(pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(keys), [None, zeros]))
    return pa.RecordBatch.from_arrays(columns, ["key", payload][: len(columns)])


__all__ = ["as_stored", "open_store", "stream_batches", "stream_schema"]
