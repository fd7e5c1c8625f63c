"""Delivers micro-batches to the loader: tasks put blocks, the driver commits the batch once.

A task may be retried, run twice or come late. Its blocks lie in the loader's staging under a name of their own
and mean nothing until the driver names the winning ones in one commit for all tables of the batch.

Rows that wait for their master row go to their parking in the same pass. They are sealed there before the commit: a driver that
dies in between runs the batch again, finds its rows parked, and commits the others.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from tidemill.core.errors import InternalError, LoadError
from tidemill.load.client import BlockRef, LoaderClient, TableSpec, Ticket
from tidemill.load.tables import Mode
from tidemill.master.batches import one_batch
from tidemill.spark.checkpoint import Resumed
from tidemill.spark.columns import COMMITTED_COLUMN, ENTRY_COLUMN
from tidemill.spark.failpoint import die_if_told
from tidemill.spark.parking import Parking
from tidemill.spark.parking_batch import ParkingBatch, ParkingTask, refuse_other_rows

BLOCK_ROWS = 50_000
"""Rows gathered for one block: the warehouse's best rate is reached near here, a block stays below 64 MB."""


class Lane(Protocol):
    """What one table gets from a batch."""

    @property
    def table(self) -> str: ...
    @property
    def schema(self) -> pa.Schema: ...
    @property
    def mode(self) -> Mode: ...
    @property
    def keys(self) -> tuple[str, ...]: ...
    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch: ...


@dataclass(frozen=True)
class BatchReport:
    """One delivered micro-batch."""

    batch_id: int
    start_entry: int
    end_entry: int
    counts: dict[str, int]
    visible_at_ns: int
    oldest_committed_us: int | None
    """Source commit of the batch's oldest row: the most stale row's freshness is visible_at minus this."""
    repeated: bool
    seconds: float


def tables_of(lanes: Sequence[Lane]) -> list[TableSpec]:
    return [TableSpec(lane.table, lane.schema, lane.mode, lane.keys) for lane in lanes]


def deliver(
    rows: DataFrame,
    lanes: Sequence[Lane],
    *,
    client: LoaderClient,
    resumed: Resumed,
    count: Callable[[pa.RecordBatch], dict[str, int]],
    on_batch: Callable[[BatchReport], None],
    trigger_ms: int = 0,
    parking: Parking | None = None,
) -> StreamingQuery:
    """Start the query that carries `rows` into the tables of `lanes`, exactly once.

    Args:
        rows: A stream with the log entry of each row in `_entry`.
        lanes: What each table gets.
        client: The loader.
        resumed: The pipeline as opened at the loader.
        count: Counts of a batch, added up and kept in the ledger with the batch.
        on_batch: Told of every delivered batch, on the driver.
        trigger_ms: Least time between two batches; 0 starts the next one at once.
        parking: Where rows wait that `enrich(late="park")` says so of: no lane and no count sees them, but "parked".
    """
    if parking is not None:
        refuse_other_rows(parking, rows.schema)

    def commit_batch(batch: DataFrame, batch_id: int) -> None:
        started = time.monotonic()
        task = _Task(client, resumed.ticket, batch_id, tuple(lanes), count)
        if parking is not None:
            task = replace(task, first_entry=_first_entry(client, resumed, batch_id))
        for is_last in (False, True):
            if parking is not None:
                task = replace(task, parking=ParkingBatch.of(parking, resumed.ticket.query_id, batch_id))
            answers = batch.mapInArrow(task.put_blocks, "manifest string").collect()
            manifests = [json.loads(answer[0]) for answer in answers]
            parts = [part for manifest in manifests for part in manifest["parked"]]
            parked = task.parking.seal(parts) if task.parking is not None else 0
            die_if_told("before_commit")
            try:
                report = _commit(client, resumed.ticket, batch_id, manifests, parked, started)
                break
            except LoadError as error:  # staging lost a block, as by a power cut: the tasks put them again
                if error.code != "missing_block" or is_last:
                    raise
        die_if_told("after_commit")
        on_batch(report)

    return (
        rows.writeStream.foreachBatch(commit_batch)
        .option("checkpointLocation", str(resumed.checkpoint))
        .trigger(processingTime=f"{trigger_ms} milliseconds")
        .queryName(resumed.ticket.pipeline)
        .start()
    )


@dataclass(frozen=True)
class _Task:
    """The work of one task: cut its rows into blocks, put them, answer with a manifest."""

    client: LoaderClient
    ticket: Ticket
    batch_id: int
    lanes: tuple[Lane, ...]
    count: Callable[[pa.RecordBatch], dict[str, int]]
    parking: ParkingBatch | None = None
    first_entry: int | None = None
    """Of the batch: rows with an earlier one have waited, and were counted when they came."""

    def put_blocks(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        waiting: dict[str, list[pa.RecordBatch]] = {lane.table: [] for lane in self.lanes}
        parked = ParkingTask(self.parking) if self.parking is not None else None
        manifest: dict[str, Any] = {
            "blocks": [],
            "counts": {},
            "first": None,
            "last": None,
            "oldest": None,
            "parked": parked.parts if parked is not None else [],
        }
        has_rows = False
        for batch in batches:
            if batch.num_rows == 0:
                continue
            has_rows = True
            self._note_entries(batch, manifest)
            if parked is not None:
                batch = parked.others(batch)  # noqa: PLW2901 - no name for rows that may not be used below
                if batch.num_rows == 0:
                    continue
            self._note(batch, manifest)
            for lane in self.lanes:
                waiting[lane.table].append(lane.of(batch))
                if sum(b.num_rows for b in waiting[lane.table]) >= BLOCK_ROWS:
                    self._put(lane, waiting[lane.table], manifest)
        for lane in self.lanes:
            self._put(lane, waiting[lane.table], manifest)
        if parked is not None:
            parked.write()
        if has_rows:
            yield pa.record_batch({"manifest": [json.dumps(manifest)]})

    def _put(self, lane: Lane, waiting: list[pa.RecordBatch], manifest: dict[str, Any]) -> None:
        whole = one_batch(waiting, lane.schema)
        waiting.clear()
        if whole.num_rows == 0:
            return
        context = TaskContext.get()
        if context is None:
            raise InternalError("blocks are put by Spark tasks only", code="no_task")
        put = self.client.put_block(
            self.ticket,
            self.batch_id,
            lane.table,
            whole,
            partition=context.partitionId(),
            attempt=context.taskAttemptId(),  # unique in the session; attempt numbers repeat with a stage
            number=len(manifest["blocks"]),
        )
        manifest["blocks"].append(asdict(put))

    def _note_entries(self, batch: pa.RecordBatch, manifest: dict[str, Any]) -> None:
        entries = batch.column(ENTRY_COLUMN)
        if self.first_entry is not None:
            entries = entries.filter(pc.greater_equal(entries, pa.scalar(self.first_entry)))
            if len(entries) == 0:
                return
        manifest["first"] = _least(manifest["first"], pc.min(entries).as_py())
        manifest["last"] = max(pc.max(entries).as_py(), manifest["last"] or 0)

    def _note(self, batch: pa.RecordBatch, manifest: dict[str, Any]) -> None:
        if COMMITTED_COLUMN in batch.schema.names:
            oldest = pc.min(batch.column(COMMITTED_COLUMN)).cast(pa.int64()).as_py()
            manifest["oldest"] = _least(manifest["oldest"], oldest)
        _add(manifest["counts"], {"rows": batch.num_rows} | self.count(batch))


def _commit(
    client: LoaderClient,
    ticket: Ticket,
    batch_id: int,
    manifests: list[dict[str, Any]],
    parked: int,
    started: float,
) -> BatchReport:
    counts: dict[str, int] = {"parked": parked} if parked else {}
    for manifest in manifests:
        _add(counts, manifest["counts"])
    read = [m for m in manifests if m["first"] is not None]
    if read:
        start, end = min(m["first"] for m in read), max(m["last"] for m in read) + 1
    else:  # all rows have waited; or a batch that is run again after its commit has nothing left to read
        start = end = client.status(ticket.pipeline)["position"] or 0
    blocks = [BlockRef(**block) for m in manifests for block in m["blocks"]]
    done = client.commit(ticket, batch_id, start=start, end=end, blocks=blocks, counts=counts)
    return BatchReport(
        batch_id,
        done.start,
        done.end,
        counts,
        done.visible_at_ns,
        _least(*(m["oldest"] for m in manifests)),
        repeated=done.status == "already",
        seconds=time.monotonic() - started,
    )


def _first_entry(client: LoaderClient, resumed: Resumed, batch_id: int) -> int:
    """Where the batch begins in the log: rows that come back from a parking lie before."""
    stands = client.status(resumed.ticket.pipeline)
    if stands["last_batch_id"] == batch_id:  # committed before, and run again
        return int(stands["last_commit"]["start"])
    return int(stands["position"] if stands["position"] is not None else resumed.start_entry)


def _add(into: dict[str, Any], more: dict[str, Any]) -> None:
    for name, value in more.items():
        into[name] = into.get(name, 0) + value


def _least(*numbers: int | None) -> int | None:
    return min((n for n in numbers if n is not None), default=None)


__all__ = ["BatchReport", "Lane", "deliver", "tables_of"]
