"""`tm.enrich` gives the rows of Spark's own join, keeps to one master version a batch and learns what is hot."""

import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import tidemill as tm
from tidemill.core.errors import BudgetError, SpecError
from tidemill.testing.zipf import Zipf

PRODUCTS = pa.table(
    {
        "product_id": np.repeat(np.arange(0, 6000, 2), 2)[:5000],  # even keys, two rows each
        "name": [f"product {i}" if i % 7 else None for i in range(5000)],
        "price": pa.array(np.arange(5000)).cast(pa.decimal128(22, 2)),
        "since": pa.array(np.arange(5000), pa.timestamp("us", tz="UTC")),
    }
)


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tm.MasterData.build(
        PRODUCTS, key="product_id", path=tmp_path_factory.mktemp("master") / "products"
    )


def sales(spark: SparkSession, rows: int = 3000, seed: int = 3) -> DataFrame:
    random = np.random.default_rng(seed)
    keys = [None if k % 50 == 0 else int(k) for k in random.integers(-10, 6100, rows)]
    return spark.createDataFrame(list(enumerate(keys)), "id bigint, product_id bigint").repartition(3)


def as_bag(rows: DataFrame) -> Counter[Any]:
    return Counter(tuple(row) for row in rows.collect())


@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
def test_the_rows_are_those_of_sparks_own_join(
    spark: SparkSession, products: tm.MasterData, tmp_path: Path, how: Any
) -> None:
    stream = sales(spark)
    ours = tm.enrich(stream, products, on="product_id", how=how, memory="8 MB", hot_rows=tmp_path)
    theirs = stream.join(spark.createDataFrame(PRODUCTS), on="product_id", how=how).select(*ours.columns)
    assert as_bag(ours) == as_bag(theirs)


def test_text_and_composite_keys_meet_their_rows(spark: SparkSession, tmp_path: Path) -> None:
    shelves = pa.table(
        {
            "store": ["Ulm", "Ulm", "Bonn"],
            "shelf": pa.array([1, 2, 1], pa.int32()),
            "goods": ["tea", "milk", None],
        }
    )
    master = tm.MasterData.build(shelves, key=("store", "shelf"), path=tmp_path / "shelves")
    asked = [(1, "Ulm", 2), (2, "Bonn", 1), (3, "Bonn", 2), (4, None, 1)]
    stream = spark.createDataFrame(asked, "id int, town string, place int")
    ours = tm.enrich(
        stream, master, on=("town", "place"), memory="8 MB", matched_as="known", hot_rows=tmp_path / "hot"
    )
    found = {row["id"]: (row["goods"], row["known"]) for row in ours.collect()}
    assert found == {1: ("milk", True), 2: (None, True), 3: (None, False), 4: (None, False)}


def test_a_stream_learns_its_hot_rows_and_tells_what_it_did(spark: SparkSession, tmp_path: Path) -> None:
    # Of its own: with what another query on it has told the stream would begin warm.
    products = tm.MasterData.build(PRODUCTS, key="product_id", path=tmp_path / "products")
    for number in range(6):
        keys = Zipf(3000, exponent=1.2, seed=number).draw(4000) * 2
        spark.createDataFrame([(int(k),) for k in keys], "product_id bigint").coalesce(1).write.parquet(
            str(tmp_path / "in"), mode="append"
        )
    stream = (
        spark.readStream.schema("product_id bigint")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(tmp_path / "in"))
    )
    enriched = tm.enrich(
        stream,
        products,
        on="product_id",
        columns={"name": "product"},
        memory="8 MB",
        matched_as="known",
        hot_rows=tmp_path / "hot",
    )
    rows = 0

    def keep(batch: DataFrame, _: int) -> None:
        nonlocal rows
        rows += batch.count()

    with tm.watch(spark) as watch:
        query = (
            enriched.writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / "cp"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        while len(watch.batches) < 6:  # Spark tells after the batch
            time.sleep(0.01)
    seen = [batch.lookups[0] for batch in watch.batches]
    assert rows == sum(s.hot_hits + s.disk_matches for s in seen) * 2 + sum(s.unmatched for s in seen)
    assert sum(s.rows_in for s in seen) == 6 * 4000
    assert seen[0].hot_hits == 0
    assert seen[-1].hot_hits > 0.5 * seen[-1].rows_in


def test_wishes_that_cannot_be_are_refused_before_anything_runs(
    spark: SparkSession, products: tm.MasterData, tmp_path: Path
) -> None:
    stream = sales(spark, 10)
    with pytest.raises(SpecError, match="did you mean 'product_id'"):
        tm.enrich(stream, products, on="produkt_id")
    with pytest.raises(SpecError, match="valid: adaptive_mesh, auto"):
        tm.enrich(stream, products, on="product_id", algorithm="mash")
    with pytest.raises(SpecError, match="unknown algorithm 'reference'"):
        tm.enrich(stream, products, on="product_id", algorithm="reference")
    with pytest.raises(BudgetError, match="give at least"):
        tm.enrich(stream, products, on="product_id", memory="10 kB")
    with pytest.raises(SpecError, match="'256 bananas' is not a size"):
        tm.enrich(stream, products, on="product_id", memory="256 bananas")


def test_a_store_error_is_an_error_and_never_null(spark: SparkSession, tmp_path: Path) -> None:
    store = tm.MasterData.build(PRODUCTS, key="product_id", path=tmp_path / "broken")
    pages = next((tmp_path / "broken").rglob("pages.bin"))
    damaged = bytearray(pages.read_bytes())
    for at in range(100, len(damaged), 1000):
        damaged[at] ^= 1
    pages.write_bytes(damaged)
    with pytest.raises(Exception, match="fails its checksum"):
        tm.enrich(sales(spark), store, on="product_id", memory="8 MB", hot_rows=tmp_path / "hot").collect()
