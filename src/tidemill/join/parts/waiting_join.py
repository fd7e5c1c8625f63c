"""What the joins whose rows wait for pages do alike: probe memory, wait, let the oldest row choose pages."""

from typing import Protocol, TypeVar

import numpy as np
import pyarrow as pa

from tidemill.core.memory import MemoryBudget
from tidemill.join.output import OutputPlan
from tidemill.join.parts.kernels import Bools, Int64s
from tidemill.join.parts.page_matches import KeyedRows
from tidemill.join.parts.paged_join import PagedJoin, PagedSizes
from tidemill.join.parts.pending import Pending
from tidemill.join.parts.tally import StepTally
from tidemill.master.protocol import Master


class HasPending(PagedSizes, Protocol):
    @property
    def pending_bytes(self) -> int: ...


WaitingSizesT = TypeVar("WaitingSizesT", bound=HasPending)


class WaitingJoin(PagedJoin[WaitingSizesT]):
    """Base of HYBRIDJOIN and all that grew from it.

    Two phases take turns. Arrived rows are probed and those not answered wait, until they fill
    their share or none arrives. Then rounds of the disk phase finish waiting rows, until half are
    done: putting waiting rows in order is so paid once for many rounds, where the papers take new
    rows after every round. Every row whose pages a round has read finishes, matched or not: as
    printed, HYBRIDJOIN waits for ever on an oldest row that matches nothing.
    """

    def __init__(
        self,
        master: Master,
        plan: OutputPlan,
        budget: MemoryBudget,
        sizes: WaitingSizesT,
        reserved: tuple[str, ...] = ("arrivals", "disk_buffer", "index", "output", "pending"),
    ) -> None:
        super().__init__(master, plan, budget, sizes, reserved)
        # Held by pending
        self._pending = Pending(sizes.pending_bytes, plan.stream_schema, master.pages)
        self._disk_phase_until = 0
        # One segment a step, unless a subclass lets several rounds share a step.
        self._segment_pages = sizes.pages_per_step

    @property
    def pending_rows(self) -> int:
        return super().pending_rows + self._pending.waiting_rows

    def _work(self, tally: StepTally) -> None:
        if rows := self._rows_to_probe():
            self._probe_stream(self._arrivals.take(rows), tally)
        elif self._pending.waiting_rows:
            with tally.timed("wait"):
                self._pending.gather()
            self._probe_disk(tally)

    @property
    def _in_disk_phase(self) -> bool:
        return self._pending.waiting_rows > self._disk_phase_until > 0

    def _rows_to_probe(self) -> int:
        """Arrived rows that may be probed now: were they all misses, they could wait."""
        if not self._arrivals.rows or self._in_disk_phase:
            return 0
        row_bytes = self._arrivals.next_row_bytes()
        rows = min(self._pending.room(row_bytes), self._arrivals.rows)
        self._disk_phase_until = 0 if rows else max(1, self._pending.waiting_rows // 2)
        return rows

    def _probe_stream(self, batch: pa.RecordBatch, tally: StepTally) -> None:
        with tally.timed("probe"):
            keys, present = self._codes(batch)
            known, start, matches = self._in_memory(keys, present)
            asked = np.flatnonzero(present & ~known)
            first_page, page_count = self._master.locate(keys[asked])
            has_page = page_count > 0
            waits = asked[has_page]
            settled = np.delete(np.arange(batch.num_rows), waits)
        tally.counts["waited_rows"] += len(waits)
        if len(waits):
            with tally.timed("wait"):
                last_page = first_page + page_count - 1
                self._let_wait(batch.take(waits), keys[waits], first_page[has_page], last_page[has_page])
        self._emit(batch, settled, self._memory_payload(), start[settled], matches[settled], "hot_rows")

    def _in_memory(self, keys: Int64s, present: Bools) -> tuple[Bools, Int64s, Int64s]:  # noqa: ARG002
        """Hook: which rows memory answers, and their ranges in `_memory_payload`; no row by default."""
        none = np.zeros(len(keys), dtype=np.int64)
        return none.astype(np.bool_), none, none

    def _memory_payload(self) -> pa.RecordBatch:
        """Hook: the chosen columns of the master rows that stay in memory."""
        return self._nothing

    def _let_wait(self, rows: pa.RecordBatch, keys: Int64s, first_page: Int64s, last_page: Int64s) -> None:
        self._pending.add(rows, keys, first_page.astype(np.int32), last_page.astype(np.int32))

    def _probe_disk(self, tally: StepTally) -> None:
        """One round or more: the oldest waiting rows choose what is read."""
        first, last = self._pending.oldest_pages()
        if last - first >= self.sizes.pages_per_step:
            positions = self._pending.finish_oldest_key()
            key = int(self._pending.keys[positions[0]])
            self._begin_long_key(self._pending.rows.take(positions), key, first, last)
            return
        with tally.timed("wait"):
            pages = self._pending.choose_pages(self.sizes.pages_per_step, self._segment_pages)
        master_rows = self._read(pages, tally)
        with tally.timed("match"):
            positions = self._pending.finish_within(pages)
            keys = self._pending.keys[positions]
            start, matches = KeyedRows(self._stored_codes(master_rows)).ranges_of(keys)
            self._met(pages, keys, master_rows, start, matches)
        payload = master_rows.select(self._columns)
        self._emit(self._pending.rows, positions, payload, start, matches, "disk")

    def _met(
        self, pages: Int64s, keys: Int64s, master_rows: pa.RecordBatch, start: Int64s, matches: Int64s
    ) -> None:
        """Hook: what a round read and which keys, equal ones side by side, it finished."""

    def _stream_bytes(self, stream: pa.RecordBatch) -> int:
        return self._pending.rows_bytes if stream is self._pending.rows else super()._stream_bytes(stream)

    def _held_bytes(self, tally: StepTally) -> dict[str, int]:
        return {**super()._held_bytes(tally), "pending": self._pending.bytes_held}

    def _waiting_parts(self) -> dict[str, pa.RecordBatch]:
        return {"pending": self._pending.still_waiting()}

    def _restore_waiting(self, parts: dict[str, pa.RecordBatch]) -> None:
        self._pending = Pending(self._pending.limit_bytes, self.plan.stream_schema, self._master.pages)
        self._disk_phase_until = 0
        if parts["pending"].num_rows:
            keys, _ = self._codes(parts["pending"])
            first_page, page_count = self._master.locate(keys)
            self._let_wait(parts["pending"], keys, first_page, first_page + page_count - 1)


__all__ = ["HasPending", "WaitingJoin"]
