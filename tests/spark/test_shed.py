"""Batches that are too large leave rows for later; each row arrives once, and what is told of them adds up."""

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from tests.spark.set_aside import Shop

import tidemill as tm
from tidemill.core.errors import SpecError
from tidemill.spark.metrics_records import BatchMetrics
from tidemill.spark.shed_lane import Load, Rules, claim_rules, prepare_lane

KEYS = 40
MATCHES = [1 + key % 4 for key in range(KEYS)]


class BurstShop(Shop):
    """Sells more at a time than a batch may join."""

    def __init__(self, spark: SparkSession, folder: Path, *, unique: bool = True, **wishes: Any) -> None:
        keys = [key for key in range(KEYS) for _ in range(1 if unique else MATCHES[key])]
        products = pa.table({"product_id": keys, "name": [f"name {key}" for key in keys]})
        super().__init__(spark, folder, products, memory="16 MB", tasks=2)
        self.lane = self.new_lane(**wishes)

    def new_lane(self, **wishes: Any) -> tm.Shed:
        wishes = {"rows": 100, "memory": "4 MB", "quiet": "1 h", **wishes}
        self.lane = self.shed = tm.Shed(self.folder / "lane", **wishes)
        return self.lane

    def burst(self, rows: int) -> None:
        self.sell(number % KEYS for number in range(self.sold, self.sold + rows))

    @property
    def shares(self) -> list[float | None]:
        return [row["_kept_share"] for row in self.joined]

    @property
    def ids(self) -> Counter[int]:
        return Counter(row["id"] for row in self.joined)


def test_a_burst_is_shed_and_comes_back_each_row_once(spark: SparkSession, tmp_path: Path) -> None:
    shop = BurstShop(spark, tmp_path)
    shop.burst(60)
    shop.run()
    assert len(shop.joined) == 60  # about 30 for either task, which has room for 50
    assert shop.lane.counts().parked == 0
    shop.burst(250)
    shop.fails_after_setting_aside = True
    with pytest.raises(StreamingQueryException, match="killed after setting aside"):
        shop.run()
    shop.run()  # the same batch again: its rows are in the lane already
    assert len(shop.joined) == 60 + 100
    assert shop.lane.counts().waiting == 150
    assert shop.reasons == {"batch of more than 100 rows, keep": 150}
    shop.until_all_came()
    assert shop.ids == Counter(range(310))
    assert all(name == f"name {i % KEYS}" for i, name in shop.sales)
    assert shop.lane.counts().released == 150


def test_rules_that_change_do_not_touch_a_batch_that_is_run_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    shop = BurstShop(spark, tmp_path, goal="sample")
    shop.burst(300)
    shop.fails_after_setting_aside = True
    with pytest.raises(StreamingQueryException, match="killed after setting aside"):
        shop.run()
    shop.new_lane(rows=10, strategy="keep")
    shop.run()
    assert len(shop.joined) == 100
    assert set(shop.shares) != {None}
    shop.new_lane(rows=1000)
    shop.until_all_came()
    assert shop.ids == Counter(range(300))


@pytest.fixture
def told(spark: SparkSession) -> Iterator[list[BatchMetrics]]:
    found: list[BatchMetrics] = []
    with tm.watch(spark, on_batch=found.append):
        yield found


def test_a_sample_tells_its_rate_and_its_error(
    spark: SparkSession, tmp_path: Path, told: list[BatchMetrics]
) -> None:
    shop = BurstShop(spark, tmp_path, goal="sample", rows=200)
    shop.burst(500)
    shop.run()
    weights = [1 / share for share in shop.shares if share]
    assert sum(weights) == pytest.approx(500)  # each task kept 100 of what it got
    shed = heard(told)
    assert (shed.strategy, shed.room_rows, shed.arrived_rows) == ("sample", 200, 500)
    assert (shed.kept_rows, shed.shed_rows, shed.returned_rows) == (200, 300, 0)
    assert shed.kept_share == 0.4
    assert 0.15 < shed.stated_error < 0.25  # 2.576 · √(0.6 / 100), about
    assert told[-1].as_dict()["shed"]["shed_rows"] == 300


def test_top_joins_rows_with_most_matches(
    spark: SparkSession, tmp_path: Path, told: list[BatchMetrics]
) -> None:
    shop = BurstShop(spark, tmp_path, unique=False, rows=100)
    shop.burst(400)
    shop.run()
    matches = Counter(MATCHES[i % KEYS] for i in shop.ids)
    assert matches[4] == pytest.approx(
        100, abs=25
    )  # parts are dealt by chance: one may hold a few more of them
    assert matches[1] == matches[2] == 0
    shed = heard(told)
    assert (shed.strategy, shed.arrived_matches) == ("top", 1000)
    assert shed.kept_matches == len(shop.joined)
    shop.until_all_came()
    assert shop.ids == Counter({i: MATCHES[i % KEYS] for i in range(400)})


def test_shed_rows_have_no_late_fate(spark: SparkSession, tmp_path: Path) -> None:
    shop = BurstShop(spark, tmp_path, strategy="cluster", rows=100)
    shop.wishes |= {"late": "reject", "matched_as": "was_found"}
    shop.change("delete", 0, "name 0")
    shop.burst(400)
    shop.run()
    assert shop.lane.counts().waiting == 300
    assert sum(shop.reasons.values()) == 300
    shop.until_all_came()
    assert shop.ids == Counter(i for i in range(400) if i % KEYS)


def test_wishes_that_cannot_be_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    assert tm.Shed(tmp_path, seconds="2 s", rows_per_s=50_000).rows == 100_000
    with pytest.raises(SpecError, match="give rows="):
        tm.Shed(tmp_path)
    with pytest.raises(SpecError, match="give rows="):
        tm.Shed(tmp_path, rows=5, seconds="2 s", rows_per_s=3)
    with pytest.raises(SpecError, match="did you mean 'cluster'"):
        tm.Shed(tmp_path, rows=5, strategy="clusters")
    shop = BurstShop(spark, tmp_path)
    rows = spark.createDataFrame([(1, 1)], "id bigint, product_id bigint")
    with pytest.raises(SpecError, match="no stream"):
        tm.enrich(rows, shop.master, on="product_id", shed=shop.shed)


def test_the_first_claim_of_a_batch_counts(tmp_path: Path) -> None:
    assert prepare_lane(tmp_path, 4) == 4
    assert prepare_lane(tmp_path, 2) == 4
    first = claim_rules(tmp_path, "q", 7, Rules(10, "keep", None))
    assert claim_rules(tmp_path, "q", 7, Rules(99, "top", "x")) == first
    assert claim_rules(tmp_path, "q", 8, Rules(99, "top", "x")).rows == 99


def test_rows_come_back_into_the_room_that_is_left() -> None:
    calm = Load(live_rows=30, shed_rows=0, room_rows=100, at_ms=1000)
    busy = Load(live_rows=130, shed_rows=30, room_rows=100, at_ms=1000)
    assert calm.room_for_returning(1100, 500, 100) == 70
    assert busy.room_for_returning(1100, 500, 100) == 0
    assert busy.room_for_returning(1500, 500, 100) == 100


def heard(told: list[BatchMetrics]) -> Any:
    ends = time.monotonic() + 20
    while not told and time.monotonic() < ends:
        time.sleep(0.05)
    return told[0].shed
