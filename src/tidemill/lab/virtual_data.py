"""A join in virtual time on a set of data, where `run_virtual` makes rows from the numbers of a workload."""

from pathlib import Path
from typing import Any

from tidemill.core.memory import MemoryBudget
from tidemill.join.catalog import make_join
from tidemill.lab.data.data_set import DataSet, open_master
from tidemill.lab.virtual import VirtualRun, _Counting, _state
from tidemill.lab.virtual_rows import as_stored
from tidemill.model.workload import Workload

_ENOUGH_ROWS = 100_000_000
"""Drawn as they are needed; no run takes as many."""


def workload_of(data: DataSet, folder: Path) -> Workload:
    """The set in numbers, with the pages of its store; built unless it is there."""
    master = open_master(data, folder)
    try:
        return as_stored(data.workload, master)
    finally:
        master.close()


def run_virtual_on(
    algorithm: str,
    data: DataSet,
    *,
    memory_bytes: int,
    sizes: Any = None,
    stream_rows: int | None = None,
    folder: Path,
) -> VirtualRun:
    """What `run_virtual` gives, for rows of the set."""
    master = open_master(data, folder)
    try:
        options = {} if sizes is None else {"sizes": sizes}
        budget = MemoryBudget(memory_bytes)
        join: Any = make_join(
            algorithm, master, data.stream_schema, stream_key=data.key, budget=budget, **options
        )
        began_with = join.sizes
        workload = as_stored(data.workload, master)
        counting = _Counting(join, master, workload, data.stream(_ENOUGH_ROWS, folder))
        before, after, is_settled = counting.until_settled(stream_rows)
        counted = after - before
        state = _state(algorithm, master, counted, counting.held)
        return VirtualRun(
            algorithm, workload, began_with, state, before.rows_in, counted.rows_in, is_settled, counted
        )
    finally:
        master.close()


__all__ = ["run_virtual_on", "workload_of"]
