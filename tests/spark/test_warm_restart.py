"""A query that goes on elsewhere, without its shared hot rows, begins with those that it told: its first batch is warm."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import tidemill as tm
from tidemill.spark.metrics_records import LookupMetrics, lookups_of
from tidemill.spark.warm_start import FOLDER
from tidemill.testing.zipf import Zipf

TRIAL = "trial"
KEYS, ROWS_OF_A_BATCH, BATCHES_OF_A_RUN, MOST_RUNS = 200_000, 4_000, 20, 10


class Till:
    """A query over files that can be ended and go on from its checkpoint, a file a batch."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.store, self.hot_rows = folder / "products", folder / "hot"
        keys = np.arange(KEYS)
        rows = pa.table({"key": keys, "value": keys * 7, "text": np.char.zfill(keys.astype("U60"), 60)})
        tm.MasterData.build(rows, key="key", path=self.store)
        (folder / "in").mkdir()
        self._sales = Zipf(KEYS, exponent=1.2, seed=5, spread=True)
        self.files = 0
        self.right_rows = 0

    @property
    def codes(self) -> Path:
        """Where the query tells what is hot."""
        return self.store / FOLDER

    def run(self, batches: int) -> list[LookupMetrics]:
        """What the joins told of so many more batches, of two tasks each."""
        for _ in range(batches):
            rows = pa.table({"key": self._sales.draw(ROWS_OF_A_BATCH)})
            pq.write_table(rows, self.folder / "in" / f"{self.files}.parquet")
            self.files += 1
        stream = self.spark.readStream.schema("key bigint").option("maxFilesPerTrigger", 1)
        enriched = tm.enrich(
            stream.parquet(str(self.folder / "in")), tm.MasterData.open(self.store), on="key", columns=["value"],
            memory="16 MB", algorithm="tide", tasks=2, observe_as=TRIAL, hot_rows=self.hot_rows,
        )  # fmt: skip
        writing = enriched.writeStream.foreachBatch(self._check)
        writing = writing.option("checkpointLocation", str(self.folder / "checkpoint"))
        query = writing.trigger(availableNow=True).start()
        query.awaitTermination()
        told = [lookups_of(progress.observedMetrics[TRIAL].asDict()) for progress in query.recentProgress]
        return [lookup for lookups in told for lookup in lookups]

    def _check(self, batch: DataFrame, _: int) -> None:
        self.right_rows += batch.where("value = key * 7").count()


@pytest.fixture
def till(spark: SparkSession, tmp_path: Path) -> Till:
    return Till(spark, tmp_path)


def test_the_first_batch_after_a_restart_is_as_warm_as_the_last_one_before(till: Till) -> None:
    before, runs = till.run(BATCHES_OF_A_RUN), 1
    while not any(till.codes.glob("*.codes")):  # told by the clock: after a second of work
        before, runs = till.run(BATCHES_OF_A_RUN), runs + 1
        assert runs < MOST_RUNS, "nothing was told"
    before += till.run(BATCHES_OF_A_RUN)

    shutil.rmtree(till.hot_rows)  # as on another host, or after the machine was started again
    [warm] = till.run(1)
    shutil.rmtree(till.hot_rows)
    shutil.rmtree(till.codes)
    [cold] = till.run(1)

    assert warm.rows_in == cold.rows_in == ROWS_OF_A_BATCH
    assert till.right_rows == till.files * ROWS_OF_A_BATCH
    assert warm.hot_share > 0.9 * before[-1].hot_share
    assert warm.hot_share > 1.5 * cold.hot_share
