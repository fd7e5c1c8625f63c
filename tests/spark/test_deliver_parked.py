"""Rows that wait for their master row, delivered by `deliver`: parked in the same pass, each loaded once, whatever dies."""

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col
from tests.load.harness import InThread, loader_in_thread

import tidemill as tm
from tidemill.core.block import encode_block
from tidemill.core.errors import SpecError
from tidemill.flow.branches import REASON_COLUMN, Rows, count_fates
from tidemill.flow.filters import reject
from tidemill.spark import parking as parking_module
from tidemill.spark import parking_lot, sinks
from tidemill.spark.checkpoint import open_pipeline
from tidemill.spark.sinks import BatchReport, deliver, tables_of
from tidemill.spark.sources import read_log
from tidemill.staging.log import StagingLog

STREAM = pa.schema([("id", pa.int64()), ("product_id", pa.int64())])
SOLD = Rows(
    "sold",
    pa.schema([("id", pa.int64()), ("name", pa.string()), ("entry", pa.int64())]),
    rename={"entry": "_entry"},
)
REJECTS = Rows(
    "rejects",
    pa.schema([("id", pa.int64()), ("reason", pa.string())]),
    which="rejected",
    rename={"reason": REASON_COLUMN},
)
LANES = (SOLD, REJECTS)
NO_MASTER_ROW = "no product in time"


class Flow:
    """A log, a join whose late rows are parked, and a loader; every run of the query is one of its own.

    Args:
        spark: Runs the query.
        folder: For everything.
        loader: With an empty warehouse.
    """

    def __init__(self, spark: SparkSession, folder: Path, loader: InThread) -> None:
        self.spark, self.folder, self.client = spark, folder, loader.client
        self.log = StagingLog.create(folder / "log", STREAM, max_bytes=10**8)
        first = pa.table({"product_id": [1], "name": ["tea"]})
        self.master = tm.MasterData.build(first, key="product_id", path=folder / "master")
        self.deadline = "1 h"
        self.sold = 0
        self.blocks = 0
        self.reports: list[BatchReport] = []

    @property
    def parking(self) -> tm.Parking:
        place = self.folder / "parking"
        return tm.Parking(place, self.master, on="product_id", deadline=self.deadline, then="reject")

    def sell(self, *keys: int) -> None:
        """One log entry."""
        ids = list(range(self.sold, self.sold + len(keys)))
        self.sold += len(keys)
        self.blocks += 1
        batch = pa.record_batch({"id": ids, "product_id": list(keys)}, schema=STREAM)
        self.log.append([encode_block(batch, source="s", number=self.blocks, last_position=ids[-1])])

    def learn(self, key: int, name: str) -> None:
        """A product comes, later than the parking looks for the first time."""
        time.sleep(parking_lot.FIRST_LOOKUP_US / 1e6)
        self.master = self.master.apply(pa.table({"product_id": [key], "name": [name], "_op": ["insert"]}))

    def rows(self, resumed_at: int) -> DataFrame:
        stream = read_log(self.spark, self.folder / "log", start_entry=resumed_at)
        enriched = tm.enrich(
            tm.with_parked(stream, self.parking),
            self.master,
            on="product_id",
            memory="8 MB",
            late="park",
            parking=self.parking,
            hot_rows=self.folder / "hot",
        )
        return reject(enriched, {NO_MASTER_ROW: col("_fate") == "rejected"})

    def run(self) -> None:
        """Deliver all that is there, and rows that are due by then."""
        resumed = open_pipeline(self.client, "shop", self.folder / "checkpoint", tables_of(LANES))
        query = deliver(
            self.rows(resumed.start_entry),
            LANES,
            client=self.client,
            resumed=resumed,
            count=count_fates,
            on_batch=self.reports.append,
            parking=self.parking,
        )
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    def loaded(self, columns: str, table: str) -> Counter[tuple[object, ...]]:
        rows = self.client.sql(f"SELECT {columns} FROM {table}").to_pylist()
        return Counter(tuple(row.values()) for row in rows)

    @property
    def counts(self) -> tuple[int, int, int]:
        found = self.parking.counts()
        return found.parked, found.waiting, found.released


@pytest.fixture
def flow(spark: SparkSession, tmp_path: Path) -> Iterator[Flow]:
    with loader_in_thread(tmp_path) as loader:
        flow = Flow(spark, tmp_path, loader)
        yield flow
        flow.log.close()


def test_parked_rows_stay_out_of_the_warehouse_until_they_leave(flow: Flow) -> None:
    flow.sell(1, 2, 3, 2)
    flow.run()
    assert flow.loaded("*", "sold") == Counter([(0, "tea", 0)])
    assert flow.loaded("*", "rejects") == Counter()
    assert flow.counts == (3, 3, 0)
    assert flow.reports[0].counts == {"rows": 1, "accepted": 1, "parked": 3}
    assert (flow.reports[0].start_entry, flow.reports[0].end_entry) == (0, 1)
    flow.learn(2, "milk")
    flow.sell(1)
    flow.run()
    # Rows that came back keep their log entry; where the stream stands is told by those of the log.
    assert flow.loaded("*", "sold") == Counter([(0, "tea", 0), (1, "milk", 0), (3, "milk", 0), (4, "tea", 1)])
    assert flow.counts == (3, 1, 2)
    flow.deadline = "1 ms"
    flow.run()
    assert flow.loaded("*", "rejects") == Counter([(2, NO_MASTER_ROW)])
    assert flow.counts == (3, 0, 3)
    assert sum(report.counts.get("rows", 0) for report in flow.reports) == flow.sold
    assert flow.reports[-1].end_entry == 2


@pytest.mark.parametrize("point", ["before_parking", "after_parking", "before_commit", "after_commit"])
def test_a_driver_that_ends_around_the_two_writes_parks_and_loads_each_row_once(
    flow: Flow, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    ends_at = [point]

    def end_if_told(reached: str) -> None:
        if reached in ends_at:
            ends_at.clear()
            raise RuntimeError(f"the driver ends {reached}")

    monkeypatch.setattr(sinks, "die_if_told", end_if_told)
    monkeypatch.setattr(parking_module, "die_if_told", end_if_told)
    flow.sell(1, 2, 3, 2)
    with pytest.raises(StreamingQueryException, match=f"the driver ends {point}"):
        flow.run()
    flow.learn(2, "milk")  # a re-run that met it would park two rows fewer
    flow.sell(3, 1)
    flow.run()
    assert ends_at == []
    flow.run()
    assert flow.loaded("id, name", "sold") == Counter([(0, "tea"), (1, "milk"), (3, "milk"), (5, "tea")])
    assert flow.loaded("*", "rejects") == Counter()
    parked, waiting, released = flow.counts
    assert (parked - released, waiting) == (2, 2)
    parts = {file.name for file in (flow.folder / "parking" / "segments").glob("*.arrow")}
    assert len(parts) <= (4 if point == "before_parking" else 3), "a re-run writes no rows that are parked"


def test_a_batch_of_which_all_rows_have_waited_moves_nothing_in_the_log(flow: Flow) -> None:
    flow.sell(2)
    flow.run()
    flow.learn(2, "milk")
    flow.run()
    assert flow.loaded("*", "sold") == Counter([(0, "milk", 0)])
    assert {(report.start_entry, report.end_entry) for report in flow.reports} == {(0, 1), (1, 1)}
    flow.sell(1)
    flow.run()
    assert flow.reports[-1].end_entry == 2


def test_rows_that_could_not_be_parked_are_refused_before_the_start(flow: Flow) -> None:
    rows = flow.rows(0)
    resumed = open_pipeline(flow.client, "shop", flow.folder / "checkpoint", tables_of(LANES))

    def delivered(wrong: DataFrame) -> None:
        deliver(
            wrong, LANES, client=flow.client, resumed=resumed, count=count_fates, on_batch=print, parking=flow.parking
        )  # fmt: skip

    with pytest.raises(SpecError, match="no column '_fate'"):
        delivered(rows.drop("_fate"))
    with pytest.raises(SpecError, match="a column 'id' of type bigint, those to deliver have none"):
        delivered(rows.drop("id"))
    with pytest.raises(SpecError, match="those to deliver have string"):
        delivered(rows.withColumn("id", col("id").cast("string")))
