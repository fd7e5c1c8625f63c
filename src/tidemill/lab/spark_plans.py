"""Spark's own ways to join a stream with a static table: what users have without us."""

from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

from tidemill.lab.rows import MASTER_NAMES, OUTPUT_SCHEMA
from tidemill.lab.spark_data import SparkData

Joined = Callable[[DataFrame], DataFrame]
SHUFFLE_PARTITIONS = 8
SETTINGS = {
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.shuffle.partitions": str(SHUFFLE_PARTITIONS),
    "spark.driver.memory": "8g",
    # Else Spark sorts again what the bucketed table's writer has sorted.
    "spark.sql.legacy.bucketedTableScan.outputOrdering": "true",
}


def default(spark: SparkSession, data: SparkData) -> Joined:
    """Left join with the Parquet files: both sides are shuffled and sorted for each batch."""
    return _left(_master(spark, data))


def cached(spark: SparkSession, data: SparkData) -> Joined:
    """The same with the master data in Spark's cache."""
    return _left(_filled(_master(spark, data)))


def bucketed(spark: SparkSession, data: SparkData) -> Joined:
    """The master data as a table in eight buckets sorted by key: only the stream is shuffled."""
    folder = data.form("buckets")
    if not (folder / "_SUCCESS").exists():
        _write_buckets(_master(spark, data), folder)
    fields = ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in _master(spark, data).schema)
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS buckets ({fields}) USING parquet CLUSTERED BY (key) SORTED BY (key) "
        f"INTO {SHUFFLE_PARTITIONS} BUCKETS LOCATION '{folder.as_uri()}'"
    )
    return _left(spark.table("buckets"))


def cached_sorted(spark: SparkSession, data: SparkData) -> Joined:
    """Spread and sorted by key, then cached: each batch is shuffled to where the master rows are."""
    spread = _master(spark, data).repartition(SHUFFLE_PARTITIONS, "key").sortWithinPartitions("key")
    return _left(_filled(spread))


def broadcast_stream(spark: SparkSession, data: SparkData) -> Joined:
    """The batch goes to every task of the cached master data; an inner join, for Spark cannot broadcast the left side."""
    master = _filled(_master(spark, data))
    return lambda stream: _output(master.join(F.broadcast(stream), on="key", how="inner"))


PLANS: dict[str, Callable[[SparkSession, SparkData], Joined]] = {
    "spark-default": default,
    "spark-cached": cached,
    "spark-bucketed": bucketed,
    "spark-cached-sorted": cached_sorted,
    "spark-broadcast-stream": broadcast_stream,
}


def _master(spark: SparkSession, data: SparkData) -> DataFrame:
    return spark.read.parquet(str(data.parquet)).select("key", *MASTER_NAMES)


def _filled(master: DataFrame) -> DataFrame:
    """In the cache, all of it, before a batch is timed."""
    kept = master.cache()
    kept.count()
    return kept


def _left(master: DataFrame) -> Joined:
    return lambda stream: _output(stream.join(master, on="key", how="left"))


def _output(joined: DataFrame) -> DataFrame:
    return joined.select(*OUTPUT_SCHEMA.names)


def _write_buckets(master: DataFrame, folder: Path) -> None:
    """One file a bucket; `_SUCCESS` comes last, so half a table is written again."""
    spread = master.repartition(SHUFFLE_PARTITIONS, "key")
    writer = spread.write.mode("overwrite").bucketBy(SHUFFLE_PARTITIONS, "key").sortBy("key")
    writer.option("path", folder.as_uri()).saveAsTable("written_buckets")


__all__ = ["PLANS", "SETTINGS", "Joined"]
