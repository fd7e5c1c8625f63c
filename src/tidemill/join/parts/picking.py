"""Many regions read for the rows that wait for them, with memory for one of them and for the rows that they find.

A read that keeps whole pages keeps 2,100 master rows of a region for the 30 that are wanted, and so serves a dozen
regions at most; choosing, beginning and matching it takes 0.5 ms. Here that is shared by four times as many. Where
processes share a board, a region is read and verified by one of them, and each takes the rows that it needs.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tidemill.join.parts.keeping_kernels import COUNTED_PAGES, ROWS
from tidemill.join.parts.kernels import Bools, Int64s
from tidemill.join.parts.picking_kernels import pick
from tidemill.join.parts.service import Service
from tidemill.master import MasterData
from tidemill.master.board import LANES, Board, Lane
from tidemill.master.protocol import Master
from tidemill.master.reads import PageReader, PageRows
from tidemill.master.rows import RowLayout, UInt8s
from tidemill.master.stretches import Stretches

MOST_REGIONS = 48
_FILL = 0.9  # of the memory for rows that are kept: they may be longer than others
_NONE = np.empty(0, dtype=np.int64)
_NO_FLAGS = np.empty((0, 0), dtype=np.uint8)


@dataclass(frozen=True)
class Waiting:
    """Rows taken off the waiting lists of some regions."""

    slots: Int64s
    codes: Int64s
    regions: Int64s
    """In the order of the disk."""
    rows: Int64s
    """How many wait for each."""
    since: Int64s
    """When the oldest of each came."""

    def only(self, wanted: Bools) -> "Waiting":
        """Those of some regions."""
        of_row = np.repeat(wanted, self.rows)
        return Waiting(
            self.slots[of_row],
            self.codes[of_row],
            self.regions[wanted],
            self.rows[wanted],
            self.since[wanted],
        )


class Picked(Service):
    """Regions of which only rows that are waited for are kept: `page` has those alone.

    Args:
        waiting: Who is served.
        pages: Of all regions.
        memory: For one region, what is known of its rows, and the rows that are kept.
        stretches: Where the regions lie.
        layout: Of master rows.
        row_bytes: Of a master row on average.
    """

    def __init__(
        self,
        waiting: Waiting,
        pages: Int64s,
        memory: UInt8s,
        stretches: Stretches,
        layout: RowLayout,
        row_bytes: int,
    ) -> None:
        super().__init__(
            waiting.slots, waiting.codes, pages, np.zeros_like(waiting.slots), max(1, len(pages))
        )
        self._waiting = waiting
        self._where = stretches
        self._layout = layout
        self._row_bytes = row_bytes
        self._memory = memory
        self._rows, self._rows_at = memory[:0], _NONE
        self._kept = np.zeros(2, dtype=np.int64)
        self._found = np.zeros((2, len(waiting.slots)), dtype=np.int64)
        self._is_done = np.zeros(len(waiting.regions), dtype=np.bool_)
        self._reader: PageReader | None = None
        self._answer: Callable[[], int] = int
        self.left_over: Waiting | None = None
        """Rows that were not served after all, since a region cannot be read or memory is full."""
        self.in_the_way: Int64s = _NONE
        """The region for which that is so."""

    def begin_with(self, reader: PageReader, lane: Lane | None) -> None:
        """Start to read, into slots of the board's lane or into memory of one's own."""
        self.pages = self._pieces.popleft()
        self._reader = reader
        stretches, words = self._where, self._memory.view(np.int64)
        if lane is None:
            slot_words = stretches.longest_bytes // 8
            own, words = words[:slot_words], words[slot_words:]
            lane = Lane(
                _NONE, _NONE, _NONE, own.view(np.uint64), slot_words, 0, 1, np.zeros(1, dtype=np.int64), _NONE,
                _NO_FLAGS, _NONE, _NONE, 0,
            )  # fmt: skip
        scratch_words = _scratch_words(stretches)
        scratch, left = words[:scratch_words], words[scratch_words:]
        most_rows = len(left) * 8 // (self._row_bytes + 8)
        self._rows_at, self._rows = left[:most_rows], left[most_rows:].view(np.uint8)
        first_code = np.append(0, np.cumsum(self._waiting.rows))
        call: Any = pick
        self._answer = reader.submit(
            partial(
                call, stretches.plan, stretches.edges, stretches.begin, stretches.block, stretches.file,
                stretches.salts, *lane, scratch, self._layout.last_open_offset, self._layout.fixed_bytes, first_code,
                self.codes, self._rows, self._rows_at, self._kept, *self._found, self._is_done,
            )
        )  # fmt: skip

    def arrive(self, master: Master) -> tuple[Int64s, Int64s]:  # noqa: ARG002 - as that of a service
        """Take what was read; where it stopped early, the others are `left_over`."""
        started = time.perf_counter()
        in_the_way = self._answer()
        if self._reader is not None:
            self._reader.count_stretches(self._where, time.perf_counter() - started)
        self.cursor[:] = 0
        start, matches = self._found
        if in_the_way >= 0:
            self.left_over = self._waiting.only(~self._is_done)
            self.in_the_way = self._waiting.regions[in_the_way : in_the_way + 1]
            is_served = np.repeat(self._is_done, self._waiting.rows)
            self.slots, self.codes, self.given = (
                self.slots[is_served],
                self.codes[is_served],
                self.given[is_served],
            )
            start, matches = start[is_served], matches[is_served]
        self._passed = self.given
        kept = int(self._kept[ROWS])
        self.page = PageRows(self._rows, _NONE, self._rows_at[:kept], _NONE)
        return start, matches

    def buffer_bytes(self, master: Master) -> int:  # noqa: ARG002 - as that of a service
        return len(self._memory)


class Picker:
    """Begins reads that keep only wanted rows, where the store and the memory allow that.

    Args:
        master: What is read.
        size_bytes: Of the memory of one read.
        most_regions: Of one read.
        region_pages: Of a region, unless one code makes it longer.
        board: Where processes share what they read.
    """

    def __init__(
        self, master: Master, size_bytes: int, most_regions: int, region_pages: int, board: Board | None
    ) -> None:
        self._layout: RowLayout = master.layout
        self._board = board
        self._begun = 0
        self.size_bytes = size_bytes // 8 * 8
        self.most_regions = min(MOST_REGIONS, most_regions)
        self._row_bytes = master.stored_row_bytes
        region_bytes = master.rows_buffer_bytes(np.arange(min(region_pages, master.pages)))
        if self._board is not None:
            # What was posted first must still be there when the last of a read is looked at.
            self.most_regions = max(2, min(self.most_regions, LANES * self._board.slots_of_a_lane))
        self.most_rows = max(0, int(_FILL * (size_bytes - region_bytes) / (self._row_bytes + 8)))
        """That may wait for the regions of one read: as many as the memory has room for if their codes differ."""
        is_fit = isinstance(master, MasterData) and master.page_order == "key" and self.most_regions > 1
        self._reader = master.begin_pages(_NONE).reader if is_fit and isinstance(master, MasterData) else None

    @property
    def is_able(self) -> bool:
        return self._reader is not None

    def place(self, pages: Int64s, regions: Int64s, edges: Int64s) -> Stretches | None:
        """Where regions lie that may be read this way; None if they lie apart or one is too long for the memory."""
        stretches = self._reader.stretches(pages, regions, edges) if self._reader else None
        if stretches is None:
            return None
        if self._board is not None and stretches.longest_bytes > self._board.slot_bytes:
            return None
        is_small = 2 * (stretches.longest_bytes + 8 * _scratch_words(stretches)) <= self.size_bytes
        return stretches if is_small else None

    def begin(self, waiting: Waiting, pages: Int64s, stretches: Stretches) -> Picked:
        assert self._reader is not None, "place() has said that this may be done"
        picked = Picked(
            waiting, pages, self._reader.room(self.size_bytes), stretches, self._layout, self._row_bytes
        )
        lane = self._board.lane(self._begun) if self._board is not None else None
        self._begun += 1
        picked.begin_with(self._reader, lane)
        return picked


def _scratch_words(stretches: Stretches) -> int:
    """That `pick` asks for."""
    return 17 + COUNTED_PAGES + stretches.most_pages * (3 + stretches.most_rows_of_a_page)


__all__ = ["Picked", "Picker", "Waiting"]
