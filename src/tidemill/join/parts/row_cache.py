"""Hot rows that lie row by row in one flat buffer, with a hash table beside them that finds them by code."""

from typing import Any

import numpy as np

from tidemill.core.resizable import Resizable
from tidemill.join.parts import meeting_kernels, sifting_kernels
from tidemill.join.parts import row_cache_kernels as kernels
from tidemill.join.parts.hot_cache import Met
from tidemill.join.parts.kernels import Bools, Int64s, UInt32s
from tidemill.master.rows import RowLayout, UInt8s
from tidemill.master.short_numbers import SHORT_CODE_BYTES

ENTRY_BYTES = 16
"""Of a slot: code, and place, bytes, number and hits of its rows."""
_FILL = 0.7  # of the table: fuller ones are slower to search
HOT_ENTRY_BYTES = ENTRY_BYTES / _FILL
"""Beside the row itself."""
_EVICTED_SHARE = 0.25
# Probes for each entry. The least used ones are hit once in 16 with Zipf 1: hits that are halved sooner, or a quarter
# that goes sooner, tell chance from habit no longer. With 42,000 entries 65 % of rows are hits, with 4 and 16 it is 62.
_PROBES_AN_AGE = 64
_LEAST_PROBES, _MOST_PROBES = 16, 64  # from one renewal to the next


class RowCache:
    """The rows of codes that are met often, and codes met often that do not exist.

    When it is full, `renew` lets the quarter with the fewest hits go; hits are halved now and then, so that what was
    popular long ago makes room. If it is full again too soon, taste has changed: hits are halved at once, and a code must
    be met once more to become hot; once less if it comes too seldom. All rows of a code are kept, side by side, or none.

    Args:
        size_bytes: For table, hits and rows together.
        row_bytes: Expected size of a row; decides how the space is split between table and rows.
        layout: Of the rows; their code comes first.
        keeps_rows: False when it is enough to know that a code exists.
        most_bytes: That it may be resized to where it is.
    """

    def __init__(
        self, size_bytes: int, row_bytes: int, layout: RowLayout, *, keeps_rows: bool, most_bytes: int = 0
    ) -> None:
        self._entry_bytes = (row_bytes if keeps_rows else 0) + HOT_ENTRY_BYTES
        capacity, most_entries, left_bytes = self._parts(size_bytes, keeps_rows=keeps_rows)
        self._table = np.zeros((capacity, 2), dtype=np.int64)
        self._memory = Resizable(max(left_bytes, most_bytes if keeps_rows else 0))
        self.rows: UInt8s = self._memory.words(left_bytes // 8).view(np.uint8)
        self._layout = layout
        self._keeps_rows = keeps_rows
        self._row_shape = (layout.last_open_offset, layout.fixed_bytes)
        # Entries, most entries, end of the rows, whether something did not fit.
        self._state = np.array([0, most_entries, 0, 0], dtype=np.int64)
        self._probed = self._probed_since = 0
        self._evicted = 0
        self.least_met = 1
        """How often a code must have been met to become hot."""

    def _parts(self, size_bytes: int, *, keeps_rows: bool) -> tuple[int, int, int]:
        """Slots, entries at most, and bytes for rows."""
        capacity = max(2, int(size_bytes / self._entry_bytes / _FILL))
        most_entries = min(capacity - 1, int(capacity * _FILL))  # a search ends at a free slot
        left_bytes = min(max(0, size_bytes - capacity * ENTRY_BYTES), kernels.MOST_BYTES)
        return capacity, most_entries, left_bytes if keeps_rows else 0

    @property
    def entries(self) -> int:
        return int(self._state[0])

    @property
    def changes(self) -> int:
        """Codes put in or thrown out so far: all that are there came, and all that went came before."""
        return self.entries + 2 * self._evicted

    @property
    def is_full(self) -> bool:
        return bool(self._state[3])

    @property
    def has_been_full(self) -> bool:
        """Whether more would have become hot if there had been room."""
        return self.is_full or self.least_met > 1

    @property
    def bytes_held(self) -> int:
        return self._table.nbytes + int(self._state[2])

    def probe(self, codes: Int64s, present: Bools) -> tuple[Int64s, Int64s, Int64s]:
        """Where the rows of each code begin, how many there are, and bytes that they take.

        There are 0 of a code that does not exist, and -1 of one that is not hot.
        """
        at, rows, sizes = np.empty((3, len(codes)), dtype=np.int64)
        kernels.probe(self._table, codes, present, at, rows, sizes)
        self._probed += len(codes)
        self._probed_since += len(codes)
        return at, rows, sizes

    def meet(self, codes: Int64s, present: Bools, waits: tuple[Any, ...], most: int) -> Met:
        """As `HotCache.meet` says."""
        known, at = np.empty((2, len(codes)), dtype=np.int64)
        result = np.zeros(7, dtype=np.int64)
        meet: Any = meeting_kernels.meet
        meet(self._table, codes, present, *waits, most, known, at, result)
        leaving, until = int(result[sifting_kernels.KNOWN]), int(result[sifting_kernels.UNTIL])
        self._probed += until
        self._probed_since += until
        return Met(known[:leaving], at[:leaving], result)

    def admit(
        self, page: UInt8s, page_at: Int64s, start: Int64s, matches: Int64s, codes: Int64s, met: UInt32s
    ) -> None:
        """Keep the rows of codes that were met `least_met` times or more, while there is room."""
        if not self.entries:
            self._probed = self._probed_since = 0
        found = (page, page_at, start, matches, codes, met)
        kernels.admit(
            self._table, self.rows, self._state, *found, self.least_met, *self._row_shape, self._keeps_rows
        )  # fmt: skip

    def renew(self) -> None:
        """Make room: let the least used entries go, and age the others if it is time."""
        used = self._hits()
        never_again = min(int(np.count_nonzero(used < 2)), len(used) // 2)  # most of those that came first
        self._let_go(max(1, int(len(used) * _EVICTED_SHARE), never_again))
        is_soon = self._probed_since < _LEAST_PROBES * len(used)
        if is_soon or self._probed > _PROBES_AN_AGE * len(used):
            kernels.halve_hits(self._table)
            self._probed //= 2
        if is_soon or self.least_met == 1:
            self.least_met += 1
        elif self._probed_since > _MOST_PROBES * len(used):
            self.least_met = max(2, self.least_met - 1)
        self._probed_since = 0
        self._state[3] = 0

    def resize(self, size_bytes: int) -> None:
        """Hold more or fewer bytes from now on; entries with the fewest hits go when there is less room."""
        capacity, most_entries, left_bytes = self._parts(size_bytes, keeps_rows=self._keeps_rows)
        while self.entries > most_entries or self._state[2] > left_bytes // 8 * 8:
            self._let_go(max(1, self.entries - most_entries, self.entries // 16))
        self._table = entries = self._table[np.flatnonzero(self._table[:, 1])]  # the old one goes now
        self._table = np.zeros((capacity, 2), dtype=np.int64)
        kernels.put_entries(self._table, entries)
        self.rows = self._memory.words(left_bytes // 8).view(np.uint8)
        self._state[1], self._state[3] = most_entries, 0

    def _hits(self) -> UInt8s:
        """Of each entry."""
        entries = self._table[:, 1]
        hits: UInt8s = entries.astype(np.uint8)[entries != 0]  # their lowest byte
        return hits

    def _let_go(self, entries: int) -> None:
        """Let so many go, those with the fewest hits, and close the gaps."""
        used = self._hits()
        below = int(np.partition(used, entries - 1)[entries - 1]) if len(used) else 0
        fewer, equal = int((used < below).sum()), int((used == below).sum())
        gone = kernels.evict(self._table, below, entries - fewer, max(1, equal))
        self._state[0] -= gone
        self._evicted += gone
        if self._keeps_rows:
            is_short = self._layout.code_bytes == SHORT_CODE_BYTES
            self._state[2] = kernels.close_gaps(
                self._table, self.rows, self._state[2], *self._row_shape, is_short
            )


__all__ = ["ENTRY_BYTES", "HOT_ENTRY_BYTES", "RowCache"]
