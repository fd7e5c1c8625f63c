"""What all joins that find master pages by an index do alike: take rows, read, let output leave, snapshot."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from tidemill.core.errors import StoreError
from tidemill.core.freed import Freed
from tidemill.core.memory import MemoryBudget
from tidemill.join.output import OutputPlan
from tidemill.join.parts.arrivals import Arrivals
from tidemill.join.parts.emission import Emission, FoundIn
from tidemill.join.parts.kernels import Bools, Int64s
from tidemill.join.parts.keys import stream_keys
from tidemill.join.parts.needs import OUTPUT_WORK_BYTES_PER_ROW
from tidemill.join.parts.page_matches import KeyedRows
from tidemill.join.parts.snapshots import pack, unpack
from tidemill.join.parts.tally import StepTally
from tidemill.join.protocol import SemiStreamJoin, StepReport
from tidemill.master.batches import one_batch
from tidemill.master.protocol import Master


class PagedSizes(Protocol):
    """What the base asks of the sizes of any join on an index."""

    @property
    def arrivals_bytes(self) -> int: ...
    @property
    def output_bytes(self) -> int: ...
    @property
    def pages_per_step(self) -> int: ...
    @property
    def total_bytes(self) -> int: ...


SizesT = TypeVar("SizesT", bound=PagedSizes)


class PagedJoin(SemiStreamJoin, Generic[SizesT]):
    """Base of the joins on an index; a subclass says in `_work` what one step does.

    Output leaves before more work is done: at most one `Emission` is under way. A key with more
    pages than one step reads is finished over several steps (`_LongKey`).

    Args:
        master: Pages and index.
        plan: What leaves.
        budget: Where every part of `sizes` named in `reserved` is reserved.
        sizes: The split of the budget.
        reserved: Names of the reservations, each `<name>_bytes` in `sizes`.
    """

    def __init__(
        self,
        master: Master,
        plan: OutputPlan,
        budget: MemoryBudget,
        sizes: SizesT,
        reserved: tuple[str, ...] = ("arrivals", "disk_buffer", "index", "output"),
    ) -> None:
        self.plan = plan
        self.sizes = sizes
        self.budget = budget
        self._master = master
        # Without chosen columns the key stands in, so that rows can be counted and moved.
        self._columns = list(plan.master_columns) or [master.key]
        self._nothing = one_batch([], pa.schema([master.schema.field(name) for name in self._columns]))
        # Held by arrivals
        self._arrivals = Arrivals(sizes.arrivals_bytes, plan.stream_row_bytes)
        self._rows_in = 0
        # Held by the disk buffer
        self._emission: Emission | None = None
        self._long_key: _LongKey | None = None
        self._read_row_bytes = float(master.row_bytes)
        self._page_start = np.zeros(1, dtype=np.int64)
        """Number of the first row of each page read last, and of all rows."""
        self._freed = Freed(sizes.total_bytes // 4)
        for name in reserved:
            budget.reserve(name, getattr(sizes, f"{name}_bytes"))

    def room(self, row_bytes: int | None = None) -> int:
        return self._arrivals.room(row_bytes)

    def offer(self, batch: pa.RecordBatch) -> None:
        self.plan.refuse_other_schema(batch)
        if batch.num_rows:
            self._refuse_beyond_room(batch, self.room(-(-batch.nbytes // batch.num_rows)))
            self._arrivals.add(batch)
            self._rows_in += batch.num_rows

    @property
    def pending_rows(self) -> int:
        leaving = self._emission.rows_left if self._emission else 0
        held_back = self._long_key.rows.num_rows if self._long_key else 0
        return self._arrivals.rows + leaving + held_back

    def step(self) -> StepReport:
        tally = StepTally(rows_in=self._rows_in)
        self._rows_in = 0
        if self._emission is None:
            self._before_work(tally)
            if self._long_key is not None:
                self._read_long_key(self._long_key, tally)
            else:
                self._work(tally)
        if self._emission is not None:
            self._cut_output(self._emission, tally)
        held_bytes = self._held_bytes(tally)
        self._freed.took(tally.counts["bytes_read"] + held_bytes["output"])
        return tally.report(held_bytes)

    def snapshot(self) -> bytes:
        """What arrived, waits or is on its way out. What only makes the join faster is left out."""
        facts: dict[str, Any] = {"join": self.name, "setting": self._setting(), "rows_in": self._rows_in}
        facts["counters"] = self._counters()
        parts = {"arrivals": one_batch(self._arrivals.batches(), self.plan.stream_schema)}
        parts |= self._waiting_parts()
        if self._emission is not None:
            facts["leaving"], leaving = self._emission.to_parts()
            parts |= leaving
        if self._long_key is not None:
            parts["long_key"] = self._long_key.rows
            facts["long_key"] = [self._long_key.key, self._long_key.next_page, self._long_key.last_page]
        return pack(facts, parts)

    def restore(self, snapshot: bytes) -> None:
        facts, parts = unpack(snapshot)
        if facts["join"] != self.name or facts["setting"] != self._setting():
            raise StoreError(
                f"the snapshot is of a {facts['join']} join on {facts['setting']}, this one is on {self._setting()}",
                code="snapshot_of_other_join",
                next_move="restore into a join with the same master version, columns and kind",
            )
        self._arrivals = Arrivals(self.sizes.arrivals_bytes, self.plan.stream_row_bytes)
        self._rows_in = facts["rows_in"]
        self._emission = self._long_key = None
        if parts["arrivals"].num_rows:
            self._arrivals.add(parts["arrivals"])
        self._restore_waiting(parts)
        self._restore_counters(facts["counters"])
        if "long_key" in facts:
            self._long_key = _LongKey(parts["long_key"], *facts["long_key"])
        if "leaving" in facts:
            self._emission = Emission.from_parts(self.plan, facts["leaving"], parts)

    @abstractmethod
    def _work(self, tally: StepTally) -> None:
        """Do one bounded piece of work; its output goes to `_emit`."""

    def _before_work(self, tally: StepTally) -> None:
        """Hook: house-keeping while no output refers to anything."""

    def _waiting_parts(self) -> dict[str, pa.RecordBatch]:
        """Hook: waiting rows for a snapshot."""
        return {}

    def _restore_waiting(self, parts: dict[str, pa.RecordBatch]) -> None:
        """Hook: take back what `_waiting_parts` gave."""

    def _counters(self) -> dict[str, int]:
        """Hook: counts on which progress depends, for a snapshot."""
        return {}

    def _restore_counters(self, counters: dict[str, int]) -> None:
        """Hook: take back what `_counters` gave."""

    def _codes(self, batch: pa.RecordBatch) -> tuple[Int64s, Bools]:
        """Key of each stream row as the store knows it, and where there is one."""
        return stream_keys(batch, self.plan.stream_key)

    def _stored_codes(self, master_rows: pa.RecordBatch) -> Int64s:
        codes: Int64s = master_rows.column(self._master.key).to_numpy()
        return codes

    def _read(self, pages: Int64s, tally: StepTally) -> pa.RecordBatch:
        with tally.timed("read"):
            pages_before, bytes_before = self._master.pages_read, self._master.bytes_read
            rows, self._page_start = self._master.read_paged(pages)
            tally.counts["pages_read"] += self._master.pages_read - pages_before
            read_bytes = self._master.bytes_read - bytes_before
            tally.counts["bytes_read"] += read_bytes
            self._read_row_bytes = read_bytes / max(1, rows.num_rows)
            return rows

    def _begin_long_key(self, rows: pa.RecordBatch, key: int, first_page: int, last_page: int) -> None:
        """Finish the rows of a key with more pages than one step reads, over several steps.

        Such a key surely exists, so rows that need no master columns finish without a read.
        """
        if self.plan.master_columns:
            self._long_key = _LongKey(rows, key, first_page, last_page)
            return
        none, one = np.zeros(rows.num_rows, np.int64), np.ones(rows.num_rows, np.int64)
        self._emit(rows, np.arange(rows.num_rows), self._nothing, none, one, "disk")

    def _read_long_key(self, long_key: "_LongKey", tally: StepTally) -> None:
        until = min(long_key.next_page + self.sizes.pages_per_step, long_key.last_page + 1)
        master_rows = self._read(np.arange(long_key.next_page, until), tally)
        rows = long_key.rows
        keyed = KeyedRows(self._stored_codes(master_rows))
        start, matches = keyed.ranges_of(np.full(rows.num_rows, long_key.key))
        long_key.next_page = until
        is_last = until > long_key.last_page
        everyone = np.arange(rows.num_rows)
        self._emit(rows, everyone, master_rows.select(self._columns), start, matches, "disk", settles=is_last)
        if is_last:
            self._long_key = None

    def _emit(
        self,
        stream: pa.RecordBatch,
        positions: Int64s,
        payload: pa.RecordBatch,
        start: Int64s,
        matches: Int64s,
        found_in: FoundIn,
        *,
        settles: bool = True,
    ) -> None:
        master_row = self._memory_row_bytes() if found_in == "hot_rows" else self._read_row_bytes
        stream_row = self._stream_bytes(stream) / max(1, stream.num_rows)
        self._emission = Emission(
            self.plan,
            stream,
            positions,
            payload,
            start,
            matches,
            found_in=found_in,
            output_row_bytes=int(stream_row + master_row) + OUTPUT_WORK_BYTES_PER_ROW,
            settles=settles,
        )

    def _memory_row_bytes(self) -> float:
        """Hook: average size of a master row that stays in memory."""
        return self._read_row_bytes

    def _stream_bytes(self, stream: pa.RecordBatch) -> int:
        """Hook: size of a batch of stream rows; asking Arrow costs 30 µs."""
        return stream.nbytes

    def _cut_output(self, emission: Emission, tally: StepTally) -> None:
        with tally.timed("assemble"):
            cut = emission.next_slice(self.sizes.output_bytes)
        if cut.output is not None:
            tally.outputs.append(cut.output)
        tally.counts["emitted_rows"] += cut.emitted_rows
        tally.counts["dropped_rows"] += cut.dropped_rows
        tally.counts["hot_hits" if emission.found_in == "hot_rows" else "disk_matches"] += cut.matched_rows
        tally.counts["unmatched"] += cut.unmatched_rows
        if emission.is_over:
            self._emission = None
            self._arrivals.let_go()

    def _held_bytes(self, tally: StepTally) -> dict[str, int]:
        on_disk_buffer = self._emission is not None and self._emission.found_in == "disk"
        return {
            "arrivals": self._arrivals.bytes_held,
            "disk_buffer": self._emission.master.nbytes if self._emission and on_disk_buffer else 0,
            "index": self._master.index_bytes + self._master.pages,
            "output": sum(batch.nbytes for batch in tally.outputs),
        }

    def _setting(self) -> str:
        return f"{self._master.identity} {self.plan.how} {self.plan.stream_key} {self.plan.output_schema}"


@dataclass
class _LongKey:
    """Stream rows of one key whose master rows are read over several steps."""

    rows: pa.RecordBatch
    key: int
    next_page: int
    last_page: int


__all__ = ["PagedJoin", "PagedSizes", "SizesT"]
