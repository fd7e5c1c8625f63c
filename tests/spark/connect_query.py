"""Enriches over Spark Connect in every way that users do and writes what came out; started by the test beside it."""

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import tidemill as tm
from tidemill.spark.java import use_java


def run(folder: Path) -> None:
    use_java()
    spark = (
        SparkSession.builder.remote("local[2]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.local.dir", str(folder / "scratch"))
        .getOrCreate()
    )
    products = spark.read.parquet(str(folder / "products"))
    master = tm.MasterData.build(products, key="product_id", path=folder / "store")
    found = {"master_rows": master.rows, "kind": type(products).__module__}

    sales = spark.read.parquet(str(folder / "sales"))
    enriched = enrich(sales, master, folder)
    found["batch"] = rows_of(enriched)

    stream = (
        spark.readStream.schema(sales.schema).option("maxFilesPerTrigger", 1).parquet(str(folder / "sales"))
    )
    writing = enrich(stream, master, folder).writeStream.format("parquet").option("path", str(folder / "out"))
    writing = writing.option("checkpointLocation", str(folder / "cp")).trigger(availableNow=True)
    writing.start().awaitTermination()
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


def enrich(rows: DataFrame, master: tm.MasterData, folder: Path) -> DataFrame:
    return tm.enrich(rows, master, on="product_id", memory="24 MB", hot_rows=folder / "hot")


def rows_of(rows: DataFrame) -> list[tuple[object, ...]]:
    return [tuple(row) for row in rows.select("id", "product_id", "name", "price").orderBy("id").collect()]


if __name__ == "__main__":
    run(Path(sys.argv[1]))
