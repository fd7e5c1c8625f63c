"""DuckDB joining each batch against the Parquet file."""

from collections.abc import Iterable, Iterator

import duckdb
import pyarrow as pa

from tidemill.lab.join_data import JoinData
from tidemill.lab.rows import MASTER_NAMES, OUTPUT_SCHEMA


class DuckdbJoin:
    """Scans the file for every batch; memory is DuckDB's own matter, since it needs more than our budgets."""

    bytes_read = 0

    def __init__(self, data: JoinData) -> None:
        self._database = duckdb.connect(config={"threads": 2})
        columns = ", ".join(f"m.{name}" for name in MASTER_NAMES)
        path = str(data.parquet).replace("'", "''")
        self._query = (
            f"SELECT s.key, s.event, s.pieces, {columns} FROM batch s LEFT JOIN '{path}' m ON s.key = m.key"  # noqa: S608 - our own names
        )

    def join(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self._database.register("batch", pa.Table.from_batches([batch]))
            table: pa.Table = self._database.sql(self._query).to_arrow_table()
            yield from table.cast(OUTPUT_SCHEMA).to_batches()


def open_contender(data: JoinData, memory_bytes: int) -> DuckdbJoin:  # noqa: ARG001 - see the class
    return DuckdbJoin(data)
