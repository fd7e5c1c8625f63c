"""Putting the benchmark's output together when every master row is in memory: all ways known, and how fast they are."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from tidemill.core.recycled import Recycled
from tidemill.join.output import OutputPlan
from tidemill.join.parts.side_by_side import SideBySide
from tidemill.lab.join_data import JoinData
from tidemill.lab.kernel_counts import drop_from_cache
from tidemill.lab.peers import Outputs
from tidemill.lab.rows import MASTER_NAMES, beside, gather
from tidemill.lab.store import open_store
from tidemill.lab.streams import STREAM_SCHEMA
from tidemill.master.batches import one_batch
from tidemill.master.rows import RowLayout

Int64s = npt.NDArray[np.int64]
Assemble = Callable[[pa.RecordBatch, Int64s], pa.RecordBatch]
"""Takes stream rows and the number of the master row beside each; a negative one gives NULLs."""

MOST_ROWS_IN_MEMORY = 10_000_000
"""They take 2 GB in both forms."""
_BYTES_PER_ROW = 600
"""Free memory wanted for a row in both forms, with all that is free besides."""
PIECES = (100_000, 10_000)
"""Rows assembled at a time: whole batches, or pieces whose output stays in a cache."""
CACHED_ROWS = 400_000
CACHED_PASSES = 3
_KEPT_BYTES = 128 * 2**20


class Way(NamedTuple):
    """How output is put together."""

    name: str
    piece_rows: int
    assemble: Assemble


class Located(NamedTuple):
    """A batch of the stream, and the master row of each of its rows: finding it is no part of assembling."""

    batch: pa.RecordBatch
    positions: Int64s


class Assembly:
    """Master rows in memory, in both forms, as many as there are or as fit."""

    def __init__(self, data: JoinData) -> None:
        fitting = psutil.virtual_memory().available // _BYTES_PER_ROW
        self._master_rows = data.rows
        self.rows = min(data.rows, MOST_ROWS_IN_MEMORY, max(1, fitting))
        known = {"arrow_take": _by_take(data.parquet, self.rows), **_by_rows(data, self.rows)}
        self.ways = [Way(name, rows, assemble) for (name, assemble), rows in product(known.items(), PIECES)]

    def locate(self, stream: Iterable[pa.RecordBatch]) -> list[Located]:
        """The batches with their master rows; where not all are held, others of the same popularity stand for the rest."""
        return [Located(batch, self._positions(batch.column("key").to_numpy())) for batch in stream]

    def _positions(self, keys: Int64s) -> Int64s:
        return np.where(keys < self._master_rows, keys % self.rows, -1)


def assembled(way: Way, stream: Iterable[Located]) -> Iterator[Outputs]:
    """The output, piece by piece; nobody but the caller holds it."""
    for batch, positions in stream:
        for first in range(0, batch.num_rows, way.piece_rows):
            end = first + way.piece_rows
            yield (way.assemble(batch.slice(first, way.piece_rows), positions[first:end]),)


def cached_rows_per_s(ways: Iterable[Way], start: list[Located]) -> float:
    """The best pass of all over the same few rows, which a processor's cache knows after the first one."""
    rows = sum(batch.num_rows for batch, _ in start)
    return rows / min(_pass_seconds(way, start) for _, way in product(range(CACHED_PASSES), ways))


def _pass_seconds(way: Way, start: list[Located]) -> float:
    started = time.perf_counter()
    for _ in assembled(way, start):
        pass
    return time.perf_counter() - started


def _by_take(parquet: Path, rows: int) -> Assemble:
    """Columns of the first rows, which are in order of key from 0 on."""
    batches = pq.ParquetFile(parquet).iter_batches(batch_size=500_000, columns=MASTER_NAMES)
    held, left = [], rows
    while left > 0:
        held.append(next(batches).slice(0, left))
        left -= held[-1].num_rows
    master = one_batch(held, held[0].schema)
    drop_from_cache(parquet)  # the next contender shall not find it there
    return lambda stream, positions: gather(stream, master, positions)


def _by_rows(data: JoinData, rows: int) -> dict[str, Assemble]:
    """The same rows as the store has them: made into columns, or put beside the stream in one call as `tide` does it."""
    with closing(open_store(data)) as master:
        found = master.read_rows(0, int(master.locate(np.array([rows - 1]))[0][0]) + 1)
        layout, content = master.layout, found.buffer
        plan = OutputPlan.of(
            STREAM_SCHEMA, master.schema, stream_key="key", master_key="key", how="left", columns=MASTER_NAMES
        )
    at = np.append(found.at[:rows], -1)  # so that position -1, the unknown key, names no row
    longest_bytes = int(np.diff(found.at[:rows], append=len(content)).max())
    side_by_side, memory = SideBySide(plan, layout, RowLayout.of(STREAM_SCHEMA)), Recycled(_KEPT_BYTES)

    def decode(stream: pa.RecordBatch, positions: Int64s) -> pa.RecordBatch:
        return beside(stream, layout.decode(content, at[positions], MASTER_NAMES).columns)

    def in_one_call(stream: pa.RecordBatch, positions: Int64s) -> pa.RecordBatch:
        sources = side_by_side.sources(stream)
        assert sources is not None, "a stream of the benchmark has no NULLs"
        numbers, rows_bytes = np.arange(len(positions)), len(positions) * longest_bytes
        return side_by_side.of_batch(sources, numbers, content, at[positions], rows_bytes, memory)

    return {"row_decode": decode, "one_call": in_one_call}


__all__ = ["CACHED_ROWS", "Assembly", "Located", "Way", "assembled", "cached_rows_per_s"]
