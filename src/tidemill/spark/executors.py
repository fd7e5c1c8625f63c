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
    executors = _executors_of_hosts(context)
    tasks = tasks_at_a_time(context)
    if not executors:  # local Spark, or no executor yet: what there is may come to one host
        return tasks
    return math.ceil(tasks * max(executors.values()) / executors.total())


def _executors_of_hosts(context: SparkContext) -> Counter[str]:
    addresses = _scala(context).getExecutorMemoryStatus().keys().iterator()
    found: Counter[str] = Counter()
    while addresses.hasNext():
        found[str(addresses.next()).rpartition(":")[0]] += 1
    found[context.getConf().get("spark.driver.host") or ""] -= 1  # the driver is among them and runs no task
    return +found


def _scala(context: SparkContext) -> Any:
    return context._jsc.sc()  # noqa: SLF001 - PySpark offers none of this itself


__all__ = ["context_of", "tasks_at_a_time", "tasks_of_a_host"]
