"""DuckDB joining each batch of 100,000 rows against the Parquet file."""

from collections.abc import Iterable, Iterator

import duckdb
import pyarrow as pa

from tidemill.lab.join_data import JoinData
from tidemill.lab.kernel_counts import drop_from_cache
from tidemill.lab.peers import Outputs
from tidemill.lab.rows import MASTER_NAMES, OUTPUT_SCHEMA


class DuckdbJoin:
    """Scans the file for every batch, with the batch's keys as a filter on it; two threads, metadata cached.

    Memory is DuckDB's own matter, since it needs more than our budgets. It keeps no pages of local files (its setting
    `cache_local_files` is off unless asked for), and the system's page cache forgets the file before each batch.
    """

    def __init__(self, data: JoinData) -> None:
        self._parquet = data.parquet
        self._database = duckdb.connect(config={"threads": 2})
        self._database.execute("SET parquet_metadata_cache = true")
        columns = ", ".join(f"m.{name}" for name in MASTER_NAMES)
        path = str(data.parquet).replace("'", "''")
        self._query = (
            f"SELECT s.key, s.event, s.pieces, {columns} FROM batch s LEFT JOIN '{path}' m ON s.key = m.key"  # noqa: S608 - our own names
        )

    def join(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Outputs]:
        for batch in batches:
            drop_from_cache(self._parquet)
            self._database.register("batch", pa.Table.from_batches([batch]))
            table: pa.Table = self._database.sql(self._query).to_arrow_table()
            yield tuple(table.cast(OUTPUT_SCHEMA).to_batches())


def open_contender(data: JoinData, memory_bytes: int) -> DuckdbJoin:  # noqa: ARG001 - see the class
    return DuckdbJoin(data)
