"""Rows that wait for their master row, in a real query: parked, joined later, each once."""

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import tidemill as tm
from tidemill.core.errors import SpecError
from tidemill.spark import parking_lot
from tidemill.spark.late import split_fates
from tidemill.spark.parking import Parking, with_parked


class Shop:
    """A stream of files, enriched with products that come late."""

    def __init__(self, spark: SparkSession, folder: Path, deadline: str = "1 h", **options: Any) -> None:
        self.spark, self.folder = spark, folder
        products = pa.table({"product_id": [1], "name": ["tea"]})
        self.master = tm.MasterData.build(products, key="product_id", path=folder / "master")
        self.parking = Parking(folder / "parking", self.master, on="product_id", deadline=deadline, **options)
        self.joined: list[tuple[int, str | None]] = []
        self.rejected: list[tuple[int, str]] = []
        self.fail_after_parking = False
        self.next_id = 0

    def sell(self, *keys: int) -> None:
        rows = list(enumerate(keys, self.next_id))
        self.next_id += len(keys)
        self.spark.createDataFrame(rows, "id bigint, product_id bigint").coalesce(1).write.parquet(
            str(self.folder / "in"), mode="append"
        )

    def add_product(self, key: int, name: str) -> None:
        self.master = self.master.apply(pa.table({"product_id": [key], "name": [name], "_op": ["insert"]}))

    def run(self) -> None:
        """One run over all that is there."""
        stream = self.spark.readStream.schema("id bigint, product_id bigint").parquet(str(self.folder / "in"))
        enriched = tm.enrich(
            with_parked(stream, self.parking),
            self.master,
            on="product_id",
            memory="8 MB",
            late="park",
            parking=self.parking,
            hot_rows=self.folder / "hot",
        )
        query = (
            enriched.writeStream.foreachBatch(self._keep)
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def _keep(self, batch: DataFrame, batch_id: int) -> None:
        batch.persist()
        self.parking.write(batch, batch_id)
        if self.fail_after_parking:
            self.fail_after_parking = False
            raise RuntimeError("killed after parking")
        fates = split_fates(batch)
        self.joined += [(row["id"], row["name"]) for row in fates.joined.collect()]
        self.rejected += [(row["id"], row["_reason"]) for row in fates.rejected.collect()]
        batch.unpersist()

    @property
    def counts(self) -> tuple[int, int, int, int]:
        found = self.parking.counts()
        return found.parked, found.waiting, found.released, found.expired


def test_rows_wait_for_their_master_row_and_are_joined_once(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop(spark, tmp_path)
    shop.sell(1, 2, 3, 2)
    shop.fail_after_parking = True
    with pytest.raises(StreamingQueryException, match="killed after parking"):
        shop.run()
    shop.run()  # the same batch again: its rows are parked already
    assert shop.joined == [(0, "tea")]
    assert shop.counts == (3, 3, 0, 0)
    time.sleep(parking_lot.FIRST_LOOKUP_US / 1e6)
    shop.add_product(2, "milk")
    shop.sell(1)
    shop.run()
    assert Counter(shop.joined) == Counter([(0, "tea"), (1, "milk"), (3, "milk"), (4, "tea")])
    assert shop.counts == (3, 1, 2, 0)
    shop.run()
    assert len(shop.joined) == 4


def test_rows_leave_when_their_time_is_over(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop(spark, tmp_path, deadline="100 ms", then="reject")
    shop.sell(1, 2)
    shop.run()
    time.sleep(0.2)
    shop.run()
    assert shop.joined == [(0, "tea")]
    assert shop.rejected == [(1, "no master row for key product_id within 100 ms")]
    assert shop.counts == (1, 0, 1, 1)


def test_a_row_that_came_back_in_vain_is_parked_again_since_the_first_time(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(spark, tmp_path)
    shop.sell(2)
    shop.run()
    time.sleep(parking_lot.FIRST_LOOKUP_US / 1e6)
    parked = shop.parking
    # Asks another store than the join does, so rows come back too early.
    early = tm.MasterData.build(
        pa.table({"product_id": [2], "name": ["?"]}), key="product_id", path=tmp_path / "early"
    )
    shop.parking = Parking(parked.path, early, on="product_id")
    monkeypatch.setattr(Parking, "refuse_other_join", lambda *_: None)
    shop.run()
    assert shop.joined == []
    assert shop.counts == (2, 1, 1, 0)
    oldest = {part.oldest_parked_us for part in parts_of(parked.path)}
    assert len(oldest) == 1


def parts_of(path: Path) -> list[Any]:
    from tidemill.spark.parking_parts import read_segment

    return [part for file in (path / "segments").glob("*.json") for part in read_segment(file).parts]


def test_columns_may_come_but_not_go(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop(spark, tmp_path)
    stream = spark.createDataFrame([], "id bigint, product_id bigint")
    shop.parking.rows(spark, stream.schema)
    wider = spark.createDataFrame([], "id bigint, product_id bigint, note string")
    shop.parking.rows(spark, wider.schema)
    with pytest.raises(SpecError, match="have a column 'note' of type string, the stream has none"):
        shop.parking.rows(spark, stream.schema)
    with pytest.raises(SpecError, match="unknown key column 'product_id'"):
        shop.parking.rows(spark, stream.select("id").schema)
    with pytest.raises(SpecError, match="cast 'product_id'"):
        shop.parking.rows(spark, stream.selectExpr("id", "string(product_id)").schema)
