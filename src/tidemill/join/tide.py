"""TIDE: hot rows, rows that wait by place on disk, and reads that go where most of them wait."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from tidemill.core.errors import BudgetError, StoreError
from tidemill.core.memory import MemoryBudget
from tidemill.core.units import format_bytes
from tidemill.join.output import OutputPlan
from tidemill.join.parts.arrivals import Arrivals
from tidemill.join.parts.aside import Aside
from tidemill.join.parts.frequency import FrequencySketch
from tidemill.join.parts.hot_cache import HotCache
from tidemill.join.parts.kernels import Int64s
from tidemill.join.parts.keys import stream_keys
from tidemill.join.parts.leaving import Leaving, count_fates
from tidemill.join.parts.region_join import RegionJoin
from tidemill.join.parts.row_cache import HOT_ENTRY_BYTES, RowCache
from tidemill.join.parts.service import Service
from tidemill.join.parts.snapshots import pack, unpack
from tidemill.join.parts.split import Split
from tidemill.join.parts.tally import StepTally
from tidemill.join.protocol import StepReport
from tidemill.join.tide_sizes import TideSizes
from tidemill.master.batches import one_batch
from tidemill.master.board import Board
from tidemill.master.protocol import Master

_PIECE_ROWS = 24_576  # probed together: their hot rows fit the second-level cache while columns are gathered


class TideJoin(RegionJoin):
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
        super().__init__(master, plan, budget, sizes or self.sizes_for(master, plan, budget.left_bytes))
        self._board = board
        self._split = Split(
            self.sizes.hot_share,
            keys=master.rows,
            hot_row_bytes=max(master.row_bytes, self._layout.least_row_bytes) + HOT_ENTRY_BYTES,
            costs=self.sizes.miss_costs,
        )
        self._resize_to: float | None = None
        self._aside = Aside(may_use_another_core=hot is None)  # whoever shares hot rows shares cores too
        self._clear()
        # Held by hot rows and sketch: they only make the join faster.
        self._owns_hot = hot is None
        self._hot: HotCache = hot or self._no_hot_rows()
        self._sketch = FrequencySketch(self.sizes.sketch_bytes)
        self._counted = 0
        self._miss_share = 1.0

    def _no_hot_rows(self) -> RowCache:
        row_bytes = max(self._master.row_bytes, self._layout.least_row_bytes)
        keeps_rows = bool(self.plan.master_columns)
        return RowCache(self.sizes.hot_rows_bytes, row_bytes, self._layout, keeps_rows=keeps_rows)

    def _clear(self) -> None:
        """Nothing has arrived, nothing waits."""
        # Held by arrivals
        self._arrivals = Arrivals(self.sizes.arrivals_bytes, self.plan.stream_row_bytes)
        self._rows_in = 0
        self._probed: pa.RecordBatch | None = None
        self._leaving: Leaving | None = None
        self._given_of_first = 0
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
        # What was read is used up first: rows that it serves do not wait for rows that come later.
        reads = self._leaving is None and (self._is_serving or not self._probe(tally) or self._lacks_room())
        with self._hits_put_out(tally):
            if reads and self._room.waiting_rows:
                self._probed_since = 0
                self._serve(tally)
        if self._lacks_room():
            self._read_ahead()
        tally.counts["pages_read"] = self._master.pages_read - pages_before
        tally.counts["bytes_read"] = self._master.bytes_read - bytes_before
        self._return_freed_memory()
        return tally.report(self._held_bytes())

    @property
    def _is_overdue(self) -> bool:
        """Whether rows wait although the room never fills, since all that arrive are hot."""
        return 2 * self._probed_since > self._room.most_rows and self._room.waiting_rows > 0

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
        rows = min(_PIECE_ROWS, self._arrivals.rows, max(1, int(self._room.free_rows / self._miss_share)))
        row_bytes = self._arrivals.next_row_bytes() + 8 + self._room.layout.fixed_bytes
        while rows and not self._room.fits(
            int(rows * self._miss_share) or 1, int(rows * self._miss_share * row_bytes)
        ):
            rows //= 2
        # A row that may never wait is found out when it is tried with nobody else there.
        return max(rows, int(self._room.waiting_rows == 0))

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
                raise self._too_wide(batch)
            return False
        if until < batch.num_rows:
            misses, regions = misses[misses < until], regions[: len(misses[misses < until])]
        batch = self._arrivals.take(until)
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

    def _too_wide(self, batch: pa.RecordBatch) -> BudgetError:
        row_bytes = int(self._room.layout.encode(batch.slice(0, 1))[1][-1])
        return BudgetError(
            f"a stream row takes {format_bytes(row_bytes)} while it waits, and the room has "
            f"{format_bytes(self.sizes.waiting_bytes)}",
            code="row_too_wide",
            next_move="give the join more memory, or leave wide columns out of the stream",
            row_bytes=row_bytes,
        )

    def _look_at_split(self) -> None:
        """Let the room empty itself if hot and waiting rows should share memory otherwise."""
        may_move = self._owns_hot and self.sizes.moves_memory
        if may_move and self._split.is_due(self._room.most_rows):
            self._resize_to = self._split.look(
                both_bytes=self.sizes.hot_rows_bytes + self.sizes.waiting_bytes,
                hot_rows=self._hot.entries,
                most_waiting=self._room.most_rows,
                is_hot_full=self._hot.has_been_full,
            )

    def _may_resize(self, hot_share: float) -> bool:
        """Whether those that wait would find room; where their places cannot change, whether nobody does."""
        if not self._room.can_resize:
            return not self._room.waiting_rows
        return self._room.waiting_rows <= self._room.rows_of(self.sizes.with_hot_share(hot_share).waiting_bytes)

    def _resize(self, hot_share: float) -> None:
        """Share out anew what hot and waiting rows hold."""
        grows = hot_share > self.sizes.hot_share
        self.sizes = self.sizes.with_hot_share(hot_share)
        self._split.share, self._resize_to = hot_share, None
        for name in ("hot_rows", "waiting"):
            self.budget.release(name)
        for name in ("hot_rows", "waiting"):
            self.budget.reserve(name, getattr(self.sizes, f"{name}_bytes"))
        # First the one that gives memory, then the one that takes it.
        for resize in (self._resize_room, self._resize_hot) if grows else (self._resize_hot, self._resize_room):
            resize()

    def _resize_hot(self) -> None:
        if isinstance(self._hot, RowCache):
            self._hot.resize(self.sizes.hot_rows_bytes)

    def _resize_room(self) -> None:
        if not self._room.can_resize:
            del self._room  # before the new one, which may take its place in memory
            self._room = self._no_waiting_rows()
            return
        moved = self._room.resize(self.sizes.waiting_bytes)
        for service in self._services:
            service.slots[:] = moved[service.slots]
        self._given = {int(moved[slot]): given for slot, given in self._given.items()}

    def _encode(self, batch: pa.RecordBatch, misses: Int64s) -> tuple[tuple[Any, Int64s], int]:
        """The misses as rows, as far as they can wait; and how many rows of the batch those concern."""
        fitting = len(misses)
        encoded, at = self._room.layout.encode(batch.take(misses))
        while not self._room.fits(fitting, int(at[fitting])):
            fitting = (
                min(fitting - 1, self._room.free_rows) if fitting > self._room.free_rows else fitting // 2
            )
        until = batch.num_rows if fitting == len(misses) else int(misses[fitting])
        return (encoded, at[: fitting + 1]), until

    def _let_wait(self, codes: Int64s, regions: Int64s, rows: Any, at: Int64s) -> None:
        self._sketch.add(codes)
        self._counted += len(codes)
        if self._counted > self._sketch.bytes_held // 4:
            self._sketch.halve()
            self._counted = 0
        self._room.push(codes, regions, rows, at)

    def _begin_leaving(self, batch: pa.RecordBatch, at: Int64s, matches: Int64s, sizes: Int64s) -> None:
        known = np.flatnonzero(matches >= 0)
        self._probed = batch
        at, matches, sizes = at[known], matches[known], sizes[known]
        if self.plan.stream_key.form.is_hashed:
            hit = np.flatnonzero(matches)
            met = self._are_met(batch.take(known[hit]), self._hot.rows, at[hit])
            matches[hit[~met]], at[hit[~met]], sizes[hit[~met]] = 0, -1, 0
        everyone = len(known) == batch.num_rows

        def gather(rows: Int64s) -> pa.RecordBatch:
            if everyone and len(rows) == batch.num_rows and bool((np.diff(rows) == 1).all()):
                return batch
            return batch.take(known[rows])

        self._leaving = Leaving(
            self.plan, self._layout, self._hot.rows, at, matches, sizes, gather,
            stream_sizes=self._stream_sizes(batch, known), memory_from=self._hits_memory, skip=self._given_of_first,
        )  # fmt: skip
        self._given_of_first = 0

    @contextmanager
    def _hits_put_out(self, tally: StepTally) -> Iterator[None]:
        """Put the next hits together, on another core while the body reads if there is one."""
        leaving, limit = self._leaving, self.sizes.output_bytes - 2 * len(self._staging)
        if leaving is None:
            yield
            return
        with self._aside.beside(partial(leaving.put_out, limit), rows=len(leaving.at)) as putting:
            yield
        (finished, output), seconds = putting.result()
        tally.seconds["assemble"] += seconds
        if output is not None:
            tally.outputs.append(output)
        self._output_bytes += leaving.output_bytes
        matched = int(np.count_nonzero(leaving.matches[finished] > 0))
        count_fates(self.plan, matched, finished.stop - finished.start - matched, "hot_hits", tally)
        if leaving.is_over:
            self._leaving = self._probed = None
            self._arrivals.let_go()

    def _stream_sizes(self, batch: pa.RecordBatch, rows: Int64s) -> Int64s:
        """Bytes of some rows of a batch; one number when all are equally long."""
        layout = self._room.layout
        if layout.last_open_offset < 0:
            return np.array([layout.least_row_bytes])
        return np.diff(layout.encode(batch.take(rows))[1])

    # Waiting rows meet the disk (`parts/region_join.py`).

    def _is_room_enough(self) -> bool:
        return bool(self._arrivals.rows) and self._resize_to is None and self._has_room()

    def _began(self, regions: int, rows: int, pages: Int64s) -> None:
        period = self._split.period
        if not period.services:  # while the room fills nothing is learned
            period.rows = period.misses = 0
        period.services += regions
        period.served_rows += rows
        period.bytes_read += self._master.rows_buffer_bytes(pages)

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


__all__ = ["TideJoin"]
