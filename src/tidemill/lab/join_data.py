"""Master data and streams of the join benchmark, made once and kept: the same rows for every contender."""

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidemill.master import MasterData
from tidemill.testing.zipf import Zipf

ROWS_AT_A_TIME = 500_000
STREAM_BATCH_ROWS = 100_000
STREAM_SCHEMA = pa.schema([("key", pa.int64()), ("event", pa.int64()), ("pieces", pa.int32())])
"""20 bytes a row, as in the papers."""
Progress = Callable[[str, float], None]

# Eight columns, two of them strings, about 120 bytes a row; arithmetic with primes, the same on every machine.
_MASTER_SQL = """
SELECT i AS key,
       'article ' || lpad(((i * 48271) % 2147483647)::VARCHAR, 10, '0') || ' of the season' AS name,
       'supplier ' || lpad((i * 7919 % 20000)::VARCHAR, 5, '0') || ' and sons' AS supplier,
       i * 104729 % 1000003 AS supplier_id,
       (i * 15485863 % 100000)::DOUBLE / 100 AS price,
       i * 32452843 % 5000000 AS stock,
       (i * 49979687 % 3000)::INTEGER AS shelf,
       DATE '2015-01-01' + (i * 67867967 % 4000)::INTEGER AS listed_on
FROM range($first, $last) r(i)
"""


@dataclass(frozen=True)
class JoinData:
    """One size of master data in every form that a contender reads."""

    folder: Path
    rows: int

    @property
    def store(self) -> Path:
        return self.folder / f"store-{self.rows}"

    @property
    def parquet(self) -> Path:
        return self.folder / f"master-{self.rows}.parquet"

    @property
    def sqlite(self) -> Path:
        return self.folder / f"master-{self.rows}.sqlite"

    @property
    def lmdb(self) -> Path:
        return self.folder / f"master-{self.rows}.lmdb"

    def master_bytes(self) -> int:
        """Bytes of the rows themselves, to which memory shares refer."""
        return MasterData.open(self.store).row_bytes * self.rows

    def master_batches(self) -> Iterator[pa.RecordBatch]:
        with duckdb.connect() as generator:
            for first in range(0, self.rows, ROWS_AT_A_TIME):
                span = {"first": first, "last": min(first + ROWS_AT_A_TIME, self.rows)}
                table: pa.Table = generator.sql(_MASTER_SQL, params=span).to_arrow_table()
                yield from table.combine_chunks().to_batches()

    def master_reader(self) -> pa.RecordBatchReader:
        batches = self.master_batches()
        first = next(batches)

        def again() -> Iterator[pa.RecordBatch]:
            yield first
            yield from batches

        return pa.RecordBatchReader.from_batches(first.schema, again())

    def build(self, progress: Progress) -> None:
        """Make what is missing; each form appears whole or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for path, make in (
            (self.parquet, self._build_parquet),
            (self.store, self._build_store),
            (self.sqlite, self._build_sqlite),
            (self.lmdb, self._build_lmdb),
        ):
            if not path.exists():
                progress(f"building {path.name}", 0.0)
                make(path.with_name(f"{path.name}.part"), progress)
                path.with_name(f"{path.name}.part").rename(path)

    def _build_parquet(self, path: Path, progress: Progress) -> None:
        reader = self.master_reader()
        done = 0
        with pq.ParquetWriter(path, reader.schema) as writer:
            for batch in reader:
                writer.write_batch(batch)
                done += batch.num_rows
                progress(f"building {path.name}", done / self.rows)

    def _build_store(self, path: Path, progress: Progress) -> None:
        MasterData.build(
            self.master_reader(),
            key="key",
            path=path,
            progress=lambda done, _: progress(f"building {path.name}", done / self.rows),
        )

    def _build_sqlite(self, path: Path, progress: Progress) -> None:
        path.unlink(missing_ok=True)
        with sqlite3.connect(path) as database:
            database.execute("PRAGMA journal_mode=OFF")
            database.execute(
                "CREATE TABLE master (key INTEGER PRIMARY KEY, name TEXT, supplier TEXT, supplier_id INTEGER, "
                "price REAL, stock INTEGER, shelf INTEGER, listed_on INTEGER)"
            )
            done = 0
            for batch in self.master_batches():
                plain = batch.set_column(7, "listed_on", batch.column("listed_on").cast(pa.int32()))
                rows = zip(*(c.to_pylist() for c in plain.columns), strict=True)
                database.executemany("INSERT INTO master VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
                done += batch.num_rows
                progress(f"building {path.name}", done / self.rows)
        database.close()

    def _build_lmdb(self, path: Path, progress: Progress) -> None:
        """Key to the row's Arrow-free bytes: seven values packed by Python's own `marshal`."""
        import marshal

        import lmdb

        environment = lmdb.open(str(path), map_size=400 * self.rows + 10**8, sync=False)
        done = 0
        for batch in self.master_batches():
            plain = batch.set_column(7, "listed_on", batch.column("listed_on").cast(pa.int32()))
            values = zip(*(c.to_pylist() for c in plain.columns[1:]), strict=True)
            keys = plain.column(0).to_pylist()
            with environment.begin(write=True) as transaction:
                pairs = [
                    (int(str(k)).to_bytes(8, "big"), marshal.dumps(v))
                    for k, v in zip(keys, values, strict=True)
                ]
                transaction.cursor().putmulti(pairs, append=True)
            done += batch.num_rows
            progress(f"building {path.name}", done / self.rows)
        environment.sync()
        environment.close()


def stream_batches(
    master_rows: int, zipf: float, rows: int, seed: int, *, batch_rows: int = STREAM_BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Stream rows whose popular keys lie scattered over the master data; one in a hundred keys is unknown."""
    draw = Zipf(master_rows, exponent=zipf, seed=seed, spread=True)
    random = np.random.default_rng(seed + 2)
    for first in range(0, rows, batch_rows):
        count = min(batch_rows, rows - first)
        keys = draw.draw(count)
        keys[random.random(count) < 0.01] += master_rows
        yield pa.record_batch(
            [
                pa.array(keys),
                pa.array(np.arange(first, first + count)),
                pa.array(random.integers(1, 10, count).astype(np.int32)),
            ],
            schema=STREAM_SCHEMA,
        )


__all__ = ["STREAM_BATCH_ROWS", "STREAM_SCHEMA", "JoinData", "stream_batches"]
