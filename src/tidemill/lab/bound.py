"""What no join can beat: the larger of assembling the output from memory and reading the fewest bytes that anyone read."""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from tidemill.core.recycled import Recycled
from tidemill.join.output import OutputPlan
from tidemill.join.parts.side_by_side import SideBySide
from tidemill.lab.device import DeviceCurve
from tidemill.lab.join_data import JoinData
from tidemill.lab.rows import MASTER_NAMES, beside, gather
from tidemill.lab.streams import STREAM_SCHEMA, stream_batches
from tidemill.master import MasterData
from tidemill.master.batches import one_batch
from tidemill.master.rows import RowLayout

MOST_ROWS_IN_MEMORY = 10_000_000
"""Stream keys are drawn from these, with the skew of the cell; they take 2 GB in both forms."""
_BYTES_PER_ROW = 600
"""Free memory wanted for a row in both forms, with all that is free besides."""
ASSEMBLED_ROWS = 400_000
PIECES = (100_000, 10_000)
"""Rows assembled at a time: whole batches, or pieces whose output stays in a cache."""
PASSES = 3
_KEPT_BYTES = 128 * 2**20

Assemble = Callable[[pa.RecordBatch, npt.NDArray[np.int64]], pa.RecordBatch]


class AssemblySpeed:
    """Seconds a row to put the output together when every master row is in memory: the best of all ways known."""

    def __init__(self, data: JoinData) -> None:
        fitting = psutil.virtual_memory().available // _BYTES_PER_ROW
        self._rows = min(data.rows, MOST_ROWS_IN_MEMORY, fitting)
        self.ways: dict[str, Assemble] = {
            "arrow_take": _by_take(data.parquet, self._rows),
            **_by_rows(data.store, self._rows),
        }

    def seconds_per_row(self, zipf: float, seed: int) -> float:
        """One thread; the quickest of all ways, sizes of a piece and passes."""
        stream = list(stream_batches(self._rows, zipf, ASSEMBLED_ROWS, seed))
        tries = product(range(PASSES), self.ways.values(), PIECES)
        return min(self._pass_seconds(way, stream, rows) for _, way, rows in tries) / ASSEMBLED_ROWS

    def _pass_seconds(self, assemble: Assemble, stream: list[pa.RecordBatch], piece_rows: int) -> float:
        seconds = 0.0
        for batch in stream:
            for first in range(0, batch.num_rows, piece_rows):
                piece = batch.slice(first, piece_rows)
                keys = piece.column("key").to_numpy()
                positions = np.where(keys < self._rows, keys, -1)
                started = time.perf_counter()
                assemble(piece, positions)
                seconds += time.perf_counter() - started
        return seconds


def _by_take(parquet: Path, rows: int) -> Assemble:
    """Columns of the first rows, which are in order of key from 0 on."""
    batches = pq.ParquetFile(parquet).iter_batches(batch_size=500_000, columns=MASTER_NAMES)
    held, left = [], rows
    while left > 0:
        held.append(next(batches).slice(0, left))
        left -= held[-1].num_rows
    master = one_batch(held, held[0].schema)
    return lambda stream, positions: gather(stream, master, positions)


def _by_rows(store: Path, rows: int) -> dict[str, Assemble]:
    """The same rows as the store has them: made into columns, or put beside the stream in one call as `tide` does it."""
    with closing(MasterData.open(store)) as master:
        found = master.read_rows(0, int(master.locate(np.array([rows - 1]))[0][0]) + 1)
        layout, content = master.layout, found.buffer
        plan = OutputPlan.of(
            STREAM_SCHEMA, master.schema, stream_key="key", master_key="key", how="left", columns=MASTER_NAMES
        )
    at = np.append(found.at[:rows], -1)  # so that position -1, the unknown key, names no row
    longest_bytes = int(np.diff(found.at[:rows], append=len(content)).max())
    side_by_side, memory = SideBySide(plan, layout, RowLayout.of(STREAM_SCHEMA)), Recycled(_KEPT_BYTES)

    def decode(stream: pa.RecordBatch, positions: npt.NDArray[np.int64]) -> pa.RecordBatch:
        return beside(stream, layout.decode(content, at[positions], MASTER_NAMES).columns)

    def in_one_call(stream: pa.RecordBatch, positions: npt.NDArray[np.int64]) -> pa.RecordBatch:
        sources = side_by_side.sources(stream)
        assert sources is not None, "a stream of the benchmark has no NULLs"
        numbers, rows_bytes = np.arange(len(positions)), len(positions) * longest_bytes
        return side_by_side.of_batch(sources, numbers, content, at[positions], rows_bytes, memory)

    return {"row_decode": decode, "one_call": in_one_call}


ONE_READ_AFTER_THE_OTHER = ("hybrid", "moij", "ssij", "x_hybrid")


def add_bounds(results: Sequence[dict[str, Any]], assemble_seconds: float, device: DeviceCurve) -> None:
    """Give all results of one skew and memory share the bound, and each one its own.

    The bound reads the fewest bytes a row of any contender that gave right rows, at the best speed of the disk. A
    contender's own bound reads its own bytes in reads of its own mean size; one after the other if the algorithm
    chooses each read by what the one before has left.
    """
    measured = [r for r in results if r["rows_per_s"] is not None]
    fewest = min((r["bytes_read"] / r["stream_rows"] for r in measured if r["same_rows"]), default=0.0)
    bound = 1 / max(assemble_seconds, fewest / device.best_bytes_per_s)
    for result in results:
        result["bound_rows_per_s"] = bound
        result["own_bound_rows_per_s"] = None
    for result in measured:
        mean_read = result["bytes_read"] / max(1, result["reads"])
        disk_seconds = device.seconds(
            result["bytes_read"],
            read_bytes=mean_read,
            alone=result.get("contender") in ONE_READ_AFTER_THE_OTHER,
        )
        own_seconds = max(assemble_seconds, disk_seconds / result["stream_rows"])
        result["own_bound_rows_per_s"] = 1 / own_seconds


__all__ = ["AssemblySpeed", "add_bounds"]
