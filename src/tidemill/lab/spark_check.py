"""Count and order-free checksum of joined rows, beside what Spark's own join of the same rows gives."""

import json
from typing import Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

from tidemill.core.files import write_atomically
from tidemill.lab.rows import MASTER_NAMES, OUTPUT_SCHEMA
from tidemill.lab.spark_data import SparkData, check_lot
from tidemill.lab.streams import STREAM_SCHEMA

Kind = Literal["left", "inner", "stream"]
"""Which rows a contender must give: those of a left or of an inner join, or the stream's own columns alone."""
_COLUMNS = {"left": OUTPUT_SCHEMA.names, "inner": OUTPUT_SCHEMA.names, "stream": STREAM_SCHEMA.names}


def summed(rows: DataFrame, kind: Kind) -> list[int]:
    """Rows, and the sum of a hash over all columns of each; a NULL counts by its place."""
    columns = [F.col(name) for name in _COLUMNS[kind]]
    hashed = F.xxhash64(*columns, *(column.isNull() for column in columns))
    # As decimals: a sum of longs would overflow, which is an error in Spark 4.
    found = rows.agg(F.count(F.lit(1)), F.coalesce(F.sum(hashed.cast("decimal(20,0)")), F.lit(0))).collect()
    return [int(found[0][0]), int(found[0][1])]


def expected(spark: SparkSession, data: SparkData, batch_rows: int, kind: Kind) -> list[int]:
    """What the check batch of that size must give, by Spark's own batch join; kept beside the data."""
    lot = data.path(check_lot(batch_rows))
    file = lot.with_name(f"{lot.name}-expected.json")
    known: dict[str, list[int]] = json.loads(file.read_text()) if file.exists() else {}
    if kind not in known:
        stream = spark.read.parquet(str(lot))
        if kind != "stream":
            master = spark.read.parquet(str(data.parquet)).select("key", *MASTER_NAMES)
            stream = stream.join(master, on="key", how=kind)
        known[kind] = summed(stream, kind)
        write_atomically(file, json.dumps(known).encode())
    return known[kind]


__all__ = ["Kind", "expected", "summed"]
