"""Workers of a join are a pool of their own, whoever else makes a query at the same time."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

import tidemill as tm
from tidemill.spark.enrich import _POOL_VARIABLE, _own_pool


def test_one_who_leaves_takes_the_pool_from_nobody(spark: SparkSession) -> None:
    context = spark.sparkContext
    inside, left = threading.Event(), threading.Event()
    found: list[str | None] = []

    def other() -> None:
        with _own_pool(context):
            inside.set()
            left.wait(30)
            found.append(context.environment.get(_POOL_VARIABLE))

    thread = threading.Thread(target=other)
    with _own_pool(context):
        thread.start()
        inside.wait(0.5)  # long enough for one who does not wait for us
    left.set()
    thread.join(30)
    assert found == ["1"]
    assert _POOL_VARIABLE not in context.environment


def test_queries_made_by_many_threads_are_all_made(spark: SparkSession, tmp_path: Path) -> None:
    master = tm.MasterData.build(pa.table({"key": [1, 2], "name": ["a", "b"]}), key="key", path=tmp_path)
    keys = spark.createDataFrame([(1,), (2,)], "key bigint")
    begin = threading.Barrier(4)

    def made(_: int) -> list[list[str]]:
        begin.wait(30)
        return [tm.enrich(keys, master, on="key", memory="16 MB").columns for _ in range(10)]

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(made, range(4))) == [[["key", "name"]] * 10] * 4
