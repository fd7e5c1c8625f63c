"""CACHEJOIN: frequent master rows stay in memory, the rest is met page by page through the index."""

from typing import ClassVar

import numpy as np
import pyarrow as pa

from tidemill.core.memory import MemoryBudget
from tidemill.join.cache_sizes import CacheSizes
from tidemill.join.output import OutputPlan
from tidemill.join.parts.hot_rows import HotRows
from tidemill.join.parts.hot_set import LEAST_AGEING_ROWS, LEAST_GAIN, HotSet
from tidemill.join.parts.kernels import Bools, Int64s
from tidemill.join.parts.needs import needs_of
from tidemill.join.parts.tally import StepTally
from tidemill.join.parts.waiting_join import WaitingJoin
from tidemill.master.protocol import Master


class CacheJoin(WaitingJoin[CacheSizes]):
    """Stream rows with their master rows, by two phases that take turns.

    An arriving row first probes the hot rows; a hit leaves at once. A miss waits. When waiting rows
    fill their share, or none arrives, the oldest waiting row chooses its page by the index, and one
    read finishes every waiting row whose keys lie in that page, matched or not. Master rows that
    matched often are switched into the hot rows, so that a skewed stream rarely touches the disk.

    ```
    arrivals ──▶ hot rows ──hit──▶ output
                    └─miss─▶ pending ◀──oldest chooses── pages ──▶ output
                                └── matched often ──▶ candidates ──▶ next hot rows
    ```
    Good when few keys carry most of the stream and the master data has an index on the key. Poor
    on uniform streams: each row then costs about one page read.

    Memory: the index first; of the rest hot rows a third to a half, disk buffer 25 % up to 4 MiB,
    pending 20 %, output 12 %, arrivals 8 %, frequencies 4 % up to 8 MiB.

    Source: Naeem et al., *Big Data Velocity Management*, IEEE Access 2020, §II-B (the phases) and
    §IV-A (frequent means more than a preset threshold of matches). What it leaves open, and we chose:
    - Threshold: more than `threshold_matches` = 1, counted across steps with ageing. §IV-A says
      *greater than*, the example of §II-B counts 3 of 3; we follow §IV-A. With little memory it is more.
    - Hot rows full: the least frequent are evicted, when candidates are more frequent by enough.
    - Switching: hot rows are immutable generations, so a row turns hot with the next generation,
      not at once.
    - One disk phase reads `pages_per_step` pages, of the oldest rows first, and goes on until half
      of the waiting rows are finished: putting waiting rows in order is then paid once for many.
    - A row whose key has no page, or is not in it, finishes as unmatched. As printed, HYBRIDJOIN,
      on which this builds, waits for ever.
    Extensions: several master rows per key (the paper's key is unique; a key with more pages than
    one step reads is finished over several steps and never turns hot), left, semi and anti.
    """

    name: ClassVar[str] = "cache"

    def __init__(
        self,
        master: Master,
        plan: OutputPlan,
        budget: MemoryBudget,
        *,
        sizes: CacheSizes | None = None,
        auto_switch: bool = True,
    ) -> None:
        sizes = sizes or self.sizes_for(master, plan, budget.left_bytes)
        # Arrivals, pending and the disk buffer are held by the base.
        reserved = ("pending", "arrivals", "disk_buffer", "frequency", "index", "output")
        super().__init__(master, plan, budget, sizes, reserved)
        self.auto_switch = auto_switch
        self._segment_pages = 1
        # Held by hot rows and frequency
        self._hot = HotSet(
            self._nothing.schema,
            master.identity,
            budget,
            generation_bytes=sizes.hot_generation_bytes,
            candidate_bytes=sizes.candidate_bytes,
            frequency_bytes=sizes.frequency_bytes,
            row_bytes=master.row_bytes,
            # Where candidates have room for few keys, those met twice would take it all: were it full of keys with fewer
            # matches than these, a switch would not be worth its cost.
            threshold_matches=max(
                sizes.threshold_matches,
                int(LEAST_GAIN * LEAST_AGEING_ROWS * master.row_bytes / max(1, sizes.candidate_bytes)),
            ),
            least_rows_between_switches=sizes.least_rows_between_switches,
        )
        self._next_hot_rows: HotRows | None = None

    @staticmethod
    def sizes_for(master: Master, plan: OutputPlan, total_bytes: int) -> CacheSizes:
        """The split of `total_bytes` for this master data and stream."""
        return CacheSizes.from_budget(total_bytes, **needs_of(master, plan))

    def next_generation(self) -> HotRows | None:
        """Better hot rows than those in use, or None; for a host that shares them through a file."""
        return self._hot.next_generation()

    def use_hot_rows(self, generation: HotRows) -> None:
        """Switch to this generation, now or as soon as the output that refers to the old one has left."""
        self._next_hot_rows = generation
        if self._emission is None:
            self._before_work(StepTally())

    @property
    def hot_rows(self) -> HotRows:
        return self._hot.generation

    @property
    def switch_is_due(self) -> bool:
        """Whether enough rows have passed since `next_generation` was last asked."""
        return self._hot.switch_is_due

    @property
    def hot_changes(self) -> int:
        return self._hot.changes

    def _before_work(self, tally: StepTally) -> None:
        with tally.timed("switch"):
            chosen, self._next_hot_rows = self._next_hot_rows, None
            if chosen is None and self.auto_switch and self._hot.switch_is_due:
                chosen = self._hot.next_generation()
            if chosen is not None:
                self._hot.use(chosen)

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

    def _met(
        self,
        pages: Int64s,  # noqa: ARG002
        keys: Int64s,
        master_rows: pa.RecordBatch,
        start: Int64s,
        matches: Int64s,
    ) -> None:
        matched = matches > 0
        # Without master columns one row of a key is enough to know that it exists.
        kept = matches[matched] if self.plan.master_columns else np.ones(int(matched.sum()), np.int64)
        self._hot.meet(keys[matched], master_rows.select(self._columns), start[matched], kept)

    def _held_bytes(self, tally: StepTally) -> dict[str, int]:
        held = {"hot_rows": self._hot.bytes_held, "frequency": self._hot.frequency_bytes_held}
        return {**super()._held_bytes(tally), **held}


__all__ = ["CacheJoin", "CacheSizes"]
