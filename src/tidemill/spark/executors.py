"""How many tasks a cluster, and one of its hosts, may run at a time: the workers among which memory is shared.

Executors register some seconds after the session is there, and others come while a query runs. So what is there is
not all: what the configuration promises counts too, and in an application's first seconds executors are waited for.
"""

import math
import os
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from pyspark import SparkContext
from pyspark.sql import DataFrame
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from tidemill.spark.promise import Promise, promise_of

_PATIENCE_SECONDS = 15.0
"""From the start of the application on: who comes later is known by what is promised alone."""
_SETTLED_SECONDS = 2.0
"""Without a newcomer, where nothing says how many will come."""
_POLL_SECONDS = 0.05
_PYTHON_FUNCTIONS_OF_A_STAGE = 3
"""Where the join shares its pool of workers: source, join and sink run in workers of their own at a time."""


@dataclass(frozen=True)
class Executors:
    """What is there."""

    tasks: int
    """At a time, on all of them."""
    of_hosts: Counter[str]

    @property
    def number(self) -> int:
        return self.of_hosts.total()

    def share_of_a_host(self) -> float:
        """Of all executors, on the host with most of them; 1 before there are any."""
        return max(self.of_hosts.values()) / self.number if self.number else 1.0


@dataclass(frozen=True)
class Reckoned:
    """Tasks that may run at a time."""

    of_a_host: int
    at_most: int | None
    """In all; None where nothing bounds them."""
    now: int
    """In all, on what is there or certain to come."""


def context_of(rows: DataFrame) -> SparkContext | None:
    """The context whose executors will run the rows; None over Spark Connect.

    A Connect server started by `remote("local[2]")` lives in the user's own process, with a context that Python
    functions of Connect never see.
    """
    is_classic = isinstance(rows, ClassicDataFrame)
    return SparkContext._active_spark_context if is_classic else None  # noqa: SLF001 - the public call would start one


def reckoned_tasks(context: SparkContext | None, tasks: int | None) -> Reckoned:
    """What to reckon with for rows that are dealt out to so many tasks, if that was asked for."""
    if context is None:  # Spark Connect: neither the cores nor the pool are ours to know
        workers = _PYTHON_FUNCTIONS_OF_A_STAGE * (os.cpu_count() or 1)
        return Reckoned(workers, None, workers)
    if _scala(context).isLocal():
        cores = tasks_at_a_time(context)
        return Reckoned(cores, cores, cores)
    promise = promise_of(context.getConf().get)
    there = _awaited(context, promise)
    return reckoned(promise, there, tasks, cores_here=os.cpu_count() or 1)


def reckoned(promise: Promise, there: Executors, tasks: int | None, *, cores_here: int) -> Reckoned:
    """The larger of what is there and what is promised; executors and hosts are taken to be alike.

    A host of which nothing is known is taken to have as many cores as the driver's.
    """
    at_most = None if promise.tasks is None else max(promise.tasks, there.tasks)
    share = there.share_of_a_host()
    may_grow = promise.is_on_demand or not there.number
    # Where nothing bounds the executors, the tasks asked for are as many as may run at a time.
    asked = tasks if tasks is not None and may_grow else 0
    of_a_host = math.ceil(max(promise.tasks or asked, there.tasks) * share)
    likely = max(promise.of_an_executor or 1, cores_here, math.ceil(there.tasks * share))
    if may_grow and promise.tasks is None and tasks is None:
        of_a_host = likely
    elif promise.is_on_demand:  # that all come to one host, where the first few may be, is not what will be
        of_a_host = min(of_a_host, likely)
    return Reckoned(max(1, of_a_host), at_most, max(1, there.tasks, promise.at_start))


def tasks_at_a_time(context: SparkContext) -> int:
    """Of all executors that are there; `spark.default.parallelism`, which users set, says nothing of it."""
    return max(1, _tasks_there(context))


def _tasks_there(context: SparkContext) -> int:
    spark = _scala(context)
    profile = spark.resourceProfileManager().defaultResourceProfile()
    return int(spark.maxNumConcurrentTasks(profile))


def _awaited(context: SparkContext, promise: Promise) -> Executors:
    """What is there once all came that come of themselves, or the application is past its first seconds."""
    there, since = _there(context), time.monotonic()
    while time.time() < context.startTime / 1000 + _PATIENCE_SECONDS:
        is_settled = promise.tasks is not None or time.monotonic() - since > _SETTLED_SECONDS
        if there.tasks >= promise.at_start and is_settled:
            break
        time.sleep(_POLL_SECONDS)
        newer = _there(context)
        if newer != there:
            there, since = newer, time.monotonic()
    return there


def _there(context: SparkContext) -> Executors:
    return Executors(_tasks_there(context), _executors_of_hosts(context))


def _executors_of_hosts(context: SparkContext) -> Counter[str]:
    addresses = _scala(context).getExecutorMemoryStatus().keys().iterator()
    found: Counter[str] = Counter()
    while addresses.hasNext():
        found[str(addresses.next()).rpartition(":")[0]] += 1
    found[context.getConf().get("spark.driver.host") or ""] -= 1  # the driver is among them and runs no task
    return +found


def _scala(context: SparkContext) -> Any:
    return context._jsc.sc()  # noqa: SLF001 - PySpark offers none of this itself


__all__ = ["Executors", "Reckoned", "context_of", "reckoned", "reckoned_tasks", "tasks_at_a_time"]
