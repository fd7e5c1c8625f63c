"""HYBRIDJOIN: waiting stream rows choose, oldest first, which part of the master data is read."""

from dataclasses import dataclass
from typing import ClassVar

from tidemill.core.memory import MemoryBudget
from tidemill.join.output import OutputPlan
from tidemill.join.paper_sizes import PAPER_SIZES
from tidemill.join.parts.needs import Needs, WaitingSizes, needs_of
from tidemill.join.parts.waiting_join import WaitingJoin
from tidemill.master.protocol import Master

_PARTITION_BYTES = PAPER_SIZES["hybrid"].disk_buffer_bytes or 0


@dataclass(frozen=True, kw_only=True)
class HybridSizes(WaitingSizes):
    """How a budget is split: small buffers, and all the rest for rows that wait.

    >>> sizes = HybridSizes.from_budget(32_000_000, 20, 110, 400_000)
    >>> sizes.total_bytes, sizes.pages_per_step, sizes.pending_bytes // 1_000_000
    (32000000, 56, 25)
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
    ) -> "HybridSizes":
        """Sizes that use the budget; a `BudgetError` names the least that works."""
        needs = Needs.of(stream_row_bytes, master_row_bytes, index_bytes, longest_page_bytes)
        spare = needs.spare_bytes("a hybrid join", total_bytes, 0, arrival_rows=3)
        sized = needs.buffers(spare, _PARTITION_BYTES)
        used = sum(value for name, value in sized.items() if name.endswith("_bytes"))
        return cls(pending_bytes=total_bytes - used, **sized)


class HybridJoin(WaitingJoin[HybridSizes]):
    """Stream rows with their master rows, many waiting rows for each partition that is read.

    Every arriving row waits, up to as many as memory holds. The oldest one says through the index
    where its master row lies, and one partition is read from there on. The partition finishes every
    waiting row whose pages lie in it, not only the one that chose it. Then the next oldest chooses.
    So parts of the master data that nobody asks for are never read.

    ```
    arrivals ──▶ pending ◀──oldest chooses── one partition ──▶ output
    ```
    Good when the stream asks for few parts of the master data, or memory holds many waiting rows for
    each partition. Poor when keys are few and popular: their rows wait like all others (`cache`,
    `moij` and `tide` answer them at once).

    Memory: the index; the papers' disk buffer (0.93 MB, held twice while pages are put together) and
    stream buffer (0.05 MB of bare rows); output up to 8 MiB; all the rest for waiting rows. The
    paper's queue is no structure of its own: the place of a waiting row is its age.

    Source: Naeem et al., *X-HYBRIDJOIN for Near-Real-Time Data Warehousing*, 2011, §3. Repairs:
    - As printed, an oldest row that matches nothing chooses its partition for ever. Here a partition
      also finishes, as unmatched, the rows of its key range that it does not hold.
    - The paper takes new rows after each partition; here when half of the waiting rows are finished,
      so that putting them in order is paid once for many partitions.
    Extensions: several master rows per key (the paper's key is unique), left, semi and anti; a key
    with more pages than a partition is finished over several steps.
    """

    name: ClassVar[str] = "hybrid"

    def __init__(
        self, master: Master, plan: OutputPlan, budget: MemoryBudget, *, sizes: HybridSizes | None = None
    ) -> None:
        super().__init__(master, plan, budget, sizes or self.sizes_for(master, plan, budget.left_bytes))

    @staticmethod
    def sizes_for(master: Master, plan: OutputPlan, total_bytes: int) -> HybridSizes:
        """The split of `total_bytes` for this master data and stream."""
        return HybridSizes.from_budget(total_bytes, **needs_of(master, plan))


__all__ = ["HybridJoin", "HybridSizes"]
