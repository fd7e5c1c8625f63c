"""Hot rows that are equally long, one a code, in sets of eight: each place of a set has its row, and is used again."""

from typing import Any

import numpy as np

from tidemill.core.resizable import Resizable
from tidemill.join.parts import set_cache_kernels as kernels
from tidemill.join.parts import sifting_kernels
from tidemill.join.parts.hot_cache import Met
from tidemill.join.parts.kernels import Bools, Int32s, Int64s, UInt16s, UInt32s
from tidemill.master.rows import RowLayout, UInt8s
from tidemill.master.short_numbers import SHORT_CODE_BYTES

SET_ENTRY_BYTES = 4 + 2
"""Beside the row itself: code, and what is known of it."""
PROBES_AN_AGE = 16
"""For each place: as many rows as the sketch remembers, which says who is to come in."""
FULL = 0.9
"""Of the places taken, when more would have come."""


class SetCache:
    """The rows of codes that are met often, and codes met often that do not exist, where a code has one row at most.

    ```
    hash of a code ─▶ set   [code code code code code code code code]   compared at once
                            [hits …                                 ]   and when it was last found
                            [row  row  row  row  row  row  row  row ]   the place of a code is that of its row
    ```
    A code that comes takes a free place of its set, or that of the one with the fewest hits if it was met more often. So all
    places are used, none is moved, and a hot row takes 6 bytes beside itself where `RowCache` takes 23. Hits are halved now and
    then. A row is replaced where it lies: `under_way` says which looks found rows that somebody will still want to see.

    Args:
        size_bytes: For all of it.
        layout: Of the rows; they are equally long, and begin with a short code.
        most_bytes: That it may be resized to where it is.
    """

    def __init__(self, size_bytes: int, layout: RowLayout, *, most_bytes: int = 0) -> None:
        self._row_bytes = layout.least_row_bytes
        self._set_bytes = kernels.WAYS * (self._row_bytes + SET_ENTRY_BYTES)
        most_sets = max(1, max(size_bytes, most_bytes) // self._set_bytes)
        words = (self._code_words, self._fact_words, self._row_words)
        self._memory = tuple(Resizable(8 * most_sets * each) for each in words)
        self._state = np.zeros(2, dtype=np.int64)
        self._sets = self._sets_of(size_bytes)
        self._look_at_memory(self._sets)
        self._codes[:] = kernels.EMPTY
        self._probed = 0
        self.looks = 0
        """How often rows were looked for."""
        self.least_met = 1
        """How often a code must have been met to become hot."""

    @staticmethod
    def may_hold(layout: RowLayout) -> bool:
        """Whether rows are equally long and begin with a short code."""
        return layout.last_open_offset < 0 and layout.code_bytes == SHORT_CODE_BYTES

    # Words of eight bytes that a set takes.
    _code_words = kernels.WAYS * 4 // 8
    _fact_words = kernels.WAYS * 2 // 8

    @property
    def _row_words(self) -> int:
        return self._row_bytes

    def _sets_of(self, size_bytes: int) -> int:
        return size_bytes // self._set_bytes

    def _look_at_memory(self, sets: int) -> None:
        """Have so many sets in sight."""
        codes, facts, rows = self._memory
        self._codes: Int32s = codes.words(sets * self._code_words).view(np.int32)
        self._facts: UInt16s = facts.words(sets * self._fact_words).view(np.uint16)
        self.rows: UInt8s = rows.words(sets * self._row_words).view(np.uint8)

    @property
    def entries(self) -> int:
        return int(self._state[kernels.ENTRIES])

    @property
    def changes(self) -> int:
        """Codes put in or thrown out so far: all that are there came, and all that went came before."""
        return self.entries + 2 * int(self._state[kernels.EVICTED])

    @property
    def is_full(self) -> bool:
        """Never so that something must be done: whoever comes takes the place of another."""
        return False

    @property
    def has_been_full(self) -> bool:
        """Whether more would have become hot if there had been room."""
        return self.entries > FULL * len(self._codes)

    @property
    def bytes_held(self) -> int:
        return self._sets * self._set_bytes

    def probe(self, codes: Int64s, present: Bools) -> tuple[Int64s, Int64s, Int64s]:
        """As `HotCache.probe` says."""
        at, rows, sizes = np.empty((3, len(codes)), dtype=np.int64)
        self.looks += 1
        kernels.probe(self._codes, self._facts, self._row_bytes, self.looks, codes, present, at, rows, sizes)
        self._age(len(codes))
        return at, rows, sizes

    def meet(self, codes: Int64s, present: Bools, waits: tuple[Any, ...], most: int) -> Met:
        """As `HotCache.meet` says."""
        known, at = np.empty((2, len(codes)), dtype=np.int64)
        result = np.zeros(7, dtype=np.int64)
        self.looks += 1
        meet: Any = kernels.meet
        meet(
            self._codes, self._facts, self._row_bytes, self.looks, codes, present, *waits, most, known, at, result
        )  # fmt: skip
        leaving = int(result[sifting_kernels.KNOWN])
        self._age(int(result[sifting_kernels.UNTIL]))
        return Met(known[:leaving], at[:leaving], result)

    def _age(self, probed: int) -> None:
        self._probed += probed
        if self._probed > PROBES_AN_AGE * len(self._codes):
            self._probed = 0
            kernels.halve_hits(self._facts)

    def admit(
        self,
        page: UInt8s,
        page_at: Int64s,
        start: Int64s,
        matches: Int64s,
        codes: Int64s,
        met: UInt32s,
        under_way: int = 0,
    ) -> None:
        """As `HotCache.admit` says."""
        found = (page, page_at, start, matches, codes, met)
        # Most who wait were met once: where all sets are full, they need not be looked for.
        least_met = max(self.least_met, kernels.LEAST_TO_REPLACE) if self.has_been_full else self.least_met
        kernels.admit(
            self._codes, self._facts, self.rows, self._state, *found, least_met, self._row_bytes, self.looks, under_way
        )  # fmt: skip

    def renew(self) -> None:
        """Nothing: each set renews itself."""

    def resize(self, size_bytes: int) -> None:
        """Hold more or fewer bytes from now on; codes with the fewest hits go when there is less room."""
        before, self._sets = self._sets, self._sets_of(size_bytes)
        self._look_at_memory(max(before, self._sets))
        self._codes[before * kernels.WAYS :] = kernels.EMPTY
        self._facts[before * kernels.WAYS :] = 0
        kernels.rehash(
            self._codes, self._facts, self.rows, self._row_bytes, before, self._sets, self._state
        )  # fmt: skip
        self._look_at_memory(self._sets)


__all__ = ["FULL", "PROBES_AN_AGE", "SET_ENTRY_BYTES", "SetCache"]
