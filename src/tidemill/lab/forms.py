"""The forms in which contenders read the master data: Parquet, our store, SQLite, LMDB; each built in bulk."""

import marshal
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidemill.lab.master_rows import master_batches, master_reader
from tidemill.master import MasterData

Share = Callable[[float], None]
"""Takes how much of the work is done, 0 … 1."""
ROW_GROUP_ROWS = 122_880
"""DuckDB's own choice: 81 groups of 10 M rows, enough for two threads and small enough for one batch."""


def build_parquet(path: Path, rows: int, progress: Share) -> None:
    reader, done = master_reader(rows), 0
    with pq.ParquetWriter(path, reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch, row_group_size=ROW_GROUP_ROWS)
            done += batch.num_rows
            progress(done / rows)


def build_store(path: Path, rows: int, progress: Share) -> None:
    MasterData.build(
        master_reader(rows),
        key="key",
        path=path,
        progress=lambda done, total: progress(done / max(1, total)),
    )


def build_sqlite(path: Path, rows: int, progress: Share) -> None:
    """One transaction in key order, no journal, no syncs: the B-tree is appended to and its pages are full."""
    database, done = sqlite3.connect(path), 0
    for setting in ("journal_mode=OFF", "synchronous=OFF", "locking_mode=EXCLUSIVE"):
        database.execute(f"PRAGMA {setting}")
    database.execute(
        "CREATE TABLE master (key INTEGER PRIMARY KEY, name TEXT, supplier TEXT, supplier_id INTEGER, "
        "price REAL, stock INTEGER, shelf INTEGER, listed_on INTEGER)"
    )
    for batch in master_batches(rows):
        values = zip(batch.column("key").to_pylist(), *_plain_values(batch), strict=True)
        database.executemany("INSERT INTO master VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
        done += batch.num_rows
        progress(done / rows)
    database.commit()
    database.close()


def build_lmdb(path: Path, rows: int, progress: Share) -> None:
    """Key to the other seven values packed by Python's own `marshal`, appended in key order."""
    environment, done = lmdb.open(str(path), map_size=400 * rows + 10**8, sync=False), 0
    for batch in master_batches(rows):
        values = map(marshal.dumps, zip(*_plain_values(batch), strict=True))
        with environment.begin(write=True) as transaction:
            pairs = zip(lmdb_keys(batch), values, strict=True)
            transaction.cursor().putmulti(list(pairs), append=True)
        done += batch.num_rows
        progress(done / rows)
    environment.sync()
    environment.close()


def lmdb_keys(batch: pa.RecordBatch) -> Iterator[bytes]:
    """Keys as eight bytes, most significant first, so that bytes sort as numbers do."""
    raw = batch.column("key").to_numpy().astype(np.dtype(">i8")).tobytes()
    return (raw[at : at + 8] for at in range(0, len(raw), 8))


def _plain_values(batch: pa.RecordBatch) -> list[list[object]]:
    """All columns but the key as Python values, the date as its number of days."""
    plain = batch.set_column(7, "listed_on", batch.column("listed_on").cast(pa.int32()))
    return [column.to_pylist() for column in plain.columns[1:]]


__all__ = ["Share", "build_lmdb", "build_parquet", "build_sqlite", "build_store", "lmdb_keys"]
