"""Python workers are killed at any moment: the rows stay the same, and the new ones find what the old ones learned."""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import tidemill as tm
from tidemill.spark.failpoint import VARIABLE
from tidemill.spark.metrics_records import LookupMetrics, lookups_of
from tidemill.testing.zipf import Zipf

TRIAL = "trial"
KEYS, FILES, ROWS_OF_A_FILE = 4_000, 8, 3_000
POINTS = ("after_claim", "in_task", "with_hot_rows")
"""The version is claimed and nothing is open; rows arrive; hot rows are in use and some rows have left."""


class Seen:
    """What each batch gave and what its joins told."""

    def __init__(self, before_next: Callable[[int], None]) -> None:
        self.rows: list[pa.Table] = []
        self.told: list[LookupMetrics] = []
        self._before_next = before_next

    def keep(self, batch: DataFrame, batch_id: int) -> None:
        self.rows.append(batch.toArrow())
        self._before_next(batch_id)

    def hot_share(self, batch: int) -> float:
        return self.told[batch].hot_hits / self.told[batch].rows_in


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> tm.MasterData:
    keys = np.arange(KEYS)
    rows = pa.table({"key": keys, "value": keys * 7, "name": [f"product {key}" for key in keys]})
    return tm.MasterData.build(rows, key="key", path=tmp_path_factory.mktemp("master") / "products")


def run(spark: SparkSession, master: tm.MasterData, folder: Path, before_next: Callable[[int], None]) -> Seen:
    """A stream of eight batches, with something done after each of them."""
    (folder / "in").mkdir()
    (folder / "fail").mkdir()
    keys = Zipf(KEYS + 50, exponent=1.2, seed=4, spread=True).draw(FILES * ROWS_OF_A_FILE)
    for number, part in enumerate(np.split(keys, FILES)):
        first = number * ROWS_OF_A_FILE
        rows = pa.table({"id": np.arange(first, first + ROWS_OF_A_FILE), "key": part})
        pq.write_table(rows, folder / "in" / f"{number}.parquet")
    stream = spark.readStream.schema("id bigint, key bigint").option("maxFilesPerTrigger", 1)
    environment = spark.sparkContext.environment
    environment[VARIABLE] = str(folder / "fail")  # travels with the function to its workers
    try:
        enriched = tm.enrich(
            stream.parquet(str(folder / "in")), master, on="key", memory="8 MB", tasks=2, observe_as=TRIAL,
            hot_rows=folder / "hot",
        )  # fmt: skip
    finally:
        del environment[VARIABLE]
    seen = Seen(before_next)
    writing = enriched.writeStream.foreachBatch(seen.keep).option("checkpointLocation", str(folder / "cp"))
    query = writing.trigger(availableNow=True).start()
    query.awaitTermination()
    for progress in query.recentProgress:
        seen.told += lookups_of(progress.observedMetrics[TRIAL].asDict())
    found = pa.concat_tables(seen.rows).sort_by("id")
    assert found["id"].to_pylist() == list(range(len(keys)))
    values = [key * 7 if key < KEYS else None for key in found["key"].to_pylist()]
    assert found["value"].to_pylist() == values
    return seen


def workers_of(folder: Path) -> set[int]:
    return {int(note.name) for note in (folder / "hot" / "workers").glob("[0-9]*")}


def test_a_worker_killed_at_a_bad_moment_costs_no_row(
    spark: SparkSession, master: tm.MasterData, tmp_path: Path
) -> None:
    workers: set[int] = set()  # notes of those that died go when others come

    def tell_one_to_die(batch_id: int) -> None:
        workers.update(workers_of(tmp_path))
        for point in POINTS[batch_id : batch_id + 1]:
            (tmp_path / "fail" / point).touch()

    seen = run(spark, master, tmp_path, tell_one_to_die)
    assert list((tmp_path / "fail").iterdir()) == [], "each point was reached"
    assert len(workers) >= 2 + len(POINTS) - 1, "others took their place"
    assert seen.hot_share(0) < seen.hot_share(FILES - 1), "something was learned"
    for batch in range(2, FILES):
        assert seen.hot_share(batch) > 0.5, batch


def test_workers_that_replace_idle_ones_find_the_hot_rows(
    spark: SparkSession, master: tm.MasterData, tmp_path: Path
) -> None:
    before: set[int] = set()

    def end_the_idle(batch_id: int) -> None:
        if batch_id == FILES - 2:
            before.update(workers_of(tmp_path))
            for pid in before:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    seen = run(spark, master, tmp_path, end_the_idle)
    assert workers_of(tmp_path) - before, "the last batch had workers of its own"
    assert seen.hot_share(FILES - 1) > 0.5
