"""How many tasks a cluster, and one of its hosts, runs at a time: the workers among which memory is shared."""

import math
from collections import Counter
from typing import Any

from pyspark import SparkContext
from pyspark.sql import DataFrame
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame


def context_of(rows: DataFrame) -> SparkContext | None:
    """The context whose executors will run the rows; None over Spark Connect.

    A Connect server started by `remote("local[2]")` lives in the user's own process, with a context that Python
    functions of Connect never see.
    """
    is_classic = isinstance(rows, ClassicDataFrame)
    return SparkContext._active_spark_context if is_classic else None  # noqa: SLF001 - the public call would start one


def tasks_at_a_time(context: SparkContext) -> int:
    """Of all executors that are there; `spark.default.parallelism`, which users set, says nothing of it."""
    spark = _scala(context)
    profile = spark.resourceProfileManager().defaultResourceProfile()
    return max(1, int(spark.maxNumConcurrentTasks(profile)))


def tasks_of_a_host(context: SparkContext) -> int:
    """Of the host with most executors, at a time; executors are taken to be alike, as Spark asks for them."""
    hosts = _hosts(context)
    tasks = tasks_at_a_time(context)
    if not hosts:  # local Spark, or no executor yet: what there is may come to one host
        return tasks
    return math.ceil(tasks * max(Counter(hosts).values()) / len(hosts))


def _hosts(context: SparkContext) -> list[str]:
    """Of each executor; the driver is none."""
    spark = _scala(context)
    keys = spark.getExecutorMemoryStatus().keys().iterator()
    found = []
    while keys.hasNext():
        found.append(str(keys.next()))
    driver = f"{spark.env().blockManager().blockManagerId().host()}:{spark.env().blockManager().blockManagerId().port()}"
    return [address.rpartition(":")[0] for address in found if address != driver]


def _scala(context: SparkContext) -> Any:
    return context._jsc.sc()  # noqa: SLF001 - PySpark offers none of this itself


__all__ = ["context_of", "tasks_at_a_time", "tasks_of_a_host"]
