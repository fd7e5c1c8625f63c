"""The ceiling of any join in Spark's Python workers: stream columns and ready master columns, sent back as they are."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from tidemill.lab.rows import MASTER_NAMES, OUTPUT_SCHEMA, beside
from tidemill.spark.collector import leave_alone_what_stays
from tidemill.spark.memory_sample import note_baseline

READY_ROWS = 100_000
"""As many as Spark puts into an Arrow batch."""


def ceiling(stream: DataFrame, master_files: Path, folder: Path) -> DataFrame:
    """As many rows and bytes as the join would give, but the master columns are those of any rows."""
    file = str(min(master_files.glob("*.parquet")))

    def send_back(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        ready = _ready_rows(file, str(folder))
        for batch in batches:
            for first in range(0, batch.num_rows, ready.num_rows):
                rows = batch.slice(first, ready.num_rows)
                yield beside(rows, ready.slice(0, rows.num_rows).columns)

    return stream.mapInArrow(send_back, from_arrow_schema(OUTPUT_SCHEMA))


@cache
def _ready_rows(file: str, folder: str) -> pa.RecordBatch:
    """Master rows in memory, once a worker."""
    leave_alone_what_stays()
    note_baseline(Path(folder))
    return next(pq.ParquetFile(file).iter_batches(READY_ROWS, columns=MASTER_NAMES))


__all__ = ["ceiling"]
