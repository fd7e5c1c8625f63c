"""What the settings of a cluster promise: executors that will come, and how many may."""

import re
from collections.abc import Callable
from dataclasses import dataclass

Setting = Callable[[str], str | None]
"""The value of a setting of Spark; None where it was left out."""
_ASKED_FOR = ("yarn", "k8s")
"""Managers that give an application the executors that it asks for, two of one core if it says nothing."""
_DEFAULT_EXECUTORS = 2
_NO_BOUND = 2**31 - 1
"""Spark's own value for a number of executors without a bound."""
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]")


@dataclass(frozen=True)
class Promise:
    """Tasks at a time on executors that may come."""

    tasks: int | None
    """In all; None where nothing bounds them."""
    at_start: int
    """Of them, on executors that come without being asked for."""
    of_an_executor: int | None
    """None where an executor takes whatever its host has."""
    is_on_demand: bool
    """Whether executors come and go with the work."""


def promise_of(setting: Setting) -> Promise:
    """The promise of these settings, for a master that is not local.

    >>> asked = {"spark.master": "yarn", "spark.executor.instances": "5", "spark.executor.cores": "4"}
    >>> promise_of(asked.get).tasks
    20
    """
    master = setting("spark.master") or ""
    is_asked_for = master.startswith(_ASKED_FOR)
    workers, cores_of_a_worker = _local_cluster(master)
    task_cores = _number(setting, "spark.task.cpus") or 1
    cores = _number(setting, "spark.executor.cores") or (1 if is_asked_for else cores_of_a_worker)
    each = max(1, cores // task_cores) if cores else None
    bounds: list[int] = []
    most_cores = _number(setting, "spark.cores.max")
    if most_cores and not is_asked_for:  # the setting of Spark's own cluster
        bounds.append(most_cores // cores * (each or 1) if cores else most_cores // task_cores)
    if workers and cores_of_a_worker and cores:
        bounds.append(workers * (cores_of_a_worker // cores) * (each or 1))
    is_on_demand = setting("spark.dynamicAllocation.enabled") == "true"
    if is_on_demand:
        most = _number(setting, "spark.dynamicAllocation.maxExecutors") or _NO_BOUND
        if most < _NO_BOUND and each:
            bounds.append(most * each)
        tasks = min(bounds, default=None)
        return Promise(tasks, _first_executors(setting) * (each or 1), each, is_on_demand)
    if is_asked_for:
        executors = _number(setting, "spark.executor.instances") or _DEFAULT_EXECUTORS
        bounds.append(executors * (each or 1))
    tasks = min(bounds, default=None)
    return Promise(tasks, 1 if tasks is None else tasks, each, is_on_demand)


def _first_executors(setting: Setting) -> int:
    names = (
        "spark.dynamicAllocation.minExecutors",
        "spark.dynamicAllocation.initialExecutors",
        "spark.executor.instances",
    )
    return max(_number(setting, name) or 0 for name in names)


def _local_cluster(master: str) -> tuple[int | None, int | None]:
    """Workers of a cluster on this host, and cores of each."""
    found = _LOCAL_CLUSTER.fullmatch(master)
    return (int(found[1]), int(found[2])) if found else (None, None)


def _number(setting: Setting, name: str) -> int | None:
    value = setting(name)
    return int(value) if value else None


__all__ = ["Promise", "promise_of"]
