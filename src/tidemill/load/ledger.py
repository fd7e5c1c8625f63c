"""What the warehouse remembers of each pipeline, written in the same transaction as the rows."""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from tidemill.core.errors import LoadError
from tidemill.load.messages import CommitRequest, OpenRequest, Ticket
from tidemill.load.tables import TableSpec
from tidemill.load.warehouses import Transaction

FORMAT_VERSION = 1


@dataclass(frozen=True)
class LastCommit:
    """The ledger row of the newest batch."""

    batch_id: int
    start: int
    end: int
    rows: Mapping[str, int]
    counts: Mapping[str, int]
    committed_at_ns: int


@dataclass(frozen=True)
class PipelineState:
    """Where a pipeline stands in the warehouse."""

    pipeline: str
    query_id: str
    fence: int
    last_batch_id: int | None
    position: int | None
    tables: Mapping[str, TableSpec]
    last_commit: LastCommit | None

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "query_id": self.query_id,
            "fence": self.fence,
            "last_batch_id": self.last_batch_id,
            "position": self.position,
            "last_commit": asdict(self.last_commit) if self.last_commit else None,
        }


def prepare(transaction: Transaction) -> None:
    """Create the ledger in a new warehouse; refuse one of a later format."""
    transaction.execute("CREATE SCHEMA IF NOT EXISTS tidemill")
    transaction.execute("CREATE TABLE IF NOT EXISTS tidemill.format (version INTEGER NOT NULL)")
    transaction.execute(
        "CREATE TABLE IF NOT EXISTS tidemill.pipelines (pipeline VARCHAR PRIMARY KEY, query_id VARCHAR NOT NULL, "
        "fence BIGINT NOT NULL, last_batch_id BIGINT, position BIGINT, tables VARCHAR NOT NULL, "
        "last_commit VARCHAR)"
    )
    transaction.execute(
        "CREATE TABLE IF NOT EXISTS tidemill.batches (pipeline VARCHAR NOT NULL, query_id VARCHAR NOT NULL, "
        "batch_id BIGINT NOT NULL, fence BIGINT NOT NULL, start_position BIGINT NOT NULL, "
        "end_position BIGINT NOT NULL, table_rows VARCHAR NOT NULL, counts VARCHAR NOT NULL, "
        "committed_at TIMESTAMPTZ NOT NULL)"
    )
    versions = transaction.execute("SELECT version FROM tidemill.format")
    if not versions:
        transaction.execute("INSERT INTO tidemill.format VALUES ($1)", [FORMAT_VERSION])
    elif versions[0][0] != FORMAT_VERSION:
        raise LoadError(
            f"the warehouse has ledger format {versions[0][0]}, this loader writes {FORMAT_VERSION}",
            code="ledger_format",
            next_move="use the tidemill version that wrote it",
            status=503,
        )


def read_pipelines(transaction: Transaction) -> dict[str, PipelineState]:
    """All pipelines by name."""
    rows = transaction.execute(_SELECT_PIPELINES)
    return {row[0]: _state_of(row) for row in rows}


def open_pipeline(transaction: Transaction, request: OpenRequest) -> PipelineState:
    """The pipeline under a new, higher fence: whoever held it before can write no more."""
    stored = _find(transaction, request.pipeline)
    for table in request.tables:
        transaction.check_or_create(table)
    state = _opened(stored, request)
    tables = json.dumps([table.to_json() for table in request.tables])
    values = [state.query_id, state.fence, state.last_batch_id, state.position, tables, state.pipeline]
    if stored is None:
        transaction.execute(
            "INSERT INTO tidemill.pipelines (query_id, fence, last_batch_id, position, tables, pipeline) "
            "VALUES ($1, $2, $3, $4, $5, $6)",
            values,
        )
    else:
        transaction.execute(
            "UPDATE tidemill.pipelines SET query_id = $1, fence = $2, last_batch_id = $3, position = $4, "
            "tables = $5 WHERE pipeline = $6",
            values,
        )
    return state


def writable_state(transaction: Transaction, ticket: Ticket) -> PipelineState:
    """The pipeline's state, once the ticket is the one that may write."""
    state = _find(transaction, ticket.pipeline)
    if state is None:
        raise unknown_pipeline(ticket.pipeline)
    check_ticket(state, ticket)
    return state


def check_ticket(state: PipelineState, ticket: Ticket) -> None:
    """Refuse zombies (an older fence) and strangers (another checkpoint, a fence never given)."""
    if ticket.fence < state.fence:
        raise LoadError(
            f"pipeline {state.pipeline!r} was opened again: fence {ticket.fence} is old, {state.fence} is current",
            code="fenced",
            next_move="stop this driver; a newer one runs",
            status=409,
            given_fence=ticket.fence,
            current_fence=state.fence,
        )
    if ticket.query_id != state.query_id:
        raise _foreign(state, ticket.query_id)
    if ticket.fence > state.fence:
        raise LoadError(
            f"fence {ticket.fence} was never given, {state.fence} is current: was the warehouse restored?",
            code="unknown_fence",
            next_move="open the pipeline again",
            status=409,
            given_fence=ticket.fence,
            current_fence=state.fence,
        )


def is_repeat(state: PipelineState, request: CommitRequest) -> bool:
    """True if this very batch is the newest in the warehouse; an error unless it is that or the next one."""
    last = state.last_batch_id
    if last is not None and request.batch_id not in (last, last + 1):
        raise LoadError(
            f"batch {request.batch_id} cannot follow batch {last}",
            code="batch_gap",
            next_move="restart the driver from its checkpoint",
            status=409,
            given_batch_id=request.batch_id,
            last_batch_id=last,
        )
    stored = state.last_commit
    if request.batch_id != last or stored is None:
        if state.position is not None and request.start != state.position:
            raise _position_gap(state.position, request)
        return False
    if (stored.start, stored.end) != (request.start, request.end):
        raise LoadError(
            f"batch {last} was committed with entries {stored.start} to {stored.end}, now it comes with "
            f"{request.start} to {request.end}",
            code="batch_changed",
            next_move="the checkpoint was changed or damaged; resume a new one from the warehouse's position",
            status=409,
            stored=[stored.start, stored.end],
            given=[request.start, request.end],
        )
    return True


def record(
    transaction: Transaction, state: PipelineState, request: CommitRequest, rows: Mapping[str, int]
) -> PipelineState:
    """The state after the batch, written down."""
    now_ns = time.time_ns()
    commit = LastCommit(request.batch_id, request.start, request.end, rows, dict(request.counts), now_ns)
    transaction.execute(
        "INSERT INTO tidemill.batches VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        [
            *(state.pipeline, state.query_id, request.batch_id, state.fence, request.start, request.end),
            *(json.dumps(rows), json.dumps(commit.counts), datetime.fromtimestamp(now_ns / 1e9, UTC)),
        ],
    )
    transaction.execute(
        "UPDATE tidemill.pipelines SET last_batch_id = $1, position = $2, last_commit = $3 WHERE pipeline = $4",
        [request.batch_id, request.end, json.dumps(asdict(commit)), state.pipeline],
    )
    return replace(state, last_batch_id=request.batch_id, position=request.end, last_commit=commit)


def unknown_pipeline(pipeline: str) -> LoadError:
    return LoadError(
        f"pipeline {pipeline!r} is not known here",
        code="unknown_pipeline",
        next_move="open it first",
        status=404,
        pipeline=pipeline,
    )


_SELECT_PIPELINES = (
    "SELECT pipeline, query_id, fence, last_batch_id, position, tables, last_commit FROM tidemill.pipelines"
)


def _find(transaction: Transaction, pipeline: str) -> PipelineState | None:
    rows = transaction.execute(f"{_SELECT_PIPELINES} WHERE pipeline = $1", [pipeline])
    return _state_of(rows[0]) if rows else None


def _state_of(row: tuple[Any, ...]) -> PipelineState:
    pipeline, query_id, fence, last_batch_id, position, tables, last_commit = row
    specs = [TableSpec.from_json(table) for table in json.loads(tables)]
    commit = LastCommit(**json.loads(last_commit)) if last_commit else None
    by_name = {spec.name: spec for spec in specs}
    return PipelineState(pipeline, query_id, fence, last_batch_id, position, by_name, commit)


def _opened(stored: PipelineState | None, request: OpenRequest) -> PipelineState:
    tables = {table.name: table for table in request.tables}
    if stored is None:
        return PipelineState(request.pipeline, request.query_id, 1, None, request.resume_from, tables, None)
    state = replace(stored, fence=stored.fence + 1, tables=tables)
    if stored.query_id == request.query_id:
        return state
    if stored.position is None or stored.position == request.resume_from or request.reset:
        return replace(state, query_id=request.query_id, last_batch_id=None, position=request.resume_from)
    raise _foreign(stored, request.query_id)


def _foreign(stored: PipelineState, query_id: str) -> LoadError:
    return LoadError(
        f"pipeline {stored.pipeline!r} belongs to checkpoint {stored.query_id} at position {stored.position}, "
        f"this is checkpoint {query_id}",
        code="foreign_checkpoint",
        next_move=f"use the old checkpoint, or start the new one with resume_from={stored.position}",
        status=409,
        stored_query_id=stored.query_id,
        given_query_id=query_id,
        position=stored.position,
    )


def _position_gap(position: int, request: CommitRequest) -> LoadError:
    return LoadError(
        f"batch {request.batch_id} starts at source position {request.start}, the warehouse stands at {position}",
        code="position_gap",
        next_move="the checkpoint and the warehouse disagree; resume a new checkpoint from the warehouse",
        status=409,
        given_start=request.start,
        position=position,
    )


__all__ = [
    "FORMAT_VERSION",
    "LastCommit",
    "PipelineState",
    "check_ticket",
    "is_repeat",
    "open_pipeline",
    "prepare",
    "read_pipelines",
    "record",
    "unknown_pipeline",
    "writable_state",
]
