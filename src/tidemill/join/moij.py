"""MOIJ: hot rows and waiting rows share one memory, and a key stays where it takes less of it."""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from tidemill.core.errors import StoreError
from tidemill.core.freed import Freed
from tidemill.core.memory import MemoryBudget
from tidemill.core.recycled import Recycled
from tidemill.join.moij_sizes import STAGED_SHARE, MoijSizes
from tidemill.join.output import OutputPlan
from tidemill.join.parts.arrivals import Arrivals
from tidemill.join.parts.arriving_join import ArrivingJoin
from tidemill.join.parts.aside import Aside
from tidemill.join.parts.departures import Departures
from tidemill.join.parts.front import Front
from tidemill.join.parts.hits import Hits
from tidemill.join.parts.keys import stream_keys
from tidemill.join.parts.leaving import count_fates
from tidemill.join.parts.page_search import find_pages
from tidemill.join.parts.putter import Putter
from tidemill.join.parts.rounds import Rounds
from tidemill.join.parts.row_taker import RowTaker, fixed_width
from tidemill.join.parts.segment_read import SegmentReads
from tidemill.join.parts.shared_rows import LEAST_HOT_BYTES, SEGMENT_BYTES, SharedRows, StreamCells
from tidemill.join.parts.side_by_side import SideBySide
from tidemill.join.parts.snapshots import pack, unpack
from tidemill.join.parts.tally import StepTally
from tidemill.join.protocol import StepReport
from tidemill.master import MasterData
from tidemill.master.batches import one_batch

_RESERVED = ("arrivals", "disk_buffer", "hot_rows", "index", "output", "pending")


class MoijJoin(ArrivingJoin):
    """Stream rows with their master rows; memory goes to the side that needs less of it for a key.

    An arriving row first probes the hot rows; a hit leaves at once and a miss waits. The oldest
    waiting row chooses a segment of the master data by the index, which finishes every row that waits
    for one of its keys. A key for which more bytes waited than its master rows take turns hot, and the
    memory for waiting rows shrinks by as much. Now and then hot keys are judged again: those for
    which fewer bytes would wait make room for waiting rows.

    ```
    arrivals ──▶ hot rows ──hit──▶ output
                    ├─miss─▶ pending ◀──oldest chooses── one segment ──▶ output
                    ◀── n waiting rows > m master rows ──┘      (in bytes; and back every ten rounds)
    ```
    Good when few keys carry much of the stream and memory is scarce. Poor on uniform streams, where
    each segment serves few rows.

    Memory: the index; eight of the paper's segments (0.1 MB each) that are matched and sixteen on their
    way, 6 % at most; a stream buffer sixteen times the paper's, 8 % at most; output up to 8 MiB; the rest is one piece
    that hot rows and waiting rows share, with a border that moves (`parts/shared_rows.py`).

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
    - Segments are cut at fixed pages. A waiting row counts with the segment in which its key begins, so
      the queue holds each segment once, in the order of its oldest row. Where the last rows of a key lie
      behind a segment, more is read; a key longer than a read is finished over several steps and never
      turns hot.
    - Bytes are those really held: a waiting row is a cell with its place in a list, a hot key has a slot
      in the hash table.
    - The border moves by an eighth of the hot rows at a time, and only into cells that are free: a key
      that finds no room then turns hot when it is met again.
    - Execution: up to eight segments are asked for at a time, and the next ones while they are matched; each
      is still a round of its own, in order. Rounds are assembled into output together, up to 64 a step.
    - Arrivals are probed in up to four pieces. Another core, if there is one, puts the hits of a piece
      together while the next is probed or segments are matched, and what segments gave while arrivals are
      probed: rows leave up to a step later, the order of work stays. Before hot rows move (judged again, or
      for a larger table) all hits have left, and before segments are matched again what those before gave.
    - New rows are taken when one cell in 32 is free, not after every segment; and rows do not wait for
      ever while all that arrive are hot.
    Extensions: left, semi and anti.
    """

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
        self._segments = -(-master.pages // self.sizes.segment_pages)
        self._stream = StreamCells(plan)
        self._taker = RowTaker(plan.stream_schema)
        self._freed = Freed(self.sizes.total_bytes // 4)
        # Held by output
        self._beside = SideBySide(plan, self._layout, self._stream.layout)
        staged_bytes = int(self.sizes.output_bytes * STAGED_SHARE)
        self._rounds = Rounds(plan, self._stream, self._layout, staged_bytes, self._beside)
        self._memory = Recycled(max(0, self.sizes.output_bytes - self._rounds.bytes_held))
        self._aside = Aside()
        self._putter = Putter()
        self._departures = Departures()
        self._given_bytes = self._hits_given_bytes = 0
        self.rounds_done = 0
        self._clear()

    @staticmethod
    def sizes_for(master: MasterData, plan: OutputPlan, total_bytes: int) -> MoijSizes:
        """The split of `total_bytes` for this master data and stream."""
        return MoijSizes.from_budget(master, plan, total_bytes)

    def _clear(self) -> None:
        """Nothing has arrived, nothing waits, nothing is hot, nothing is on its way out."""
        for departure in self._departures.all():
            departure.put_out.result()
        # Held by arrivals
        equal_rows = all(fixed_width(field.type) for field in self.plan.stream_schema)
        self._arrivals = Arrivals(
            self.sizes.arrivals_bytes, self.plan.stream_row_bytes, equal_rows=equal_rows
        )
        self._front: Front | None = None
        self._rows_in = 0
        self._hits: Hits | None = None
        self._has_put_out = False  # lest one that is restored again and again begins for ever
        # Held by hot rows and pending
        self._rows = SharedRows(
            self.sizes.shared_bytes,
            self.sizes.hot_rows_bytes,
            self.sizes.least_pending_bytes,
            self._stream,
            self._layout,
            self._segments,
            self.sizes.segment_pages,
            keeps_rows=bool(self.plan.master_columns),
            reserve=self._share,
        )
        self._miss_share = 1.0
        self._probed_since = 0
        self._rounds_since_look = 0
        # Held by the disk buffer
        read_pages = min(self.sizes.read_pages, self.sizes.pages_per_step)
        self._reads = SegmentReads(self._master, read_pages, self.sizes.reads_ahead)
        self._goes_on: list[int] | None = None
        self._rounds.forget()

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
        departing = self._departures.hits_rows + self._departures.served_rows
        leaving = departing + (self._hits.rows_left if self._hits else 0)
        return self._arrivals.rows + leaving + self._rows.waiting_rows

    @property
    def hot_changes(self) -> int:
        return self._rows.hot_changes

    def step(self) -> StepReport:
        tally = StepTally(rows_in=self._rows_in)
        self._rows_in = self._given_bytes = self._hits_given_bytes = 0
        self._see_off(self._departures.done(), tally)
        if self._hits is not None:
            self._let_leave(self._hits, tally)
        elif not self._is_serving and self._takes_rows:
            self._probe_stream(tally)
        elif self._rows.waiting_rows:
            self._probe_disk(tally)
        else:
            self._see_off(self._departures.all(), tally)
        if not self._has_put_out:
            self._see_off(self._departures.all(), tally)
        held_bytes = self._held_bytes()
        self._freed.took(tally.counts["bytes_read"] + held_bytes["output"])
        return tally.report(held_bytes)

    @property
    def _columns_bytes(self) -> int:
        return self.sizes.output_bytes - self._rounds.bytes_held

    @property
    def _hits_bytes(self) -> int:
        return self._columns_bytes - self._rounds.most_output_bytes

    # The disk-probing phase.

    @property
    def _is_serving(self) -> bool:
        """Whether a segment is being served: no other row may come between."""
        if self._rounds.are_under_way or self._goes_on is not None:
            return True
        return self._reads.first is not None and not self._reads.first.begins_segment

    def _probe_disk(self, tally: StepTally) -> None:
        """Rounds until the step has read its pages, or output is full."""
        self._see_off(self._departures.until_none_served(), tally)
        taken_bytes = self._given_bytes + self._departures.output_bytes  # hits that are on their way among it
        if taken_bytes + self._rounds.most_output_bytes > self._columns_bytes:
            return
        self._probed_since = 0
        pages_before, bytes_before = self._master.pages_read, self._master.bytes_read
        pages_left = self.sizes.pages_per_step
        rounds, before_move = self._rounds, partial(self._see_off_all, tally)
        rounds.begin_output()
        while rounds.are_under_way or self._has_read(pages_left):
            if not rounds.are_under_way:
                pages_left -= self._take_read(tally)
            with tally.timed("match"):
                may_grow = not self._departures and not self._given_bytes
                rounds.serve(self._rows, before_move, may_grow=may_grow)
            if rounds.are_under_way:
                break  # output is full
            if rounds.pages_behind and self._rows.waits_for(rounds.read.segments):
                self._reads.go_on(self._rows, rounds.read.segments, rounds.read.end_page)
                break
            self._judge_hot_rows(len(rounds.read.segments), before_move)
            if self._takes_rows and rounds.is_half_full:
                break  # or the room would drain while output ends one step after the other amid a segment
        self._see_off(self._departures.done() if rounds.has_output else self._departures.all(), tally)
        if not self._hand_over_rounds(tally):
            with tally.timed("assemble"):
                output, matched, unmatched = rounds.output(self._rows, self._memory)
            self._settle(output, matched, unmatched, "disk_matches", tally)
        tally.counts["pages_read"] = self._master.pages_read - pages_before
        tally.counts["bytes_read"] = self._master.bytes_read - bytes_before

    def _hand_over_rounds(self, tally: StepTally) -> bool:
        """Whether another core puts together what rounds gave, while arrivals are probed.

        Were the join restored from a snapshot meanwhile, these rows would wait again: what hot rows take now is enough.
        """
        rows, spare_bytes = self._rounds.pairs, self._rows.border - LEAST_HOT_BYTES
        if not self._aside.is_worth(rows) or self._is_serving or rows * self._stream.cell_bytes > spare_bytes:
            return False
        departure = self._rounds.ask(self._putter, self._memory)
        if departure is None:
            return False
        self._departures.add(departure)
        if departure.rows == departure.matched:  # those without a match do not leave with it
            count_fates(self.plan, 0, self._rounds.unmatched, "disk_matches", tally)
        return True

    def _has_read(self, pages_left: int) -> bool:
        """Whether the next read belongs to this step; a segment that takes several reads begins a step."""
        self._reads.begin(self._rows, is_matching=False)
        read = self._reads.first
        if read is None or read.pages > pages_left:
            return False
        is_part = not read.begins_segment or self._reads.pages_behind(self._rows, read) > 0
        return not (is_part and self._rounds.has_output)

    def _take_read(self, tally: StepTally) -> int:
        """Pages of the read that is matched from now on, while those behind it are under way."""
        read = self._reads.take()
        with tally.timed("read"):
            self._rounds.take(read, read.arrive(), self._reads.pages_behind(self._rows, read))
        if self._goes_on is not None:
            self._rounds.go_on(self._goes_on)
            self._goes_on = None
        self._reads.begin(self._rows, is_matching=True)
        return read.pages

    def _see_off_all(self, tally: StepTally) -> None:
        self._see_off(self._departures.all(), tally)

    def _judge_hot_rows(self, rounds: int, before_move: Callable[[], None]) -> None:
        """Every ten rounds, look whether a queue length has passed, and who should still be hot."""
        self.rounds_done += rounds
        self._rounds_since_look += rounds
        if self._rounds_since_look >= self.sizes.eviction_rounds:
            self._rounds_since_look = 0
            if self._rows.look_is_due():
                self._rows.judge(before_move)

    def _share(self, hot_bytes: int) -> None:
        """Reserve so much for hot rows, and for waiting rows all that they leave."""
        self.budget.release("hot_rows")
        self.budget.reserve("pending", self.sizes.shared_bytes - hot_bytes)
        self.budget.reserve("hot_rows", hot_bytes)

    # What waits, for a snapshot.

    def snapshot(self) -> bytes:
        """What arrived, waits or is on its way out. Hot rows are left out: they only make the join faster."""
        self._departures.finish()
        segments = np.concatenate([self._rounds.segments_left, *self._reads.segments])
        waiting, marks = self._rows.waiting(segments)
        leaving = [self._hits.stream_rows()] if self._hits else []
        served = self._departures.served_rows
        departing = [self._rounds.stream_rows(served)] if served else []
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
            "leaving": one_batch([*leaving, *self._departures.hits()], self.plan.stream_schema),
            "waiting": one_batch([waiting, *departing], self.plan.stream_schema),
        }
        return pack(facts, parts)

    def _progress(self) -> list[int] | None:
        """Of the segment that is being served: where its pages begin, how far it has come."""
        if self._rounds.are_under_way:
            return self._rounds.progress()
        if self._reads.first is None or not self._is_serving:
            return None
        return [self._reads.first.first_page(0), *(self._goes_on or (0, 0, 0))]

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
            segment = self._rows.choose(1, 1)
            first_page, *self._goes_on = progress or [int(segment[0]) * self.sizes.segment_pages, 0, 0, given]
            self._reads.go_on(self._rows, segment, first_page)
            marks = np.zeros(waiting.num_rows, dtype=np.int64)
            marks[facts["marked"]] = 1
            self._rows.mark_first(int(segment[0]), marks)

    def _let_wait(self, rows: pa.RecordBatch) -> int:
        """How many of the rows wait again, from the front."""
        if not rows.num_rows:
            return 0
        codes, _ = stream_keys(rows, self.plan.stream_key)
        first_page, pages = find_pages(self._master, codes)
        encoded, at = self._stream.layout.encode(rows)
        done = self._rows.push(codes, first_page, pages, encoded, at)
        if done < rows.num_rows:
            self._rows.leave_all_to_waiting_rows()
            done += self._rows.push(codes[done:], first_page[done:], pages[done:], encoded, at[done:])
        return done

    def _setting(self) -> str:
        return f"{self._master.identity} {self.plan.how} {self.plan.stream_key} {self.plan.output_schema}"

    def _held_bytes(self) -> dict[str, int]:
        return {
            "arrivals": self._arrivals.bytes_held,
            "disk_buffer": self._reads.buffer_bytes + self._rounds.read_bytes_held,
            "hot_rows": self._rows.hot_bytes_held,
            "index": self._master.index_bytes + self._segments * SEGMENT_BYTES,
            "output": self._rounds.bytes_held + self._given_bytes + self._departures.output_bytes,
            "pending": self._rows.waiting_bytes_held,
        }


__all__ = ["MoijJoin", "MoijSizes"]
