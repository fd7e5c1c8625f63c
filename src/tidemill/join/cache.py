"""CACHEJOIN: frequent master rows stay in memory, the rest is met page by page through the index."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from tidemill.core.errors import StoreError
from tidemill.core.memory import MemoryBudget
from tidemill.join.cache_sizes import OUTPUT_WORK_BYTES_PER_ROW, CacheSizes
from tidemill.join.output import OutputPlan
from tidemill.join.parts.arrivals import Arrivals
from tidemill.join.parts.emission import Emission, FoundIn
from tidemill.join.parts.hot_rows import HotRows
from tidemill.join.parts.hot_set import HotSet
from tidemill.join.parts.kernels import Int64s
from tidemill.join.parts.keys import stream_keys
from tidemill.join.parts.pending import Pending
from tidemill.join.parts.snapshots import pack, unpack
from tidemill.join.parts.tally import StepTally
from tidemill.join.protocol import SemiStreamJoin, StepReport
from tidemill.master import MasterData
from tidemill.master.batches import one_batch


class CacheJoin(SemiStreamJoin):
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
      *greater than*, the example of §II-B counts 3 of 3; we follow §IV-A.
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
        master: MasterData,
        plan: OutputPlan,
        budget: MemoryBudget,
        *,
        sizes: CacheSizes | None = None,
        auto_switch: bool = True,
    ) -> None:
        self.plan = plan
        self.sizes = sizes or self.sizes_for(master, plan, budget.left_bytes)
        self.budget = budget
        self.auto_switch = auto_switch
        self._master = master
        # Without chosen columns the key stands in, so that rows can be counted and moved.
        self._columns = list(plan.master_columns) or [master.key]
        payload_schema = pa.schema([master.schema.field(name) for name in self._columns])
        # Held by arrivals
        self._arrivals = Arrivals(self.sizes.arrivals_bytes, plan.stream_row_bytes)
        self._rows_in = 0
        # Held by pending
        self._pending = Pending(self.sizes.pending_bytes, plan.stream_schema, master.pages)
        self._disk_phase_until = 0
        # Held by the disk buffer
        self._emission: Emission | None = None
        self._long_key: _LongKey | None = None
        self._read_row = float(master.row_bytes)
        self._used_since_return = 0
        # Held by hot rows and frequency
        self._hot = HotSet(
            payload_schema,
            master.identity,
            budget,
            generation_bytes=self.sizes.hot_generation_bytes,
            candidate_bytes=self.sizes.candidate_bytes,
            frequency_bytes=self.sizes.frequency_bytes,
            row_bytes=master.row_bytes,
            threshold_matches=self.sizes.threshold_matches,
            least_rows_between_switches=self.sizes.least_rows_between_switches,
        )
        self._next_hot_rows: HotRows | None = None
        for name in ("pending", "arrivals", "disk_buffer", "frequency", "index", "output"):
            budget.reserve(name, getattr(self.sizes, f"{name}_bytes"))

    @staticmethod
    def sizes_for(master: MasterData, plan: OutputPlan, total_bytes: int) -> CacheSizes:
        """The split of `total_bytes` for this master data and stream."""
        return CacheSizes.from_budget(
            total_bytes,
            plan.stream_row_bytes,
            master.row_bytes,
            master.index_bytes + master.pages,
            longest_page_bytes=master.longest_page_bytes,
        )

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
        return self._arrivals.rows + self._pending.waiting_rows + leaving + held_back

    def step(self) -> StepReport:
        tally = StepTally(rows_in=self._rows_in)
        self._rows_in = 0
        if self._emission is None:
            self._switch_if_due(tally)
            self._work(tally)
        if self._emission is not None:
            self._cut_output(self._emission, tally)
        held_bytes = self._held_bytes(tally)
        self._return_freed_memory(tally.counts["bytes_read"] + held_bytes["output"])
        return tally.report(held_bytes)

    def next_generation(self) -> HotRows | None:
        """Better hot rows than those in use, or None; for a host that shares them through a file."""
        return self._hot.next_generation()

    def use_hot_rows(self, generation: HotRows) -> None:
        """Switch to this generation, now or as soon as the output that refers to the old one has left."""
        self._next_hot_rows = generation
        if self._emission is None:
            self._switch_if_due(StepTally())

    @property
    def hot_rows(self) -> HotRows:
        return self._hot.generation

    @property
    def switch_is_due(self) -> bool:
        """Whether enough rows have passed since `next_generation` was last asked."""
        return self._hot.switch_is_due

    def _work(self, tally: StepTally) -> None:
        if self._long_key is not None:
            self._read_long_key(self._long_key, tally)
        elif rows := self._rows_to_probe():
            self._probe_stream(self._arrivals.take(rows), tally)
        elif self._pending.waiting_rows:
            self._probe_disk(tally)

    def _rows_to_probe(self) -> int:
        """Arrived rows that may be probed now: were they all misses, they could wait."""
        if not self._arrivals.rows or self._pending.waiting_rows > self._disk_phase_until > 0:
            return 0
        row_bytes = self._arrivals.next_row_bytes()
        rows = min(self._pending.room(row_bytes), self._arrivals.rows)
        self._disk_phase_until = 0 if rows else max(1, self._pending.waiting_rows // 2)
        return rows

    def _probe_stream(self, batch: pa.RecordBatch, tally: StepTally) -> None:
        with tally.timed("probe"):
            keys, present = stream_keys(batch, self.plan.stream_key)
            entry = self._hot.probe(keys)
            hit = present & (entry >= 0)
            misses = np.flatnonzero(present & ~hit)
            first_page, page_count = self._master.locate(keys[misses])
            has_page = page_count > 0
            waits = misses[has_page]
            settled = np.delete(np.arange(batch.num_rows), waits)
            row_start = self._hot.generation.row_start
            start = row_start[np.where(hit, entry, 0)]
            matches = np.where(hit, row_start[np.where(hit, entry + 1, 0)] - start, 0)
        if len(waits):
            with tally.timed("wait"):
                last_page = first_page + page_count - 1
                self._let_wait(batch.take(waits), keys[waits], first_page[has_page], last_page[has_page])
        payload = self._hot.generation.payload
        self._emit(batch, settled, payload, start[settled], matches[settled], "hot_rows")

    def _let_wait(self, rows: pa.RecordBatch, keys: Int64s, first_page: Int64s, last_page: Int64s) -> None:
        self._pending.add(rows, keys, first_page.astype(np.int32), last_page.astype(np.int32))

    def _probe_disk(self, tally: StepTally) -> None:
        with tally.timed("wait"):
            self._pending.gather()
            first, last = self._pending.oldest_pages()
            if last - first >= self.sizes.pages_per_step:
                self._begin_long_key(first, last)
                return
            pages = self._pending.choose_pages(self.sizes.pages_per_step)
        master_rows = self._read(pages, tally)
        with tally.timed("match"):
            positions = self._pending.finish_within(pages)
            keys = self._pending.keys[positions]
            start, matches = self._ranges_of(keys, master_rows)
            payload = master_rows.select(self._columns)
            matched = matches > 0
            rows_to_keep = (
                matches[matched] if self.plan.master_columns else np.ones(int(matched.sum()), np.int64)
            )
            self._hot.meet(keys[matched], payload, start[matched], rows_to_keep)
        self._emit(self._pending.rows, positions, payload, start, matches, "disk")

    def _begin_long_key(self, first_page: int, last_page: int) -> None:
        """Take the rows of a key with more pages than one step reads out of the waiting ones.

        Such a key surely exists, so rows that need no master columns finish without a read.
        """
        positions = self._pending.finish_oldest_key()
        if self.plan.master_columns:
            rows = self._pending.rows.take(positions)
            key = int(self._pending.keys[positions[0]])
            self._long_key = _LongKey(rows, key, first_page, last_page)
            return
        none, one = np.zeros(len(positions), np.int64), np.ones(len(positions), np.int64)
        self._emit(self._pending.rows, positions, self._hot.generation.payload, none, one, "disk")

    def _read_long_key(self, long_key: "_LongKey", tally: StepTally) -> None:
        until = min(long_key.next_page + self.sizes.pages_per_step, long_key.last_page + 1)
        master_rows = self._read(np.arange(long_key.next_page, until), tally)
        rows = long_key.rows
        start, matches = self._ranges_of(np.full(rows.num_rows, long_key.key), master_rows)
        long_key.next_page = until
        is_last = until > long_key.last_page
        everyone = np.arange(rows.num_rows)
        self._emit(rows, everyone, master_rows.select(self._columns), start, matches, "disk", settles=is_last)
        if is_last:
            self._long_key = None

    def _ranges_of(self, keys: Int64s, master_rows: pa.RecordBatch) -> tuple[Int64s, Int64s]:
        """Where the rows of each key start in rows sorted by key, and how many there are."""
        stored = master_rows.column(self._master.key).to_numpy()
        start = np.searchsorted(stored, keys, side="left")
        return start, np.searchsorted(stored, keys, side="right") - start

    def _read(self, pages: Int64s, tally: StepTally) -> pa.RecordBatch:
        with tally.timed("read"):
            pages_before, bytes_before = self._master.pages_read, self._master.bytes_read
            rows = one_batch(self._master.read_pages(pages), self._master.schema)
            tally.counts["pages_read"] += self._master.pages_read - pages_before
            read_bytes = self._master.bytes_read - bytes_before
            tally.counts["bytes_read"] += read_bytes
            self._read_row = read_bytes / max(1, rows.num_rows)
            return rows

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
        self._emission = Emission(
            self.plan,
            stream,
            positions,
            payload,
            start,
            matches,
            found_in=found_in,
            output_row_bytes=self._output_row_bytes(stream, found_in),
            settles=settles,
        )

    def _output_row_bytes(self, stream: pa.RecordBatch, found_in: FoundIn) -> int:
        """Average output row, from sizes that are known: asking Arrow costs 30 µs a batch."""
        hot = self._hot.generation
        stream_bytes = self._pending.rows_bytes if stream is self._pending.rows else stream.nbytes
        master_row = (
            hot.payload_bytes / max(1, hot.payload.num_rows) if found_in == "hot_rows" else self._read_row
        )
        return int(stream_bytes / max(1, stream.num_rows) + master_row) + OUTPUT_WORK_BYTES_PER_ROW

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

    def _switch_if_due(self, tally: StepTally) -> None:
        with tally.timed("switch"):
            chosen, self._next_hot_rows = self._next_hot_rows, None
            if chosen is None and self.auto_switch and self._hot.switch_is_due:
                chosen = self._hot.next_generation()
            if chosen is not None:
                self._hot.use(chosen)

    def _return_freed_memory(self, used_bytes: int) -> None:
        """Let Arrow's allocator give back what it keeps: it kept 30 MB of a 32 MB budget for nothing."""
        self._used_since_return += used_bytes
        if self._used_since_return > self.sizes.total_bytes // 2:
            self._used_since_return = 0
            pa.default_memory_pool().release_unused()

    def _held_bytes(self, tally: StepTally) -> dict[str, int]:
        on_disk_buffer = self._emission is not None and self._emission.found_in == "disk"
        return {
            "hot_rows": self._hot.bytes_held,
            "pending": self._pending.bytes_held,
            "arrivals": self._arrivals.bytes_held,
            "disk_buffer": self._emission.master.nbytes if self._emission and on_disk_buffer else 0,
            "frequency": self._hot.frequency_bytes_held,
            "index": self._master.index_bytes + self._master.pages,
            "output": sum(batch.nbytes for batch in tally.outputs),
        }

    def snapshot(self) -> bytes:
        """What arrived, waits or is on its way out. Hot rows are left out: they only make it faster."""
        schema = self.plan.stream_schema
        facts: dict[str, Any] = {"join": self.name, "setting": self._setting(), "rows_in": self._rows_in}
        parts = {
            "arrivals": one_batch(self._arrivals.batches(), schema),
            "pending": self._pending.still_waiting(),
        }
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
        schema = self.plan.stream_schema
        self._arrivals = Arrivals(self.sizes.arrivals_bytes, self.plan.stream_row_bytes)
        self._pending = Pending(self.sizes.pending_bytes, schema, self._master.pages)
        self._rows_in, self._disk_phase_until = facts["rows_in"], 0
        self._emission = self._long_key = None
        if parts["arrivals"].num_rows:
            self._arrivals.add(parts["arrivals"])
        if parts["pending"].num_rows:
            keys, _ = stream_keys(parts["pending"], self.plan.stream_key)
            first_page, page_count = self._master.locate(keys)
            self._let_wait(parts["pending"], keys, first_page, first_page + page_count - 1)
        if "long_key" in facts:
            self._long_key = _LongKey(parts["long_key"], *facts["long_key"])
        if "leaving" in facts:
            self._emission = Emission.from_parts(self.plan, facts["leaving"], parts)

    def _setting(self) -> str:
        return f"{self._master.identity} {self.plan.how} {self.plan.stream_key} {self.plan.output_schema}"


@dataclass
class _LongKey:
    """Stream rows of one key whose master rows are read over several steps."""

    rows: pa.RecordBatch
    key: int
    next_page: int
    last_page: int


__all__ = ["CacheJoin", "CacheSizes"]
