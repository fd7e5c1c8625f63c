"""Some regions being read for the rows that wait for them."""

from collections import deque
from typing import Any, NamedTuple

import numpy as np

from tidemill.join.parts import leaving_kernels as kernels
from tidemill.join.parts.kernels import Bools, Int64s
from tidemill.master.protocol import Master
from tidemill.master.reads import PageRows
from tidemill.master.rows import RowLayout, UInt8s

_BEYOND = np.iinfo(np.int64).max  # any page
_NONE = np.empty(0, dtype=np.int64)
_ONE_EACH = (1, 0, 1)  # pairs of a row with one match at most: one for the match, one if there is none


class Part(NamedTuple):
    """Rows that leave."""

    slots: Int64s
    at: Int64s
    """Places of their matches."""
    matched: Bools | None
    """Whether there is one, where no master columns leave."""
    rows_bytes: int
    """Of their matches, where stream rows are equally long."""


class Service:
    """Rows taken off the waiting lists of some regions, the pages read for them, and how far matching has come.

    Rows leave in their order. A region longer than one read, because one code fills more, is served alone, piece by
    piece: its rows stay until the last one, and `given` counts the matches of each that have left before.

    Args:
        slots: Of the rows in the waiting room.
        codes: Of the rows.
        pages: Numbers of the pages to read, ascending; perhaps none.
        given: Matches of each row that have left, in pages read before these or, after a restore, in these.
        most_pages: Of one piece.
        given_here: The part of `given` that lies in these pages, to be passed over.
        groups: First page of each region and the page after the last one, and how many rows each has: a row finds
            its matches faster among those of its own region.
    """

    def __init__(
        self,
        slots: Int64s,
        codes: Int64s,
        pages: Int64s,
        given: Int64s,
        most_pages: int,
        given_here: Int64s | None = None,
        groups: tuple[Int64s, Int64s] | None = None,
    ) -> None:
        self.slots, self.codes = slots, codes
        self._groups = groups or (np.array([0, _BEYOND]), np.array([len(slots)]))
        self.page: Any = None
        self.given = given
        self._passed = given if given_here is None else given_here
        cuts = np.arange(most_pages, len(pages), most_pages)
        self._pieces = deque(np.split(pages, cuts) if len(cuts) else [pages] if len(pages) else [])
        self.is_long = len(cuts) > 0
        """Whether it takes several pieces: then its progress is worth keeping."""
        # After a restore nobody knows whether codes began in pages read before.
        self._first_page = int(pages[0]) if len(pages) and given_here is None else -1
        self.pages = _NONE
        self._reading: Any = None
        self.start = self.matches = _NONE
        self.is_one_each = False
        """Whether each row has one match at most, and all it has here."""
        # Next row, which of its matches, pairs, bytes, end of the staging area.
        self.cursor = np.zeros(5, dtype=np.int64)

    @property
    def is_last_piece(self) -> bool:
        return not self._pieces

    @property
    def next_row(self) -> int:
        return int(self.cursor[kernels.NEXT])

    @property
    def is_piece_over(self) -> bool:
        return self.next_row >= len(self.slots)

    @property
    def rows_left(self) -> slice:
        """Rows whose fate is open."""
        return slice(self.next_row if self.is_last_piece and self.page is not None else 0, None)

    @property
    def pages_left(self) -> Int64s:
        """Of this piece and of those that follow."""
        return np.concatenate([self.pages, *self._pieces])

    def given_here(self) -> Int64s:
        """Matches of each row that have left of this piece."""
        return self._passed + self.given_now()

    def given_now(self) -> Int64s:
        """Matches of each row that have left of this piece since it was read."""
        now = np.zeros(len(self.slots), dtype=np.int64)
        if self.page is not None:
            now[: self.next_row] = self.matches[: self.next_row]
            if not self.is_piece_over:
                now[self.next_row] = self.cursor[kernels.NEXT_MATCH]
        return now

    def facts_left(self) -> list[Any]:
        """How many rows there are whose fate is open, the pages left for them, and what of both has left."""
        rows = self.rows_left
        given = self.given + self.given_now()
        numbers = (self.pages_left, given[rows], self.given_here()[rows])
        return [len(self.slots[rows]), *(part.tolist() for part in numbers)]

    def begin(self, master: Master) -> None:
        """Start the read of the next piece."""
        if self.page is not None:
            self.given = self.given + self.given_now()
            self._passed = np.zeros_like(self.given)
        self.page = None
        self.pages = self._pieces.popleft() if self._pieces else _NONE
        self._reading = master.begin_pages(self.pages) if len(self.pages) else None

    def arrive(self, master: Master) -> tuple[Int64s, Int64s]:
        """Take what was read: where the matches of each row begin in it, and how many there are."""
        self.cursor[:] = 0
        if self._reading is None:
            self.page = ()
            return np.zeros_like(self.codes), np.zeros_like(self.codes)
        self.page, self._reading = self._reading.result(), None
        start, matches = np.empty((2, len(self.codes)), dtype=np.int64)
        begin, end = self._stretches(master)
        kernels.find(self.page.codes, begin, end, self.codes, start, matches)
        return start, matches

    def _stretches(self, master: Master) -> tuple[Int64s, Int64s]:
        """Between which rows of the pages that were read the matches of each row lie."""
        if master.page_order != "key":
            page, count = master.locate(self.codes)
            here = np.minimum(np.searchsorted(self.pages, page), len(self.pages) - 1)
            return self.page.page_start[here], self.page.page_start[here + 1] * (count > 0)
        first_page, rows = self._groups
        edges = self.page.page_start[np.searchsorted(self.pages, first_page)]
        return np.repeat(edges[:-1], rows), np.repeat(edges[1:], rows)

    def buffer_bytes(self, master: Master) -> int:
        """Memory that is held by what was read or is being read."""
        return master.rows_buffer_bytes(self.pages)

    def is_complete(self, start: Int64s, matches: Int64s) -> Bools:
        """Which codes have all their rows in this piece, as far as that is known."""
        if not self.is_long:
            return np.ones(len(matches), dtype=np.bool_)
        begins = (start > 0) | (self.pages[0] == self._first_page)
        ends = (start + matches < len(self.page.codes)) | self.is_last_piece
        complete: Bools = (matches > 0) & begins & ends
        return complete

    def meet(self, start: Int64s, matches: Int64s) -> None:
        """Note the matches of this piece, less those that have left."""
        if self._passed.any():
            start, matches = start + self._passed, matches - self._passed
        self.start, self.matches = start, matches
        self.is_one_each = not self.is_long and int(matches.max(initial=0)) <= 1 and not self.given.any()

    def stage(
        self,
        pairs_per: tuple[int, int, int],
        layout: RowLayout,
        staging: UInt8s,
        limit_bytes: int,
        filled: Int64s,
        stream_sizes: Int64s,
    ) -> tuple[Int64s | slice, Int64s]:
        """Pairs of row and match, as far as they fit: positions in `slots`, and places in the staging area.

        Args:
            pairs_per: How many pairs a row gives (`pairs_per` of a plan).
            layout: Of master rows.
            staging: Where their copies go; when it is empty, places are those in the pages.
            limit_bytes: Of the output.
            filled: Bytes that the output takes so far, and end of what is staged; moved on.
            stream_sizes: Of the stream row of each slot, or one for all.
        """
        cursor = self.cursor
        are_equal = layout.last_open_offset < 0 and len(stream_sizes) == 1
        if self.is_one_each and are_equal and pairs_per == _ONE_EACH and not len(staging):
            return self._place_singles(int(stream_sizes[0]) + layout.least_row_bytes, limit_bytes, filled)
        cursor[kernels.PAIRS], cursor[kernels.USED_BYTES :] = 0, filled
        per_match, if_matched, if_not = pairs_per
        if not self.is_last_piece:
            if_matched = if_not = 0
        most = int(self.matches[self.next_row :].sum()) * per_match + len(self.slots) - self.next_row
        most = min(most, limit_bytes // kernels.PAIR_WORK_BYTES + 1)
        pair_row, pair_at = np.empty((2, most), dtype=np.int64)
        page: Any = self.page or PageRows(staging[:0], _NONE, _NONE, _NONE)
        kernels.stage(
            per_match, if_matched, if_not, page.buffer, page.at, self.start, self.matches, self.given, stream_sizes,
            layout.last_open_offset, layout.fixed_bytes, limit_bytes, staging, cursor, pair_row, pair_at,
        )  # fmt: skip
        filled[:] = cursor[kernels.USED_BYTES :]
        pairs = int(cursor[kernels.PAIRS])
        return pair_row[:pairs], pair_at[:pairs]

    def _place_singles(self, pair_bytes: int, limit_bytes: int, filled: Int64s) -> tuple[slice, Int64s]:
        """As `stage`, where each row gives one pair and all take as much: then who leaves is known without a look."""
        used, each, first = int(filled[0]), pair_bytes + kernels.PAIR_WORK_BYTES, self.next_row
        rows = min(len(self.slots) - first, max(int(used == 0), (limit_bytes - used) // each))
        at = np.empty(rows, dtype=np.int64)
        if self.page:
            kernels.place_singles(self.page.at, self.start, self.matches, first, at)
        else:
            at.fill(-1)
        self.cursor[kernels.NEXT] = first + rows
        filled[0] += rows * each
        return slice(first, first + rows), at


__all__ = ["Part", "Service"]
