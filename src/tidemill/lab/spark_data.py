"""Data of the Spark benchmark, made once and kept: master data as Parquet files and as a store, the stream as files.

A *lot* is a folder of stream files that one query reads, four files a micro-batch:

```
warm         batches that only fill caches           ┐
own-warm-N   the same in the size that is measured   │ Zipf 1, the same popular keys in all,
rows-N       warm-up batches, then measured ones     │ but each lot draws rows of its own
check-N      one batch whose output is compared      ┘
```
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidemill.lab.join_data import JoinData, Progress, require_space
from tidemill.lab.master_rows import MASTER_VERSION, master_batches
from tidemill.lab.streams import STREAM_SCHEMA, UNKNOWN_SHARE
from tidemill.testing.zipf import Zipf

MASTER_FILES = 10
ROW_GROUP_ROWS = 250_000
"""About 30 MB in memory: a task of Spark reads four of them, and none is too small to be worth a seek."""
FILES_PER_BATCH = 4
"""One file is one task: with fewer files than cores, cores would idle."""
ZIPF = 1.0
WARM_BATCHES = 24
"""Fifty batches gave 75 % hits in the next ones where they were the same two again and again, 78 % where they differed."""
_PARQUET_BYTES_PER_ROW, _STREAM_BYTES_PER_ROW = 80, 20
_FIRST_FILE_TIME_S = 1_700_000_000
"""Spark takes files in order of their times, which we set a second apart."""


@dataclass(frozen=True)
class Lot:
    """Stream files of one query."""

    name: str
    batch_rows: int
    batches: int

    @property
    def rows(self) -> int:
        return self.batch_rows * self.batches


@dataclass(frozen=True)
class SparkData:
    """One size of master data with its streams."""

    folder: Path
    master_rows: int
    seed: int

    @property
    def _joins(self) -> JoinData:
        return JoinData(self.folder, self.master_rows)

    @property
    def store(self) -> Path:
        return self._joins.store

    @property
    def parquet(self) -> Path:
        """A folder of files in key order."""
        return self.folder / f"master-v{MASTER_VERSION}-{self.master_rows}-files"

    def form(self, name: str) -> Path:
        """Where a contender keeps a form of the master data that it built for itself."""
        return self.folder / f"master-v{MASTER_VERSION}-{self.master_rows}.{name}"

    def master_bytes(self) -> int:
        """Bytes of the rows themselves, to which memory shares refer."""
        return self._joins.master_bytes()

    def path(self, lot: Lot) -> Path:
        name = f"{lot.name}-{lot.batches}x{lot.batch_rows}"
        return self.folder / f"spark-stream-{self.master_rows}-seed-{self.seed}" / name

    def warm_lot(self) -> Lot:
        """Batches of a tenth as many rows as the master data has, a million at most: in them hot rows become known."""
        batch_rows = max(FILES_PER_BATCH, min(1_000_000, self.master_rows // 10))
        return Lot("warm", batch_rows, WARM_BATCHES)

    def build(self, batch_rows: Sequence[int], progress: Progress) -> None:
        """Make what is missing; each file folder appears whole or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for form, seconds in self._joins.build(["store"], progress).items():
            progress(f"built {form} in {seconds:.0f} s", 1.0)
        if not self.parquet.exists():
            require_space(self.folder, _PARQUET_BYTES_PER_ROW * self.master_rows)
            self._write_master(progress)
        warm = self.warm_lot()
        lots = [warm, *(lot(rows) for rows in batch_rows for lot in (measured_lot, check_lot))]
        lots += [own_warm_lot(rows) for rows in batch_rows if rows != warm.batch_rows]
        missing = [lot for lot in lots if not self.path(lot).exists()]
        if missing:
            require_space(self.folder, _STREAM_BYTES_PER_ROW * sum(lot.rows for lot in missing))
            popular = np.random.default_rng(self.seed).permutation(self.master_rows)
            for lot in missing:
                self._write_lot(lot, popular, progress)

    def _write_master(self, progress: Progress) -> None:
        part = _fresh(self.parquet)
        starts = [number * self.master_rows // MASTER_FILES for number in range(MASTER_FILES + 1)]
        batches = _cut(master_batches(self.master_rows), np.diff(starts).tolist())
        for number, rows in enumerate(batches):
            pq.write_table(rows, part / f"{number:05d}.parquet", row_group_size=ROW_GROUP_ROWS)
            progress("writing master data as Parquet", (number + 1) / MASTER_FILES)
        part.rename(self.parquet)

    def _write_lot(self, lot: Lot, popular: "np.ndarray[tuple[int], np.dtype[np.int64]]", progress: Progress) -> None:  # fmt: skip
        part = _fresh(self.path(lot))
        own_seed = [self.seed, lot.batch_rows, *lot.name.encode()]
        random = np.random.default_rng(own_seed)
        draw = Zipf(self.master_rows, exponent=ZIPF, seed=int(random.integers(2**31)))
        sizes = [len(rows) for rows in np.array_split(np.empty(lot.batch_rows), FILES_PER_BATCH)]
        first = 0
        for number, count in enumerate(sizes * lot.batches):
            keys = popular[draw.draw(count)]
            keys[random.random(count) < UNKNOWN_SHARE] += self.master_rows
            columns = [keys, np.arange(first, first + count), random.integers(1, 10, count).astype(np.int32)]
            file = part / f"{number:05d}.parquet"
            pq.write_table(pa.table(columns, schema=STREAM_SCHEMA), file)
            os.utime(file, (_FIRST_FILE_TIME_S + number,) * 2)
            first += count
            progress(f"drawing stream files of {lot.name}", first / lot.rows)
        part.rename(self.path(lot))


def measured_lot(batch_rows: int) -> Lot:
    """Four million rows, but 8 to 50 batches; a quarter as many before them to warm up."""
    measured = min(50, max(8, 4_000_000 // batch_rows))
    return Lot("rows", batch_rows, measured + warm_up_batches(measured))


def own_warm_lot(batch_rows: int) -> Lot:
    """Batches as large as those that are measured, of other rows: what they make hot must not be what is measured."""
    return Lot("own-warm", batch_rows, measured_lot(batch_rows).batches)


def warm_up_batches(measured: int) -> int:
    return max(1, measured // 4)


def check_lot(batch_rows: int) -> Lot:
    return Lot("check", batch_rows, 1)


def _cut(batches: Iterator[pa.RecordBatch], sizes: Sequence[int]) -> Iterator[pa.Table]:
    """The same rows in tables of these sizes."""
    held = pa.Table.from_batches([next(batches)])
    for size in sizes:
        while held.num_rows < size:
            held = pa.concat_tables([held, pa.Table.from_batches([next(batches)])])
        yield held.slice(0, size)
        held = held.slice(size)


def _fresh(folder: Path) -> Path:
    """An empty folder beside the one that it will become."""
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    return part


__all__ = [
    "FILES_PER_BATCH",
    "Lot",
    "SparkData",
    "check_lot",
    "measured_lot",
    "own_warm_lot",
    "warm_up_batches",
]
