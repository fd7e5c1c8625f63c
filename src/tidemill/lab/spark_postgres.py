"""The peer that most teams build: batched lookups by key in an indexed table, from the tasks of `foreachBatch`."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from tidemill.lab.master_rows import master_reader
from tidemill.lab.postgres_server import connect, postgres
from tidemill.lab.rows import MASTER_NAMES, OUTPUT_SCHEMA, beside
from tidemill.lab.spark_data import SparkData

_LOOKUP = f"SELECT key, {', '.join(MASTER_NAMES)} FROM master WHERE key = ANY($1)"  # noqa: S608 - names of ours


@contextmanager
def master_table(data: SparkData, memory_bytes: int) -> Iterator[str]:
    """Connection string of a server that has the master data in `master`, indexed, and caches so many bytes of it."""

    def fill(connection: Any) -> None:
        with connection.cursor() as cursor:
            cursor.adbc_ingest("master", master_reader(data.master_rows), mode="create")
            cursor.execute("ALTER TABLE master ADD PRIMARY KEY (key)")
        connection.commit()
        connection.adbc_connection.set_autocommit(True)  # VACUUM stands outside transactions
        with connection.cursor() as cursor:
            cursor.execute("VACUUM (ANALYZE) master")
        connection.adbc_connection.set_autocommit(False)

    with postgres(data.form("postgres"), memory_bytes, fill) as uri:
        yield uri


def looked_up(stream: DataFrame, uri: str) -> DataFrame:
    """Each Arrow batch asks once for its distinct keys; left join."""

    def look_up(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = _rows_of(uri, pc.unique(batch.column("key")))
            places = pc.index_in(batch.column("key"), found.column("key").combine_chunks())
            yield beside(
                batch, found.select(MASTER_NAMES).combine_chunks().to_batches()[0].take(places).columns
            )

    return stream.mapInArrow(look_up, from_arrow_schema(OUTPUT_SCHEMA))


def _rows_of(uri: str, keys: "pa.Array[Any]") -> pa.Table:
    asked = pa.ListArray.from_arrays(pa.array([0, len(keys)], pa.int32()), keys)
    with _connection(uri).cursor() as cursor:
        cursor.execute(_LOOKUP, pa.RecordBatch.from_arrays([asked], ["keys"]))
        found: pa.Table = cursor.fetch_arrow_table()
        return found


@cache
def _connection(uri: str) -> Any:
    """One a worker, as a pool would give it."""
    return connect(uri)


__all__ = ["looked_up", "master_table"]
