"""Runs one enrichment on the cluster named and prints what it saw; started by the test beside it."""

import json
import os
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import tidemill as tm
from tidemill.spark import executors
from tidemill.spark.executors import reckoned_tasks, tasks_at_a_time
from tidemill.spark.metrics_records import lookups_of
from tidemill.spark.session import start_session

EXECUTORS = 2
FILES_AT_ONCE = 100
TRIAL = "trial"


def wait_for_executors(spark: SparkSession) -> None:
    until = time.monotonic() + 120
    while tasks_at_a_time(spark.sparkContext) < EXECUTORS:
        assert time.monotonic() < until, "the executors did not come"
        time.sleep(0.1)


def run(cluster: str, folder: Path, name: str, *, at_once: bool) -> None:
    """One query; with `at_once` before the executors came, in tasks of its own choice, and one batch of all files."""
    settings = {"spark.master": cluster, "spark.executor.memory": "512m", "spark.sql.shuffle.partitions": "2"}
    if at_once:
        settings |= {"spark.sql.files.maxPartitionBytes": "4k", "spark.sql.files.openCostInBytes": "4k"}
    spark = start_session("cluster", cores=2, scratch=folder / "scratch", low_latency=True, extra=settings)
    unawaited = as_reckoned_without_patience(spark)
    if not at_once:
        wait_for_executors(spark)
    files = FILES_AT_ONCE if at_once else 1
    rows = spark.readStream.schema("id bigint, key bigint").option("maxFilesPerTrigger", files)
    enriched = tm.enrich(
        rows.parquet(str(folder / "in")), tm.MasterData.open(folder / "store"), on="key", memory="16 MB",
        tasks=None if at_once else 2, observe_as=TRIAL, hot_rows=folder / f"hot-{name}",
    ).withColumn("task", sf.spark_partition_id())  # fmt: skip
    found: list[pa.Table] = []

    def keep(batch: DataFrame, _: int) -> None:
        found.append(batch.toArrow())

    writing = enriched.writeStream.foreachBatch(keep).option("checkpointLocation", str(folder / f"cp-{name}"))
    query = writing.trigger(availableNow=True).start()
    query.awaitTermination()
    told = [
        lookups_of(progress.observedMetrics[TRIAL].asDict())[0].as_dict() for progress in query.recentProgress
    ]
    pq.write_table(pa.concat_tables(found).sort_by("id"), folder / f"{name}.parquet")
    context = spark.sparkContext
    answer = {
        "tasks": tasks_at_a_time(context),
        "of_a_host": reckoned_tasks(context, None).of_a_host,
        "unawaited": unawaited,
        "told": told,
    }
    application = context.applicationId
    spark.stop()
    (folder / f"{name}.json").write_text(json.dumps(answer))
    if cluster.startswith("local-cluster"):
        forget_work(application)


def as_reckoned_without_patience(spark: SparkSession) -> list[int | None]:
    """Tasks of a host and in all, when no executor is waited for."""
    patience, executors._PATIENCE_SECONDS = executors._PATIENCE_SECONDS, 0.0
    told = reckoned_tasks(spark.sparkContext, None)
    executors._PATIENCE_SECONDS = patience
    return [told.of_a_host, told.at_most]


def forget_work(application: str) -> None:
    """Remove what the workers of a local cluster left beside Spark's own files; there is no setting for the place."""
    import pyspark

    work = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent) / "work"
    shutil.rmtree(work / application, ignore_errors=True)
    with suppress(OSError):
        work.rmdir()


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]), sys.argv[3], at_once="at-once" in sys.argv[4:])
