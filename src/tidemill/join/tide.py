"""TIDE: hot rows, rows that wait by place on disk, and reads that go where most of them wait."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from tidemill.core.errors import StoreError
from tidemill.core.memory import MemoryBudget
from tidemill.join.output import OutputPlan
from tidemill.join.parts.arrivals import Arrivals
from tidemill.join.parts.aside import Aside
from tidemill.join.parts.frequency import FrequencySketch
from tidemill.join.parts.hot_cache import HotCache
from tidemill.join.parts.kernels import Int64s
from tidemill.join.parts.keys import stream_keys
from tidemill.join.parts.leaving import Leaving, count_fates
from tidemill.join.parts.leaving_kernels import keep_known
from tidemill.join.parts.row_cache import RowCache
from tidemill.join.parts.row_taker import RowTaker
from tidemill.join.parts.service import Service
from tidemill.join.parts.snapshots import pack, unpack
from tidemill.join.parts.split import OFTEN
from tidemill.join.parts.split_join import SplitJoin
from tidemill.join.parts.tally import StepTally
from tidemill.join.protocol import StepReport
from tidemill.join.tide_sizes import TideSizes
from tidemill.master.batches import one_batch
from tidemill.master.board import Board
from tidemill.master.protocol import Master

MOST_PATIENCE = 16
"""Times half the room's rows that may pass while rows wait. At Zipf 1.25, where one row in 16 misses, a room that must be served
after half its rows is a quarter full, and four times as many bytes are read a row."""
_PIECE_ROWS = 24_576  # probed together: their hot rows fit the second-level cache while columns are gathered
_PIECES_OF_ARRIVALS = 3  # one leaves, one is probed, and one has come meanwhile


class TideJoin(SplitJoin):
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
        self._clear()
        # Held by the sketch: it only makes the join faster, as hot rows do.
        self._sketch = FrequencySketch(self.sizes.sketch_bytes)
        self._taker = RowTaker(plan.stream_schema)
        self._miss_share = 1.0

    def _clear(self) -> None:
        """Nothing has arrived, nothing waits."""
        # Held by arrivals
        self._arrivals = Arrivals(self.sizes.arrivals_bytes, self.plan.stream_row_bytes)
        self._rows_in = 0
        self._leaving: Leaving | None = None
        self._given_of_first = 0
        self._has_put_out = False  # lest one that is restored again and again begins for ever
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
            self._refuse_beyond_room(batch, self.room(-(-batch.nbytes // batch.num_rows)))
            self._arrivals.add(batch)
            self._rows_in += batch.num_rows

    @property
    def pending_rows(self) -> int:
        leaving = len(self._leaving.at) - self._leaving.next_row if self._leaving else 0
        return self._arrivals.rows + leaving + self._room.waiting_rows

    @property
    def hot_changes(self) -> int:
        return self._hot.changes if isinstance(self._hot, RowCache) else 0

    def step(self) -> StepReport:
        tally = StepTally(rows_in=self._rows_in)
        self._rows_in = self._output_bytes = 0
        pages_before, bytes_before = self._master.pages_read, self._master.bytes_read
        before = self._leaving
        goes_on = before is None or self._may_go_on()
        if goes_on:
            with self._hits_put_out(before, tally):
                # What was read is used up first: rows that it serves do not wait for rows that come later.
                reads = self._is_serving or not self._probe(tally) or self._lacks_room()
                if reads and self._room.waiting_rows:
                    self._probed_since = 0
                    self._serve(tally)
        leaves_now = not goes_on or (before is None and not self._may_wait())
        if self._leaving is not None and leaves_now:
            with tally.timed("assemble"):
                finished, outputs = self._leaving.put_out_beside(self._hits_bytes, self._aside)
            self._settle_hits(self._leaving, finished, outputs, tally)
        if self._lacks_room():
            self._read_ahead()
        tally.counts["pages_read"] = self._master.pages_read - pages_before
        tally.counts["bytes_read"] = self._master.bytes_read - bytes_before
        self._freed.took(self._output_bytes)
        return tally.report(self._held_bytes())

    @property
    def _is_overdue(self) -> bool:
        """Whether rows wait although the room does not fill, since nearly all that arrive are hot."""
        patience = min(MOST_PATIENCE, 1 / self._miss_share)
        return 2 * self._probed_since > patience * self._room.most_rows and self._room.waiting_rows > 0

    # Arrivals meet hot rows.

    def _has_room(self) -> bool:
        """Whether the misses of another piece could wait."""
        wanted = max(1, min(self._room.most_rows // 8, int(_PIECE_ROWS * self._miss_share)))
        return self._room.free_rows >= wanted and self._fitting_rows() > 0

    def _lacks_room(self) -> bool:
        """Whether rows that arrived cannot be looked at before others leave."""
        return bool(self._arrivals.rows) and not self._has_room()

    def _fitting_rows(self) -> int:
        """Rows of the next piece: as many as could wait if no more of them missed than of late."""
        rows = min(self._piece_rows(), max(1, int(self._room.free_rows / self._miss_share)))
        if self._room.can_resize:  # rows are equally long: there is room for as many as there are slots
            return max(rows, int(self._room.waiting_rows == 0))
        row_bytes = self._arrivals.next_row_bytes() + 8 + self._room.layout.fixed_bytes
        while rows and not self._room.fits(
            int(rows * self._miss_share) or 1, int(rows * self._miss_share * row_bytes)
        ):
            rows //= 2
        # A row that may never wait is found out when it is tried with nobody else there.
        return max(rows, int(self._room.waiting_rows == 0))

    def _piece_rows(self) -> int:
        """Rows of the oldest batch in pieces of equal length; short ones, where one is probed while another leaves."""
        most = _PIECE_ROWS
        if self._aside.is_worth(self._arrivals.most_rows // _PIECES_OF_ARRIVALS):
            most = min(most, self._arrivals.most_rows // _PIECES_OF_ARRIVALS)
        rows = self._arrivals.next_rows
        return -(-rows // max(1, -(-rows // most)))

    def _probe(self, tally: StepTally) -> bool:
        """Let arrivals meet hot rows; False when there are none, or when their misses could not wait."""
        if self._resize_to is not None and self._may_resize(self._resize_to):
            self._resize(self._resize_to)
        if not self._arrivals.rows or self._resize_to is not None or not self._has_room() or self._is_overdue:
            return False
        if self._hot.is_full:
            with tally.timed("renew"):
                self._hot.renew()
        with tally.timed("probe"):
            batch = self._arrivals.peek(self._fitting_rows())
            codes, present = stream_keys(batch, self.plan.stream_key)
            if not self._master.pages:
                present = np.zeros_like(present)
            at, matches, sizes = self._hot.probe(codes, present)
            misses = np.flatnonzero(matches < 0)
            regions = self._regions.of(codes[misses])
            if (regions < 0).any():  # the index knows that these do not exist
                matches[misses[regions < 0]] = 0
                misses, regions = misses[regions >= 0], regions[regions >= 0]
            encoded, until = self._encode(batch, misses)
        if until == 0:
            if not self._room.waiting_rows:
                raise self._room.too_wide(batch.slice(0, 1), self.sizes.waiting_bytes)
            return False
        if until < batch.num_rows:
            misses, regions = misses[misses < until], regions[: len(misses[misses < until])]
        batch = self._arrivals.take(until, beside_last=self._leaving is not None)
        self._probed_since += until
        self._split.period.rows += until
        self._split.period.misses += len(misses)
        tally.counts["waited_rows"] += len(misses)
        at, matches = at[:until], matches[:until]
        self._miss_share = min(1.0, max(0.02, 0.9 * self._miss_share + 0.11 * len(misses) / max(1, until)))
        if len(misses):
            with tally.timed("wait"):
                if misses[0] == 0 and self._given_of_first:
                    self._given[self._room.next_slot] = self._given_of_first
                    self._given_of_first = 0
                self._let_wait(codes[misses], regions, *encoded)
        self._begin_leaving(batch, at, matches, sizes[:until])
        self._look_at_split()
        return True

    def _encode(self, batch: pa.RecordBatch, misses: Int64s) -> tuple[tuple[Any, Int64s], int]:
        """The misses as rows, as far as they can wait; and how many rows of the batch those concern."""
        fitting = len(misses)
        encoded, at = self._room.layout.encode(self._taker.take(batch, misses))
        while not self._room.fits(fitting, int(at[fitting])):
            fitting = (
                min(fitting - 1, self._room.free_rows) if fitting > self._room.free_rows else fitting // 2
            )
        until = batch.num_rows if fitting == len(misses) else int(misses[fitting])
        return (encoded, at[: fitting + 1]), until

    def _let_wait(self, codes: Int64s, regions: Int64s, rows: Any, at: Int64s) -> None:
        met = self._sketch.add(codes)
        self._split.period.met_again += int(np.count_nonzero(met > OFTEN))
        self._counted += len(codes)
        if self._counted > self._sketch.bytes_held // 2:
            self._sketch.halve()
            self._counted //= 2
        self._room.push(codes, regions, rows, at)

    def _begin_leaving(self, batch: pa.RecordBatch, at: Int64s, matches: Int64s, sizes: Int64s) -> None:
        known = np.empty_like(at)
        count = keep_known(at, matches, sizes, known)
        at, matches, sizes, known = at[:count], matches[:count], sizes[:count], known[:count]
        if self.plan.stream_key.form.is_hashed:
            hit = np.flatnonzero(matches)
            met = self._are_met(batch.take(known[hit]), self._hot.rows, at[hit])
            matches[hit[~met]], at[hit[~met]], sizes[hit[~met]] = 0, -1, 0
        everyone = len(known) == batch.num_rows

        def gather(rows: Int64s) -> pa.RecordBatch:
            if everyone and len(rows) == batch.num_rows and bool((np.diff(rows) == 1).all()):
                return batch
            return self._taker.take(batch, known[rows])

        self._leaving = Leaving(
            self.plan, self._layout, self._hot.rows, at, matches, sizes, gather,
            stream_sizes=self._stream_sizes(batch, known), memory_from=self._hits_memory, skip=self._given_of_first,
        )  # fmt: skip
        self._given_of_first = 0

    def _may_go_on(self) -> bool:
        """Whether more rows may be probed while hits are put together: hot rows stay where they are."""
        return self._may_wait() and self._resize_to is None and not self._hot.is_full

    def _may_wait(self) -> bool:
        """Whether hits are better put together beside the next rows, on another core; then all of them leave at once."""
        hits = self._leaving
        is_worth = hits is not None and self._aside.is_worth(len(hits.at)) and hits.fits(self._hits_bytes)
        return is_worth and self._has_put_out and bool(self._arrivals.rows)

    @contextmanager
    def _hits_put_out(self, leaving: Leaving | None, tally: StepTally) -> Iterator[None]:
        """Put hits together on another core while the body runs."""
        if leaving is None:
            yield
            return
        with self._aside.beside(partial(leaving.put_out, self._hits_bytes), rows=len(leaving.at)) as putting:
            yield
        (finished, output), seconds = putting.result()
        tally.seconds["assemble"] += seconds
        self._settle_hits(leaving, finished, [] if output is None else [output], tally)

    @property
    def _hits_bytes(self) -> int:
        """Of the output reservation, for hits."""
        return self.sizes.output_bytes - 2 * len(self._staging)

    def _settle_hits(
        self, leaving: Leaving, finished: slice, outputs: list[pa.RecordBatch], tally: StepTally
    ) -> None:
        self._has_put_out = True
        tally.outputs.extend(outputs)
        self._output_bytes += leaving.output_bytes
        matched = int(np.count_nonzero(leaving.matches[finished] > 0))
        count_fates(self.plan, matched, finished.stop - finished.start - matched, "hot_hits", tally)
        if leaving.is_over and self._leaving is leaving:
            self._leaving = None
            self._arrivals.let_go()
        elif leaving.is_over:  # while it left, another began to
            self._arrivals.let_go(but_last=True)

    def _stream_sizes(self, batch: pa.RecordBatch, rows: Int64s) -> Int64s:
        """Bytes of some rows of a batch; one number when all are equally long."""
        layout = self._room.layout
        if layout.last_open_offset < 0:
            return np.array([layout.least_row_bytes])
        return np.diff(layout.encode(batch.take(rows))[1])

    # Waiting rows meet the disk (`parts/region_join.py`).

    def _is_room_enough(self) -> bool:
        if self._resize_to is not None:
            return self._may_resize(self._resize_to)
        return bool(self._arrivals.rows) and self._has_room()

    def _keep(self, service: Service, start: Int64s, matches: Int64s) -> None:
        if not self._hot.is_full:
            met = self._sketch.estimate(service.codes)
            if service.is_long:
                met[~service.is_complete(start, matches)] = 0
            self._hot.admit(service.page.buffer, service.page.at, start, matches, service.codes, met)

    # What waits, for a snapshot.

    def snapshot(self) -> bytes:
        """What arrived, waits or is on its way out. Hot rows are left out: they only make the join faster."""
        waiting, waiting_facts = self._waiting_parts()
        facts: dict[str, Any] = {
            "join": self.name,
            "setting": self._setting(),
            "rows_in": self._rows_in,
            "given_of_first": self._leaving.next_match if self._leaving else self._given_of_first,
            "hot_share": self._split.share,
            **waiting_facts,
        }
        leaving = self._leaving.stream_rows() if self._leaving else one_batch([], self.plan.stream_schema)
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
