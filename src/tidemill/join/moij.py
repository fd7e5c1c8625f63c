"""MOIJ: hot rows and waiting rows share one memory, and a key stays where it takes less of it."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from tidemill.core.memory import MemoryBudget
from tidemill.join.output import OutputPlan
from tidemill.join.paper_sizes import PAPER_SIZES
from tidemill.join.parts.balance import BalancedRows
from tidemill.join.parts.kernels import Bools, Int64s
from tidemill.join.parts.needs import Needs, WaitingSizes, needs_of
from tidemill.join.parts.pending import WORK_BYTES_PER_ROW
from tidemill.join.parts.tally import StepTally
from tidemill.join.parts.waiting_join import WaitingJoin
from tidemill.master import MasterData

_SEGMENT_BYTES = PAPER_SIZES["moij"].disk_buffer_bytes or 0
_ROUNDS_PER_STEP = 8  # read and matched together: a step costs 0.3 ms beside its work
_DISK_SHARE = 1 / 16
_LEAST_HOT_BYTES = 1024
_EMPTY_GENERATION_BYTES = 256


@dataclass(frozen=True, kw_only=True)
class MoijSizes(WaitingSizes):
    """How a budget is split at the start; `hot_rows` and `pending` resize each other afterwards.

    >>> sizes = MoijSizes.from_budget(32_000_000, 20, 110, 400_000)
    >>> sizes.total_bytes, sizes.pages_per_step, sizes.most_generation_bytes // 1_000_000
    (32000000, 48, 7)
    """

    hot_rows_bytes: int
    """At the start: keys on their way in."""
    segment_pages: int
    """What one waiting row chooses; a step reads as many segments as `pages_per_step` holds."""
    eviction_rounds: int = PAPER_SIZES["moij"].eviction_every_rounds or 10

    @property
    def shared_bytes(self) -> int:
        return self.hot_rows_bytes + self.pending_bytes

    @property
    def candidate_bytes(self) -> int:
        return self.hot_rows_bytes - _EMPTY_GENERATION_BYTES

    @property
    def most_generation_bytes(self) -> int:
        """Two of them, candidates twice and half of the waiting rows fit together during a switch."""
        return min(
            self.shared_bytes * 2 // 7, self.shared_bytes - self.hot_rows_bytes - 2 * self.arrivals_bytes
        )

    @classmethod
    def from_budget(
        cls,
        total_bytes: int,
        stream_row_bytes: int,
        master_row_bytes: int,
        index_bytes: int,
        *,
        longest_page_bytes: int = 16 * 1024,
    ) -> "MoijSizes":
        """Sizes that use the budget; a `BudgetError` names the least that works."""
        needs = Needs.of(stream_row_bytes, master_row_bytes, index_bytes, longest_page_bytes)
        spare = needs.spare_bytes("a moij join", total_bytes, _LEAST_HOT_BYTES, arrival_rows=3)
        sized = needs.buffers(spare, _ROUNDS_PER_STEP * _SEGMENT_BYTES, disk_share=_DISK_SHARE)
        segment = max(1, 2 * _SEGMENT_BYTES // needs.page_bytes)
        shared = total_bytes - sum(value for name, value in sized.items() if name.endswith("_bytes"))
        hot = _LEAST_HOT_BYTES + spare // 28
        return cls(hot_rows_bytes=hot, pending_bytes=shared - hot, segment_pages=segment, **sized)


class MoijJoin(WaitingJoin[MoijSizes]):
    """Stream rows with their master rows; memory goes to the side that needs less of it for a key.

    An arriving row first probes the hot rows; a hit leaves at once and a miss waits. The oldest
    waiting row chooses a segment of the master data by the index, which finishes every waiting row of
    its key range. A key for which more bytes waited than its master rows take turns hot, and the
    memory for waiting rows shrinks by as much. Now and then hot keys are judged again: those for
    which fewer bytes would wait make room for waiting rows.

    ```
    arrivals ──▶ hot rows ──hit──▶ output
                    ├─miss─▶ pending ◀──oldest chooses── one segment ──▶ output
                    ◀── n waiting rows > m master rows ──┘      (in bytes; and back every ten rounds)
    ```
    Good when few keys carry much of the stream and memory is scarce. Poor on uniform streams, where
    each segment serves few rows.

    Memory: the index; up to eight of the paper's segments (0.1 MB each, held twice), 6 % at most; its
    stream buffer; output up to 8 MiB; the rest is shared by hot rows (up to two sevenths, as a switch holds two generations) and
    waiting rows (all that hot rows leave).

    Source: Naeem et al., *Big Data Velocity Management*, IEEE Access 2020, §IV, Theorems 1 and 2,
    Algorithm 1. Repairs and choices:
    - Lines 19 to 31 delete the waiting rows of a key after its first master row; here work goes by key
      groups, so that every pair leaves.
    - Lines 14 to 16 leave the rows of a key without match waiting; here they finish as unmatched.
    - Line 13 with an empty queue, line 25 with fractions or less than nothing: memory moves in bytes,
      and only as far as reservations allow.
    - Line 35 compares a count per round with Theorem 2's count per queue length, and so evicts too
      early. Here hits are scaled to a queue length (hits times waiting rows by misses, in the same span),
      judged after ten rounds once a queue length has passed, and halved instead of forgotten.
    - A segment need not hold all rows of its keys: a key at its end waits for the segment that does,
      and a key longer than a segment is finished over several steps and never turns hot.
    - Bytes are those really held: a waiting row counts twice (putting rows in order copies them) and
      both sides count their entry in the hash table.
    - Hot rows are immutable generations: a key turns hot, or is evicted, with the next one. When more
      keys qualify than fit, those with the best ratio stay.
    - Up to eight rounds share a step: the oldest waiting rows choose one segment each, and all are
      read and matched together.
    - New rows are taken when half of the waiting ones are finished, not after every segment.
    Extensions: left, semi and anti.
    """

    name: ClassVar[str] = "moij"

    def __init__(
        self, master: MasterData, plan: OutputPlan, budget: MemoryBudget, *, sizes: MoijSizes | None = None
    ) -> None:
        sizes = sizes or self.sizes_for(master, plan, budget.left_bytes)
        # Arrivals, pending and the disk buffer are held by the base.
        reserved = ("arrivals", "disk_buffer", "index", "output", "pending", "hot_rows")
        super().__init__(master, plan, budget, sizes, reserved)
        # Held by hot rows
        self._hot = BalancedRows(
            self._nothing.schema,
            master.identity,
            candidate_bytes=sizes.candidate_bytes,
            row_bytes=master.row_bytes,
        )
        self._rounds = 0
        self._segment_pages = sizes.segment_pages

    @staticmethod
    def sizes_for(master: MasterData, plan: OutputPlan, total_bytes: int) -> MoijSizes:
        """The split of `total_bytes` for this master data and stream."""
        return MoijSizes.from_budget(total_bytes, **needs_of(master, plan))

    def _before_work(self, tally: StepTally) -> None:
        looks = self._rounds >= self.sizes.eviction_rounds
        if self._in_disk_phase or not self._hot.switch_is_due(looks=looks):
            return
        with tally.timed("switch"):
            self._switch()
            if looks:
                self._hot.look_is_over()
                self._rounds = 0

    def _switch(self) -> None:
        """Choose the hot rows anew, in memory that the waiting rows lend for as long as both generations live."""
        hot, used = self._hot, self._pending.used_bytes
        lent = self.sizes.shared_bytes - used - hot.generation.bytes_held - 2 * hot.pool_bytes
        target = min(lent, self.sizes.most_generation_bytes)
        if target < min(hot.generation.bytes_held, self.sizes.most_generation_bytes):
            return  # later, when fewer rows wait
        self._pending.let_go()
        self._share(self.sizes.shared_bytes - used)
        chosen = hot.next_generation(target, self._waiting_row_bytes())
        if chosen is not None and chosen.bytes_held <= target:
            hot.use(chosen)
        else:
            hot.forget_candidates()
        self._share(hot.generation.bytes_held + hot.pool_bytes)

    def _share(self, hot_bytes: int) -> None:
        """Give the hot rows so much of the shared memory, and the waiting rows all the rest."""
        self.budget.release("hot_rows")
        self.budget.reserve("pending", self.sizes.shared_bytes - hot_bytes)
        self.budget.reserve("hot_rows", hot_bytes)
        self._pending.limit_bytes = self.sizes.shared_bytes - hot_bytes

    def _waiting_row_bytes(self) -> float:
        return 2 * (self._pending.average_row_bytes or self.plan.stream_row_bytes) + WORK_BYTES_PER_ROW

    def _in_memory(self, keys: Int64s, present: Bools) -> tuple[Bools, Int64s, Int64s]:
        entry = self._hot.probe(keys)
        hit = present & (entry >= 0)
        start, matches = self._hot.generation.ranges(np.where(hit, entry, -1))
        return hit, start, matches

    def _memory_payload(self) -> pa.RecordBatch:
        return self._hot.generation.payload

    def _memory_row_bytes(self) -> float:
        hot = self._hot.generation
        return hot.payload_bytes / max(1, hot.payload.num_rows)

    def _let_wait(self, rows: pa.RecordBatch, keys: Int64s, first_page: Int64s, last_page: Int64s) -> None:
        self._hot.misses += rows.num_rows
        super()._let_wait(rows, keys, first_page, last_page)

    def _met(
        self,
        pages: Int64s,
        keys: Int64s,
        master_rows: pa.RecordBatch,
        start: Int64s,
        matches: Int64s,
    ) -> None:
        self._rounds += -(-len(pages) // self._segment_pages)
        self._hot.queue_rows = max(self._hot.queue_rows, self._pending.waiting_rows + len(keys))
        matched = matches > 0
        # Without master columns one row of a key is enough to know that it exists.
        kept = matches[matched] if self.plan.master_columns else np.ones(int(matched.sum()), np.int64)
        payload = master_rows.select(self._columns)
        self._hot.meet(keys[matched], payload, start[matched], kept, self._waiting_row_bytes())

    def _held_bytes(self, tally: StepTally) -> dict[str, int]:
        return {**super()._held_bytes(tally), "hot_rows": self._hot.bytes_held}


__all__ = ["MoijJoin", "MoijSizes"]
