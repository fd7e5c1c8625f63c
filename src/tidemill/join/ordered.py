"""Output in stream order, around any join."""

import base64
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from tidemill.core.errors import BudgetError
from tidemill.core.memory import MemoryBudget
from tidemill.core.units import format_bytes
from tidemill.join.output import OutputPlan
from tidemill.join.parts.snapshots import pack, unpack
from tidemill.join.protocol import SemiStreamJoin, StepReport
from tidemill.master.batches import one_batch

_FATES = ("emitted_rows", "dropped_rows", "hot_hits", "disk_matches", "unmatched")
_LEAST_HOLD_BYTES = 4096
_NUMBER_BYTES = 9
_ANY_ROWS = 2**40


class OrderedJoin(SemiStreamJoin):
    """The rows that another join gives, all output of a stream row together, stream rows as they came.

    Rows get sequence numbers and go through the join group by group: no row of the next group is
    taken before all of this one are finished. What comes out is held, then leaves by number. When
    the hold is full before the group is finished, what was found is thrown away and the first half
    of the group is joined anew; a group of a single row needs no hold, its output passes through.
    So the hold is bounded whatever a row matches, and the join works for the oldest rows first.

    ```
    arrivals ──▶ group ──▶ join ──▶ hold ──finished──▶ sorted by number ──▶ output
                   └──────── half of it, when the hold is full ◀──┘
    ```
    Good when batches are large, or are drained anyway, as in Spark. Poor for scanning joins with
    small batches: each group of a mesh join costs a whole cycle.

    Memory: a quarter of the budget is the hold (the group, its output, and that once more while it
    is sorted), the join gets the rest; with sizes given for the join, the hold gets what they leave.

    Source: Polyzotis et al., *Meshing Streaming Updates with Persistent Data*, TKDE 2008, §3.4. There
    results stay at their row in the hash until it leaves, which bounds nothing when a row matches
    much, and works for the mesh join alone.
    """

    name: ClassVar[str] = "ordered"

    def __init__(
        self,
        make_join: Callable[[OutputPlan], SemiStreamJoin],
        make_plan: Callable[[pa.Schema], OutputPlan],
        stream_schema: pa.Schema,
        budget: MemoryBudget,
        *,
        sizes_given: bool = False,
    ) -> None:
        self.plan = make_plan(stream_schema)
        self._number_as = "sequence"
        while self._number_as in self.plan.output_schema.names:
            self._number_as = f"_{self._number_as}"
        numbered = stream_schema.append(pa.field(self._number_as, pa.int64(), nullable=False))
        if not sizes_given:
            budget.reserve("hold", max(_LEAST_HOLD_BYTES, budget.left_bytes // 4))
        self.join = make_join(make_plan(numbered))
        if sizes_given:
            budget.reserve("hold", max(_LEAST_HOLD_BYTES, budget.left_bytes))
        self._hold_bytes = budget.holdings()["hold"]
        self._rows_in = 0
        # Held by the hold
        self._waiting: list[pa.RecordBatch] = []
        self._group: pa.RecordBatch | None = None
        self._group_rows = _ANY_ROWS
        self._before_group = b""
        self._offered = 0
        self._found: list[pa.RecordBatch] = []
        self._fates: Counter[str] = Counter()

    def room(self, row_bytes: int | None = None) -> int:
        """Rows for one group, when there is none: were each to match once, their output could be held."""
        if self.pending_rows:
            return 0
        wider = max(0, (row_bytes or 0) - self.plan.stream_row_bytes)
        output_row = replace(self.plan, stream_schema=self.plan.output_schema).stream_row_bytes + wider
        return self._hold_bytes // (3 * (output_row + _NUMBER_BYTES))

    def offer(self, batch: pa.RecordBatch) -> None:
        self.plan.refuse_other_schema(batch)
        if batch.num_rows:
            self._refuse_beyond_room(batch, self.room(-(-batch.nbytes // batch.num_rows)))
            self._waiting.append(batch)
            self._rows_in += batch.num_rows

    @property
    def pending_rows(self) -> int:
        in_group = self._group.num_rows if self._group is not None else 0
        return in_group + sum(batch.num_rows for batch in self._waiting)

    def step(self) -> StepReport:
        rows_in, self._rows_in = self._rows_in, 0
        if self._group is None and self._waiting:
            self._begin_group()
        if self._group is None:
            return StepReport(rows_in=rows_in, held_bytes={"hold": 0})
        self._offer_more(self._group)
        worked = self.join.step()
        self._fates.update({name: getattr(worked, name) for name in _FATES})
        self._found += worked.outputs
        is_finished = self._offered == self._group.num_rows and not self.join.pending_rows
        passes = self._group.num_rows == 1
        if not passes and self._held() > self._hold_bytes:
            self._halve(self._group)
            is_finished = False
        outputs = self._in_order() if is_finished or passes else []
        # What passes is still covered by the output of the join.
        in_hold = self._held() + (0 if passes else sum(batch.nbytes for batch in outputs))
        fates: Any = self._finish_group() if is_finished else dict.fromkeys(_FATES, 0)
        held_bytes = {**worked.held_bytes, "hold": in_hold}
        return replace(worked, outputs=tuple(outputs), rows_in=rows_in, held_bytes=held_bytes, **fates)

    def _begin_group(self) -> None:
        first = self._waiting.pop(0)
        if first.num_rows > self._group_rows:
            self._waiting.insert(0, first.slice(self._group_rows))
            first = first.slice(0, self._group_rows)
        self._group, self._offered = first, 0
        self._before_group = self.join.snapshot()

    def _offer_more(self, group: pa.RecordBatch) -> None:
        """As many rows of the group as the join has room for, with their numbers."""
        rest = group.slice(self._offered)
        rows = rest.num_rows
        while rows:
            numbers = pa.array(np.arange(self._offered, self._offered + rows))
            columns = [*rest.slice(0, rows).columns, numbers]
            piece = pa.RecordBatch.from_arrays(columns, schema=self.join.plan.stream_schema)
            room = self.join.room(-(-piece.nbytes // rows))
            if rows <= room:
                self.join.offer(piece)
                self._offered += rows
                return
            rows = min(room, rows // 2) if room else 0
        if self._offered < group.num_rows and not self.join.pending_rows:
            row_bytes = rest.slice(0, 1).nbytes
            raise BudgetError(
                f"a stream row of {format_bytes(row_bytes)} does not fit into an empty join",
                code="row_too_wide",
                next_move="give the join more memory, or leave wide columns out of the stream",
                row_bytes=row_bytes,
            )

    def _halve(self, group: pa.RecordBatch) -> None:
        """Start again with the first half: nothing of this group has left."""
        self.join.restore(self._before_group)
        self._group_rows = max(1, group.num_rows // 2)
        self._waiting.insert(0, group)
        self._group, self._found, self._fates = None, [], Counter()

    def _in_order(self) -> list[pa.RecordBatch]:
        """What was found, by number; stable, so that the matches of a row stay as they were found."""
        if not self._found:
            return []
        found = one_batch(self._found, self.join.output_schema)
        order = np.argsort(found.column(self._number_as).to_numpy(), kind="stable")
        self._found = []
        chosen = found.select(self.plan.output_schema.names)
        return [chosen if (order[1:] > order[:-1]).all() else chosen.take(order)]

    def _finish_group(self) -> dict[str, int]:
        """The fates of the group's rows; the next one may be larger."""
        if self._group is not None:
            self._group_rows = max(self._group_rows, 2 * self._group.num_rows)
        fates, self._group, self._fates = self._fates, None, Counter()
        return {name: fates[name] for name in _FATES}

    def _held(self) -> int:
        """The group, what was found, and what was found once more while it is sorted."""
        rows = sum(batch.nbytes for batch in self._waiting) + (self._group.nbytes if self._group else 0)
        return rows + 2 * sum(batch.nbytes for batch in self._found)

    def snapshot(self) -> bytes:
        """The group, what it gave so far, and the snapshot of the join around which this is."""
        inner = pa.RecordBatch.from_arrays([pa.array([self.join.snapshot()], pa.large_binary())], ["inner"])
        facts: dict[str, Any] = {
            "rows_in": self._rows_in,
            "has_group": self._group is not None,
            "group_rows": self._group_rows,
            "offered": self._offered,
            "fates": dict(self._fates),
            "before_group": base64.b64encode(self._before_group).decode(),
        }
        return pack(
            facts,
            {
                "inner": inner,
                "waiting": one_batch(self._waiting, self.plan.stream_schema),
                "group": self._group if self._group is not None else one_batch([], self.plan.stream_schema),
                "found": one_batch(self._found, self.join.output_schema),
            },
        )

    def restore(self, snapshot: bytes) -> None:
        facts, parts = unpack(snapshot)
        self.join.restore(parts["inner"].column(0)[0].as_py())
        self._rows_in, self._group_rows = facts["rows_in"], facts["group_rows"]
        self._offered, self._fates = facts["offered"], Counter(facts["fates"])
        self._before_group = base64.b64decode(facts["before_group"])
        self._waiting = [parts["waiting"]] if parts["waiting"].num_rows else []
        self._group = parts["group"] if facts["has_group"] else None
        self._found = [parts["found"]] if parts["found"].num_rows else []


__all__ = ["OrderedJoin"]
