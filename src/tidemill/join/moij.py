"""MOIJ: hot rows and waiting rows share one memory, and a key stays where it takes less of it."""

from collections import deque
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from tidemill.core.errors import StoreError
from tidemill.core.memory import MemoryBudget
from tidemill.join.moij_sizes import MoijSizes
from tidemill.join.output import OutputPlan
from tidemill.join.parts.arrivals import Arrivals
from tidemill.join.parts.hits import Hits
from tidemill.join.parts.keys import stream_keys
from tidemill.join.parts.kernels import Bools, Int64s
from tidemill.join.parts.rounds import Rounds
from tidemill.join.parts.segment_read import SegmentRead
from tidemill.join.parts.shared_rows import SEGMENT_BYTES, SharedRows, StreamCells
from tidemill.join.parts.snapshots import pack, unpack
from tidemill.join.parts.tally import StepTally
from tidemill.join.protocol import SemiStreamJoin, StepReport
from tidemill.master import MasterData
from tidemill.master.batches import one_batch

_RESERVED = ("arrivals", "disk_buffer", "hot_rows", "index", "output", "pending")
_REFILL_SHARE = 32  # of the cells must be free before rows are taken: a piece of few rows costs as much as one of many
_STAGED_SHARE = 0.4  # of the output reservation; pairs take half as much, and columns the rest


class MoijJoin(SemiStreamJoin):
    """(docstring later)"""

    name: ClassVar[str] = "moij"

    def __init__(
        self, master: MasterData, plan: OutputPlan, budget: MemoryBudget, *, sizes: MoijSizes | None = None
    ) -> None:
        self.plan = plan
        self.sizes = sizes or self.sizes_for(master, plan, budget.left_bytes)
        self.budget = budget
        self._master = master
        self._layout = master.layout
        for name in _RESERVED:
            budget.reserve(name, getattr(self.sizes, f"{name}_bytes"))
        self._segment_pages = self.sizes.segment_pages
        self._read_pages = min(self.sizes.read_pages, self.sizes.pages_per_step)
        # A table of a database is asked for one run of pages at a time.
        together = self._read_pages // self._segment_pages if hasattr(master, "begin_pages") else 1
        self._read_segments = max(1, together)
        self._segments = -(-master.pages // self._segment_pages)
        self._stream = StreamCells(plan)
        self._used_since_return = 0
        # Held by output
        self._rounds = Rounds(plan, self._stream, self._layout, int(self.sizes.output_bytes * _STAGED_SHARE))
        self.rounds_done = 0
        self._clear()

    @staticmethod
    def sizes_for(master: MasterData, plan: OutputPlan, total_bytes: int) -> MoijSizes:
        """The split of `total_bytes` for this master data and stream."""
        return MoijSizes.from_budget(master, plan, total_bytes)

    def _clear(self) -> None:
        """Nothing has arrived, nothing waits, nothing is hot."""
        # Held by arrivals
        self._arrivals = Arrivals(self.sizes.arrivals_bytes, self.plan.stream_row_bytes)
        self._rows_in = 0
        self._hits: Hits | None = None
        # Held by hot rows and pending
        self._rows = SharedRows(
            self.sizes.shared_bytes,
            self.sizes.hot_rows_bytes,
            self.sizes.least_pending_bytes,
            self._stream,
            self._layout,
            self._segments,
            self._segment_pages,
            keeps_rows=bool(self.plan.master_columns),
        )
        self._miss_share = 1.0
        self._probed_since = 0
        self._rounds_since_look = 0
        # Held by the disk buffer
        self._reads: deque[SegmentRead] = deque()
        self._goes_on: list[int] | None = None
        self._rounds.forget()
        self._share()

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
        leaving = self._hits.rows_left if self._hits else 0
        return self._arrivals.rows + leaving + self._rows.waiting_rows

    def step(self) -> StepReport:
        tally = StepTally(rows_in=self._rows_in)
        self._rows_in = 0
        if self._hits is None and not self._is_serving and self._takes_rows:
            self._probe_stream(tally)
        elif self._hits is None and self._rows.waiting_rows:
            self._probe_disk(tally)
        if self._hits is not None:
            self._put_out_hits(self._hits, tally)
        held_bytes = self._held_bytes(tally)
        self._return_freed_memory(held_bytes["output"])
        return tally.report(held_bytes)

    # The stream-probing phase.

    @property
    def _takes_rows(self) -> bool:
        """Whether arrivals are probed now: rows that miss can wait, and those that wait have not waited too long."""
        if not self._arrivals.rows or (self._rows.waiting_rows and self._probed_since > self._rows.cells):
            return False
        return self._rows.free_cells > self._rows.cells // _REFILL_SHARE or not self._rows.waiting_rows

    def _probe_stream(self, tally: StepTally) -> None:
        """Let arrivals meet hot rows; those that miss wait, as far as there is room."""
        with tally.timed("probe"):
            batch = self._arrivals.peek(max(1, int(self._rows.free_cells / self._miss_share)))
            codes, present = stream_keys(batch, self.plan.stream_key)
            at, matches = self._rows.probe(codes, present)
            misses = np.flatnonzero(matches < 0)
            first_page, pages = self._master.locate(codes[misses])
            is_absent = pages == 0
            if is_absent.any():  # the index knows that these do not exist
                matches[misses[is_absent]] = 0
                misses, first_page, pages = misses[~is_absent], first_page[~is_absent], pages[~is_absent]
        with tally.timed("wait"):
            rows = self._stream.layout.encode(batch.take(misses))
            pushed = self._rows.push(codes[misses], first_page, pages, *rows)
            until = int(misses[pushed]) if pushed < len(misses) else batch.num_rows
            if until == 0:
                self._probed_since = self._rows.cells + 1  # nothing more until some have left
                return
            self._miss_share = min(1.0, max(0.02, 0.9 * self._miss_share + 0.11 * pushed / until))
        self._probed_since += until
        batch = self._arrivals.take(until)
        known = np.flatnonzero(matches[:until] >= 0)
        at, matches = at[known], matches[known]
        if self.plan.stream_key.form.is_hashed:
            hit = np.flatnonzero(matches)
            met = self._are_met(batch.take(known[hit]), at[hit])
            matches[hit[~met]] = 0
        row_bytes = -(-batch.nbytes // batch.num_rows)
        self._hits = Hits(self.plan, self._layout, batch, known, at, matches, row_bytes)

    def _are_met(self, stream_rows: pa.RecordBatch, at: Int64s) -> Bools:
        """Where equal codes are equal keys."""
        key = self.plan.stream_key
        return key.is_met(stream_rows, self._layout.decode(self._rows.memory, at, key.form.columns))

    def _put_out_hits(self, hits: Hits, tally: StepTally) -> None:
        with tally.timed("assemble"):
            limit = self.sizes.output_bytes - self._rounds.bytes_held
            output, matched, unmatched = hits.next_output(self._rows.memory, limit)
        self._count_fates(matched, unmatched, "hot_hits", output, tally)
        if not hits.rows_left:
            self._hits = None
            self._arrivals.let_go()

    def _count_fates(
        self, matched: int, unmatched: int, found_in: str, output: pa.RecordBatch | None, tally: StepTally
    ) -> None:
        leaves = {"inner": matched, "left": matched + unmatched, "semi": matched, "anti": unmatched}[self.plan.how]
        tally.counts["emitted_rows"] += leaves
        tally.counts["dropped_rows"] += matched + unmatched - leaves
        tally.counts[found_in] += matched
        tally.counts["unmatched"] += unmatched
        if output is not None:
            tally.outputs.append(output)

    # The disk-probing phase.

    @property
    def _is_serving(self) -> bool:
        """Whether a segment is being served: no other row may come between."""
        if self._rounds.are_under_way or self._goes_on is not None:
            return True
        return bool(self._reads) and not self._reads[0].begins_segments

    def _probe_disk(self, tally: StepTally) -> None:
        """Rounds until the step has read its pages, or output is full."""
        self._probed_since = 0
        pages_before, bytes_before = self._master.pages_read, self._master.bytes_read
        pages_left = self.sizes.pages_per_step
        rounds = self._rounds
        rounds.begin_output()
        while rounds.are_under_way or self._next_read(pages_left):
            if not rounds.are_under_way:
                read = self._reads.popleft()
                with tally.timed("read"):
                    rounds.take(read, read.arrive(), self._pages_behind(read))
                pages_left -= read.pages
                if self._goes_on is not None:
                    rounds.go_on(self._goes_on)
                    self._goes_on = None
                self._read_ahead()
            with tally.timed("match"):
                rounds.serve(self._rows)
            if rounds.are_under_way:
                break  # output is full
            if rounds.pages_behind and self._rows.waits_for(rounds.read.segments):
                self._reads.appendleft(self._read_of(rounds.read.segments, rounds.read.end_page))
                break
            self._judge_hot_rows(len(rounds.read.segments))
        with tally.timed("assemble"):
            output, matched, unmatched = rounds.output(self._rows)
        self._count_fates(matched, unmatched, "disk_matches", output, tally)
        tally.counts["pages_read"] = self._master.pages_read - pages_before
        tally.counts["bytes_read"] = self._master.bytes_read - bytes_before

    def _next_read(self, pages_left: int) -> bool:
        """Whether the next read belongs to this step; a segment that takes several reads begins a step."""
        self._read_ahead()
        if not self._reads or self._reads[0].pages > pages_left:
            return False
        is_part = not self._reads[0].begins_segments or self._pages_behind(self._reads[0]) > 0
        return not (is_part and self._rounds.has_output)

    def _read_ahead(self) -> None:
        """Keep reads under way for the segments at the front of the queue."""
        while len(self._reads) + self._rounds.are_under_way <= self.sizes.reads_ahead:
            chosen = self._rows.choose(self._read_segments, self._read_pages)
            if not len(chosen):
                return
            first = chosen * self._segment_pages
            pages = np.maximum(self._segment_pages, self._rows.lists[3, chosen])
            pages = np.minimum(np.minimum(pages, self._read_pages), self._master.pages - first)
            self._reads.append(SegmentRead(self._master, chosen, first, pages))

    def _read_of(self, segment: Int64s, first_page: int) -> SegmentRead:
        """A read for one segment, from one of its pages on."""
        begin = int(segment[0]) * self._segment_pages
        end = min(begin + self._rows.pages_of(int(segment[0])), self._master.pages)
        pages = min(end - first_page, self._read_pages)
        where = (np.array([first_page]), np.array([pages]))
        return SegmentRead(self._master, segment, *where, begins_segments=first_page == begin)

    def _pages_behind(self, read: SegmentRead) -> int:
        """Pages behind those read that rows of the segment need: of a key that is longer than a read."""
        if len(read.segments) > 1:
            return 0
        segment = int(read.segments[0])
        until = segment * self._segment_pages + self._rows.pages_of(segment)
        return max(0, min(until, self._master.pages) - read.end_page)

    def _judge_hot_rows(self, rounds: int) -> None:
        """Every ten rounds, look whether a queue length has passed, and who should still be hot."""
        self.rounds_done += rounds
        self._rounds_since_look += rounds
        if self._rounds_since_look >= self.sizes.eviction_rounds:
            self._rounds_since_look = 0
            if self._rows.look_is_due():
                self._rows.judge()
        self._rows.make_room()
        self._share()

    def _share(self) -> None:
        """Reserve for hot rows what lies below the border, and for waiting rows the rest."""
        if self.budget.holdings()["hot_rows"] != self._rows.border:
            self.budget.release("hot_rows")
            self.budget.reserve("pending", self.sizes.shared_bytes - self._rows.border)
            self.budget.reserve("hot_rows", self._rows.border)

    # What waits, for a snapshot.

    def snapshot(self) -> bytes:
        """What arrived, waits or is on its way out. Hot rows are left out: they only make the join faster."""
        segments = [self._rounds.segments_left, *(read.segments for read in self._reads)]
        waiting, marks = self._rows.waiting(np.concatenate(segments))
        facts: dict[str, Any] = {
            "join": self.name,
            "setting": self._setting(),
            "rows_in": self._rows_in,
            "given_of_first": self._hits.next_match if self._hits else 0,
            "marked": np.flatnonzero(marks).tolist(),
            "progress": self._progress(),
        }
        parts = {
            "arrivals": one_batch(self._arrivals.batches(), self.plan.stream_schema),
            "leaving": self._hits.stream_rows() if self._hits else one_batch([], self.plan.stream_schema),
            "waiting": waiting,
        }
        return pack(facts, parts)

    def _progress(self) -> list[int] | None:
        """Of the segment that is being served: where its pages begin, how far it has come."""
        if self._rounds.are_under_way:
            return self._rounds.progress()
        if self._goes_on is not None:
            return [self._reads[0].first_page(0), *self._goes_on]
        return [self._reads[0].first_page(0), 0, 0, 0] if self._is_serving else None

    def restore(self, snapshot: bytes) -> None:
        facts, parts = unpack(snapshot)
        if facts["join"] != self.name or facts["setting"] != self._setting():
            raise StoreError(
                f"the snapshot is of a {facts['join']} join on {facts['setting']}, this one is on {self._setting()}",
                code="snapshot_of_other_join",
                next_move="restore into a join with the same master version, columns and kind",
            )
        self._clear()
        given, leaving, waiting = facts["given_of_first"], parts["leaving"], parts["waiting"]
        progress = facts["progress"]
        if given:  # what met hot rows goes on from disk, before all others
            self._let_wait(leaving.slice(0, 1))
            leaving = leaving.slice(1)
        too_many = waiting.slice(self._let_wait(waiting))
        for rows in (too_many, leaving, parts["arrivals"]):
            if rows.num_rows:
                self._arrivals.add(rows)
        self._rows_in = facts["rows_in"]
        if given or progress:
            segment = self._rows.choose(1, self._read_pages)
            first_page, *self._goes_on = progress or [int(segment[0]) * self._segment_pages, 0, 0, given]
            self._reads.append(self._read_of(segment, first_page))
            marks = np.zeros(waiting.num_rows, dtype=np.int64)
            marks[facts["marked"]] = 1
            self._rows.mark_first(int(segment[0]), marks)

    def _let_wait(self, rows: pa.RecordBatch) -> int:
        """How many of the rows wait again, from the front."""
        if not rows.num_rows:
            return 0
        codes, _ = stream_keys(rows, self.plan.stream_key)
        first_page, pages = self._master.locate(codes)
        encoded, at = self._stream.layout.encode(rows)
        done = self._rows.push(codes, first_page, pages, encoded, at)
        if done < rows.num_rows:
            self._rows.leave_all_to_waiting_rows()
            self._share()
            done += self._rows.push(codes[done:], first_page[done:], pages[done:], encoded, at[done:])
        return done

    def _setting(self) -> str:
        return f"{self._master.identity} {self.plan.how} {self.plan.stream_key} {self.plan.output_schema}"

    def _return_freed_memory(self, used_bytes: int) -> None:
        """Let Arrow's allocator give back what it keeps."""
        self._used_since_return += used_bytes
        if self._used_since_return > self.sizes.total_bytes:
            self._used_since_return = 0
            pa.default_memory_pool().release_unused()

    def _held_bytes(self, tally: StepTally) -> dict[str, int]:
        reads = sum(read.buffer_bytes for read in self._reads)
        return {
            "arrivals": self._arrivals.bytes_held,
            "disk_buffer": reads + self._rounds.read_bytes_held,
            "hot_rows": self._rows.hot_bytes_held,
            "index": self._master.index_bytes + self._segments * SEGMENT_BYTES,
            "output": self._rounds.bytes_held + sum(output.nbytes for output in tally.outputs),
            "pending": self._rows.waiting_bytes_held,
        }


__all__ = ["MoijJoin", "MoijSizes"]
