"""Enriches over Spark Connect in every way that users do and writes what came out; started by the test beside it."""

import io
import json
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

import tidemill as tm
from tidemill.spark.java import use_java
from tidemill.spark.watch import Watch

_MOST_SECONDS = 60


def run(folder: Path, remote: str) -> None:
    spark = session(folder, remote)
    products = spark.read.parquet(str(folder / "products"))
    master = tm.MasterData.build(products, key="product_id", path=folder / "store")
    found: dict[str, Any] = {"master_rows": master.rows, "kind": type(products).__module__}

    sales = spark.read.parquet(str(folder / "sales"))
    enriched = enrich(sales, master, folder)
    found["batch"] = rows_of(enriched)

    stream = (
        spark.readStream.schema(sales.schema).option("maxFilesPerTrigger", 1).parquet(str(folder / "sales"))
    )
    writing = enrich(stream, master, folder).writeStream.format("parquet").option("path", str(folder / "out"))
    writing = writing.option("checkpointLocation", str(folder / "cp")).trigger(availableNow=True)
    with tm.watch(spark) as watch:
        writing.start().awaitTermination()
        found["watched"] = all_heard(watch, found["batch"])
    console = Console(file=io.StringIO(), width=140)
    explained = tm.explain(stream, master, on="product_id", memory="24 MB", refresh="30 s", console=console)
    found["explained"] = explained.as_dict()
    found["stream"] = rows_of(spark.read.parquet(str(folder / "out")))
    found["claims"] = len(list((folder / "store" / "claims").glob("*.*")))

    place = str(folder)

    def inside(batch: DataFrame, batch_id: int) -> None:
        """In a process of the server: only what is named here is known there."""
        ours = tm.MasterData.open(f"{place}/store")
        rows = tm.enrich(batch, ours, on="product_id", memory="24 MB", hot_rows=f"{place}/hot")
        rows.write.mode("overwrite").parquet(f"{place}/inside/batch={batch_id}")

    writing = stream.writeStream.foreachBatch(inside).option("checkpointLocation", str(folder / "cp-inside"))
    writing.trigger(availableNow=True).start().awaitTermination()
    found["foreach_batch"] = rows_of(spark.read.parquet(str(folder / "inside")).drop("batch"))
    (folder / "found.json").write_text(json.dumps(found))
    spark.stop()


def session(folder: Path, remote: str) -> SparkSession:
    """Over a server of its own, or one that runs elsewhere."""
    builder = SparkSession.builder.remote(remote)
    if remote.startswith("local"):
        use_java()
        builder = builder.config("spark.driver.host", "127.0.0.1").config(
            "spark.driver.bindAddress", "127.0.0.1"
        )
        builder = builder.config("spark.ui.enabled", "false").config(
            "spark.local.dir", str(folder / "scratch")
        )
    return builder.getOrCreate()


def all_heard(watch: Watch, rows: list[Any]) -> dict[str, Any]:
    """What the watch says when it has heard of all rows; Spark tells after the batch."""
    until = time.monotonic() + _MOST_SECONDS
    while sum(total.rows_in for total in watch.totals) < len(rows) and time.monotonic() < until:
        time.sleep(0.05)
    return watch.as_dict()


def enrich(rows: DataFrame, master: tm.MasterData, folder: Path) -> DataFrame:
    return tm.enrich(rows, master, on="product_id", memory="24 MB", hot_rows=folder / "hot")


def rows_of(rows: DataFrame) -> list[tuple[object, ...]]:
    return [tuple(row) for row in rows.select("id", "product_id", "name", "price").orderBy("id").collect()]


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2])
