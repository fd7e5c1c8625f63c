"""The staging log as a Spark stream: exact, sealed offsets, admission limit, Arrow batches."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from tidemill.core.errors import StoreError
from tidemill.core.files import seal, unseal
from tidemill.master.batches import one_batch
from tidemill.spark.columns import ENTRY_COLUMN
from tidemill.staging.reader import LogReader

FORMAT = 1
ROWS_PER_TASK = 20_000
"""Below this a second task costs more than it saves (a task's floor is about 10 ms)."""
ROWS_PER_ARROW_BATCH = 50_000


def read_log(
    spark: SparkSession, path: Path | str, *, max_rows_per_batch: int = 100_000, start_entry: int = 0
) -> DataFrame:
    """The rows of a staging log as a streaming DataFrame, with their log entry in `_entry`.

    Args:
        spark: Session to read with.
        path: Folder of the log.
        max_rows_per_batch: Admission limit of one micro-batch; a single larger entry is still read whole.
        start_entry: Where a query without a checkpoint begins.
    """
    spark.dataSource.register(LogDataSource)
    return (
        spark.readStream.format(LogDataSource.name())
        .option("path", str(path))
        .option("maxRowsPerBatch", max_rows_per_batch)
        .option("startEntry", start_entry)
        .option("tasks", spark.sparkContext.defaultParallelism)
        .load()
    )


class LogDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "tidemill-log"

    def schema(self) -> StructType:
        log_schema = LogReader(Path(self.options["path"])).schema
        return from_arrow_schema(
            log_schema.append(pa.field(ENTRY_COLUMN, pa.int64())), prefer_timestamp_ntz=False
        )

    def streamReader(self, schema: StructType) -> "LogStreamReader":  # noqa: N802 - Spark's name
        return LogStreamReader(
            path=Path(self.options["path"]),
            schema=schema,
            max_rows_per_batch=int(self.options["maxRowsPerBatch"]),
            start_entry=int(self.options["startEntry"]),
            tasks=int(self.options["tasks"]),
        )


class LogStreamReader(DataSourceStreamReader):
    """Plans micro-batches over the log's durable entries.

    An offset is {format, log_id, entry, rows, previous, crc}. Spark accepts a changed digit in its own
    offset files without a word; the checksum, the log's identity and the row count make it loud.
    """

    def __init__(
        self, path: Path, schema: StructType, max_rows_per_batch: int, start_entry: int, tasks: int
    ) -> None:
        self._path = path
        self._arrow_schema = to_arrow_schema(schema, timezone="UTC")
        self._max_rows = max_rows_per_batch
        self._start_entry = start_entry
        self._tasks = tasks
        self._log: LogReader | None = None

    @property
    def log(self) -> LogReader:
        if self._log is None:
            self._log = LogReader(self._path)
        return self._log

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_log": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._offset(self._start_entry, previous=self._start_entry)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._max_rows)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        at = self._check(start)
        head = self.log.head().entries
        if head <= at:
            return start
        end = self.log.limit(at, limit.max_rows) if isinstance(limit, ReadMaxRows) else head
        return self._offset(end, previous=at)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = self._check(start), self._check(end)
        rows = self.log.rows_between(first, last)
        if rows != end["rows"] - start["rows"]:
            raise StoreError(
                f"entries {first} to {last} of {self._path} hold {rows} rows, the checkpoint counted "
                f"{end['rows'] - start['rows']}",
                code="offset_mismatch",
                next_move="the log or the checkpoint was replaced; remove the checkpoint to resume from the warehouse",
            )
        tasks = max(1, min(self._tasks, rows // ROWS_PER_TASK, last - first))
        cuts = np.linspace(first, last, tasks + 1).astype(int).tolist()
        return [InputPartition((a, b)) for a, b in pairwise(cuts) if a < b]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        first, last = partition.value
        gathered: list[pa.RecordBatch] = []
        entries: list[int] = []
        rows = 0
        for entry, batch in self.log.read(first, last):
            gathered.append(batch)
            entries.append(entry)
            rows += batch.num_rows
            if rows >= ROWS_PER_ARROW_BATCH:
                yield self._as_one(gathered, entries)
                gathered, entries, rows = [], [], 0
        if gathered:
            yield self._as_one(gathered, entries)

    def _as_one(self, batches: list[pa.RecordBatch], entries: list[int]) -> pa.RecordBatch:
        whole = one_batch(batches, batches[0].schema)
        numbers = np.repeat(np.array(entries, np.int64), [b.num_rows for b in batches])
        return pa.RecordBatch.from_arrays([*whole.columns, pa.array(numbers)], schema=self._arrow_schema)

    def _offset(self, entry: int, previous: int) -> dict[str, Any]:
        rows = self.log.rows_before(entry)
        names = {
            "format": FORMAT,
            "log_id": self.log.log_id,
            "entry": entry,
            "rows": rows,
            "previous": previous,
        }
        return seal(names)

    def _check(self, offset: dict[str, Any]) -> int:
        """The entry of an offset, after making sure that it is whole and of this log."""
        bare = unseal(offset, "a source offset in the checkpoint")
        if bare["log_id"] != self.log.log_id or bare["entry"] > self.log.head().entries:
            raise StoreError(
                f"the checkpoint speaks of entry {bare['entry']} of log {bare['log_id']}, "
                f"{self._path} is log {self.log.log_id} with {self.log.head().entries} entries",
                code="foreign_log",
                next_move="give the checkpoint the log it was made with, or remove the checkpoint",
            )
        return int(bare["entry"])


__all__ = ["LogDataSource", "read_log"]
