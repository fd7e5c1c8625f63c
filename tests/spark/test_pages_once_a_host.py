"""Tasks of one batch share what they read: uniform keys cost about one sweep of the pages, not one a task."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import Observation, SparkSession

import tidemill as tm
from tidemill.join.output import OutputPlan
from tidemill.spark.metrics_records import LookupMetrics, lookups_of
from tidemill.spark.worker_join import HostShares

MASTER_ROWS, STREAM_ROWS, TASKS = 50_000, 30_000, 2
"""Rows of a task that miss can all wait, and what one task has posted is still there when the other is late."""
MEMORY_BYTES = 40_000_000


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> tm.MasterData:
    keys = np.arange(MASTER_ROWS)
    rows = pa.table({"key": keys, "value": keys * 7, "text": np.char.zfill(keys.astype("U80"), 80)})
    return tm.MasterData.build(rows, key="key", path=tmp_path_factory.mktemp("master") / "products")


@pytest.fixture
def told(spark: SparkSession, master: tm.MasterData, tmp_path: Path) -> LookupMetrics:
    """Of a batch in which nearly every page has rows for both tasks, and hardly a key comes twice."""
    rows = spark.range(0, STREAM_ROWS, 1, TASKS).selectExpr("id", f"pmod(xxhash64(id), {MASTER_ROWS}) AS key")
    seen = Observation("tidemill trial")
    enriched = tm.enrich(
        rows, master, on="key", columns=["value"], how="inner", memory=MEMORY_BYTES, algorithm="tide", observe_as=seen,
        hot_rows=tmp_path,
    )  # fmt: skip
    wrong = enriched.selectExpr("count(*) AS rows", "count_if(value != key * 7) AS wrong").first()
    assert wrong is not None
    assert (wrong["rows"], wrong["wrong"]) == (STREAM_ROWS, 0)
    [found] = lookups_of(seen.get)
    return found


def test_pages_are_read_about_once_by_both_tasks_together(told: LookupMetrics, master: tm.MasterData) -> None:
    plan = OutputPlan.of(
        pa.schema([("id", pa.int64()), ("key", pa.int64())]), master.schema, stream_key="key", master_key="key",
        how="inner", columns=["value"],
    )  # fmt: skip
    assert HostShares.of(master, plan, MEMORY_BYTES, TASKS).board_bytes > 0, "enough memory for a board"
    assert (told.tasks, told.rows_in) == (TASKS, STREAM_ROWS)
    assert told.disk_matches > 0.8 * STREAM_ROWS, "hot rows spare few reads"
    assert 0.9 * master.pages < told.pages_read <= 1.3 * master.pages
