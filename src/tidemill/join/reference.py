"""The nested loop that every other join is compared with: slow, in memory, obviously right."""

from typing import Any, ClassVar

import pyarrow as pa

from tidemill.core.memory import MemoryBudget
from tidemill.join.output import OutputPlan
from tidemill.join.parts.snapshots import pack, unpack
from tidemill.join.protocol import SemiStreamJoin, StepReport
from tidemill.master.batches import one_batch
from tidemill.master.protocol import Master

_ROOM_ROWS = 1000


class ReferenceJoin(SemiStreamJoin):
    """Compares each stream row with each master row; for tests and for reading."""

    name: ClassVar[str] = "reference"

    def __init__(self, master: Master, plan: OutputPlan, budget: MemoryBudget) -> None:
        self.plan = plan
        self._master = master
        budget.reserve("master", master.rows * master.row_bytes)
        self._master_rows = master.read_batch(range(master.pages)).to_pylist()
        self._arrived: list[pa.RecordBatch] = []
        self._rows_in = 0

    def room(self, row_bytes: int | None = None) -> int:  # noqa: ARG002  # rows of any size
        return _ROOM_ROWS - self.pending_rows

    def offer(self, batch: pa.RecordBatch) -> None:
        self.plan.refuse_other_schema(batch)
        self._refuse_beyond_room(batch, self.room())
        self._arrived += [batch.slice(at, 1) for at in range(batch.num_rows)]
        self._rows_in += batch.num_rows

    @property
    def pending_rows(self) -> int:
        return len(self._arrived)

    def step(self) -> StepReport:
        rows_in, self._rows_in = self._rows_in, 0
        if not self._arrived:
            return StepReport(rows_in=rows_in)
        stream_row = self._arrived.pop(0).to_pylist()[0]
        key = [stream_row[name] for name in self.plan.stream_key.columns]
        matches = [row for row in self._master_rows if None not in key and self._key_of(row) == key]
        output = self._output_rows(stream_row, matches)
        return StepReport(
            outputs=(pa.RecordBatch.from_pylist(output, self.output_schema),) if output else (),
            rows_in=rows_in,
            emitted_rows=1 if output else 0,
            dropped_rows=0 if output else 1,
            hot_hits=1 if matches else 0,
            unmatched=0 if matches else 1,
        )

    def snapshot(self) -> bytes:
        return pack(
            {"rows_in": self._rows_in}, {"arrived": one_batch(self._arrived, self.plan.stream_schema)}
        )

    def restore(self, snapshot: bytes) -> None:
        facts, parts = unpack(snapshot)
        self._rows_in = facts["rows_in"]
        self._arrived = [parts["arrived"].slice(at, 1) for at in range(parts["arrived"].num_rows)]

    def _key_of(self, master_row: dict[str, Any]) -> list[Any]:
        return [master_row[name] for name in self._master.key_columns]

    def _output_rows(self, stream_row: dict[str, Any], matches: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if self.plan.how == "semi":
            return [stream_row] if matches else []
        if self.plan.how == "anti":
            return [] if matches else [stream_row]
        if not matches and self.plan.how == "left":
            return [self._beside(stream_row, {}, matched=False)]
        return [self._beside(stream_row, row, matched=True) for row in matches]

    def _beside(
        self, stream_row: dict[str, Any], master_row: dict[str, Any], *, matched: bool
    ) -> dict[str, Any]:
        names = self.output_schema.names[len(stream_row) :]
        chosen = [master_row.get(column) for column in self.plan.chosen_columns]
        marks = [matched] if self.plan.matched_as else []
        return {**stream_row, **dict(zip(names, [*chosen, *marks], strict=True))}


__all__ = ["ReferenceJoin"]
