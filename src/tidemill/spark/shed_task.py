"""The worker's side of shedding: the rows of one task are kept for the join, or leave it untouched with a reason."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from tidemill.core.errors import InternalError
from tidemill.core.memory import MemoryBudget
from tidemill.join.parts.keys import StreamKey
from tidemill.join.shedding.catalog import make_strategy
from tidemill.join.shedding.shedding import Round, Shedding
from tidemill.spark.late import SHED_AT_COLUMN
from tidemill.spark.shed_counts import read_counts
from tidemill.spark.shed_lane import Rules, claim_rules, tell_round

DRAW_COLUMN = "_draw"
"""A hash of the row and of its batch's time; told the worker, gone afterwards."""
SHED_REASON_COLUMN = "_shed_reason"
KEPT_SHARE_COLUMN = "_kept_share"
"""Chance that the row had to be joined now; NULL where the strategy permits no estimate."""


def waiting_bytes(worker_bytes: int) -> int:
    """Of a worker's memory, for rows that may be shed; the rest is for those that came back."""
    return worker_bytes * 3 // 4


@dataclass(frozen=True)
class HostedShed:
    """What a worker must know to shed rows; travels inside the function that Spark ships."""

    path: Path
    tasks: int
    wish: Rules
    memory_bytes: int
    """Of one worker, for rows that wait for the end of the round."""
    key: StreamKey
    """By which match counts are looked up."""
    least_results: int = 0
    """Of a row without a match: 1 in a left join."""

    def begin(self) -> "TaskRound":
        """The round of this task, by the rules that its batch has claimed."""
        context = TaskContext.get()
        query_id = context and context.getLocalProperty("sql.streaming.queryId")
        batch_id = context and context.getLocalProperty("streaming.sql.batchId")
        if not context or not query_id or not batch_id:
            raise InternalError("rows are shed outside of a streaming query", code="no_batch_id")
        rules = claim_rules(self.path, query_id, int(batch_id), self.wish)
        return TaskRound(self, rules, query_id, int(batch_id), context.partitionId())


@dataclass
class TaskRound:
    """The rows of one task of a batch.

    Rows that came back are joined in any case and take their part of the room: a row is shed once.
    """

    hosted: HostedShed
    rules: Rules
    query_id: str
    batch_id: int
    part: int
    told: dict[str, Any] = field(default_factory=dict)
    """What became of the rows, once they all have come."""

    def __post_init__(self) -> None:
        strategy = make_strategy(self.rules.strategy)
        if strategy.name == "keep":
            # The order of arrival is not the same in a re-run: any rows do as well, so those that Sample-w would keep.
            strategy = make_strategy("sample")
        self._reason = f"batch of more than {self.rules.rows:,} rows, {self.rules.strategy}"
        self._budget = MemoryBudget(self.hosted.memory_bytes)
        own_bytes = waiting_bytes(self.hosted.memory_bytes)
        self._shedding = Shedding(strategy, self._budget, memory_bytes=own_bytes)
        even, more = divmod(self.rules.rows, self.hosted.tasks)
        self._room = even + (self.part < more)
        self._returned: list[pa.RecordBatch] = []
        self._done: Round | None = None
        self._counts = None
        if self.rules.counts is not None:
            self._counts = read_counts(self.hosted.path, self.rules.counts)

    def shed(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rows that are shed, with their reason; when it ends, the others wait in `kept`."""
        self._shedding.open(self._room)
        for batch in batches:
            draws = np.asarray(batch.column(DRAW_COLUMN)).view(np.uint64)
            rows = batch.drop_columns([DRAW_COLUMN])
            if SHED_AT_COLUMN in rows.schema.names:
                is_live = pc.is_null(rows.column(SHED_AT_COLUMN))
                if pc.any(pc.invert(is_live)).as_py():
                    self._returned.append(rows.filter(pc.invert(is_live)))
                    self._budget.reserve("returned_rows", sum(held.nbytes for held in self._returned))
                    rows, draws = rows.filter(is_live), draws[np.asarray(is_live)]
            matches = None
            if self._counts is not None:
                found = self._counts.of_rows(rows, self.hosted.key)
                matches = np.maximum(found, self.hosted.least_results)
            for gone in self._shedding.arrive(rows, matches=matches, draws=draws):
                yield self._marked(gone, self._reason)
        self._shedding.narrow(self._room - sum(rows.num_rows for rows in self._returned))
        self._done = self._shedding.hand_over()
        for gone in self._done.shed:
            yield self._marked(gone, self._reason)
        self._tell(self._done)

    def kept(self) -> Iterator[pa.RecordBatch]:
        """Rows for the join: those that came back, then those that were kept, with the chance that each had."""
        done = self._done
        if done is None:
            raise InternalError("kept rows before all have arrived", code="round_open")
        certain = done.report.shed_rows == 0
        yield from (self._marked(rows, None, 1.0) for rows in self._returned)
        for number, rows in enumerate(done.kept):
            has_share = self.rules.strategy != "keep" and done.shares is not None
            share: Any = 1.0 if certain else done.shares[number] if has_share and done.shares else None
            yield self._marked(rows, None, share)

    def _marked(self, rows: pa.RecordBatch, reason: str | None, share: Any = None) -> pa.RecordBatch:
        count = rows.num_rows
        reasons: Any = pa.nulls(count, pa.string()) if reason is None else pa.repeat(reason, count)
        shares = pa.nulls(count, pa.float64()) if share is None else pa.array(np.broadcast_to(share, count))
        return rows.append_column(SHED_REASON_COLUMN, reasons).append_column(KEPT_SHARE_COLUMN, shares)

    def _tell(self, done: Round) -> None:
        facts = asdict(done.report) | {
            "strategy": self.rules.strategy,
            "shed_rows": done.report.shed_rows,
            "returned_rows": sum(rows.num_rows for rows in self._returned),
            "batch_room_rows": self.rules.rows,
        }
        self.told = facts
        tell_round(self.hosted.path, self.query_id, self.batch_id, self.part, facts)


__all__ = [
    "DRAW_COLUMN",
    "KEPT_SHARE_COLUMN",
    "SHED_REASON_COLUMN",
    "HostedShed",
    "TaskRound",
    "waiting_bytes",
]
