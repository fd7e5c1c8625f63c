"""What `tm.enrich` can be asked for beyond one table and one key."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructField, StructType

import tidemill as tm
from tidemill.core.errors import SpecError
from tidemill.join.conditions import Between

PRODUCTS = pa.table({"product_id": [1, 2, 3], "name": ["tea", "milk", None], "price": [5, 6, 7]})
STORES = pa.table({"town": ["Ulm", "Bonn"], "name": ["south", "west"]})
SALES = [(1, 1, "Ulm"), (2, 2, "Bonn"), (3, 9, "Ulm"), (4, 3, None)]


@pytest.fixture
def sales(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(SALES, "id bigint, product bigint, town string")


@pytest.fixture
def products(tmp_path: Path) -> tm.MasterData:
    return tm.MasterData.build(PRODUCTS, key="product_id", path=tmp_path / "products")


def by_id(rows: DataFrame) -> dict[int, tuple[Any, ...]]:
    return {row["id"]: tuple(row)[1:] for row in rows.collect()}


def test_several_masters_are_met_one_after_the_other(
    sales: DataFrame, products: tm.MasterData, tmp_path: Path
) -> None:
    stores = tm.MasterData.build(STORES, key="town", path=tmp_path / "stores")
    found = tm.enrich(
        sales,
        [
            tm.Lookup(master=products, on={"product": "product_id"}, prefix="product_"),
            tm.Lookup(master=stores, on="town", how="inner", columns={"name": "region"}),
        ],
        memory="24 MB",
        hot_rows=tmp_path / "hot",
    )
    assert found.columns == ["id", "product", "town", "product_name", "product_price", "region"]
    assert by_id(found) == {
        1: (1, "Ulm", "tea", 5, "south"),
        2: (2, "Bonn", "milk", 6, "west"),
        3: (9, "Ulm", None, None, "south"),
    }


def test_each_row_meets_the_version_valid_at_its_time(spark: SparkSession, tmp_path: Path) -> None:
    prices = pa.table(
        {"id": [7, 7, 8], "since": [10, 20, 5], "until": [20, None, 9], "price": [1.5, 1.8, 3.0]}
    )
    master = tm.MasterData.build(prices, key="id", path=tmp_path / "prices", history=("since", "until"))
    sales = spark.createDataFrame(
        [(1, 7, 9), (2, 7, 10), (3, 7, 19), (4, 7, 20), (5, 8, 8), (6, 8, 9), (7, 7, None)],
        "sale bigint, product bigint, at bigint",
    )
    found = tm.enrich(
        sales, master, on="product", as_of="at", columns=["price"], matched_as="known", memory="8 MB", hot_rows=tmp_path
    )  # fmt: skip
    assert {row["sale"]: (row["price"], row["known"]) for row in found.collect()} == {
        1: (None, False), 2: (1.5, True), 3: (1.5, True), 4: (1.8, True), 5: (3.0, True), 6: (None, False), 7: (None, False),
    }  # fmt: skip
    with pytest.raises(SpecError, match="as_of"):
        tm.enrich(sales, master, on="product")


def test_a_range_takes_the_place_of_equal_keys(spark: SparkSession, tmp_path: Path) -> None:
    bands = pa.table({"band": [1, 2], "low": [0, 10], "high": [9, 19]})
    master = tm.MasterData.build(bands, key="band", path=tmp_path / "bands")
    sales = spark.createDataFrame([(1, 5), (2, 10), (3, 30)], "id bigint, amount bigint")
    found = tm.enrich(
        sales, master, condition=Between("amount", "low", "high"), columns=["band"], memory="8 MB", hot_rows=tmp_path
    )  # fmt: skip
    assert by_id(found) == {1: (5, 1), 2: (10, 2), 3: (30, None)}
    with pytest.raises(SpecError, match="mesh"):
        tm.enrich(sales, master, condition=Between("amount", "low", "high"), algorithm="tide")


def test_rows_of_a_pipeline_are_not_asked_for_their_schema(
    spark: SparkSession, products: tm.MasterData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = spark.range(1, 4).withColumnRenamed("id", "product_id")
    told = StructType([StructField("product_id", LongType())])

    told_schema = type(rows).schema

    def asked(frame: DataFrame) -> StructType:
        assert frame is not rows, "the rows were asked"
        schema: StructType = told_schema.__get__(frame)
        return schema

    with monkeypatch.context() as patch:
        patch.setattr(type(rows), "schema", property(asked))
        found = tm.enrich(rows, products, on="product_id", schema=told, memory="8 MB", hot_rows=tmp_path)
    assert sorted(row["price"] for row in found.collect()) == [5, 6, 7]


def test_keys_that_do_not_fit_are_refused_with_the_choices(
    sales: DataFrame, products: tm.MasterData, tmp_path: Path
) -> None:
    with pytest.raises(SpecError, match="valid: product_id"):
        tm.enrich(sales, products, on={"product": "id"})
    with pytest.raises(SpecError, match="neither a key column nor a condition"):
        tm.enrich(sales, products)
    with pytest.raises(SpecError, match="beside a list of lookups"):
        tm.enrich(sales, [tm.Lookup(master=products, on="product")], prefix="p_")
    with pytest.raises(SpecError, match="when to refresh"):
        tm.enrich(sales, products, on="product", refresh="sometimes")


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_running_query_meets_new_master_rows_and_keeps_its_hot_ones(
    spark: SparkSession, tmp_path: Path, is_packed: bool
) -> None:
    products = tm.MasterData.build(PRODUCTS, key="product_id", path=tmp_path / "products", pack=is_packed)
    assert bool(products.packing.form) == is_packed
    source = tmp_path / "in"
    source.mkdir()
    stream = spark.readStream.schema("product_id bigint").parquet(str(source))
    found = tm.enrich(
        stream, products, on="product_id", columns=["name", "price"], memory="8 MB", hot_rows=tmp_path / "hot"
    )
    seen: list[dict[int, tuple[str, int]]] = []

    def keep(batch: DataFrame, _: int) -> None:
        seen.append({row["product_id"]: (row["name"], row["price"]) for row in batch.collect()})

    def run() -> None:
        spark.range(1, 5, numPartitions=1).withColumnRenamed("id", "product_id").write.mode("append").parquet(
            str(source)
        )
        writing = found.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "cp"))
        writing.trigger(availableNow=True).start().awaitTermination()

    run()
    changes = pa.table(
        {"_op": ["update", "insert"], "product_id": [2, 4], "name": ["oat", "tea"], "price": [60, 8]}
    )
    products = products.apply(changes)  # packed: a word more in the dictionary
    run()
    changes = pa.table({"_op": ["update"], "product_id": [3], "name": ["rye"], "price": [2**40]})
    products.apply(changes)  # packed: all prices in eight bytes again
    run()
    met = {1: ("tea", 5), 2: ("milk", 6), 3: (None, 7), 4: (None, None)}
    assert seen[0] == met
    assert seen[1] == {**met, 2: ("oat", 60), 4: ("tea", 8)}
    assert seen[2] == {**seen[1], 3: ("rye", 2**40)}
