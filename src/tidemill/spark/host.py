"""The worker's side of `tm.enrich`: a join that lives in the Python worker from task to task.

Spark gives a partition to any worker, ends idle workers after a minute and kills them at will. So nothing here is
needed for right results: hot rows lie in files that every worker maps, waiting rows never outlive their task.
"""

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext

from tidemill.core.errors import BudgetError, InternalError
from tidemill.core.memory import MemoryBudget
from tidemill.core.units import format_bytes
from tidemill.join.cache import CacheJoin
from tidemill.join.drive import drive
from tidemill.join.output import OutputPlan
from tidemill.join.protocol import StepReport
from tidemill.master import MasterData
from tidemill.master.layout import current_version
from tidemill.spark.columns import METRICS_COLUMN
from tidemill.spark.failpoint import die_if_told
from tidemill.spark.hot_files import HotFiles, note_baseline
from tidemill.spark.version_pin import pin_version


@dataclass(frozen=True)
class HostedJoin:
    """What a worker must know to run the join; travels inside the function that Spark ships."""

    master_path: Path
    pinned_version: int | None
    """The version to use; None claims the current one for each micro-batch."""
    plan: OutputPlan
    memory_bytes: int
    workers: int
    """Processes of a host that may hold this join at a time; they share the budget evenly."""
    folder: Path
    metrics: bool

    def run_task(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Join all rows of one task; everything has left when it ends."""
        worker = _worker_for(self, self._version())
        totals = Totals()
        held: pa.RecordBatch | None = None
        clean = False
        try:
            worker.refresh_hot_rows()
            for report in drive(worker.join, self._told_to_die(batches)):
                totals.add(report)
                for output in report.outputs:
                    if held is not None:
                        yield self._labelled(held, None)
                    held = output
            clean = True
        finally:
            if not clean:  # a task that was ended in the middle leaves rows waiting: the next one starts anew
                _open_joins.clear()
        worker.renew_hot_rows()
        pa.default_memory_pool().release_unused()
        if held is not None:
            yield self._labelled(held, totals.as_json())

    def _labelled(self, output: pa.RecordBatch, metrics: str | None) -> pa.RecordBatch:
        if not self.metrics:
            return output
        told = pa.nulls(output.num_rows, pa.string())
        if metrics is not None:
            told = pa.concat_arrays([pa.nulls(output.num_rows - 1, pa.string()), pa.array([metrics])])
        return output.append_column(METRICS_COLUMN, told)

    def _version(self) -> int:
        if self.pinned_version is not None:
            return self.pinned_version
        context = TaskContext.get()
        query_id = context and context.getLocalProperty("sql.streaming.queryId")
        batch_id = context and context.getLocalProperty("streaming.sql.batchId")
        if not query_id or not batch_id:
            raise InternalError("a streaming task without query id and batch id", code="no_batch_id")
        current = current_version(self.master_path)
        return pin_version(self.master_path / "claims", query_id, int(batch_id), current)

    @staticmethod
    def _told_to_die(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            die_if_told("in_task")
            yield batch


TRANSPORT_SHARE = 0.3
"""Of a worker's budget: batches on their way from and to the JVM, and what Arrow's allocator keeps of them."""


def join_bytes(memory_bytes: int, workers: int) -> int:
    """What the join of one worker may reserve."""
    return int(memory_bytes / workers * (1 - TRANSPORT_SHARE))


def check_budget(master: MasterData, plan: OutputPlan, memory_bytes: int, workers: int) -> None:
    """Refuse a budget that the workers of a host could not work with, before anything starts."""
    try:
        CacheJoin.sizes_for(master, plan, join_bytes(memory_bytes, workers))
    except BudgetError as error:
        least = error.least_bytes * workers / (1 - TRANSPORT_SHARE)
        raise BudgetError(
            f"memory={format_bytes(memory_bytes)} is too little for {workers} workers of a host",
            code="budget_too_small",
            next_move=f"give at least {format_bytes(math.ceil(least / 1e5) * 1e5)}",
            total_bytes=memory_bytes,
            least_bytes=math.ceil(least),
        ) from error


@dataclass
class Totals:
    """What the steps of one task did together."""

    sums: dict[str, float] = field(default_factory=dict)

    def add(self, report: StepReport) -> None:
        for name in ("rows_in", "hot_hits", "disk_matches", "unmatched", "pages_read", "bytes_read"):
            self.sums[name] = self.sums.get(name, 0) + getattr(report, name)
        for phase, seconds in report.seconds.items():
            self.sums[f"{phase}_seconds"] = self.sums.get(f"{phase}_seconds", 0.0) + seconds

    def as_json(self) -> str:
        return json.dumps(self.sums)


class _Worker:
    """One open join of this process with its master version and its view of the shared hot rows."""

    def __init__(self, hosted: HostedJoin, version: int) -> None:
        note_baseline(hosted.folder)
        master = MasterData.open(hosted.master_path, version)
        self.join = CacheJoin(
            master,
            hosted.plan,
            MemoryBudget(join_bytes(hosted.memory_bytes, hosted.workers)),
            auto_switch=False,
        )
        columns = hashlib.sha256(repr(hosted.plan.master_columns).encode()).hexdigest()[:12]
        self._files = HotFiles(hosted.folder / f"{master.identity}-{columns}")

    def refresh_hot_rows(self) -> None:
        newer = self._files.newer()
        if newer is not None:
            self.join.use_hot_rows(newer)

    def renew_hot_rows(self) -> None:
        """Share what this worker learned, if a better generation is due and nobody else builds one."""
        if not self.join.switch_is_due:
            return
        with self._files.elected() as is_builder:
            if not is_builder:
                return
            better = self.join.next_generation()
            if better is not None:
                self._files.publish(better)
        self.refresh_hot_rows()


_open_joins: dict[tuple[HostedJoin, int], _Worker] = {}


def _worker_for(hosted: HostedJoin, version: int) -> _Worker:
    key = (hosted, version)
    if key not in _open_joins:
        _open_joins.clear()  # a worker serves one version at a time: two would need two budgets
        _open_joins[key] = _Worker(hosted, version)
    return _open_joins[key]


__all__ = ["HostedJoin", "check_budget"]
