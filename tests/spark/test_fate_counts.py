"""The fates that a batch tells are those that its rows have: every row of every batch is counted, once."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Observation, SparkSession
from tests.spark.set_aside import SALES, Shop

import tidemill as tm
from tidemill.spark import parking_lot
from tidemill.spark.fate_counts import FateCounts, FateRules, fates_of
from tidemill.spark.metrics_records import BatchMetrics

PRODUCTS = pa.table({"product_id": [1], "name": ["tea"]})
NO_MASTER_ROW = "no master row for key product_id"
NULL_KEY = "NULL in key product_id"


@pytest.fixture
def told(spark: SparkSession) -> Iterator[list[BatchMetrics]]:
    """What a watch hears of batches."""
    heard: list[BatchMetrics] = []
    with tm.watch(spark, on_batch=heard.append):
        yield heard


class CountedShop(Shop):
    """Counts the fates of its rows itself, by batch."""

    def __init__(self, spark: SparkSession, folder: Path, **wishes: Any) -> None:
        super().__init__(spark, folder, PRODUCTS, memory="8 MB", **wishes)
        self.fates: dict[int, Counter[str]] = {}

    def _deliver(self, batch: DataFrame, batch_id: int) -> None:
        super()._deliver(batch, batch_id)
        # Computed for a third time: a batch that tells thrice counts once.
        self.fates[batch_id] = Counter(row["_fate"] for row in batch.collect())

    @property
    def all_fates(self) -> Counter[str]:
        return sum(self.fates.values(), Counter())


def until(holds: Callable[[], bool]) -> None:
    """Return when it holds: Spark tells after the batch."""
    while not holds():
        time.sleep(0.01)


def assert_told(told: list[BatchMetrics], shop: CountedShop) -> None:
    """Each batch with rows has told what its rows say, and nothing else."""
    by_batch = {batch: +fates for batch, fates in shop.fates.items() if fates}
    until(lambda: len(told) >= len(by_batch))
    assert {batch.batch_id: Counter(+Counter(batch.fates)) for batch in told} == by_batch


@pytest.mark.parametrize("then", ["reject", "emit"])
def test_parked_rows_are_counted_when_they_wait_and_when_they_leave(
    spark: SparkSession, tmp_path: Path, told: list[BatchMetrics], then: Any
) -> None:
    shop = CountedShop(spark, tmp_path)
    # The deadline hangs on the batches' own times: one that is long over, one that is far away.
    shop.parking = tm.Parking(tmp_path / "parking", shop.master, on="product_id", deadline="1 h", then=then)
    shop.sell([1, 2, 3, 2])
    shop.run()
    time.sleep(parking_lot.FIRST_LOOKUP_US / 1e6)
    shop.change("insert", 2, "milk")
    shop.sell([1, 4])
    shop.run()
    assert shop.parking.counts().waiting == 2
    shop.parking = tm.Parking(tmp_path / "parking", shop.master, on="product_id", deadline="1 ms", then=then)
    shop.run()
    last = "rejected" if then == "reject" else "unmatched"
    assert shop.all_fates == {"joined": 4, "parked": 4, last: 2}
    assert_told(told, shop)
    rows_in = sum(batch.lookups[0].rows_in for batch in told)
    assert sum(sum((batch.fates or {}).values()) for batch in told) == rows_in == shop.sold + 4
    assert all(set(batch.fates or ()) == {"joined", last, "parked"} for batch in told)
    assert told[0].as_dict()["fates"] == {"joined": 1, last: 0, "parked": 3}


def test_a_row_with_a_null_key_waits_for_nothing(
    spark: SparkSession, tmp_path: Path, told: list[BatchMetrics]
) -> None:
    shop = CountedShop(spark, tmp_path)
    shop.parking = tm.Parking(
        tmp_path / "parking", shop.master, on="product_id", then="default", default={"name": "unknown"}
    )
    shop.sell([1, 2, None, None])  # type: ignore[list-item]
    shop.run()
    assert shop.all_fates == {"joined": 1, "parked": 1, "defaulted": 2}
    assert_told(told, shop)


def test_shed_rows_are_counted_beside_late_ones(
    spark: SparkSession, tmp_path: Path, told: list[BatchMetrics]
) -> None:
    shop = CountedShop(spark, tmp_path)
    shop.parking = tm.Parking(tmp_path / "parking", shop.master, on="product_id")
    shop.shed = tm.Shed(tmp_path / "lane", rows=40, memory="2 MB", quiet="1 h")
    shop.sell([1, 2] * 50)
    shop.run()
    assert shop.all_fates["shed"] == 60
    assert sum(shop.all_fates.values()) == 100
    assert_told(told, shop)


def test_a_call_that_asks_for_no_fates_tells_none(
    spark: SparkSession, tmp_path: Path, told: list[BatchMetrics]
) -> None:
    shop = Shop(spark, tmp_path, PRODUCTS, memory="8 MB")
    shop.sell([1, 2])
    rows = spark.readStream.schema(SALES).parquet(str(tmp_path / "in"))
    seen = tm.enrich(rows, shop.master, memory="8 MB", on="product_id", hot_rows=tmp_path / "hot")
    seen.writeStream.format("noop").trigger(availableNow=True).start().awaitTermination()
    until(lambda: bool(told))
    assert [batch.fates for batch in told] == [None]


def test_rejected_rows_of_a_stream_are_counted_and_say_why(
    spark: SparkSession, tmp_path: Path, told: list[BatchMetrics]
) -> None:
    shop = CountedShop(spark, tmp_path, late="reject")
    shop.sell([1, 2, None, 1, 3])  # type: ignore[list-item]
    shop.run()
    assert shop.sales == [(0, "tea"), (3, "tea")]
    assert sorted(shop.rejected) == [(1, NO_MASTER_ROW), (2, NULL_KEY), (4, NO_MASTER_ROW)]
    until(lambda: bool(told))
    assert [batch.fates for batch in told] == [{"joined": 2, "rejected": 3}]


def test_rejected_rows_of_a_batch_are_counted_and_say_why(spark: SparkSession, tmp_path: Path) -> None:
    master = tm.MasterData.build(PRODUCTS, key="product_id", path=tmp_path / "master")
    seen = Observation()
    rows = spark.createDataFrame([(0, 1), (1, 2), (2, None), (3, 1)], SALES).repartition(2)
    enriched = tm.enrich(
        rows,
        master,
        on="product_id",
        late="reject",
        memory="8 MB",
        hot_rows=tmp_path / "hot",
        observe_as=seen,
    )
    found = {row["id"]: (row["_fate"], row["_reason"]) for row in enriched.collect()}
    assert found == {
        0: ("joined", None),
        1: ("rejected", NO_MASTER_ROW),
        2: ("rejected", NULL_KEY),
        3: ("joined", None),
    }
    assert fates_of(seen.get) == {"joined": 2, "rejected": 2}


def test_times_before_1970_are_cut_as_spark_cuts_them() -> None:
    counts = FateCounts(FateRules("matched", ("key",), "rejected", 10))
    since = pa.array([-1, 1_999, 2_000, None], pa.timestamp("us", tz="UTC"))
    counts.add(pa.record_batch({"key": [1, 2, 3, 4], "matched": [False] * 4, "_parked_at": since}))
    assert counts.told["since_ms"] == [(-1, 1), (1, 1), (2, 1)]
    assert counts.told["fresh"] == 1
