"""A piece of the stream that has met hot rows."""

import numpy as np

from tidemill.join.parts import sifting_kernels as sifting
from tidemill.join.parts.hot_cache import Met
from tidemill.join.parts.kernels import Int64s
from tidemill.master.rows import RowLayout, UInt8s

_NONE = np.empty(0, dtype=np.int64)


class Probed:
    """Where the match of each row lies, how many there are, bytes of them.

    A negative number of matches is a miss. After `close_up` only rows that leave are there, with their numbers in `known`.
    Of rows that `meet` has settled nobody has counted matches and bytes row by row: there is one match where there is a place.

    Args:
        at: Where the matches of each row begin.
        matches: How many there are; None for rows that have one at most.
        sizes: Bytes that they take; the same.
        sources: Where the stream's columns lie (`SideBySide.sources`).
    """

    def __init__(
        self, at: Int64s, matches: Int64s | None, sizes: Int64s | None, *, sources: Int64s | None
    ) -> None:
        self.at, self._matches, self._sizes = at, matches, sizes
        self.sources = sources
        self.is_met = matches is None
        """Whether `meet` has settled it."""
        self.known = _NONE
        self.until = 0
        """Rows that are settled: they leave or wait."""
        self.matched = self.matches_bytes = 0
        self.most_matches: int | None = None
        """Of those that leave: the rows with a match, bytes of all matches, and how many one row has at most, if known."""

    @classmethod
    def of_met(cls, met: Met, sources: Int64s) -> "Probed":
        """Of rows that are settled."""
        probed = cls(met.at, None, None, sources=sources)
        probed.known, probed.until = met.known, int(met.result[sifting.UNTIL])
        probed.tell(met.result)
        return probed

    @property
    def is_one_each(self) -> bool:
        """Whether nobody has more than one match, as far as that is known."""
        return self.most_matches is not None and self.most_matches <= 1

    @property
    def found(self) -> tuple[Int64s, Int64s, Int64s]:
        """Places, numbers of matches and bytes, as a probe has found them."""
        assert self._matches is not None, "nobody has probed rows that were met"
        assert self._sizes is not None
        return self.at, self._matches, self._sizes

    @property
    def matches(self) -> Int64s:
        if self._matches is None:
            self._matches = (self.at >= 0).astype(np.int64)
        return self._matches

    def sizes(self, layout: RowLayout, rows: UInt8s) -> Int64s:
        """Bytes of the matches of each row, which lie in `rows`."""
        if self._sizes is None:
            self._sizes = layout.sizes(rows, self.at)
        return self._sizes

    def tell(self, result: Int64s) -> None:
        """Note what compiled calls have counted."""
        self.matched, self.most_matches, self.matches_bytes = result[sifting.MATCHED :].tolist()

    def close_up(self, until: int, known: Int64s) -> None:
        """Only these are left, and lie in front."""
        self.until, self.known = until, known
        self.at = self.at[: len(known)]
        if self._matches is not None and self._sizes is not None:
            self._matches, self._sizes = self._matches[: len(known)], self._sizes[: len(known)]


__all__ = ["Probed"]
