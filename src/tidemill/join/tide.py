"""TIDE: hot rows, rows that wait by place on disk, and reads that go where most of them wait."""

from collections import deque
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from tidemill.core.errors import StoreError
from tidemill.core.memory import MemoryBudget
from tidemill.join.output import OutputPlan
from tidemill.join.parts.arrivals import Arrivals
from tidemill.join.parts.frequency import FrequencySketch
from tidemill.join.parts.kernels import Bools, Int64s
from tidemill.join.parts.keys import stream_keys
from tidemill.join.parts.leaving import Leaving, count_fates, pairs_per
from tidemill.join.parts.regions import Regions
from tidemill.join.parts.row_cache import RowCache
from tidemill.join.parts.service import Service
from tidemill.join.parts.snapshots import pack, unpack
from tidemill.join.parts.tally import StepTally
from tidemill.join.parts.waiting_room import REGION_BYTES, WaitingRoom
from tidemill.join.protocol import SemiStreamJoin, StepReport
from tidemill.join.tide_sizes import TideSizes
from tidemill.master import MasterData
from tidemill.master.batches import one_batch
from tidemill.master.rows import RowLayout

_RESERVED = ("arrivals", "hot_rows", "sketch", "waiting", "disk_buffer", "index", "output")
_PIECE_ROWS = 16_384  # probed together: their hot rows fit the second-level cache while columns are gathered
_STAGING_SHARE = 0.4  # of the output reservation; the columns that staged rows become take the rest


class TideJoin(SemiStreamJoin):
    """Ours: probe hot rows, let misses wait by place on disk, read where most rows wait.

    (docstring to be written)
    """

    name: ClassVar[str] = "tide"

    def __init__(
        self, master: MasterData, plan: OutputPlan, budget: MemoryBudget, *, sizes: TideSizes | None = None
    ) -> None:
        self.plan = plan
        self.sizes = sizes or self.sizes_for(master, plan, budget.left_bytes)
        self.budget = budget
        self._master = master
        self._layout: RowLayout = master.layout
        self._multiplies = plan.how in ("inner", "left")
        self._copies = self._multiplies and bool(plan.chosen_columns)
        self._pairs_per = pairs_per(plan)
        for name in _RESERVED:
            budget.reserve(name, getattr(self.sizes, f"{name}_bytes"))
        self._regions = Regions(master, self.sizes.region_pages)
        self._clear()
        # Held by hot rows and sketch: they only make the join faster.
        keeps_rows = bool(plan.master_columns)
        self._hot = RowCache(self.sizes.hot_rows_bytes, self._layout_row_bytes(), self._layout, keeps_rows=keeps_rows)
        self._sketch = FrequencySketch(self.sizes.sketch_bytes)
        self._counted = 0
        self._miss_share = 1.0
        # Held by output
        staging_bytes = int(self.sizes.output_bytes * _STAGING_SHARE)
        self._staging = np.empty(staging_bytes // 8, dtype=np.uint64).view(np.uint8)
        self._used_since_return = 0

    def _layout_row_bytes(self) -> int:
        return max(self._master.row_bytes, self._layout.least_row_bytes)

    def _clear(self) -> None:
        """Nothing has arrived, nothing waits."""
        # Held by arrivals
        self._arrivals = Arrivals(self.sizes.arrivals_bytes, self.plan.stream_row_bytes)
        self._rows_in = 0
        self._probed: pa.RecordBatch | None = None
        self._leaving: Leaving | None = None
        self._given_of_first = 0
        # Held by waiting
        self._room = WaitingRoom(
            self.sizes.waiting_bytes, RowLayout.of(self.plan.stream_schema), len(self._regions), self.plan.stream_row_bytes
        )  # fmt: skip
        self._given: dict[int, int] = {}
        # Held by the disk buffer
        self._services: deque[Service] = deque()
        self._turn = 0
        self._probed_since = 0

    @classmethod
    def sizes_for(cls, master: MasterData, plan: OutputPlan, total_bytes: int) -> TideSizes:
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

    def step(self) -> StepReport:
        tally = StepTally(rows_in=self._rows_in)
        self._rows_in = self._output_bytes = 0
        pages_before, bytes_before = self._master.pages_read, self._master.bytes_read
        # What was read is used up first: rows that it serves do not wait for rows that come later.
        is_serving = bool(self._services) and self._services[0].page is not None
        if self._leaving is None and (is_serving or not self._probe(tally)) and self._room.waiting_rows:
            self._serve(tally)
        if self._leaving is not None:
            self._put_out_hits(self._leaving, tally)
        if self._arrivals.rows and not self._has_room():
            self._read_ahead()
        tally.counts["pages_read"] = self._master.pages_read - pages_before
        tally.counts["bytes_read"] = self._master.bytes_read - bytes_before
        held_bytes = self._held_bytes()
        self._return_freed_memory(held_bytes["output"])
        return tally.report(held_bytes)

    @property
    def _is_overdue(self) -> bool:
        """Whether rows wait although the room never fills, since all that arrive are hot."""
        return 2 * self._probed_since > self._room.most_rows and self._room.waiting_rows > 0

    # Arrivals meet hot rows.

    def _has_room(self) -> bool:
        """Whether the misses of another piece could wait."""
        wanted = max(1, min(self._room.most_rows // 8, int(_PIECE_ROWS * self._miss_share)))
        return self._room.free_rows >= wanted and self._fitting_rows() > 0

    def _fitting_rows(self) -> int:
        """Rows of the next piece: as many as could wait if no more of them missed than of late."""
        rows = min(_PIECE_ROWS, self._arrivals.rows, max(1, int(self._room.free_rows / self._miss_share)))
        row_bytes = self._arrivals.next_row_bytes() + 8 + self._room.layout.fixed_bytes
        while rows and not self._room.fits(int(rows * self._miss_share) or 1, int(rows * self._miss_share * row_bytes)):
            rows //= 2
        return rows

    def _probe(self, tally: StepTally) -> bool:
        """Let arrivals meet hot rows; False when there are none, or when their misses could not wait."""
        if not self._arrivals.rows or not self._has_room() or self._is_overdue:
            return False
        if self._hot.is_full:
            with tally.timed("renew"):
                self._hot.renew()
        with tally.timed("probe"):
            batch = self._arrivals.peek(self._fitting_rows())
            codes, present = stream_keys(batch, self.plan.stream_key)
            if not self._master.pages:
                present = np.zeros_like(present)
            at, matches = self._hot.probe(codes, present)
            misses = np.flatnonzero(matches < 0)
            regions = self._regions.of(codes[misses])
            if (regions < 0).any():  # the index knows that these do not exist
                matches[misses[regions < 0]] = 0
                misses, regions = misses[regions >= 0], regions[regions >= 0]
            encoded, until = self._encode(batch, misses)
        if until == 0:
            return False
        if until < batch.num_rows:
            misses, regions = misses[misses < until], regions[: len(misses[misses < until])]
        batch = self._arrivals.take(until)
        self._probed_since += until
        at, matches = at[:until], matches[:until]
        self._miss_share = min(1.0, max(0.02, 0.9 * self._miss_share + 0.11 * len(misses) / max(1, until)))
        if len(misses):
            with tally.timed("wait"):
                if misses[0] == 0 and self._given_of_first:
                    self._given[self._room.next_slot] = self._given_of_first
                    self._given_of_first = 0
                self._let_wait(codes[misses], regions, *encoded)
        self._begin_leaving(batch, at, matches)
        return True

    def _encode(self, batch: pa.RecordBatch, misses: Int64s) -> tuple[tuple[Any, Int64s], int]:
        """The misses as rows, as far as they can wait; and how many rows of the batch those concern."""
        fitting = len(misses)
        encoded, at = self._room.layout.encode(batch.take(misses))
        while not self._room.fits(fitting, int(at[fitting])):
            fitting = min(fitting - 1, self._room.free_rows) if fitting > self._room.free_rows else fitting // 2
        until = batch.num_rows if fitting == len(misses) else int(misses[fitting])
        return (encoded, at[: fitting + 1]), until

    def _let_wait(self, codes: Int64s, regions: Int64s, rows: Any, at: Int64s) -> None:
        self._sketch.add(codes)
        self._counted += len(codes)
        if self._counted > self._sketch.bytes_held // 4:
            self._sketch.halve()
            self._counted = 0
        self._room.push(codes, regions, rows, at)

    def _begin_leaving(self, batch: pa.RecordBatch, at: Int64s, matches: Int64s) -> None:
        known = np.flatnonzero(matches >= 0)
        self._probed = batch
        at, matches = at[known], matches[known]
        if self.plan.stream_key.form.is_hashed:
            hit = np.flatnonzero(matches)
            met = self._are_met(batch.take(known[hit]), self._hot.rows, at[hit])
            matches[hit[~met]], at[hit[~met]] = 0, -1
        everyone = len(known) == batch.num_rows

        def gather(rows: Int64s) -> pa.RecordBatch:
            if everyone and len(rows) == batch.num_rows and bool((np.diff(rows) == 1).all()):
                return batch
            return batch.take(known[rows])

        self._leaving = Leaving(
            self.plan, self._layout, self._hot.rows, at, matches, gather,
            stream_bytes=self._stream_bytes(batch), skip=self._given_of_first,
        )  # fmt: skip
        self._given_of_first = 0

    def _are_met(self, stream_rows: pa.RecordBatch, rows: Any, at: Int64s) -> Bools:
        """Where equal codes are equal keys."""
        key = self.plan.stream_key
        return key.is_met(stream_rows, self._layout.decode(rows, at, key.form.columns))

    def _put_out_hits(self, leaving: Leaving, tally: StepTally) -> None:
        limit = self.sizes.output_bytes - len(self._staging)
        with tally.timed("assemble"):
            finished = leaving.put_out(limit, tally)
            self._output_bytes += leaving.output_bytes
        matched = int((leaving.matches[finished] > 0).sum())
        count_fates(self.plan, matched, finished.stop - finished.start - matched, "hot_hits", tally)
        if leaving.is_over:
            self._leaving = self._probed = None
            self._arrivals.let_go()

    def _stream_bytes(self, batch: pa.RecordBatch) -> int:
        return max(1, -(-batch.nbytes // max(1, batch.num_rows)))

    # Waiting rows meet the disk.

    def _serve(self, tally: StepTally) -> None:
        """Take the oldest read and let its rows leave, as far as output has room."""
        self._probed_since = 0
        self._read_ahead()
        service = self._services[0]
        if service.page is None:
            with tally.timed("read"):
                start, matches = service.arrive(self._master)
            self._read_ahead()
            with tally.timed("match"):
                self._meet(service, start, matches)
        begin = service.next_row
        with tally.timed("match"):
            pairs = service.stage(self._pairs_per, self._layout, self._staging, self._waiting_bytes)
        if len(pairs[0]):
            with tally.timed("assemble"):
                tally.outputs.append(self._served(service, *pairs))
        self._output_bytes = int(service.cursor[3])
        if service.is_last_piece:
            self._settle(service, slice(begin, service.next_row), tally)
        if service.is_piece_over and service.is_last_piece:
            self._services.popleft()
        elif service.is_piece_over:
            service.begin(self._master)

    def _served(self, service: Service, rows: Int64s, at: Int64s) -> pa.RecordBatch:
        stream_rows = self._room.decode(service.slots[rows])
        if not self._copies:
            matched = (service.matches + service.given)[rows] > 0
            return self.plan.assemble(stream_rows, None, matched)
        master_rows = self._layout.decode(self._staging, at, self.plan.chosen_columns)
        return self.plan.assemble(stream_rows, master_rows, at >= 0)

    def _settle(self, service: Service, rows: slice, tally: StepTally) -> None:
        matched = int(np.count_nonzero(service.matches[rows] + service.given[rows]))
        count_fates(self.plan, matched, rows.stop - rows.start - matched, "disk_matches", tally)
        self._room.release(service.slots[rows])

    @property
    def _waiting_bytes(self) -> int:
        return max(self.plan.stream_row_bytes, self._room.layout.least_row_bytes)

    def _read_ahead(self) -> None:
        """Keep a read under way for the regions that should be served next."""
        while len(self._services) < 2 and len(regions := self._choose()):
            self._begin_service(regions)

    def _choose(self) -> Int64s:
        """Regions in the order in which they lie on disk: those whose rows wait longest, and those with most rows."""
        waiting = np.flatnonzero(self._room.count)
        most = self.sizes.regions_per_step
        if len(waiting) > most:
            self._turn = (self._turn + 1) % 2
            oldest = (most + self._turn) // 2
            by_age = waiting[np.argpartition(self._room.since[waiting], oldest - 1)[:oldest]] if oldest else waiting[:0]
            dense = most - oldest
            by_count = waiting[np.argpartition(-self._room.count[waiting], dense - 1)[:dense]] if dense else waiting[:0]
            waiting = np.concatenate([by_age, by_count[~np.isin(by_count, by_age)]])
        pages = self._regions.first_page[waiting + 1] - self._regions.first_page[waiting]
        fitting = int(np.searchsorted(np.cumsum(pages), self.sizes.pages_per_step, side="right"))
        return np.sort(waiting[: max(1, fitting)])

    def _begin_service(self, regions: Int64s) -> None:
        rows = self._room.count[regions].astype(np.int64)
        slots = self._room.pop(regions)
        codes = self._room.codes(slots)
        given = np.zeros(len(slots), dtype=np.int64)
        if self._given:
            given[:] = [self._given.pop(slot, 0) for slot in slots.tolist()]
        pages = self._regions.pages_for(regions, rows, codes)
        service = Service(slots, codes, pages, given, self.sizes.pages_per_step)
        service.begin(self._master)
        self._services.append(service)

    def _meet(self, service: Service, start: Int64s, matches: Int64s) -> None:
        """Confirm matches by their real keys, and keep the rows of codes that are met often."""
        if service.page:
            if self.plan.stream_key.form.is_hashed:
                self._confirm(service, start, matches)
            if not service.is_long and not self._hot.is_full:
                page = (service.page.buffer, service.page.at)
                self._hot.admit(*page, start, matches, service.codes, self._sketch.estimate(service.codes))
        service.meet(start, matches)

    def _confirm(self, service: Service, start: Int64s, matches: Int64s) -> None:
        """Take back matches of codes whose key is another one in the store."""
        found = np.flatnonzero(matches)
        stream_rows = self._room.decode(service.slots[found])
        met = self._are_met(stream_rows, service.page.buffer, service.page.at[start[found]])
        matches[found[~met]] = 0

    # What waits, for a snapshot.

    def snapshot(self) -> bytes:
        """What arrived, waits or is on its way out. Hot rows are left out: they only make the join faster."""
        long = [service for service in self._services if service.is_long]
        short = [service for service in self._services if not service.is_long]
        slots = [self._room.waiting_slots(), *(service.slots[service.rows_left] for service in short)]
        given = [np.array([self._given.get(slot, 0) for slot in slots[0].tolist()], dtype=np.int64)]
        given += [(service.given + service.given_now())[service.rows_left] for service in short]
        waiting = np.concatenate(slots)
        facts: dict[str, Any] = {
            "join": self.name,
            "setting": self._setting(),
            "rows_in": self._rows_in,
            "given_of_first": self._leaving.next_match if self._leaving else self._given_of_first,
            "long": [_long_facts(service) for service in long],
        }
        parts = {
            "arrivals": one_batch(self._arrivals.batches(), self.plan.stream_schema),
            "leaving": self._leaving.stream_rows() if self._leaving else one_batch([], self.plan.stream_schema),
            "long": self._room.decode(np.concatenate([waiting[:0], *(s.slots[s.rows_left] for s in long)])),
            "waiting": self._room.decode(waiting),
            "given": pa.RecordBatch.from_arrays([pa.array(np.concatenate(given))], ["given"]),
        }
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
        for name in ("leaving", "arrivals"):
            if parts[name].num_rows:
                self._arrivals.add(parts[name])
        self._rows_in, self._given_of_first = facts["rows_in"], facts["given_of_first"]
        begin = 0
        for rows, *service in facts["long"]:
            self._restore_long(parts["long"].slice(begin, rows), *service)
            begin += rows
        slots = self._push_again(parts["waiting"])
        given = parts["given"].column(0).to_numpy()
        self._given = dict(zip(slots[given > 0].tolist(), given[given > 0].tolist(), strict=True))

    def _push_again(self, rows: pa.RecordBatch) -> Int64s:
        """The slots of rows that wait again; a fresh room hands slots out in order."""
        first = self._room.next_slot
        if rows.num_rows:
            codes, _ = stream_keys(rows, self.plan.stream_key)
            self._room.push(codes, self._regions.of(codes), *self._room.layout.encode(rows))
        return np.arange(first, first + rows.num_rows)

    def _restore_long(self, rows: pa.RecordBatch, pages: list[int], given: list[int], here: list[int]) -> None:
        slots = self._push_again(rows)
        codes = self._room.codes(slots)
        self._room.pop(np.unique(self._regions.of(codes)))
        left, given_, here_ = (np.array(numbers, dtype=np.int64) for numbers in (pages, given, here))
        service = Service(slots, codes, left, given_, self.sizes.pages_per_step, here_)
        service.is_long = True
        service.begin(self._master)
        self._services.append(service)

    def _setting(self) -> str:
        return f"{self._master.identity} {self.plan.how} {self.plan.stream_key} {self.plan.output_schema}"

    def _return_freed_memory(self, used_bytes: int) -> None:
        """Let Arrow's allocator give back what it keeps."""
        self._used_since_return += used_bytes
        if self._used_since_return > self.sizes.total_bytes:
            self._used_since_return = 0
            pa.default_memory_pool().release_unused()

    def _held_bytes(self) -> dict[str, int]:
        in_flight = sum(self._master.buffer_bytes(service.pages) for service in self._services)
        return {
            "arrivals": self._arrivals.bytes_held,
            "hot_rows": self._hot.bytes_held,
            "sketch": self._sketch.bytes_held,
            "waiting": self._room.bytes_held,
            "disk_buffer": in_flight,
            "index": self._master.index_bytes + self._regions.bytes_held + len(self._regions) * REGION_BYTES,
            "output": self._output_bytes + len(self._staging),
        }


def _long_facts(service: Service) -> list[Any]:
    rows = service.rows_left
    given = service.given + service.given_now()
    numbers = (service.pages_left, given[rows], service.given_here()[rows])
    return [len(service.slots[rows]), *(part.tolist() for part in numbers)]


__all__ = ["TideJoin"]
