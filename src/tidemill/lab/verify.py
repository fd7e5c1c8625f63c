"""Whether a contender's rows are right, judged by DuckDB's own join, untimed."""

from collections.abc import Iterable, Iterator

import duckdb
import pyarrow as pa

from tidemill.lab.join_data import JoinData
from tidemill.lab.rows import MASTER_NAMES, OUTPUT_SCHEMA

LOT_ROWS = 100_000


class Judge:
    """Count and order-free checksum of joined rows, beside what DuckDB's join of the same stream rows gives."""

    def __init__(self, data: JoinData) -> None:
        self._database = duckdb.connect(config={"threads": 2})
        columns = ", ".join(f"m.{name}" for name in MASTER_NAMES)
        path = str(data.parquet).replace("'", "''")
        self._join = (
            f"SELECT s.key, s.event, s.pieces, {columns} FROM stream s LEFT JOIN '{path}' m ON s.key = m.key"  # noqa: S608
        )

    def same_rows(self, outputs: Iterable[pa.RecordBatch], stream: list[pa.RecordBatch]) -> bool:
        """Whether all rows and columns of the outputs equal the join of exactly these stream rows."""
        found_rows = found_sum = 0
        for found in _lots(outputs):
            self._database.register("found", found)
            found_rows, found_sum = found_rows + found.num_rows, found_sum + self._checksum("FROM found")
        self._database.register("stream", pa.Table.from_batches(stream))
        rows = sum(batch.num_rows for batch in stream)
        return (found_rows, found_sum % 2**64) == (rows, self._checksum(self._join) % 2**64)

    def right_matches(self, outputs: list[pa.RecordBatch], stream: list[pa.RecordBatch]) -> bool:
        """Whether each output row is what its own stream row, found by its number, must give.

        For rows caught in the middle of a stream, where nobody can say which are finished already.
        """
        events = pa.Table.from_batches(outputs).column("event")
        first = stream[0].column("event")[0].as_py()
        picked = pa.Table.from_batches(stream).combine_chunks().take(pa.compute.subtract(events, first))
        return self.same_rows(outputs, picked.to_batches())

    def _checksum(self, query: str) -> int:
        summed = self._database.execute(f"SELECT coalesce(sum(hash(t)::HUGEINT), 0) FROM ({query}) t")  # noqa: S608
        return int(summed.fetchall()[0][0])


def _lots(outputs: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The outputs, many together: a query takes 2 ms, and a join may give thirty rows a step."""
    lot: list[pa.RecordBatch] = []
    rows = 0
    for output in outputs:
        lot.append(output)
        rows += output.num_rows
        if rows >= LOT_ROWS:
            yield pa.Table.from_batches(lot).cast(OUTPUT_SCHEMA)
            lot, rows = [], 0
    if lot:
        yield pa.Table.from_batches(lot).cast(OUTPUT_SCHEMA)


__all__ = ["Judge"]
