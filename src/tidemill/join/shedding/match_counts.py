"""Master rows by key, for strategies that rank by matches: counted in one scan, held in a stated memory."""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tidemill.core.errors import BudgetError
from tidemill.core.memory import MemoryBudget
from tidemill.core.units import format_bytes
from tidemill.join.parts.keys import StreamKey, stream_keys
from tidemill.join.shedding.strategy import Bools, Floats, Int64s
from tidemill.master.protocol import Master

RESERVATION = "match_counts"
KEY_BYTES = 16
"""Of a key that is held: its code and its count."""
_SCAN_KEY_BYTES = 2 * (KEY_BYTES + 8) + KEY_BYTES
"""Meanwhile twice as many are held, each with its place in an order, and a copy of those that stay."""

_MOST_PAGES = 64
"""Of a read: 1 MB."""


@dataclass(frozen=True)
class MatchCounts:
    """Counts of the keys with most master rows; all others count as their mean.

    One scan of the master data tells them (`pages_read`). What is held afterwards is 16 bytes a key, and fewer keys than
    there are when the memory ends: those with most rows, which decide what TOPW keeps.
    """

    codes: Int64s = field(repr=False)
    """Ascending."""
    counts: Floats = field(repr=False)
    other_keys: int
    """Keys that are not held."""
    other_rows: int
    pages_read: int

    @property
    def is_exact(self) -> bool:
        return self.other_keys == 0

    @classmethod
    def of(cls, master: Master, budget: MemoryBudget, *, memory_bytes: int) -> "MatchCounts":
        """Those of open master data.

        Args:
            master: Scanned once, with a quarter of the memory for what is read.
            budget: Where the counts are reserved, by the name `match_counts`.
            memory_bytes: The most that they may take, the scan included.
        """
        least = 4 * max((master.run_buffer_bytes(page, 1) for page in range(master.pages)), default=0)
        room = (memory_bytes - memory_bytes // 4) // _SCAN_KEY_BYTES
        if memory_bytes < least or room < 1:
            needed = max(least, 2 * _SCAN_KEY_BYTES)
            raise BudgetError(
                f"{format_bytes(memory_bytes)} are too little to count the master rows of keys",
                code="no_room_for_counts",
                next_move=f"give at least {format_bytes(needed)}",
                least_bytes=needed,
            )
        budget.reserve(RESERVATION, memory_bytes)
        held = _Heaviest(min(room, max(1, master.rows)))
        page = 0
        while page < master.pages:
            pages = _fitting(master, page, memory_bytes // 4)
            held.add(master.read_rows(page, pages).codes)
            page += pages
        codes, counts = held.finish()
        budget.reserve(RESERVATION, KEY_BYTES * len(codes))
        return cls(codes, counts, held.keys - len(codes), master.rows - int(counts.sum()), master.pages)

    def of_codes(self, codes: Int64s, is_present: Bools) -> Floats:
        """Matches of each code; 0 for keys that the master data cannot hold."""
        if not len(self.codes):
            return np.zeros(len(codes))
        place = np.minimum(np.searchsorted(self.codes, codes), len(self.codes) - 1)
        is_held = self.codes[place] == codes
        other = self.other_rows / self.other_keys if self.other_keys else 0.0
        found: Floats = np.where(is_held, self.counts[place], other) * is_present
        return found

    def of_rows(self, batch: pa.RecordBatch, key: StreamKey) -> Floats:
        """Matches of each stream row."""
        return self.of_codes(*stream_keys(batch, key))


def _fitting(master: Master, page: int, memory_bytes: int) -> int:
    """Pages of the longest read from here on that fits; one always does."""
    pages = min(_MOST_PAGES, master.pages - page)
    while pages > 1 and master.run_buffer_bytes(page, pages) > memory_bytes:
        pages //= 2
    return pages


class _Heaviest:
    """The keys with most rows of those that pass by, neighbours of one key together."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._codes = np.empty(2 * room, np.int64)
        self._counts = np.empty(2 * room, np.float64)
        self._used = 0
        self._open: tuple[int, int] | None = None
        """The last key, which may go on in the next page, and its rows."""
        self.keys = 0

    def add(self, codes: Int64s) -> None:
        """Count the rows of a page."""
        if not len(codes):
            return
        starts = np.flatnonzero(np.concatenate([[True], codes[1:] != codes[:-1]]))
        firsts, runs = codes[starts], np.diff(np.append(starts, len(codes)))
        if self._open is not None and self._open[0] == firsts[0]:
            runs[0] += self._open[1]
        elif self._open is not None:
            self._put(np.array([self._open[0]]), np.array([self._open[1]]))
        self._open = int(firsts[-1]), int(runs[-1])
        self._put(firsts[:-1], runs[:-1])

    def finish(self) -> tuple[Int64s, Floats]:
        """Codes in ascending order, and their counts."""
        if self._open is not None:
            self._put(np.array([self._open[0]]), np.array([self._open[1]]))
        self._cut()
        order = np.argsort(self._codes[: self._used])
        return self._codes[order], self._counts[order]

    def _put(self, codes: Int64s, counts: Int64s) -> None:
        self.keys += len(codes)
        while len(codes):
            if self._used == len(self._codes):
                self._cut()
            fits = min(len(codes), len(self._codes) - self._used)
            self._codes[self._used : self._used + fits] = codes[:fits]
            self._counts[self._used : self._used + fits] = counts[:fits]
            self._used += fits
            codes, counts = codes[fits:], counts[fits:]

    def _cut(self) -> None:
        """Back to the room."""
        beyond = self._used - self._room
        if beyond > 0:
            stays = np.argpartition(self._counts[: self._used], beyond)[beyond:]
            self._codes[: self._room] = self._codes[stays]
            self._counts[: self._room] = self._counts[stays]
            self._used = self._room


__all__ = ["KEY_BYTES", "RESERVATION", "MatchCounts"]
