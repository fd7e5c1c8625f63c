"""One region being read for the rows that wait for it."""

from collections import deque
from typing import Any

import numpy as np

from tidemill.join.parts import leaving_kernels as kernels
from tidemill.join.parts.kernels import Bools, Int64s
from tidemill.master import MasterData
from tidemill.master.rows import RowLayout, UInt8s

_NONE = np.empty(0, dtype=np.int64)


class Service:
    """Rows taken off the waiting lists of some regions, the pages read for them, and how far matching has come.

    A region longer than one read, because one code fills more, is served alone, piece by piece; its rows stay until
    the last piece, and `given` counts the matches of each that have left.

    Args:
        slots: Of the rows in the waiting room.
        codes: Of the rows.
        pages: Numbers of the pages to read, ascending; perhaps none.
        given: Matches of each row that have left before a restore, to be passed over.
        most_pages: Of one piece.
    """

    def __init__(
        self, slots: Int64s, codes: Int64s, pages: Int64s, given: Int64s, most_pages: int
    ) -> None:
        self.slots, self.codes, self.given = slots, codes, given
        self.is_settled = np.zeros(len(slots), dtype=np.bool_)
        self.page: Any = None
        self._pass_over = given.copy()
        self._pieces = deque(np.split(pages, np.arange(most_pages, len(pages), most_pages)) if len(pages) else [])
        self.is_long = len(self._pieces) > 1
        """Whether it takes several pieces: then its progress is worth keeping."""
        self.pages = _NONE
        self._given_before = given
        self._reading: Any = None
        # The rows that this piece concerns, as positions in `slots`, with their matches in it.
        self.rows = self._start = self._matches = _NONE
        self._next = self._next_match = 0

    @property
    def has_read(self) -> bool:
        return self.page is not None

    @property
    def is_last_piece(self) -> bool:
        return not self._pieces

    @property
    def is_piece_over(self) -> bool:
        return self._next >= len(self.rows)

    def forget(self, keeps: Bools) -> None:
        """Drop rows whose fate is settled."""
        if keeps.all():
            return
        number = np.cumsum(keeps) - 1
        left = keeps[self.rows]
        self._next -= int((~left[: self._next]).sum())
        self._start, self._matches = self._start[left], self._matches[left]
        self.rows = number[self.rows[left]]
        self.slots, self.codes, self.given = self.slots[keeps], self.codes[keeps], self.given[keeps]
        self._pass_over, self.is_settled = self._pass_over[keeps], self.is_settled[keeps]
        self._given_before = self._given_before[keeps]

    @property
    def pages_left(self) -> Int64s:
        """Of this piece and of those that follow."""
        return np.concatenate([self.pages, *self._pieces])

    @property
    def given_here(self) -> Int64s:
        """Matches of each row in this piece that have left."""
        return self.given - self._given_before

    def pass_over(self, given_here: Int64s) -> None:
        """Of what was given, only that belongs to the pages that are left: the others were read before a restore."""
        self._pass_over = given_here

    def begin(self, master: MasterData) -> None:
        """Start the read of the next piece."""
        self.page = None
        self.pages = self._pieces.popleft() if self._pieces else _NONE
        self._given_before = self.given.copy() - self._pass_over
        self._reading = master.begin_pages(self.pages) if len(self.pages) else None

    def arrive(self, master: MasterData) -> tuple[Int64s, Int64s]:
        """Take what was read: where the matches of each row begin in it, and how many there are."""
        start, matches = np.zeros_like(self.codes), np.zeros_like(self.codes)
        if self._reading is None:
            self.page = ()
            return start, matches
        self.page, self._reading = self._reading.result(), None
        if master.page_order == "key":
            kernels.find(self.page.codes, self.codes, start, matches)
        else:
            page, count = master.locate(self.codes)
            here = np.minimum(np.searchsorted(self.pages, page), len(self.pages) - 1)
            ends = self.page.page_start[here + 1] * (count > 0)
            kernels.find_in_parts(self.page.codes, self.page.page_start[here], ends, self.codes, start, matches)
        return start, matches

    def meet(self, start: Int64s, matches: Int64s, *, multiplies: bool) -> None:
        """Note the matches of this piece; without output for each match they are only counted."""
        passed = np.minimum(self._pass_over, matches)
        self._pass_over -= passed
        start, matches = start + passed, matches - passed
        if not multiplies:
            self.given += matches
            self.rows = np.arange(len(self.slots)) if self.is_last_piece else _NONE
            matches = self.given
        elif self.is_last_piece:
            # Whose matches all came with earlier pieces has left: only its fate is open.
            came_before = (matches == 0) & (self.given > 0)
            self.is_settled |= came_before
            self.rows = np.flatnonzero(~came_before)
        else:
            self.rows = np.flatnonzero(matches)
        self._start, self._matches = start[self.rows], matches[self.rows]
        self._next = self._next_match = 0

    def stage(
        self, layout: RowLayout, staging: UInt8s, filled: Int64s, *, copies: bool, stream_bytes: int
    ) -> tuple[Int64s, Int64s, Int64s]:
        """Copy matches to the staging area as far as they fit: rows, where their matches begin there, how many.

        Args:
            layout: Of master rows.
            staging: Where they go.
            filled: End of what is staged, and bytes that its output will take; moved on.
            copies: Whether master columns leave at all.
            stream_bytes: Of an average stream row.
        """
        begin = self._next
        cursor = np.array([begin, self._next_match, *filled], dtype=np.int64)
        at, rows = np.empty((2, len(self.rows)), dtype=np.int64)
        page = (self.page.buffer, self.page.at) if self.page else (staging[:0], _NONE)
        kernels.stage(
            *page, self._start, self._matches, int(copies), stream_bytes, layout.last_open_offset,
            layout.fixed_bytes, staging, cursor, at, rows,
        )  # fmt: skip
        self._next, self._next_match = int(cursor[0]), int(cursor[1])
        filled[:] = cursor[2:4]
        is_cut = self._next < len(self.rows) and rows[self._next] > 0 and self._next_match > 0
        part = slice(begin, self._next + int(is_cut))
        concerned = self.rows[part]
        if copies:
            self.given[concerned] += rows[part]
        if self.is_last_piece:
            self.is_settled[self.rows[begin : self._next]] = True
        return concerned, at[part], rows[part]


__all__ = ["Service"]
