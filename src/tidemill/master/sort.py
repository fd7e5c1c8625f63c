"""Rows in order of an int64 column, however many there are: sorted runs on disk, merged range by range.

Rows gather until they fill their share of the memory, are sorted and leave as one run: an Arrow file of small
batches. A run's first codes are a sample of its distribution, so all runs together tell where to cut the codes
into ranges that fit into memory; each range is then read from all runs, put together and sorted. Sorting a range
again costs less than a merge row by row would, and the work stays in NumPy and Arrow.

```
batches ─▶ gather ─full─▶ sort ─▶ run 0, run 1, run 2 …        (mapped files)
                                    └──┬──┴──┬──┘
                              range a │ range b │ …  ─▶ sort ─▶ rows in order
```
Memory: a quarter for the rows gathered, a quarter for their copy in one chunk, the rest for what comes and leaves. Rows of one code
that outgrow a range are passed on run by run, since nothing is left to sort.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from tidemill.master.batches import one_batch
from tidemill.master.hashing import Int64s

_LEAST_BATCH_ROWS = 16
_BATCHES_PER_RUN = 1024  # a range may be wrong by one batch of each run: with a thousand runs by one run
_MOST_LIMIT_BYTES = 2**30  # a chunk of strings has 32-bit offsets
_MOST_PIECE_ROWS = 131_072


@dataclass
class _Run:
    """One sorted file: what each of its batches starts with, and how large it is."""

    file: Path
    first: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    batch_bytes: list[int] = field(default_factory=list)


class ExternalSort:
    """Takes batches in any order and gives their rows sorted by one int64 column, equal ones as they came."""

    def __init__(self, folder: Path, schema: pa.Schema, by: str, memory_bytes: int) -> None:
        self.rows = 0
        self._folder = folder
        self._folder.mkdir()
        self.schema = schema
        self._by = by
        # A quarter each for the rows, their copy in one chunk, pieces in order, and what the caller holds.
        self._limit_bytes = max(1, min(memory_bytes // 4, _MOST_LIMIT_BYTES))
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = 0
        self._runs: list[_Run] = []

    def add(self, batch: pa.RecordBatch) -> None:
        if self._gathered and self._gathered_bytes + batch.nbytes > self._limit_bytes:
            self._spill()
        self._gathered.append(batch)
        self._gathered_bytes += batch.nbytes
        self.rows += batch.num_rows

    def in_order(self) -> Iterator[pa.RecordBatch]:
        """All rows; may be asked for again."""
        if not self._runs:
            yield from self._sorted(self._gathered)
            return
        if self._gathered:
            self._spill()
        for low, high in self._ranges():
            parts = [part for run in self._runs for part in self._between(run, low, high)]
            yield from parts if low == high else self._sorted(parts)

    def unordered(self) -> Iterator[pa.RecordBatch]:
        """All rows in an order that keeps equal ones as they came."""
        for run in self._runs:
            yield from _batches_of(run.file)
        yield from self._gathered

    def _spill(self) -> None:
        run = _Run(self._folder / f"{len(self._runs):06d}.arrow")
        with pa.ipc.new_file(str(run.file), self.schema) as writer:
            for whole in self._sorted(self._gathered):
                rows = max(
                    _LEAST_BATCH_ROWS,
                    self._limit_bytes // _BATCHES_PER_RUN * whole.num_rows // max(1, whole.nbytes),
                )
                for at in range(0, whole.num_rows, rows):
                    batch = whole.slice(at, rows)
                    writer.write_batch(batch)
                    codes = _codes(batch, self._by)
                    run.first.append(int(codes[0]))
                    run.last.append(int(codes[-1]))
                    run.batch_bytes.append(batch.nbytes)
        self._runs.append(run)
        self._gathered, self._gathered_bytes = [], 0
        pa.default_memory_pool().release_unused()

    def _sorted(self, batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        whole = one_batch(batches, self.schema)
        codes = _codes(whole, self._by)
        in_order = bool(np.all(codes[:-1] <= codes[1:]))
        order = np.argsort(codes, kind="stable") if not in_order else codes[:0]
        rows = max(1, min(_MOST_PIECE_ROWS, self._limit_bytes * len(codes) // (4 * max(1, whole.nbytes))))
        for at in range(0, len(codes), rows):
            yield whole.slice(at, rows) if in_order else whole.take(order[at : at + rows])

    def _ranges(self) -> Iterator[tuple[int, int]]:
        """First and last code of ranges that together hold all rows; one code alone when it fills a range."""
        first = np.concatenate([np.array(run.first, dtype=np.int64) for run in self._runs])
        sizes = np.concatenate([np.array(run.batch_bytes, dtype=np.int64) for run in self._runs])
        starts, group = np.unique(first, return_inverse=True)
        weights = np.bincount(group, weights=sizes)
        end = max(run.last[-1] for run in self._runs)
        low, filled = int(starts[0]), 0.0
        for start, weight in zip(starts.tolist(), weights.tolist(), strict=True):
            if filled + weight > self._limit_bytes and start > low:
                yield low, start - 1
                low, filled = start, 0.0
            if weight > self._limit_bytes and start < end:
                yield start, start
                low, filled = start + 1, 0.0
            else:
                filled += weight
        if low <= end:
            yield low, end

    def _between(self, run: _Run, low: int, high: int) -> Iterator[pa.RecordBatch]:
        """Rows of the run with codes from low to high."""
        begin = int(np.searchsorted(run.last, low, side="left"))
        until = int(np.searchsorted(run.first, high, side="right"))
        for batch in _batches_of(run.file, begin, until):
            codes = _codes(batch, self._by)
            at = int(np.searchsorted(codes, low, side="left"))
            rows = int(np.searchsorted(codes, high, side="right")) - at
            if rows:
                yield batch.slice(at, rows)


def _batches_of(file: Path, begin: int = 0, until: int | None = None) -> Iterator[pa.RecordBatch]:
    """Batches of an Arrow file, mapped: they take memory only while they are copied from."""
    with pa.memory_map(str(file)) as mapped:
        reader = pa.ipc.open_file(mapped)
        for number in range(begin, reader.num_record_batches if until is None else until):
            yield reader.get_batch(number)


def _codes(batch: pa.RecordBatch, column: str) -> Int64s:
    return np.asarray(batch.column(column).to_numpy(), dtype=np.int64)


__all__ = ["ExternalSort"]
