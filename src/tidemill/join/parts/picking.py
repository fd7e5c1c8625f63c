"""Many regions read for the rows that wait for them, with memory for one of them and for the rows that they find.

A read that keeps whole pages keeps 2,100 master rows of a region for the 30 that are wanted, and so serves a dozen
regions at most; choosing, beginning and matching it takes 0.5 ms. Here that is shared by four times as many.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from tidemill.join.parts.kernels import Int64s
from tidemill.join.parts.picking_kernels import ROWS, pick
from tidemill.join.parts.service import Service
from tidemill.master import MasterData
from tidemill.master.board import Board
from tidemill.master.protocol import Master
from tidemill.master.reads import PageReader, PageRows
from tidemill.master.rows import RowLayout, UInt8s
from tidemill.master.stretches import Stretches

MOST_REGIONS = 48
_FILL = 0.9  # of the memory for rows that are kept: they may be longer than others
_NONE = np.empty(0, dtype=np.int64)


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

    def after(self, regions: int) -> "Waiting":
        """Those of all but the first regions."""
        first = int(self.rows[:regions].sum())
        return Waiting(
            self.slots[first:], self.codes[first:], self.regions[regions:], self.rows[regions:], self.since[regions:]
        )  # fmt: skip


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
        self._reader: PageReader | None = None
        self._answer: Callable[[], int] = int
        self.left_over: Waiting | None = None
        """Rows that were not served after all, since a region cannot be read or memory is full."""

    def begin_with(self, reader: PageReader) -> None:
        """Start to read."""
        self.pages = self._pieces.popleft()
        self._reader = reader
        stretches, words = self._where, self._memory.view(np.int64)
        stretches.look_at_board()
        region_words = stretches.longest_bytes // 8
        most_rows = stretches.most_pages * stretches.most_rows_of_a_page
        stored, left = np.split(words[region_words:], [2 * most_rows])
        self._rows_at, rows = np.split(left, [len(left) * 8 // (self._row_bytes + 8)])
        self._rows = rows.view(np.uint8)
        first_code = np.append(0, np.cumsum(self._waiting.rows))
        self._answer = reader.submit(
            partial(
                pick, stretches.plan, *stretches.board_slots, stretches.edges, stretches.begin, stretches.block,
                stretches.file, stretches.salts, words[:region_words].view(np.uint64),
                np.empty(stretches.most_pages + 1, dtype=np.int64), stored[:most_rows], stored[most_rows:],
                self._layout.last_open_offset, self._layout.fixed_bytes, first_code, self.codes, self._rows,
                self._rows_at, self._kept, *self._found,
            )
        )  # fmt: skip

    def arrive(self, master: Master) -> tuple[Int64s, Int64s]:  # noqa: ARG002 - as that of a service
        """Take what was read; where it stopped early, the others are `left_over`."""
        started = time.perf_counter()
        regions = self._answer()
        if self._reader is not None:
            self._reader.count_stretches(self._where, time.perf_counter() - started)
        self.cursor[:] = 0
        if regions < len(self._waiting.regions):
            self.left_over = self._waiting.after(regions)
        rows = len(self.slots) - (len(self.left_over.slots) if self.left_over else 0)
        self.slots, self.codes, self.given = self.slots[:rows], self.codes[:rows], self.given[:rows]
        self._passed = self.given
        kept = int(self._kept[ROWS])
        self.page = PageRows(self._rows, _NONE, self._rows_at[:kept], _NONE)
        start, matches = self._found[:, :rows]
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
    """

    def __init__(self, master: Master, size_bytes: int, most_regions: int, region_pages: int) -> None:
        self._layout: RowLayout = master.layout
        self.size_bytes = size_bytes // 8 * 8
        self.most_regions = min(MOST_REGIONS, most_regions)
        self._row_bytes = max(master.row_bytes, master.layout.least_row_bytes)
        region_bytes = master.rows_buffer_bytes(np.arange(min(region_pages, master.pages)))
        self.most_rows = max(0, int(_FILL * (size_bytes - region_bytes) / (self._row_bytes + 8)))
        """That may wait for the regions of one read: as many as the memory has room for if their codes differ."""
        is_fit = isinstance(master, MasterData) and master.page_order == "key" and self.most_regions > 1
        self._reader = master.begin_pages(_NONE).reader if is_fit and isinstance(master, MasterData) else None

    @property
    def is_able(self) -> bool:
        return self._reader is not None

    def most_with(self, board: Board | None) -> int:
        """Regions of one read: no more than the board has room for, or what is posted first is never seen."""
        return self.most_regions if board is None else min(self.most_regions, max(2, len(board.slots)))

    def place(self, pages: Int64s, regions: Int64s, edges: Int64s, board: Board | None) -> Stretches | None:
        """Where regions lie that may be read this way; None if they lie apart or one is too long for the memory."""
        stretches = self._reader.stretches(pages, regions, edges, board) if self._reader else None
        if stretches is None:
            return None
        beside = 16 * stretches.most_pages * stretches.most_rows_of_a_page
        is_small = 2 * (stretches.longest_bytes + beside) <= self.size_bytes
        return stretches if is_small else None

    def begin(self, waiting: Waiting, pages: Int64s, stretches: Stretches) -> Picked:
        assert self._reader is not None, "place() has said that this may be done"
        picked = Picked(
            waiting, pages, self._reader.room(self.size_bytes), stretches, self._layout, self._row_bytes
        )
        picked.begin_with(self._reader)
        return picked


__all__ = ["Picked", "Picker", "Waiting"]
