"""SSBJ, the semi-stream balanced join: a mesh join whose frequent keys never enter the window."""

from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from tidemill.core.memory import MemoryBudget
from tidemill.join.balanced_sizes import BalancedSizes
from tidemill.join.mesh_sizes import OUTPUT_WORK_BYTES_PER_ROW, waiting_row_bytes
from tidemill.join.output import OutputPlan
from tidemill.join.parts.balance import BalancedRows
from tidemill.join.parts.emission import Emission
from tidemill.join.parts.kernels import Int64s
from tidemill.join.parts.keys import stream_keys
from tidemill.join.parts.page_run import Run
from tidemill.join.parts.sweep import SweepJoin
from tidemill.join.parts.tally import StepTally
from tidemill.join.protocol import StepReport
from tidemill.master.protocol import Master

_LEAST_MISS_SHARE = 0.05
_LOOKS_PER_CYCLE = 10


class BalancedJoin(SweepJoin):
    """Stream rows with their master rows; those of frequent keys leave at once, the rest meets a scan.

    An arriving row first probes the hot rows; a hit leaves at once. A miss joins the window of a
    mesh join and meets every master page once. A key whose waiting rows take more memory in the
    window than its master rows would take as hot rows turns hot. From then on its rows no longer fill
    the window, which has room for others. Hot keys for which that no longer holds are let go.

    ```
    arrivals ──▶ hot rows ──hit──▶ output
                    ├─miss─▶ window ◀── pages, round and round ──▶ output
                    ◀── n waiting rows > m master rows, in bytes ──┘
    ```
    Good when the stream is skewed and the master data has no index. Poor on uniform streams, where
    hot rows take memory from the window, and when freshness of rare keys matters.

    Memory: hot rows a quarter of what is free (two generations and candidates), arrivals a twentieth
    more than in the mesh join, the rest as there.

    Source: Naeem et al., SSBJ, known here through *Big Data Velocity Management*, IEEE Access 2020,
    §II-A and §IV-A (the cache inequality, Theorems 1 and 2). The texts say that it is MESHJOIN with a
    cache and the inequality, without an index. What they leave open, and we chose:
    - The number of rows that wait for a key is counted where its pages meet the window, as the
      theorem has it: a count for the whole length of the queue. A key whose pairs come in several
      blocks is judged by the largest.
    - Hot keys are judged again ten times a cycle, by hits scaled to the length of the queue.
    - Hot rows are immutable generations: a key turns hot with the next one. Memory between both sides
      is split beforehand; within its share each side uses what the inequality gives it.
    - A key turns hot only if one run of pages holds all its master rows. The index that an open store
      has in memory answers that; no row is found by it.
    - More rows than a packet holds are probed at a time, by the share of rows that missed before.
    Many-to-many as in the mesh join; left, semi and anti are added.
    """

    name: ClassVar[str] = "balanced"
    takes_conditions: ClassVar[bool] = False
    _reserved: ClassVar[tuple[str, ...]] = (*SweepJoin._reserved, "hot_rows")  # noqa: SLF001

    def __init__(
        self,
        master: Master,
        plan: OutputPlan,
        budget: MemoryBudget,
        *,
        sizes: BalancedSizes | None = None,
    ) -> None:
        chosen = sizes or self.sizes_for(master, plan, budget.left_bytes)
        super().__init__(master, plan, budget, sizes=chosen)
        # Without chosen columns the key stands in, so that rows can be counted and moved.
        self._columns = list(plan.master_columns) or [master.key]
        # Held by arrivals: nobody comes until it has left
        self._emission: Emission | None = None
        # Held by hot rows
        self._hot_sizes = chosen
        self._hot = BalancedRows(
            pa.schema([master.schema.field(name) for name in self._columns]),
            master.identity,
            candidate_bytes=chosen.candidate_bytes,
            row_bytes=master.row_bytes,
        )
        self._miss_share = 1.0
        self._look_at = 0

    @classmethod
    def sizes_for(cls, master: Master, plan: OutputPlan, total_bytes: int) -> BalancedSizes:
        """The split of `total_bytes` for this master data and stream."""
        rows = (plan.stream_row_bytes, master.row_bytes, master.index_bytes)
        return BalancedSizes.with_hot_rows(total_bytes, *rows, master.pages, master.page_columns_bytes)

    def room(self, row_bytes: int | None = None) -> int:
        return super().room(row_bytes) if self._emission is None else 0

    @property
    def pending_rows(self) -> int:
        return super().pending_rows + (self._emission.rows_left if self._emission else 0)

    def step(self) -> StepReport:
        if self._emission is None:
            return super().step()
        tally = StepTally(rows_in=self._rows_in)
        self._rows_in = 0
        self._cut_output(self._emission, tally)
        return tally.report(self._held_bytes(tally))

    @property
    def hot_changes(self) -> int:
        return self._hot.changes

    def _work(self, tally: StepTally) -> None:
        self._switch_if_due(tally)
        super()._work(tally)

    def _packet_rows(self) -> int:
        has_place = self._window.packets < self.sizes.queue_packets
        return int(self.sizes.stream_rows_per_step / self._miss_share) if has_place else 0

    def _run_pages(self) -> int:
        return self.sizes.master_pages_per_step

    def _admit(self, most_rows: int) -> None:
        """Probe the oldest arrivals; hits leave, misses join the window. Were all misses, they would fit."""
        batch = self._take_fitting(most_rows)
        if not batch.num_rows:
            return
        keys, _ = stream_keys(batch, self.plan.stream_key)
        entry = self._hot.probe(keys)
        misses, hits = np.flatnonzero(entry < 0), np.flatnonzero(entry >= 0)
        self._miss_share = max(_LEAST_MISS_SHARE, 0.9 * self._miss_share + 0.1 * len(misses) / len(keys))
        self._hot.misses += len(misses)
        if len(misses):
            self._window.add(batch.take(misses), keys[misses], self._pages_joined + self._master.pages)
        if len(hits) == 0:
            return
        hot = self._hot.generation
        start, matches = hot.ranges(entry[hits])
        row_bytes = batch.nbytes // batch.num_rows + hot.payload_bytes // max(1, hot.payload.num_rows)
        self._emission = Emission(
            self.plan,
            batch.take(hits),
            np.arange(len(hits)),
            hot.payload,
            start,
            matches,
            found_in="hot_rows",
            output_row_bytes=row_bytes + OUTPUT_WORK_BYTES_PER_ROW,
        )

    def _cut_output(self, emission: Emission, tally: StepTally) -> None:
        with tally.timed("assemble"):
            cut = emission.next_slice(self.sizes.output_bytes)
        if cut.output is not None:
            tally.outputs.append(cut.output)
        tally.counts["emitted_rows"] += cut.emitted_rows
        tally.counts["dropped_rows"] += cut.dropped_rows
        tally.counts["hot_hits"] += cut.matched_rows
        tally.counts["unmatched"] += cut.unmatched_rows
        if emission.is_over:
            self._emission = None

    def _pairs(self, run: Run, most_pairs: int) -> tuple[Int64s, Int64s]:
        numbers, master_rows = super()._pairs(run, most_pairs)
        if len(numbers):
            self._judge(run, master_rows)
        return numbers, master_rows

    def _judge(self, run: Run, master_rows: Int64s) -> None:
        """Show the hot rows which keys matched, how many rows waited for each, and their master rows."""
        if (run.keys[1:] < run.keys[:-1]).any():
            return  # not in key order: rows of a key need not lie together
        keys, pairs = np.unique(run.keys[master_rows], return_counts=True)
        start = np.searchsorted(run.keys, keys, side="left")
        matches = np.searchsorted(run.keys, keys, side="right") - start
        first_page, page_count = self._master.locate(keys)
        whole = (first_page >= run.first_page) & (first_page + page_count <= run.first_page + run.pages)
        waiting = np.where(whole, pairs // matches, 0)
        # Without master columns one row of a key is enough to know that it exists.
        kept = matches if self.plan.master_columns else np.ones_like(matches)
        self._hot.meet(
            np.repeat(keys, waiting),
            run.rows.select(self._columns),
            np.repeat(start, waiting),
            np.repeat(kept, waiting),
            waiting_row_bytes(self.plan.stream_row_bytes),
        )

    def _switch_if_due(self, tally: StepTally) -> None:
        looks = self._pages_joined >= self._look_at
        # Before the choice: it starts from one after each look.
        self._hot.queue_rows = max(self._hot.queue_rows, self._window.rows)
        if not self._hot.switch_is_due(looks=looks):
            return
        with tally.timed("switch"):
            target = self._hot_sizes.most_generation_bytes
            chosen = self._hot.next_generation(target, waiting_row_bytes(self.plan.stream_row_bytes))
            if chosen is not None and chosen.bytes_held <= target:
                self._hot.use(chosen)
            else:
                self._hot.forget_candidates()
            if looks:
                self._hot.look_is_over()
                self._look_at = self._pages_joined + max(1, self._master.pages // _LOOKS_PER_CYCLE)

    def _held_bytes(self, tally: StepTally) -> dict[str, int]:
        held = super()._held_bytes(tally)
        leaving = self._emission.stream.nbytes if self._emission else 0
        return {**held, "arrivals": held["arrivals"] + leaving, "hot_rows": self._hot.bytes_held}

    def _more_parts(self) -> tuple[dict[str, Any], dict[str, pa.RecordBatch]]:
        if self._emission is None:
            return {}, {}
        leaving, parts = self._emission.to_parts()
        return {"leaving": leaving}, parts

    def restore(self, snapshot: bytes) -> None:
        super().restore(snapshot)
        facts, parts = self._unpack(snapshot)
        self._emission = (
            Emission.from_parts(self.plan, facts["leaving"], parts) if "leaving" in facts else None
        )


__all__ = ["BalancedJoin", "BalancedSizes"]
