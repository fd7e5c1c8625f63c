"""What `tm.enrich` observes: every task counts once, and the user's rows and schema stay as they are."""

import json
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Observation, SparkSession

import tidemill as tm
from tidemill.core.errors import SpecError
from tidemill.spark.metrics import LookupTotals, telling_row
from tidemill.spark.metrics_records import LookupMetrics, lookups_of

PRODUCTS = pa.table(
    {"product_id": np.arange(1000), "name": [f"product {i}" for i in range(1000)], "group_id": np.arange(1000) % 10},
    schema=pa.schema(
        [
            pa.field("product_id", pa.int64(), nullable=False),
            pa.field("name", pa.string(), nullable=False),
            pa.field("group_id", pa.int64(), nullable=False),
        ]
    ),
)  # fmt: skip
GROUPS = pa.table({"group_id": np.arange(5), "title": list("abcde")})


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tm.MasterData.build(PRODUCTS, key="product_id", path=tmp_path_factory.mktemp("m") / "products")


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tm.MasterData.build(GROUPS, key="group_id", path=tmp_path_factory.mktemp("m") / "groups")


def sales(spark: SparkSession, start: int, end: int) -> DataFrame:
    return spark.range(start, end, 1, 2).withColumnRenamed("id", "product_id")


def until(holds: Callable[[], bool]) -> None:
    """Return when it holds: Spark tells after the batch."""
    while not holds():
        time.sleep(0.01)


@pytest.mark.parametrize(("how", "rows"), [("inner", 10), ("left", 20), ("semi", 10), ("anti", 10)])
def test_an_observed_batch_has_the_same_rows_and_schema(
    spark: SparkSession, products: tm.MasterData, tmp_path: Path, how: Any, rows: int
) -> None:
    observation = Observation("tidemill test")
    asked: Any = {"on": "product_id", "how": how, "memory": "8 MB", "hot_rows": tmp_path}
    plain = tm.enrich(sales(spark, 990, 1010), products, **asked)
    seen = tm.enrich(sales(spark, 990, 1010), products, observe_as=observation, **asked)
    assert seen.schema == plain.schema
    assert sorted(seen.collect()) == sorted(plain.collect())
    assert seen.count() == rows
    [found] = lookups_of(observation.get)
    assert (found.lookup, found.versions, found.master_rows) == ("products", (1,), 1000)
    assert (found.rows_in, found.hot_hits + found.disk_matches, found.unmatched) == (20, 10, 10)
    assert found.tasks == 2
    assert found.held_bytes["shared_hot_rows"] > 0
    assert found.seconds["probe"] > 0


def test_tasks_without_output_count_for_each_lookup(
    spark: SparkSession, products: tm.MasterData, groups: tm.MasterData, tmp_path: Path
) -> None:
    observation = Observation("tidemill test")
    lookups = [
        tm.Lookup(master=products, on="product_id", how="inner"),
        tm.Lookup(master=groups, on="group_id", how="left", matched_as="known"),
    ]
    none = tm.enrich(
        sales(spark, 5000, 5030), lookups, memory="32 MB", observe_as=observation, hot_rows=tmp_path
    )
    assert [field.nullable for field in none.schema] == [False, False, False, True, False]
    assert none.collect() == []
    first, second = lookups_of(observation.get)
    assert (first.rows_in, first.unmatched, second.rows_in) == (30, 30, 0)


def test_as_of_counts_rows_without_a_valid_version_as_unmatched(spark: SparkSession, tmp_path: Path) -> None:
    day = [datetime(2024, month, 1) for month in range(1, 13)]  # noqa: DTZ001 - wall clock, as the column
    prices = pa.table(
        {
            "id": [1, 2],
            "since": pa.array([day[2], day[2]], pa.timestamp("us")),
            "until": pa.array([day[5], None], pa.timestamp("us")),
            "price": [1.0, 2.0],
        }
    )
    master = tm.MasterData.build(prices, key="id", path=tmp_path / "prices", history=("since", "until"))
    asked = [(1, day[3]), (1, day[7]), (2, day[0]), (2, day[7]), (3, day[7])]
    observation = Observation("tidemill test")
    rows = spark.createDataFrame(asked, "id bigint, at timestamp_ntz").coalesce(1)
    seen = tm.enrich(
        rows, master, on="id", as_of="at", memory="8 MB", observe_as=observation, hot_rows=tmp_path / "hot"
    )
    assert sum(row["price"] is None for row in seen.collect()) == 3
    [found] = lookups_of(observation.get)
    assert (found.rows_in, found.unmatched, found.without_version) == (5, 3, 2)


def test_two_calls_in_a_stream_are_heard_apart_and_batches_computed_twice_count_once(
    spark: SparkSession, products: tm.MasterData, groups: tm.MasterData, tmp_path: Path
) -> None:
    for start in (0, 900):
        sales(spark, start, start + 200).coalesce(1).write.parquet(str(tmp_path / "in"), mode="append")
    stream = (
        spark.readStream.schema("product_id bigint")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(tmp_path / "in"))
    )
    named = tm.enrich(stream, products, on="product_id", memory="8 MB", hot_rows=tmp_path / "hot")
    titled = tm.enrich(named, groups, on="group_id", how="inner", memory="8 MB", hot_rows=tmp_path / "hot")
    assert titled.columns == ["product_id", "name", "group_id", "title"]
    rows: list[int] = []

    def twice(batch: DataFrame, _: int) -> None:
        batch.count()
        rows.append(batch.count())

    with tm.watch(spark) as watch:
        query = titled.writeStream.foreachBatch(twice).trigger(availableNow=True).start()
        query.awaitTermination()
        until(lambda: len(watch.batches) == 4)
    by_name: dict[str, list[LookupMetrics]] = {}
    for batch in watch.batches:
        assert batch.observation.startswith("tidemill")
        by_name.setdefault(batch.lookups[0].lookup, []).append(batch.lookups[0])
    assert [lookup.rows_in for lookup in by_name["products"]] == [200, 200]
    assert sorted(lookup.unmatched for lookup in by_name["products"]) == [0, 100]
    assert sum(lookup.rows_in - lookup.unmatched for lookup in by_name["groups"]) == sum(rows)


def test_a_store_that_cannot_be_read_is_an_alarm(spark: SparkSession, tmp_path: Path) -> None:
    master = tm.MasterData.build(PRODUCTS, key="product_id", path=tmp_path / "products")
    pages = tmp_path / "products" / "versions" / "000001" / "pages.bin"
    pages.write_bytes(b"\1" * pages.stat().st_size)
    sales(spark, 0, 100).coalesce(1).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema("product_id bigint").parquet(str(tmp_path / "in"))
    seen = tm.enrich(stream, master, on="product_id", memory="8 MB", hot_rows=tmp_path / "hot")
    raised: list[Any] = []
    with tm.watch(spark, on_alarm=raised.append):
        query = seen.writeStream.format("noop").trigger(availableNow=True).start()
        with pytest.raises(Exception, match="StoreError"):
            query.awaitTermination()
        until(lambda: bool(raised))
    assert raised[0].kind == "read_error"
    assert "Next: " in raised[0].text


def test_a_column_of_our_name_is_refused(spark: SparkSession, products: tm.MasterData) -> None:
    rows = sales(spark, 0, 1).selectExpr("product_id", "1 AS _tidemill_metrics")
    with pytest.raises(SpecError, match="observe_as=None"):
        tm.enrich(rows, products, on="product_id", observe_as="tidemill mine")


def test_the_row_that_tells_has_a_value_for_every_type_that_allows_no_null() -> None:
    kinds = [
        pa.int32(), pa.bool_(), pa.string(), pa.binary(), pa.decimal128(9, 2), pa.timestamp("us", "UTC"), pa.date32(),
        pa.list_(pa.int64()), pa.map_(pa.string(), pa.int32()), pa.struct([pa.field("x", pa.string(), nullable=False)]),
    ]  # fmt: skip
    schema = pa.schema([pa.field(f"c{i}", kind, nullable=False) for i, kind in enumerate(kinds)])
    row = telling_row(schema, 3, [LookupTotals({"lookup": "x"})])
    row.validate(full=True)
    assert all(column.null_count == 0 for column in row.columns)
    assert json.loads(row.column(len(kinds))[0].as_py())["partition"] == 3
