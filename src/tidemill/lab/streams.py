"""Streams of the join benchmark, drawn once and kept: the same rows for every contender, already in memory when it starts."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa

from tidemill.lab.join_data import Progress, require_space
from tidemill.testing.zipf import Zipf

STREAM_BATCH_ROWS = 100_000
STREAM_SCHEMA = pa.schema([("key", pa.int64()), ("event", pa.int64()), ("pieces", pa.int32())])
"""20 bytes a row, as in the papers; `event` numbers the rows."""
AUTO_STREAM_ROWS = 24_000_000
"""Twelve seconds at 2 M rows/s, 480 MB; who is faster meets the rows a second time."""
UNKNOWN_SHARE = 0.01
Batch = TypeVar("Batch")
"""Of Arrow, or with what is known of its rows."""


@dataclass(frozen=True)
class Stream:
    """The stream for one size of master data and one skew."""

    folder: Path
    master_rows: int
    zipf: float
    seed: int
    rows: int = AUTO_STREAM_ROWS

    @property
    def path(self) -> Path:
        return (
            self.folder / f"stream-{self.master_rows}-zipf-{self.zipf:g}-seed-{self.seed}-{self.rows}.arrow"
        )

    def build(self, progress: Progress) -> None:
        """Draw the rows if that was not done before."""
        if self.path.exists():
            return
        require_space(self.folder, 20 * self.rows)
        part = self.path.with_suffix(".part")
        with pa.OSFile(str(part), "wb") as sink, pa.ipc.new_file(sink, STREAM_SCHEMA) as writer:
            for batch in stream_batches(self.master_rows, self.zipf, self.rows, self.seed):
                writer.write_batch(batch)
                done = int(batch.column("event")[-1].as_py()) + 1
                progress(f"drawing the stream of Zipf {self.zipf:g}", done / self.rows)
        part.rename(self.path)

    def read(self) -> list[pa.RecordBatch]:
        """All batches, in memory: read, not mapped, so that no page of the stream is fetched while rows are joined."""
        with pa.OSFile(str(self.path), "rb") as source:
            return pa.ipc.open_file(source).read_all().to_batches()


def stream_batches(master_rows: int, zipf: float, rows: int, seed: int) -> Iterator[pa.RecordBatch]:
    """Stream rows whose popular keys lie scattered over the master data; one in a hundred keys is unknown."""
    draw = Zipf(master_rows, exponent=zipf, seed=seed, spread=True)
    random = np.random.default_rng(seed + 2)
    for first in range(0, rows, STREAM_BATCH_ROWS):
        count = min(STREAM_BATCH_ROWS, rows - first)
        keys = draw.draw(count)
        keys[random.random(count) < UNKNOWN_SHARE] += master_rows
        yield pa.record_batch(
            [
                pa.array(keys),
                pa.array(np.arange(first, first + count)),
                pa.array(random.integers(1, 10, count).astype(np.int32)),
            ],
            schema=STREAM_SCHEMA,
        )


def endless(batches: list[Batch]) -> Iterator[Batch]:
    """The batches, around and around."""
    return cycle(batches)


def first_rows(batches: list[pa.RecordBatch], rows: int) -> list[pa.RecordBatch]:
    """The stream's start of that many rows."""
    return pa.Table.from_batches(batches).slice(0, rows).to_batches()


__all__ = [
    "AUTO_STREAM_ROWS",
    "STREAM_BATCH_ROWS",
    "STREAM_SCHEMA",
    "Stream",
    "endless",
    "first_rows",
    "stream_batches",
]
