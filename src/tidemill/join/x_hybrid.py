"""X-HYBRIDJOIN: HYBRIDJOIN with half of its disk buffer never leaving memory."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from tidemill.core.memory import MemoryBudget
from tidemill.join.output import OutputPlan
from tidemill.join.paper_sizes import PAPER_SIZES
from tidemill.join.parts.kernels import Int64s
from tidemill.join.parts.needs import Needs, WaitingSizes, needs_of
from tidemill.join.parts.page_matches import KeyedRows
from tidemill.join.parts.tally import StepTally
from tidemill.join.parts.waiting_join import WaitingJoin
from tidemill.master.protocol import Master

_PARTITION_BYTES = PAPER_SIZES["x_hybrid"].disk_buffer_bytes or 0


@dataclass(frozen=True, kw_only=True)
class XHybridSizes(WaitingSizes):
    """How a budget is split: two equal halves of the disk buffer, small buffers, the rest for waiting rows.

    >>> sizes = XHybridSizes.from_budget(32_000_000, 20, 110, 400_000)
    >>> sizes.total_bytes, sizes.pages_per_step, sizes.resident_bytes == sizes.disk_buffer_bytes
    (32000000, 56, True)
    """

    resident_bytes: int
    """The half that stays: as many pages as one step reads, held twice while they are loaded."""

    @classmethod
    def from_budget(
        cls,
        total_bytes: int,
        stream_row_bytes: int,
        master_row_bytes: int,
        index_bytes: int,
        *,
        longest_page_bytes: int = 16 * 1024,
    ) -> "XHybridSizes":
        """Sizes that use the budget; a `BudgetError` names the least that works."""
        needs = Needs.of(stream_row_bytes, master_row_bytes, index_bytes, longest_page_bytes)
        spare = needs.spare_bytes("an x_hybrid join", total_bytes, needs.page_bytes, arrival_rows=3)
        sized = needs.buffers(spare, _PARTITION_BYTES)
        sized["resident_bytes"] = sized["disk_buffer_bytes"]
        used = sum(value for name, value in sized.items() if name.endswith("_bytes"))
        return cls(pending_bytes=total_bytes - used, **sized)


class XHybridJoin(WaitingJoin[XHybridSizes]):
    """Stream rows with their master rows, as in HYBRIDJOIN, with the first pages always at hand.

    The first pages of the master data are read once and stay. Every arriving row waits. In each
    round the resident pages finish the rows that wait for them, then the oldest row of the others
    chooses a partition that is read and swapped out again. When the store is in order of popularity,
    the resident pages serve much of the stream without a read. They are no cache met on arrival: a
    row waits for its round even if its page is resident.

    ```
    arrivals ──▶ pending ◀──every round── resident pages ──▶ output
                    ◀──oldest chooses── one partition ──▶ output
    ```
    Good when the store was built in order of popularity and the stream is skewed. Poor in a store in
    key order, unless small keys are the popular ones: the resident pages are then worth nothing.

    Memory: as `hybrid`, with the disk buffer twice: 0.93 MB that swap and 0.93 MB that stay (each
    held twice while its pages are put together); the rest for waiting rows.

    Source: Naeem et al., *X-HYBRIDJOIN for Near-Real-Time Data Warehousing*, 2011, §4. Repairs:
    - Those of `hybrid`: rows that match nothing finish with the pages that could hold them, and new
      rows are taken when half of the waiting ones are finished.
    - A round without new rows skips the resident pages: nothing can wait for them.
    - The resident pages are read when the first row waits, not before: an idle stream reads nothing.
    Extensions: several master rows per key (the paper's key is unique), left, semi and anti.
    """

    name: ClassVar[str] = "x_hybrid"

    def __init__(
        self, master: Master, plan: OutputPlan, budget: MemoryBudget, *, sizes: XHybridSizes | None = None
    ) -> None:
        sizes = sizes or self.sizes_for(master, plan, budget.left_bytes)
        # Arrivals, pending and the half that swaps are held by the base.
        reserved = ("arrivals", "disk_buffer", "index", "output", "pending", "resident")
        super().__init__(master, plan, budget, sizes, reserved)
        # Held by the half that stays
        self._resident: _Resident | None = None
        self._rows_came = False
        self._owes_partition = False

    @staticmethod
    def sizes_for(master: Master, plan: OutputPlan, total_bytes: int) -> XHybridSizes:
        """The split of `total_bytes` for this master data and stream."""
        return XHybridSizes.from_budget(total_bytes, **needs_of(master, plan))

    def _let_wait(self, rows: pa.RecordBatch, keys: Int64s, first_page: Int64s, last_page: Int64s) -> None:
        self._rows_came = True
        super()._let_wait(rows, keys, first_page, last_page)

    def _probe_stream(self, batch: pa.RecordBatch, tally: StepTally) -> None:
        super()._probe_stream(batch, tally)
        if self._resident is None and self._pending.waiting_rows:
            self._resident = self._load(tally)

    def _rows_to_probe(self) -> int:
        """None before the round is complete: else rows of resident pages would starve the others."""
        if self._owes_partition and self._pending.waiting_rows:
            return 0
        return super()._rows_to_probe()

    def _probe_disk(self, tally: StepTally) -> None:
        resident = self._resident
        self._owes_partition = bool(resident and self._rows_came and self._probe_resident(resident, tally))
        if not self._owes_partition:
            super()._probe_disk(tally)

    def _load(self, tally: StepTally) -> "_Resident":
        """Read the pages that stay."""
        pages = np.arange(min(self.sizes.pages_per_step, self._master.pages))
        rows = self._read(pages, tally)
        return _Resident(pages, rows.select(self._columns), KeyedRows(self._stored_codes(rows)), rows.nbytes)

    def _probe_resident(self, resident: "_Resident", tally: StepTally) -> bool:
        """Whether rows waited for the resident pages; they finish."""
        self._rows_came = False
        with tally.timed("match"):
            positions = self._pending.finish_within(resident.pages)
            if not len(positions):
                return False
            start, matches = resident.keyed.ranges_of(self._pending.keys[positions])
        self._emit(self._pending.rows, positions, resident.payload, start, matches, "hot_rows")
        return True

    def _memory_row_bytes(self) -> float:
        resident = self._resident
        return resident.bytes_held / max(1, resident.payload.num_rows) if resident else 0.0

    def _held_bytes(self, tally: StepTally) -> dict[str, int]:
        resident = self._resident.bytes_held + self._resident.keyed.bytes_held if self._resident else 0
        return {**super()._held_bytes(tally), "resident": resident}


@dataclass(frozen=True)
class _Resident:
    """The pages that stay, put together."""

    pages: Int64s
    payload: pa.RecordBatch
    keyed: KeyedRows
    bytes_held: int


__all__ = ["XHybridJoin", "XHybridSizes"]
