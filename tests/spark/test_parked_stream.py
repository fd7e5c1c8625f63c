"""Rows that wait for their master row, in a real query: parked, joined later, each once."""

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from tests.spark.set_aside import Shop

import tidemill as tm
from tidemill.core.errors import SpecError
from tidemill.spark import parking_lot
from tidemill.spark.parking import Parking


class ParkingShop(Shop):
    """Sells products of which only one is there at first."""

    def __init__(self, spark: SparkSession, folder: Path, deadline: str = "1 h", **options: Any) -> None:
        super().__init__(spark, folder, pa.table({"product_id": [1], "name": ["tea"]}), memory="8 MB")
        self.place = self.parking = Parking(
            folder / "parking", self.master, on="product_id", deadline=deadline, **options
        )

    @property
    def counts(self) -> tuple[int, int, int, int]:
        found = self.place.counts()
        return found.parked, found.waiting, found.released, found.expired


def test_rows_wait_for_their_master_row_and_are_joined_once(spark: SparkSession, tmp_path: Path) -> None:
    shop = ParkingShop(spark, tmp_path)
    shop.sell([1, 2, 3, 2])
    shop.fails_after_setting_aside = True
    with pytest.raises(StreamingQueryException, match="killed after setting aside"):
        shop.run()
    shop.run()  # the same batch again: its rows are parked already
    assert shop.sales == [(0, "tea")]
    assert shop.counts == (3, 3, 0, 0)
    time.sleep(parking_lot.FIRST_LOOKUP_US / 1e6)
    shop.change("insert", 2, "milk")
    shop.sell([1])
    shop.run()
    assert Counter(shop.sales) == Counter([(0, "tea"), (1, "milk"), (3, "milk"), (4, "tea")])
    assert shop.counts == (3, 1, 2, 0)
    shop.run()
    assert len(shop.joined) == 4


def test_rows_leave_when_their_time_is_over(spark: SparkSession, tmp_path: Path) -> None:
    shop = ParkingShop(spark, tmp_path, deadline="100 ms", then="reject")
    shop.sell([1, 2])
    shop.run()
    time.sleep(0.2)
    shop.run()
    assert shop.sales == [(0, "tea")]
    assert shop.rejected == [(1, "no master row for key product_id within 100 ms")]
    assert shop.counts == (1, 0, 1, 1)


def test_a_row_that_came_back_in_vain_is_parked_again_since_the_first_time(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = ParkingShop(spark, tmp_path)
    shop.sell([2])
    shop.run()
    time.sleep(parking_lot.FIRST_LOOKUP_US / 1e6)
    parked = shop.place
    # Asks another store than the join does, so rows come back too early.
    early = tm.MasterData.build(
        pa.table({"product_id": [2], "name": ["?"]}), key="product_id", path=tmp_path / "early"
    )
    shop.parking = Parking(parked.path, early, on="product_id")
    monkeypatch.setattr(Parking, "refuse_other_join", lambda *_: None)
    shop.run()
    assert shop.sales == []
    assert shop.counts == (2, 1, 1, 0)
    oldest = {part.oldest_parked_us for part in parts_of(parked.path)}
    assert len(oldest) == 1


def parts_of(path: Path) -> list[Any]:
    from tidemill.spark.parking_parts import read_segment

    return [part for file in (path / "segments").glob("*.json") for part in read_segment(file).parts]


def test_columns_may_come_but_not_go(spark: SparkSession, tmp_path: Path) -> None:
    shop = ParkingShop(spark, tmp_path)
    stream = spark.createDataFrame([], "id bigint, product_id bigint")
    shop.place.rows(spark, stream.schema)
    wider = spark.createDataFrame([], "id bigint, product_id bigint, note string")
    shop.place.rows(spark, wider.schema)
    with pytest.raises(SpecError, match="have a column 'note' of type string, the stream has none"):
        shop.place.rows(spark, stream.schema)
    with pytest.raises(SpecError, match="unknown key column 'product_id'"):
        shop.place.rows(spark, stream.select("id").schema)
    with pytest.raises(SpecError, match="cast 'product_id'"):
        shop.place.rows(spark, stream.selectExpr("id", "string(product_id)").schema)
