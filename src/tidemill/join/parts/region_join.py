"""What a join does whose rows wait by place on disk: choose regions, read ahead, match, let rows leave."""

from abc import abstractmethod
from collections import deque
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.core.freed import Freed
from tidemill.core.memory import MemoryBudget
from tidemill.core.recycled import Recycled
from tidemill.join.output import OutputPlan
from tidemill.join.parts.departures import Departures
from tidemill.join.parts.kernels import Bools, Int64s
from tidemill.join.parts.keys import stream_keys
from tidemill.join.parts.leaving import pairs_per
from tidemill.join.parts.picking import Picked, Picker, Waiting
from tidemill.join.parts.putter import Putter
from tidemill.join.parts.regions import Regions
from tidemill.join.parts.served_join import ServedJoin
from tidemill.join.parts.service import Part, Service
from tidemill.join.parts.side_by_side import SideBySide
from tidemill.join.parts.tally import StepTally
from tidemill.join.parts.waiting_room import REGION_BYTES, WaitingRoom
from tidemill.join.tide_sizes import RESERVED, TideSizes
from tidemill.master.board import LANES, Board
from tidemill.master.protocol import Master
from tidemill.master.rows import RowLayout, UInt8s

_ENOUGH_ROWS = 1000  # of one read, to make columns of them at once: copies cost more than 50 µs together
_NO_STAGING = np.empty(0, dtype=np.uint8)
_NOBODY = np.empty(0, dtype=np.int64)
_ANY = np.iinfo(np.int64).max
_LOOK_AHEAD = 16  # regions looked at for each that is wanted: to look at all for each read took a third of it
_PICKS = 3  # one is matched, two are under way
_STAGING_SHARE, _SERVED_SHARE = 0.2, 0.25  # of the output; the rest for hits
_MOST_STAGING_BYTES = 2**19  # reads that serve many rows do not need it
_MOST_SHARE = 0.34  # of either, where a page is longer than that


class RegionJoin(ServedJoin):
    """The disk's side of `tide`.

    One read is matched while the next ones are under way. A read serves the regions whose rows wait longest and those
    for which most rows wait, half and half: so no row waits for ever and few bytes are read a row. Matched master
    rows are copied to a staging area, and become columns together when that is full or the step ends.
    """

    def __init__(
        self,
        master: Master,
        plan: OutputPlan,
        budget: MemoryBudget,
        sizes: TideSizes,
        board: Board | None = None,
    ) -> None:
        self.plan = plan
        self.sizes = sizes
        self.budget = budget
        self._master = master
        self._layout: RowLayout = master.layout
        self._copies = plan.how in ("inner", "left") and bool(plan.chosen_columns)
        self._pairs_per = pairs_per(plan)
        self._regions = Regions(master, sizes.region_pages)
        self._index_bytes = (
            master.index_bytes + self._regions.bytes_held + len(self._regions) * REGION_BYTES
        )  # asked for in every step
        for name in RESERVED:
            budget.reserve(name, getattr(sizes, f"{name}_bytes"))
        # Held by output
        self._staging: UInt8s = np.empty(self._staging_bytes() // 8, dtype=np.uint64).view(np.uint8)
        # Rows served by a read and hits may leave in the same step: each kind has its own.
        self._served_bytes = max(len(self._staging), int(_SERVED_SHARE * sizes.output_bytes))
        self._memory = Recycled(self._served_bytes)
        self._hits_memory = Recycled(self._hits_bytes)
        self._output_bytes = self._served_given_bytes = 0
        self._freed = Freed(sizes.total_bytes // 2)
        self._board = board
        self._hand = 0
        self._putter = Putter()
        # Held by output
        self._departures = Departures()
        self._picker = Picker(
            master,
            sizes.disk_buffer_bytes // _PICKS,
            sizes.regions_per_read * sizes.reads_per_step // 2,
            sizes.region_pages,
            board,
        )

    def _staging_bytes(self) -> int:
        """A row fits in any case, since it fits into a page."""
        usual, most = (int(self.sizes.output_bytes * s) for s in (_STAGING_SHARE, _MOST_SHARE))
        return min(most, max(min(usual, _MOST_STAGING_BYTES), self._master.longest_page_bytes))

    @property
    def _hits_bytes(self) -> int:
        """Of the output reservation, for hits."""
        return self.sizes.output_bytes - len(self._staging) - self._served_bytes

    def _clear_waiting(self) -> None:
        # Held by waiting
        self._room = self._no_waiting_rows()
        self._beside = SideBySide(self.plan, self._layout, self._room.layout)
        self._given: dict[int, int] = {}
        # Held by the disk buffer
        self._services: deque[Service] = deque()
        self._turn = 0
        self._alone: Int64s = _NOBODY

    def _no_waiting_rows(self) -> WaitingRoom:
        layout = RowLayout.of(self.plan.stream_schema)
        key = self.plan.stream_key
        is_code = not key.form.is_hashed and self.plan.stream_schema.field(key.columns[0]).type == pa.int64()
        return WaitingRoom(
            self.sizes.waiting_bytes,
            layout,
            len(self._regions),
            self.plan.stream_row_bytes,
            key.columns[0] if is_code else None,
            self.sizes.waiting_bytes + self.sizes.hot_rows_bytes,
        )

    @abstractmethod
    def _is_room_enough(self) -> bool:
        """Whether rows that arrived should be looked at before more is read."""

    @abstractmethod
    def _began(self, regions: int, rows: int, pages: Int64s) -> None:
        """Hook: a read of pages of some regions has begun, for so many rows."""

    @abstractmethod
    def _keep(self, service: Service, start: Int64s, matches: Int64s) -> None:
        """Hook: rows were read that may be worth keeping."""

    @property
    def _is_serving(self) -> bool:
        """Whether something that was read is not used up."""
        return bool(self._services) and self._services[0].page is not None

    def _serve(self, tally: StepTally) -> None:
        """Match what was read, read after read, until output is full or the pages of a step are used up."""
        pages = departing_bytes = 0
        # What left in this step takes its memory until the step is over.
        filled = np.array([self._served_given_bytes, 0], dtype=np.int64)
        leaving: list[Part] = []
        while self._read_ahead():
            service = self._services[0]
            if service.page is None:
                pages += len(service.pages)
                if pages > self.sizes.pages_per_step:
                    break
                with tally.timed("read"):
                    start, matches = service.arrive(self._master)
                if isinstance(service, Picked) and service.left_over is not None:
                    self._put_back(service.left_over, service.in_the_way)
                self._read_ahead()
                with tally.timed("match"):
                    self._meet(service, start, matches)
            with tally.timed("stage"):
                leaves_alone = len(service.slots) - service.next_row >= _ENOUGH_ROWS
                begin = service.next_row
                limit_bytes = self._served_bytes
                if leaves_alone and self._aside.is_worth(len(service.slots)):
                    # Half of it, since the other half is that of rows that another core put together before.
                    limit_bytes = min(limit_bytes, self._served_given_bytes + limit_bytes // 2)
                staging = _NO_STAGING if leaves_alone else self._staging
                part = self._stage(service, staging, filled, limit_bytes)
            finished = slice(begin, service.next_row)
            if leaves_alone and self._may_depart(service, part):
                departing_bytes += self._depart_served(service, part, finished)
            else:
                if service.is_last_piece:
                    self._settle_served(service, finished, tally)
                if leaves_alone:
                    rows = service.page.buffer if service.page else self._staging
                    with tally.timed("assemble"):
                        self._put_out_served([part], rows, tally)
                else:
                    leaving.append(part)
            if not service.is_piece_over:
                break
            self._end_piece(service)
            if self._is_room_enough():
                break
        with tally.timed("assemble"):
            self._put_out_served(leaving, self._staging, tally)
        self._output_bytes += int(filled[0]) - self._served_given_bytes - departing_bytes

    def _end_piece(self, service: Service) -> None:
        if service.is_last_piece:
            self._services.popleft()
        else:
            service.begin(self._master)

    def _read_ahead(self) -> bool:
        """Keep reads under way for the regions that should be served next; False when nobody waits."""
        while self._begin_next():
            pass
        return bool(self._services)

    def _begin_next(self) -> bool:
        """Begin a read; False when nobody waits, or when what was read must be used up first."""
        reads = 1 + self.sizes.reads_ahead
        # After a read of whole pages the next one will most likely be such a read too.
        follows_pick = bool(self._services) and isinstance(self._services[-1], Picked)
        has_lane = sum(service.page is None for service in self._services) < LANES
        if len(self._services) >= reads and not (follows_pick and has_lane):
            return False  # asked three times for each read: adding up what is held would cost more than this
        left_bytes = self.sizes.disk_buffer_bytes - self._buffers_bytes()
        may_read = len(self._services) < reads and left_bytes >= self.sizes.disk_buffer_bytes // reads
        may_read |= not self._services and not self._departures.services
        if not may_read and not (follows_pick and has_lane):
            return False
        regions = self._alone
        is_sparse = self._regions.are_sparse_for(
            self._room.waiting_rows, int(np.count_nonzero(self._room.count))
        )
        if self._picker.is_able and not len(self._alone) and not self._given and not is_sparse:
            if left_bytes < self._picker.size_bytes or not has_lane:
                return False
            regions = self._choose(self._picker.most_regions, self._picker.most_rows)
            if not len(regions) or self._begin_picking(regions):
                return len(regions) > 0
        if not may_read:
            return False
        self._alone = _NOBODY
        most = self.sizes.regions_per_read
        if not 0 < len(regions) <= most or len(self._fitting(regions, most, _ANY)) < len(regions):
            # Of regions for which few rows wait single pages are read, hence of more regions at a time.
            regions = self._choose(most, among=self.sizes.pages_per_read if is_sparse else 0)
        if len(regions):
            self._begin_service(regions)
        return len(regions) > 0

    def _buffers_bytes(self) -> int:
        """Held by what was read or is being read."""
        held = {id(service): service for service in (*self._services, *self._departures.services)}
        return sum(service.buffer_bytes(self._master) for service in held.values())

    def _begin_picking(self, regions: Int64s) -> bool:
        """Begin a read that keeps only what is waited for; False where that cannot be done or is not worth it."""
        rows = self._room.count[regions].astype(np.int64)
        if int(rows.sum()) > self._picker.most_rows or not self._regions.are_dense(regions, rows):
            return False
        pages, edges = self._regions.pages_of(regions)
        stretches = self._picker.place(pages, regions, edges)
        if stretches is None:
            return False
        since = self._room.since[regions]
        waiting = Waiting(*self._room.pop(regions), regions, rows, since)
        self._services.append(self._picker.begin(waiting, pages, stretches))
        self._began(len(regions), len(waiting.slots), pages)
        return True

    def _put_back(self, waiting: Waiting, in_the_way: Int64s) -> None:
        """Let rows wait again; the region that was in the way is read alone, by a way that says why."""
        self._room.put_back(waiting.slots, waiting.regions, waiting.rows, waiting.since)
        self._alone = in_the_way

    def _choose(self, most: int, most_rows: int = _ANY, among: int = 0) -> Int64s:
        """Regions in the order in which they lie on disk: those whose rows wait longest, and those with most rows.

        Where processes share what they read, all go the same way around the disk instead.
        """
        among = max(most, among)
        if self._board is None:
            self._turn = (self._turn + 1) % 2
            oldest = (among + self._turn) // 2
            return np.sort(self._fitting(self._room.choose(oldest, among - oldest), most, most_rows))
        if not self._services or self._board.is_elsewhere(self._hand):
            self._hand = self._board.hand
        if among == most:  # single pages are read by each for itself
            self._board.want(self._room.count)
        chosen = self._fitting(self._ahead(among), most, most_rows)
        if len(chosen):
            self._hand = self._board.hand = int(chosen[-1]) + 1
        return chosen

    def _ahead(self, most: int) -> Int64s:
        """The next regions on the way around the disk for which rows wait, about so many."""
        near = self._hand + np.flatnonzero(self._room.count[self._hand :][: _LOOK_AHEAD * most])
        if not len(near):
            near = self._hand + np.flatnonzero(self._room.count[self._hand :])
        return near[:most] if len(near) else np.flatnonzero(self._room.count)[:most]

    def _fitting(self, regions: Int64s, most: int, most_rows: int) -> Int64s:
        """The first of them whose pages and rows are not too many; one at least."""
        rows = self._room.count[regions].astype(np.int64)
        pages = self._regions.most_pages_for(regions, rows)
        is_fitting = (np.cumsum(pages) <= most * self.sizes.region_pages) & (np.cumsum(rows) <= most_rows)
        return regions[: max(1, int(np.count_nonzero(is_fitting)))]

    def _begin_service(self, regions: Int64s) -> None:
        rows = self._room.count[regions].astype(np.int64)
        slots, codes = self._room.pop(regions)
        given = np.zeros(len(slots), dtype=np.int64)
        if self._given:
            given[:] = [self._given.pop(slot, 0) for slot in slots.tolist()]
        pages = self._regions.pages_for(regions, rows, codes)
        groups = np.append(self._regions.first_page[regions], self._regions.first_page[regions[-1] + 1]), rows
        service = Service(slots, codes, pages, given, self.sizes.pages_per_read, groups=groups)
        service.begin(self._master)
        self._services.append(service)
        self._began(len(regions), len(slots), pages)

    def _meet(self, service: Service, start: Int64s, matches: Int64s) -> None:
        """Confirm matches by their real keys, and keep the rows of codes that are met often."""
        if service.page:
            # Before: what the store has of a code is worth keeping, whoever asked for it by another key.
            self._keep(service, start, matches)
            if self.plan.stream_key.form.is_hashed:
                self._confirm(service, start, matches)
        service.meet(start, matches)

    def _confirm(self, service: Service, start: Int64s, matches: Int64s) -> None:
        """Take back matches of codes whose key is another one in the store."""
        found = np.flatnonzero(matches)
        stream_rows = self._room.decode(service.slots[found])
        met = self._are_met(stream_rows, service.page.buffer, service.page.at[start[found]])
        matches[found[~met]] = 0

    def _are_met(self, stream_rows: pa.RecordBatch, rows: Any, at: Int64s) -> Bools:
        """Where equal codes are equal keys."""
        key = self.plan.stream_key
        return key.is_met(stream_rows, self._layout.decode(rows, at, key.form.columns))

    def _waiting_parts(self) -> tuple[dict[str, pa.RecordBatch], dict[str, Any]]:
        """What waits, for a snapshot."""
        long = [service for service in self._services if service.is_long]
        short = [service for service in self._services if not service.is_long]
        slots = [self._room.waiting_slots(), *(service.slots[service.rows_left] for service in short)]
        given = [np.array([self._given.get(slot, 0) for slot in slots[0].tolist()], dtype=np.int64)]
        given += [(service.given + service.given_now())[service.rows_left] for service in short]
        slots += self._departures.slots
        given += map(np.zeros_like, self._departures.slots)
        of_long = [service.slots[service.rows_left] for service in long]
        parts = {
            "long": self._room.decode(np.concatenate([_NOBODY, *of_long])),
            "waiting": self._room.decode(np.concatenate(slots)),
            "given": pa.RecordBatch.from_arrays([pa.array(np.concatenate(given))], ["given"]),
        }
        return parts, {"long": [service.facts_left() for service in long]}

    def _restore_waiting(self, facts: dict[str, Any], parts: dict[str, pa.RecordBatch]) -> None:
        """Let wait what waited then."""
        begin = 0
        for rows, *service in facts["long"]:
            self._restore_long(parts["long"].slice(begin, rows), *service)
            begin += rows
        slots = self._push_again(parts["waiting"])
        given = parts["given"].column(0).to_numpy()
        self._given = dict(zip(slots[given > 0].tolist(), given[given > 0].tolist(), strict=True))

    def _push_again(self, rows: pa.RecordBatch) -> Int64s:
        """The slots of rows that wait again."""
        if not rows.num_rows:
            return _NOBODY
        codes, _ = stream_keys(rows, self.plan.stream_key)
        regions, (encoded, at) = self._regions.of(codes), self._room.layout.encode(rows)
        if not self._room.fits_anew(regions, int(at[-1])):
            raise self._room.too_small(rows.num_rows, int(at[-1]), self.sizes.waiting_bytes)
        return self._room.push(codes, regions, encoded, at)

    def _restore_long(
        self, rows: pa.RecordBatch, pages: list[int], given: list[int], here: list[int]
    ) -> None:
        slots = self._push_again(rows)
        codes = self._room.codes(slots)
        self._room.pop(np.unique(self._regions.of(codes)))
        left, given_, here_ = (np.array(numbers, dtype=np.int64) for numbers in (pages, given, here))
        service = Service(slots, codes, left, given_, self.sizes.pages_per_read, here_)
        service.is_long = True
        service.begin(self._master)
        self._services.append(service)

    def _disk_bytes(self) -> dict[str, int]:
        """Bytes in use, by reservation."""
        return {
            "waiting": self._room.bytes_held,
            "disk_buffer": self._buffers_bytes(),
            "index": self._index_bytes,
            "output": self._output_bytes + self._departures.output_bytes + len(self._staging),
        }


__all__ = ["RegionJoin"]
