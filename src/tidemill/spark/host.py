"""The worker's side of `tm.enrich`: a join that lives in the Python worker from task to task.

Spark gives a partition to any worker, ends idle workers after a minute and kills them at will. So nothing here is
needed for right results: hot rows lie in a file that every worker maps, waiting rows never outlive their task.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext

from tidemill.core.errors import InternalError
from tidemill.join.drive import drive
from tidemill.join.output import OutputPlan
from tidemill.join.protocol import StepReport
from tidemill.master.layout import current_version
from tidemill.spark.columns import METRICS_COLUMN
from tidemill.spark.failpoint import die_if_told
from tidemill.spark.version_pin import pin_version
from tidemill.spark.worker_join import WorkerJoin


@dataclass(frozen=True)
class HostedJoin:
    """What a worker must know to run the join; travels inside the function that Spark ships."""

    master_path: Path
    pinned_version: int | None
    """The version to use; None claims the current one for each micro-batch."""
    plan: OutputPlan
    algorithm: str
    memory_bytes: int
    workers: int
    """Processes of a host that may hold this join at a time."""
    folder: Path
    metrics: bool

    def run_task(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Join all rows of one task; everything has left when it ends."""
        worker = _worker_for(self, *self._version_and_owner())
        totals = Totals()
        held: pa.RecordBatch | None = None
        clean = False
        try:
            with worker.hot_rows_in_use():
                for report in drive(worker.join, self._told_to_die(batches)):
                    totals.add(report)
                    for output in report.outputs:
                        if held is not None:
                            yield self._labelled(held, None)
                        held = output
                if held is not None:
                    yield self._labelled(held, totals.as_json())
            clean = True
        finally:
            if not clean:  # a task that was ended in the middle leaves rows waiting: the next one starts anew
                _open_joins.clear()
        held = None
        pa.default_memory_pool().release_unused()

    def _labelled(self, output: pa.RecordBatch, metrics: str | None) -> pa.RecordBatch:
        if not self.metrics:
            return output
        told = pa.nulls(output.num_rows, pa.string())
        if metrics is not None:
            told = pa.concat_arrays([pa.nulls(output.num_rows - 1, pa.string()), pa.array([metrics])])
        return output.append_column(METRICS_COLUMN, told)

    def _version_and_owner(self) -> tuple[int, str]:
        """The master version that this batch uses, and who shares hot rows: the tasks of a query, or of a version."""
        if self.pinned_version is not None:
            return self.pinned_version, f"version {self.pinned_version}"
        context = TaskContext.get()
        query_id = context and context.getLocalProperty("sql.streaming.queryId")
        batch_id = context and context.getLocalProperty("streaming.sql.batchId")
        if not query_id or not batch_id:
            raise InternalError("a streaming task without query id and batch id", code="no_batch_id")
        current = current_version(self.master_path)
        return pin_version(self.master_path / "claims", query_id, int(batch_id), current), query_id

    @staticmethod
    def _told_to_die(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            die_if_told("in_task")
            yield batch


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


_open_joins: dict[tuple[HostedJoin, int], WorkerJoin] = {}


def _worker_for(hosted: HostedJoin, version: int, owner: str) -> WorkerJoin:
    key = (hosted, version)
    if key not in _open_joins:
        _open_joins.clear()  # a worker serves one version at a time: two would need two budgets
        _open_joins[key] = WorkerJoin(
            hosted.master_path,
            version,
            hosted.plan,
            hosted.algorithm,
            hosted.memory_bytes,
            hosted.workers,
            hosted.folder,
            owner,
        )
    return _open_joins[key]


__all__ = ["HostedJoin"]
