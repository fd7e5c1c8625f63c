"""TIDE: hot rows, rows that wait by place on disk, and reads that go where most of them wait."""

from typing import Any, ClassVar

import pyarrow as pa

from tidemill.core.errors import StoreError
from tidemill.core.memory import MemoryBudget
from tidemill.join.output import OutputPlan
from tidemill.join.parts.arrivals import MET_WORK_BYTES, WORK_BYTES_PER_ROW, Arrivals
from tidemill.join.parts.aside import Aside
from tidemill.join.parts.frequency import FrequencySketch
from tidemill.join.parts.front import Front
from tidemill.join.parts.hot_cache import HotCache
from tidemill.join.parts.kernels import Int64s
from tidemill.join.parts.leaving import Leaving
from tidemill.join.parts.leaving_once import LeavingOnce
from tidemill.join.parts.probe_join import MOST_PATIENCE, ProbeJoin, may_meet
from tidemill.join.parts.row_cache import RowCache
from tidemill.join.parts.row_taker import RowTaker, fixed_width
from tidemill.join.parts.service import Service
from tidemill.join.parts.set_cache import SetCache
from tidemill.join.parts.snapshots import pack, unpack
from tidemill.join.parts.tally import StepTally
from tidemill.join.protocol import StepReport
from tidemill.join.tide_sizes import TideSizes
from tidemill.master.batches import one_batch
from tidemill.master.board import Board
from tidemill.master.protocol import Master


class TideJoin(ProbeJoin):
    """Ours, and the default: hot rows in memory, and reads that go where most rows wait.

    Stream rows first meet the master rows that are asked for most; most of them leave at once. The others wait,
    grouped by the stretch of the disk in which their master row lies. As soon as the room is full, stretches are
    read for which most rows wait, and in turn those whose rows wait longest; each read serves all rows that wait for
    it, and the next is under way meanwhile. Rows that are read for codes met often become hot; codes met often that
    do not exist are remembered too. How much of the memory is for hot rows and how much for waiting ones follows from
    what a byte saves on either side, counted as the stream goes.

    ```
    stream ──▶ hot? ──yes──────────────────────────────▶ output
                 │no                                       ▲
                 ▼                                         │ staged, then made into columns together
          waiting by region  ──most rows, oldest──▶ read ──┤
                                                           └─▶ met often: hot
    ```
    Since rows leave whenever their stretch is read, the room holds on average half of the rows that come during one
    turn over the disk: a window that keeps each row for a whole turn (MESHJOIN) needs twice the memory for the same
    reads. Good everywhere; with a uniform stream it becomes a sweep, with a skewed one a cache, with few waiting rows
    it reads single pages. Poor when output must be in stream order (`ordered=True` holds it back).

    Memory: small fixed parts for arrivals, disk buffer, sketch and output, the index of the store, and all else for
    hot and waiting rows. Rows stay rows (`master/rows.py`) until they leave. A change of that split waits until those
    that wait find room, and lets hot rows with the fewest hits go.

    Args:
        master: What the stream is joined with.
        plan: What leaves, and for which rows.
        budget: Where everything held is reserved.
        sizes: The split of the budget; `sizes_for` what is left of it if None.
        hot: Hot rows that are kept and paid for elsewhere; then the split stays as it is.
        board: Where processes of a host share what they read.
    """

    name: ClassVar[str] = "tide"

    def __init__(
        self,
        master: Master,
        plan: OutputPlan,
        budget: MemoryBudget,
        *,
        sizes: TideSizes | None = None,
        hot: HotCache | None = None,
        board: Board | None = None,
    ) -> None:
        super().__init__(
            master, plan, budget, sizes or self.sizes_for(master, plan, budget.left_bytes), board
        )
        self._begin_split(hot)
        self._aside = Aside(may_use_another_core=hot is None)  # whoever shares hot rows shares cores too
        # One is probed while another leaves, if there is memory for pieces that are worth it.
        arrivals = Arrivals(self.sizes.arrivals_bytes, plan.stream_row_bytes, in_pieces=True)
        self._in_pieces = self._aside.is_worth(arrivals.piece_rows)
        self._clear()
        # Less work space for longer pieces, if all of such a piece can leave at once.
        arrivals.work_bytes = MET_WORK_BYTES
        fits = (
            self._in_pieces
            and arrivals.piece_rows * (self._hot_row_bytes + self._pair_bytes) <= self._hits_bytes
        )
        self._met_work_bytes = MET_WORK_BYTES if fits else WORK_BYTES_PER_ROW
        # Held by the sketch: it only makes the join faster, as hot rows do.
        self._sketch = FrequencySketch(self.sizes.sketch_bytes, is_short=True)
        self._taker = RowTaker(plan.stream_schema)
        self._has_single_rows = may_meet(master, plan)
        self._miss_share = 1.0

    def _clear(self) -> None:
        """Nothing has arrived, nothing waits."""
        for departure in self._departures.all():
            departure.put_out.result()
        # Held by arrivals
        equal_rows = all(fixed_width(field.type) for field in self.plan.stream_schema)
        self._arrivals = Arrivals(
            self.sizes.arrivals_bytes,
            self.plan.stream_row_bytes,
            equal_rows=equal_rows,
            in_pieces=self._in_pieces,
        )
        self._rows_in = 0
        self._front: Front | None = None
        self._leaving: Leaving | LeavingOnce | None = None
        self._given_of_first = 0
        self._has_put_out = False  # lest one that is restored again and again begins for ever
        self._hits_given_bytes = 0
        self._probed_since = 0
        self._clear_waiting()

    @classmethod
    def sizes_for(cls, master: Master, plan: OutputPlan, total_bytes: int) -> TideSizes:
        """The split of `total_bytes` for this master data and stream."""
        return TideSizes.from_budget(master, plan, total_bytes)

    def room(self, row_bytes: int | None = None) -> int:
        return self._arrivals.room(row_bytes)

    def offer(self, batch: pa.RecordBatch) -> None:
        self.plan.refuse_other_schema(batch)
        if batch.num_rows:
            batch_bytes = batch.nbytes
            self._refuse_beyond_room(batch, self.room(-(-batch_bytes // batch.num_rows)))
            self._arrivals.add(batch, batch_bytes)
            self._rows_in += batch.num_rows

    @property
    def pending_rows(self) -> int:
        leaving = len(self._leaving.at) - self._leaving.next_row if self._leaving else 0
        return self._arrivals.rows + leaving + self._departures.hits_rows + self._room.waiting_rows

    @property
    def hot_changes(self) -> int:
        return self._hot.changes if isinstance(self._hot, RowCache | SetCache) else 0

    def step(self) -> StepReport:
        tally = StepTally(rows_in=self._rows_in)
        self._rows_in = self._output_bytes = self._hits_given_bytes = self._served_given_bytes = 0
        pages_before, bytes_before = self._master.pages_read, self._master.bytes_read
        self._see_off(self._departures.done(), tally)
        has_left = self._leaving is not None and self._let_leave(self._leaving, tally)
        if not has_left and (self._leaving is not None or not self._work(tally)):
            # Only another core has something to do.
            self._see_off(self._departures.first(), tally)
        if not self._has_put_out:
            self._see_off(self._departures.all(), tally)
        if self._lacks_room():
            self._read_ahead()
        tally.counts["pages_read"] = self._master.pages_read - pages_before
        tally.counts["bytes_read"] = self._master.bytes_read - bytes_before
        self._freed.took(self._output_bytes)
        return tally.report(self._held_bytes())

    def _work(self, tally: StepTally) -> bool:
        """Serve rows that wait, or let arrivals meet hot rows, or both; False if there was nothing to do."""
        # What was read is used up first: rows that it serves do not wait for rows that come later.
        is_serving = self._is_serving
        if is_serving:
            self._serve_next(tally)
            if not self._departures.slots:  # no other core is at work on them
                return True
        has_probed = self._probe(tally)
        # Arrivals may be lacking only because those on their way out take their place.
        may_serve = bool(self._arrivals.rows) or has_probed or not self._departures.hits_rows
        wants_room = not has_probed or self._lacks_room()
        if not is_serving and self._room.waiting_rows and may_serve and wants_room:
            self._serve_next(tally)
            is_serving = True
        if self._leaving is not None:
            self._let_leave(self._leaving, tally)
        return is_serving or has_probed

    def _serve_next(self, tally: StepTally) -> None:
        self._probed_since = 0
        self._see_off(self._departures.until_none_served(), tally)
        self._serve(tally)

    # Waiting rows meet the disk (`parts/region_join.py`).

    def _is_room_enough(self) -> bool:
        if self._resize_to is not None:
            return self._may_resize(self._resize_to)
        return bool(self._arrivals.rows) and self._has_room(sum(map(len, self._departures.slots)))

    def _keep(self, service: Service, start: Int64s, matches: Int64s) -> None:
        if not self._hot.is_full:
            met = self._sketch.estimate(service.codes)
            if service.is_long:
                met[~service.is_complete(start, matches)] = 0
            read = (service.page.buffer, service.page.at, start, matches, service.codes, met)
            if isinstance(self._hot, SetCache):
                self._hot.admit(*read, self._looks_under_way)
            else:
                self._hot.admit(*read)

    # What waits, for a snapshot.

    def snapshot(self) -> bytes:
        """What arrived, waits or is on its way out. Hot rows are left out: they only make the join faster."""
        self._departures.finish()  # nobody else looks at what is written down
        waiting, waiting_facts = self._waiting_parts()
        facts: dict[str, Any] = {
            "join": self.name,
            "setting": self._setting(),
            "rows_in": self._rows_in,
            "given_of_first": self._leaving.next_match if self._leaving else self._given_of_first,
            "hot_share": self._split.share,
            **waiting_facts,
        }
        hits = [self._leaving.stream_rows()] if self._leaving else []
        leaving = one_batch(hits + self._departures.hits(), self.plan.stream_schema)
        arrivals = one_batch(self._arrivals.batches(), self.plan.stream_schema)
        parts = {"arrivals": arrivals, "leaving": leaving, **waiting}
        return pack(facts, parts)

    def restore(self, snapshot: bytes) -> None:
        facts, parts = unpack(snapshot)
        if facts["join"] != self.name or facts["setting"] != self._setting():
            raise StoreError(
                f"the snapshot is of a {facts['join']} join on {facts['setting']}, this one is on {self._setting()}",
                code="snapshot_of_other_join",
                next_move="restore into a join with the same master version, columns and kind",
            )
        self._clear()
        if facts["hot_share"] != self._split.share:  # what waited then must find room now
            self._resize(facts["hot_share"])
        self._resize_to = None
        for name in ("leaving", "arrivals"):
            if parts[name].num_rows:
                self._arrivals.add(parts[name])
        self._rows_in, self._given_of_first = facts["rows_in"], facts["given_of_first"]
        self._restore_waiting(facts, parts)

    def _setting(self) -> str:
        return f"{self._master.identity} {self.plan.how} {self.plan.stream_key} {self.plan.output_schema}"

    def _held_bytes(self) -> dict[str, int]:
        return {
            "arrivals": self._arrivals.bytes_held,
            "hot_rows": self._hot.bytes_held if self._owns_hot else 0,
            "sketch": self._sketch.bytes_held,
            **self._disk_bytes(),
        }


__all__ = ["MOST_PATIENCE", "TideJoin"]
