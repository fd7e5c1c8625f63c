"""Hits that leave with one match at most each, without a look at each row."""

import numpy as np
import pyarrow as pa

from tidemill.core.recycled import Recycled
from tidemill.join.output import OutputPlan
from tidemill.join.parts.aside import Aside
from tidemill.join.parts.kernels import Int64s
from tidemill.join.parts.leaving_kernels import PAIR_WORK_BYTES
from tidemill.join.parts.probed import Probed
from tidemill.join.parts.putter import Asked, Putter
from tidemill.join.parts.side_by_side import SideBySide
from tidemill.master.rows import RowLayout, UInt8s


class LeavingOnce:
    """As `Leaving`, for rows that `meet` has settled: what it has counted is told, and rows leave as one batch where that fits.

    Args:
        plan: What leaves, and for which rows: an inner or a left join.
        layout: Of the master rows in `rows`.
        rows: Buffer of master rows.
        probed: The rows, with their places.
        stream_row_bytes: Of each stream row.
        beside: Puts both together.
        memory_from: Where the memory of that comes from.
        batch: The piece of the stream that was probed.
    """

    next_match = 0  # a row leaves in full

    def __init__(
        self,
        plan: OutputPlan,
        layout: RowLayout,
        rows: UInt8s,
        probed: Probed,
        stream_row_bytes: int,
        beside: SideBySide,
        memory_from: Recycled,
        batch: pa.RecordBatch,
    ) -> None:
        self._plan, self._layout, self._rows = plan, layout, rows
        self._probed, self._beside = probed, beside
        self._memory_from, self._batch = memory_from, batch
        self._each_bytes = stream_row_bytes + layout.grows_bytes + PAIR_WORK_BYTES
        self._bytes = probed.matches_bytes + len(probed.known) * self._each_bytes
        self.next_row = 0
        self.output_bytes = 0
        """Of the batch put out last, counted from above."""

    @property
    def at(self) -> Int64s:
        return self._probed.at

    @property
    def is_over(self) -> bool:
        return self.next_row == len(self.at)

    def stream_rows(self, *, from_first: bool = False) -> pa.RecordBatch:
        """The rows that have not left, or all."""
        return self._batch.take(self._probed.known[0 if from_first else self.next_row :])

    def matched_in(self, rows: slice) -> int:
        """How many of these have a match."""
        if rows.stop - rows.start == len(self.at):
            return self._probed.matched
        return int(np.count_nonzero(self.at[rows] >= 0))

    @property
    def whole_bytes(self) -> int | None:
        """Of a batch of all rows; None where some have left."""
        return None if self.next_row else self._bytes

    def ask_for_all(self, putter: Putter) -> Asked | None:
        """All rows as one batch, put together on another core; None if none of them leaves."""
        everyone = slice(0, len(self.at))
        known, at = self._leaving(everyone)
        if not len(at):
            return None
        facts = (self._probed.matches_bytes, self._memory_from, self._probed.matched)
        return self._beside.ask_batch(putter, self._batch, self._sources, known, self._rows, at, *facts)

    def put_out(self, limit_bytes: int) -> tuple[slice, pa.RecordBatch | None]:
        """The rows that are finished with the next batch, and that batch, if any row of it leaves."""
        finished, matches_bytes = self._next(limit_bytes)
        self.next_row = finished.stop
        self.output_bytes = matches_bytes + (finished.stop - finished.start) * self._each_bytes
        known, at = self._leaving(finished)
        if not len(at):
            return finished, None
        facts = (matches_bytes, self._memory_from, self.matched_in(finished))
        return finished, self._beside.of_batch(self._sources, known, self._rows, at, *facts)

    def put_out_beside(self, limit_bytes: int, aside: Aside) -> tuple[slice, list[pa.RecordBatch]]:  # noqa: ARG002
        """The same, as `Leaving` gives it."""
        finished, output = self.put_out(limit_bytes)
        return finished, [] if output is None else [output]

    @property
    def _sources(self) -> Int64s:
        assert self._probed.sources is not None, "only rows with sources are met"
        return self._probed.sources

    def _leaving(self, rows: slice) -> tuple[Int64s, Int64s]:
        """Numbers and places of those that leave among some rows."""
        known, at = self._probed.known[rows], self.at[rows]
        if self._plan.how == "left" or self._probed.matched == len(self.at):
            return known, at
        has_match = at >= 0
        return known[has_match], at[has_match]

    def _next(self, limit_bytes: int) -> tuple[slice, int]:
        """Rows that leave with the next batch, one at least, and bytes of their matches.

        Those that need several batches leave in batches of one size: each is made in the memory of one before.
        """
        begin, rows = self.next_row, len(self.at)
        if begin == 0 and self._bytes <= limit_bytes:
            return slice(0, rows), self._probed.matches_bytes
        if begin == rows:
            return slice(begin, begin), 0
        sizes = self._probed.sizes(self._layout, self._rows)
        ends = np.cumsum(sizes[begin:] + self._each_bytes)
        batches = -(-int(ends[-1]) // max(1, limit_bytes))
        even_bytes = int(ends[-1]) // batches + int(sizes.max()) + self._each_bytes
        count = max(1, int(np.searchsorted(ends, min(limit_bytes, even_bytes), side="right")))
        count = min(count, rows - begin)
        return slice(begin, begin + count), int(ends[count - 1]) - count * self._each_bytes


__all__ = ["LeavingOnce"]
