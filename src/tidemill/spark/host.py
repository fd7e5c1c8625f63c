"""The worker's side of `tm.enrich`: joins that live in the Python worker from task to task.

Spark gives a partition to any worker, ends idle workers after a minute and kills them at will. So nothing here is
needed for right results: hot rows lie in files that every worker maps, waiting rows never outlive their task.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from tidemill.core.errors import InternalError
from tidemill.join.drive import drive
from tidemill.spark.collector import leave_alone_what_stays
from tidemill.spark.failpoint import die_if_told
from tidemill.spark.fate_counts import FateCounts, FateRules
from tidemill.spark.hot_folder import own_temporary_folder
from tidemill.spark.lookup import HostedLookup
from tidemill.spark.metrics import LookupTotals, telling_row, with_metrics_column
from tidemill.spark.seats import HostSeats
from tidemill.spark.shed_task import HostedShed
from tidemill.spark.version_pin import claim_version
from tidemill.spark.worker_join import WorkerJoin


@dataclass(frozen=True)
class HostedJoins:
    """What a worker must know to run the joins; travels inside the function that Spark ships."""

    token: str
    """Tells this call from all others."""
    lookups: tuple[HostedLookup, ...]
    workers: int
    """Processes of a host that may hold the joins at a time."""
    folder: Path | None
    """For what the workers of a host share; None for the own temporary one of whoever runs them, wherever that is."""
    tells: bool
    """Whether a row behind the others says what the task did."""
    shed: HostedShed | None = None
    """Which rows go around the joins, and leave with a reason."""
    fates: FateRules | None = None
    """By which the row that tells says what becomes of the others."""

    @property
    def output_schema(self) -> pa.Schema:
        return self.lookups[-1].output_schema

    def run_task(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Join all rows of one task; everything has left when it ends."""
        with _seat(self):
            yield from self._join(batches)

    def shared_folder(self) -> Path:
        """Of this process's host and user."""
        return self.folder if self.folder is not None else own_temporary_folder()

    def _join(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        joins = _open(self)
        totals = [_totals(lookup, join) for lookup, join in zip(self.lookups, joins, strict=True)]
        rows = self._arriving(batches)
        clean = False
        fates = FateCounts(self.fates) if self.tells and self.fates is not None else None
        shedding = self.shed.begin() if self.shed is not None else None
        try:
            if shedding is not None:
                for gone in shedding.shed(rows):
                    padded = _padded(gone, self.output_schema)
                    yield with_metrics_column(padded) if self.tells else padded
                rows = self._declared(shedding.kept())
            with ExitStack() as in_use:
                for join, total in zip(joins, totals, strict=True):
                    in_use.enter_context(join.hot_rows_in_use())
                    rows = _joined(join, rows, total)
                # A loop would hold what has left until the next one is there.
                yield from map(self._leaving, rows, repeat(fates))
            clean = True
        finally:
            if not clean:  # a task that was ended in the middle leaves rows waiting: the next one starts anew
                _open_joins.clear()
        if self.tells:
            context = TaskContext.get()
            shed = shedding.told if shedding is not None else None
            partition = context.partitionId() if context else 0
            told = fates.told if fates is not None else None
            yield telling_row(self.output_schema, partition, totals, shed, told)
        pa.default_memory_pool().release_unused()

    def _leaving(self, output: pa.RecordBatch, fates: FateCounts | None) -> pa.RecordBatch:
        die_if_told("with_hot_rows")
        if fates is not None:
            fates.add(output)
        return with_metrics_column(output) if self.tells else output

    def _arriving(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches if self.shed is not None else self._declared(batches):
            die_if_told("in_task")
            yield batch

    def _declared(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        declared = self.lookups[0].plan.stream_schema
        for batch in batches:
            # Spark may know by now that a column has no NULLs.
            is_same_but_nulls = batch.schema.types == declared.types
            yield pa.RecordBatch.from_arrays(batch.columns, schema=declared) if is_same_but_nulls else batch


def _padded(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows that were not joined in the schema of those that were: nothing is known of their master row."""
    columns: list[pa.Array[Any]] = [
        rows.column(field.name) if field.name in rows.schema.names else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    # All batches of a task have one schema; that NULLs may come is told to Spark in its own.
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _totals(lookup: HostedLookup, join: WorkerJoin) -> LookupTotals:
    master = join.master
    created_unix_ms = master.manifest.created_unix_ms
    return LookupTotals(
        {
            "lookup": lookup.name,
            "version": master.version,
            "master_rows": master.rows,
            "master_created_unix_ms": created_unix_ms,
        }
    )


def _joined(
    join: WorkerJoin, rows: Iterator[pa.RecordBatch], total: LookupTotals
) -> Iterator[pa.RecordBatch]:
    for report in drive(join.join, rows):
        total.add(report, join.hot_bytes)
        outputs = deque(report.outputs)
        del report  # what has left is let go: the next output is made in its memory
        while outputs:
            if join.as_of is None:
                yield outputs.popleft()
            else:
                picked, with_version = join.as_of.pick_and_count(outputs.popleft())
                total.add_versions(with_version)
                yield picked


_open_joins: dict[tuple[str, tuple[int, ...]], list[WorkerJoin]] = {}
_open_seats: dict[str, HostSeats] = {}


def _seat(hosted: HostedJoins) -> AbstractContextManager[None]:
    """A seat for this process, which holds no join while it waits for one."""
    if hosted.token not in _open_seats:
        _open_seats.clear()
        _open_seats[hosted.token] = HostSeats(hosted.shared_folder(), hosted.token, hosted.workers)
    return _open_seats[hosted.token].taken(_open_joins.clear)


def _open(hosted: HostedJoins) -> list[WorkerJoin]:
    """The joins of this process, opened when a batch uses other versions than the one before."""
    query_id, batch_id = _batch()
    versions = tuple(
        lookup.version
        if query_id is None
        else claim_version(lookup.master_path, query_id, batch_id, lookup.refresh)
        for lookup in hosted.lookups
    )
    die_if_told("after_claim")
    key = (hosted.token, versions)
    if key not in _open_joins:
        leave_alone_what_stays()
        _open_joins.clear()  # a worker serves one version at a time: two would need two budgets
        folder = hosted.shared_folder()
        _open_joins[key] = [
            WorkerJoin(lookup, version, hosted.workers, folder, owner=query_id or f"version {version}")
            for lookup, version in zip(hosted.lookups, versions, strict=True)
        ]
    return _open_joins[key]


def _batch() -> tuple[str | None, int]:
    """Query and batch of this task; no query outside of streaming."""
    context = TaskContext.get()
    query_id = context and context.getLocalProperty("sql.streaming.queryId")
    batch_id = context and context.getLocalProperty("streaming.sql.batchId")
    if query_id and not batch_id:
        raise InternalError("a streaming task without a batch id", code="no_batch_id")
    return (query_id, int(batch_id)) if query_id and batch_id else (None, 0)


__all__ = ["HostedJoins"]
