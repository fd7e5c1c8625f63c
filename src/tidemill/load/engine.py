"""The loader without its network: opens pipelines, stages blocks, commits batches exactly once."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from typing import Any

import pyarrow as pa

from tidemill.core.errors import LoadError
from tidemill.load import ledger
from tidemill.load.blocks import check_block, digest_of
from tidemill.load.failpoint import Failpoint
from tidemill.load.ledger import PipelineState
from tidemill.load.messages import BlockName, CommitRequest, OpenRequest, Ticket
from tidemill.load.names import check_name
from tidemill.load.staging import StagingArea
from tidemill.load.tables import TableSpec
from tidemill.load.warehouses import Transaction, Warehouse
from tidemill.load.writer import Outcome, Writer

Answer = dict[str, Any]


class LoadEngine:
    """All rules of loading over one warehouse and one staging area; safe to call from any thread.

    The ledger in the warehouse decides commits. `_states` is its copy in memory, renewed after each COMMIT,
    by which blocks are refused early and status is answered.
    """

    def __init__(
        self,
        warehouse: Warehouse,
        staging: StagingArea,
        *,
        failpoint: Failpoint | None = None,
        on_writer_death: Callable[[], None] | None = None,
        queue_length: int = 64,
    ) -> None:
        self._warehouse = warehouse
        self._staging = staging
        self._states: dict[str, PipelineState] = {}
        self._lock = threading.Lock()
        self._load_states()
        death = {} if on_writer_death is None else {"on_death": on_writer_death}
        self._writer = Writer(
            warehouse,
            on_reopened=self._load_states,
            failpoint=failpoint,
            queue_length=queue_length,
            **death,
        )

    @property
    def is_down(self) -> bool:
        return self._writer.is_down

    def open(self, request: OpenRequest) -> "Future[Answer]":
        """Create or check the tables and raise the fence; answers where the warehouse stands."""

        def work(transaction: Transaction) -> Outcome:
            state = ledger.open_pipeline(transaction, request)
            return Outcome(state.to_json(), once_visible=lambda: self._renew(state))

        return self._writer.submit(work)

    def room(self, size_bytes: int) -> AbstractContextManager[None]:
        """Room in staging for a body about to be read."""
        return self._staging.room(size_bytes)

    def put_block(
        self, ticket: Ticket, batch_id: int, name: BlockName, body: bytes, *, digest: str, rows: int
    ) -> Answer:
        """Check and stage one block."""
        table = self._table_for(ticket, batch_id, name)
        came = digest_of(body)
        if came != digest:
            raise LoadError(
                f"the body has digest {came}, declared was {digest}",
                code="digest_mismatch",
                next_move="send it again",
                status=422,
            )
        buffer = pa.py_buffer(body)
        check_block(buffer, table, rows)
        return {"rows": rows, "duplicate": self._staging.put(ticket, batch_id, name, buffer, digest)}

    def commit(self, request: CommitRequest) -> "Future[Answer]":
        """Make the listed blocks visible together with the ledger row, once."""
        missing: LoadError | None = None
        tables: dict[str, pa.Table] = {}
        try:
            tables = self._staging.load(request.ticket, request.batch_id, request.blocks)
        except LoadError as error:
            missing = error  # a repeated commit needs no blocks: only the ledger can tell

        def work(transaction: Transaction) -> Outcome:
            state = ledger.writable_state(transaction, request.ticket)
            if ledger.is_repeat(state, request):
                return self._committed(state, "already")
            if missing is not None:
                raise missing
            rows = _insert(transaction, state, tables)
            return self._committed(ledger.record(transaction, state, request, rows), "committed")

        return self._writer.submit(work)

    def status(self, pipeline: str) -> Answer:
        """Where a pipeline stands and what waits in staging."""
        state = self._state(check_name("pipeline", pipeline))
        return {
            **state.to_json(),
            "tables": {
                spec.name: {"mode": spec.mode, "keys": list(spec.keys)} for spec in state.tables.values()
            },
            "staged_blocks": self._staging.staged_blocks(pipeline),
            "staging_bytes": self._staging.held_bytes,
            "staging_limit_bytes": self._staging.limit_bytes,
        }

    def read(self, sql: str, *, max_rows: int, timeout_seconds: float) -> pa.Table:
        """Rows of a statement that cannot write."""
        try:
            return self._warehouse.read(sql, max_rows=max_rows, timeout_seconds=timeout_seconds)
        except LoadError as error:
            if error.code == "warehouse_down":
                # Only the writer reopens; an idle one learns of a dead handle by trying.
                with suppress(LoadError):
                    self._writer.submit(
                        lambda transaction: Outcome({"alive": transaction.execute("SELECT 1")})
                    )
            raise

    def close(self) -> None:
        """Finish running and waiting commits, then close the warehouse."""
        self._writer.close()
        self._warehouse.close()

    def _load_states(self) -> None:
        with self._warehouse.transaction() as transaction:
            ledger.prepare(transaction)
            states = ledger.read_pipelines(transaction)
        self._staging.forget_unknown(set(states))
        for state in states.values():
            self._renew(state)

    def _renew(self, state: PipelineState) -> None:
        with self._lock:
            self._states[state.pipeline] = state
        self._staging.forget_finished(state.pipeline, state.fence, state.last_batch_id)

    def _state(self, pipeline: str) -> PipelineState:
        with self._lock:
            state = self._states.get(pipeline)
        if state is None:
            raise ledger.unknown_pipeline(pipeline)
        return state

    def _table_for(self, ticket: Ticket, batch_id: int, name: BlockName) -> TableSpec:
        state = self._state(ticket.pipeline)
        ledger.check_ticket(state, ticket)
        if state.last_batch_id is not None and batch_id < state.last_batch_id:
            raise LoadError(
                f"batch {batch_id} is done, batch {state.last_batch_id} is the newest",
                code="batch_done",
                next_move="stop this task; it is late",
                status=409,
                last_batch_id=state.last_batch_id,
            )
        if name.table not in state.tables:
            raise LoadError(
                f"pipeline {state.pipeline!r} did not declare table {name.table!r}",
                code="unknown_table",
                next_move=f"declare it at open; declared are {sorted(state.tables)}",
                status=404,
                table=name.table,
            )
        return state.tables[name.table]

    def _committed(self, state: PipelineState, status: str) -> Outcome:
        assert state.last_commit is not None
        commit = state.to_json()["last_commit"]
        answer = {**commit, "status": status}
        if status == "already":
            # The moment of the COMMIT itself is not in the ledger; the row was written just before it.
            answer["visible_at_ns"] = state.last_commit.committed_at_ns
        return Outcome(answer, status == "committed", lambda: self._renew(state))


def _insert(transaction: Transaction, state: PipelineState, tables: dict[str, pa.Table]) -> dict[str, int]:
    for name, rows in tables.items():
        spec = state.tables[name]
        if spec.mode == "add":
            transaction.add(spec, rows)
        else:
            transaction.append(spec, rows)
    return {name: rows.num_rows for name, rows in tables.items()}


__all__ = ["LoadEngine"]
