"""Index nested loops: one lookup in the master data for each stream row."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tidemill.core.memory import MemoryBudget
from tidemill.join.output import OutputPlan
from tidemill.join.parts.needs import BufferSizes, Needs, needs_of
from tidemill.join.parts.page_matches import ranges_in_pages
from tidemill.join.parts.paged_join import PagedJoin
from tidemill.join.parts.tally import StepTally
from tidemill.master.protocol import Master

_MOST_DISK_BUFFER_BYTES = 2**20  # 64 rows a step: their reads are not shared, more would add nothing


@dataclass(frozen=True, kw_only=True)
class InlSizes(BufferSizes):
    """Small buffers of fixed size: more memory would not make this join faster.

    >>> sizes = InlSizes.from_budget(32_000_000, 20, 110, 400_000)
    >>> sizes.total_bytes < 5_000_000, sizes.pages_per_step
    (True, 64)
    """

    @classmethod
    def from_budget(
        cls,
        total_bytes: int,
        stream_row_bytes: int,
        master_row_bytes: int,
        index_bytes: int,
        *,
        longest_page_bytes: int = 16 * 1024,
    ) -> "InlSizes":
        """Sizes within the budget; a `BudgetError` names the least that works."""
        needs = Needs.of(stream_row_bytes, master_row_bytes, index_bytes, longest_page_bytes)
        spare = needs.spare_bytes("an inl join", total_bytes, 0, arrival_rows=1)
        sized = needs.buffers(spare, _MOST_DISK_BUFFER_BYTES)
        sized["output_bytes"] = min(sized["output_bytes"], needs.output_bytes + 2**20)
        return cls(**sized)


class InlJoin(PagedJoin[InlSizes]):
    """Stream rows with their master rows, each looked up by itself.

    The index says which page can hold the key of a row, and that page is read. No row waits for
    another, and none profits from another: a page is read again for the next row that needs it,
    even within one step. A step looks up as many rows as there are pages in its buffer. Rows whose
    key no page can hold finish without a read.

    ```
    arrivals ──each row──▶ index ──▶ its page ──▶ output
    ```
    Good as the baseline, for tiny streams, and where memory is scarcest. Poor at any rate: one
    random read a row.

    Memory: the index, 1 MiB of pages (twice), the papers' stream buffer of 0.05 MB, 1 MiB of output.

    Source: Polyzotis et al., *Meshing Streaming Updates with Persistent Data*, TKDE 2008, §1 and
    §5.1. There the buffer pool of the database caches pages; here nothing does, so that the number
    of reads is what the algorithm itself asks for. Several master rows per key and all four kinds
    of join are natural for it; the papers show inner joins.
    """

    name: ClassVar[str] = "inl"

    def __init__(
        self, master: Master, plan: OutputPlan, budget: MemoryBudget, *, sizes: InlSizes | None = None
    ) -> None:
        super().__init__(master, plan, budget, sizes or self.sizes_for(master, plan, budget.left_bytes))

    @staticmethod
    def sizes_for(master: Master, plan: OutputPlan, total_bytes: int) -> InlSizes:
        """The split of `total_bytes` for this master data and stream."""
        return InlSizes.from_budget(total_bytes, **needs_of(master, plan))

    def _work(self, tally: StepTally) -> None:
        if not self._arrivals.rows:
            return
        rows = self._arrivals.peek(self.sizes.pages_per_step)
        keys, present = self._codes(rows)
        first_page, page_count = self._master.locate(keys)
        page_count = np.where(present, page_count, 0)
        fitting = int(np.searchsorted(np.cumsum(page_count), self.sizes.pages_per_step, side="right"))
        if fitting == 0:
            last_page = int(first_page[0] + page_count[0]) - 1
            self._begin_long_key(self._arrivals.take(1), int(keys[0]), int(first_page[0]), last_page)
            return
        batch = self._arrivals.take(fitting)
        keys, first_page, page_count = keys[:fitting], first_page[:fitting], page_count[:fitting]
        end = np.cumsum(page_count)
        pages = np.repeat(first_page - (end - page_count), page_count) + np.arange(int(end[-1]))
        master_rows = self._read(pages, tally)
        with tally.timed("match"):
            begin, until = self._page_start[end - page_count], self._page_start[end]
            start, matches = ranges_in_pages(self._stored_codes(master_rows), begin, until, keys)
        payload = master_rows.select(self._columns)
        self._emit(batch, np.arange(fitting), payload, start, matches, "disk")


__all__ = ["InlJoin", "InlSizes"]
