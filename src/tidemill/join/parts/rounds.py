"""Disk rounds: segments that were read meet the rows that wait for them, and what leaves is staged."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.core.recycled import Recycled
from tidemill.join.output import OutputPlan
from tidemill.join.parts import serve_kernels as kernels
from tidemill.join.parts.departures import Departure
from tidemill.join.parts.hits import pairs_per
from tidemill.join.parts.kernels import Int64s
from tidemill.join.parts.putter import Putter
from tidemill.join.parts.segment_read import SegmentRead
from tidemill.join.parts.shared_rows import SharedRows, StreamCells
from tidemill.join.parts.side_by_side import SideBySide
from tidemill.master.protocol import RowsOfPages
from tidemill.master.rows import RowLayout, UInt8s

_NONE = np.empty(0, dtype=np.int64)


class Rounds:
    """What was read last, how far its rounds have come, and the pairs that they gave since output was begun.

    Args:
        plan: What leaves, and for which rows.
        stream: How stream rows lie.
        layout: Of master rows.
        staging_bytes: For copies of rows that leave; pairs take up to half as much.
        beside: A faster way to the output.
    """

    def __init__(
        self, plan: OutputPlan, stream: StreamCells, layout: RowLayout, staging_bytes: int, beside: SideBySide
    ) -> None:
        self._plan, self._stream, self._layout = plan, stream, layout
        self._beside = beside
        per_match, if_matched, if_not = pairs_per(plan)
        self._confirms = plan.stream_key.form.is_hashed
        self._is_one_each = self._confirms and not per_match
        if self._is_one_each:  # who leaves is known once keys were compared
            if_matched = if_not = 1
        keeps = bool(plan.master_columns)
        facts = [
            per_match,
            if_matched,
            if_not,
            keeps,
            keeps,
            1,
            1,
            layout.last_open_offset,
            layout.fixed_bytes,
        ]
        self._rule = np.array(facts, dtype=np.int64)
        # What is staged becomes columns, which take more than packed rows.
        least_bytes = stream.layout.least_row_bytes + layout.least_row_bytes
        self._grow_staging(staging_bytes * least_bytes // (least_bytes + layout.grows_bytes))
        self._slots, self._met = np.zeros(2, dtype=np.int32), np.zeros(1, dtype=np.int32)
        self._cursor = np.zeros(12, dtype=np.int64)
        self.forget()

    def forget(self) -> None:
        """Nothing was read."""
        self.read: Any = None
        self._rows: RowsOfPages | None = None
        self.pages_behind = 0
        self._cursor[:] = 0
        self._are_whole = True
        """Whether rows staged leave with all their matches: none in a step before, none in pages that follow."""

    def _grow_staging(self, size_bytes: int) -> None:
        self._staging: UInt8s = np.empty(-(-size_bytes // 8), dtype=np.uint64).view(np.uint8)
        pairs = max(1, size_bytes // (kernels.PAIR_BYTES + self._stream.layout.least_row_bytes))
        self._pairs = np.empty((3, pairs), dtype=np.int64)

    @property
    def bytes_held(self) -> int:
        """By staging area and pairs."""
        return self._staging.nbytes + self._pairs.nbytes

    @property
    def read_bytes_held(self) -> int:
        """By what was read last, until it was matched."""
        return self.read.buffer_bytes + self._slots.nbytes + self._met.nbytes if self._rows is not None else 0

    @property
    def are_under_way(self) -> bool:
        return self._rows is not None

    @property
    def pairs(self) -> int:
        """That were staged."""
        return int(self._cursor[kernels.PAIRS])

    @property
    def unmatched(self) -> int:
        """Rows that finished without a match."""
        return int(self._cursor[kernels.UNMATCHED])

    @property
    def has_output(self) -> bool:
        return self.pairs > 0

    @property
    def most_output_bytes(self) -> int:
        """That the pairs of a step take as columns, unless there is one alone that takes more."""
        return len(self._staging)

    @property
    def is_half_full(self) -> bool:
        """Whether what is staged takes half of the staging area or more."""
        return 2 * int(self._cursor[kernels.STAGED]) >= len(self._staging)

    @property
    def segments_left(self) -> Int64s:
        """Read, but not served in full."""
        return self.read.segments[int(self._cursor[kernels.RUN]) :] if self.are_under_way else _NONE

    def begin_output(self) -> None:
        """Nothing is staged; what was handed over before must have left."""
        self._cursor[kernels.PAIRS : kernels.TOO_WIDE + 1] = 0
        self._are_whole = not self._cursor[kernels.NEXT_MATCH]

    def take(self, read: SegmentRead, rows: RowsOfPages, pages_behind: int) -> None:
        """Begin the rounds of some segments.

        Args:
            read: What was asked for.
            rows: What came.
            pages_behind: That follow, with more rows of the same keys.
        """
        is_whole = read.begins_segment and not pages_behind
        self.read, self._rows, self.pages_behind = read, rows, pages_behind
        self._rule[kernels.ADMITS], self._rule[kernels.IS_LAST] = is_whole, pages_behind == 0
        self._cursor[: kernels.NEXT_MATCH + 1] = self._cursor[kernels.WANTS_ROOM :] = 0
        most_rows = int(np.diff(read.first_row).max())
        if most_rows > len(self._met):
            self._met = np.zeros(most_rows, dtype=np.int32)
            self._slots = np.zeros(2 << (most_rows - 1).bit_length(), dtype=np.int32)

    def serve(self, shared: SharedRows, before_move: Callable[[], None], *, may_grow: bool) -> None:
        """Let rows that wait meet what was read, until all have or the staging area is full.

        Args:
            shared: Where they wait, and where rows turn hot.
            before_move: Called before hot rows move.
            may_grow: Whether the staging area may become as large as a single pair that is wider.
        """
        assert self._rows is not None
        worth = np.array([shared.waiting_row_bytes, shared.hits_per_waiting_row])
        cursor = self._cursor
        self._are_whole &= bool(self._rule[kernels.ADMITS])
        if not cursor[kernels.RUN] and not cursor[kernels.IS_BEGUN]:
            shared.touch(self.read.segments)
        while True:
            kernels.serve(
                shared.memory, shared.state, self._stream.shape, *shared.lists, self.read.segments, self.read.first_row,
                self._rows.buffer, self._rows.codes, self._rows.at, self._slots, self._met, self._rule, worth,
                self._staging, cursor, *self._pairs,
            )  # fmt: skip
            if cursor[kernels.TOO_WIDE] and may_grow:
                self._grow_staging(int(cursor[kernels.TOO_WIDE]))
                cursor[kernels.TOO_WIDE] = 0
            elif cursor[kernels.WANTS_ROOM] and not cursor[kernels.IS_BEGUN]:
                shared.make_room(before_move)
            else:
                break
        if cursor[kernels.RUN] == len(self.read.segments):
            self._rows = None

    def ask(self, putter: Putter, memory: Recycled) -> Departure | None:
        """Have what was staged put together on another core; None unless each row leaves in full, with one pair.

        Output may not begin anew before it has left.
        """
        pairs, matched = self.pairs, int(self._cursor[kernels.MATCHED])
        leaving = matched + self.unmatched * int(self._rule[kernels.IF_NOT])
        is_one_each = pairs > 0 and pairs == leaving and not self.are_under_way
        output_bytes = int(self._cursor[kernels.OUTPUT_BYTES])
        if not (is_one_each and self._are_whole and self.is_able) or output_bytes > self.most_output_bytes:
            return None
        put_out = self._beside.ask_rows(putter, *self._rows_beside(), memory)
        return Departure(put_out, pairs, matched, output_bytes, slots=_NONE)

    def stream_rows(self, count: int) -> pa.RecordBatch:
        """So many that were staged and handed over."""
        return self._stream.layout.decode(self._staging, self._pairs[0, :count])

    @property
    def is_able(self) -> bool:
        """Whether what is staged becomes output by one compiled call."""
        return self._beside.is_able and not self._confirms

    def _rows_beside(self) -> tuple[UInt8s, Int64s, UInt8s, Int64s, int]:
        """Pairs as `SideBySide` wants them."""
        pairs = int(self._cursor[kernels.PAIRS])
        other_bytes = self._stream.layout.least_row_bytes + kernels.PAIR_BYTES
        rows_bytes = int(self._cursor[kernels.OUTPUT_BYTES]) - pairs * other_bytes
        return self._staging, self._pairs[0, :pairs], self._staging, self._pairs[1, :pairs], rows_bytes

    def output(self, shared: SharedRows, memory: Recycled) -> tuple[pa.RecordBatch | None, int, int]:
        """What was staged, as a batch in this memory or Arrow's, and how many rows with and without a match finished."""
        pairs = int(self._cursor[kernels.PAIRS])
        matched, unmatched = int(self._cursor[kernels.MATCHED]), int(self._cursor[kernels.UNMATCHED])
        if not pairs:
            return None, matched, unmatched
        stream_at, master_at, cell = self._pairs[:, :pairs]
        if self.is_able:
            return self._beside.of_rows(*self._rows_beside(), memory), matched, unmatched
        stream_rows = self._stream.layout.decode(self._staging, stream_at)
        if self._confirms:
            kept, master_at, unmet = self._confirmed(stream_rows, master_at, cell, shared)
            stream_rows, matched, unmatched = stream_rows.take(kept), matched - unmet, unmatched + unmet
        if not self._plan.chosen_columns:
            return self._plan.assemble(stream_rows, None, master_at >= 0), matched, unmatched
        master_rows = self._layout.decode(self._staging, master_at, self._plan.chosen_columns)
        return self._plan.assemble(stream_rows, master_rows, master_at >= 0), matched, unmatched

    def _confirmed(
        self, stream_rows: pa.RecordBatch, master_at: Int64s, cell: Int64s, shared: SharedRows
    ) -> tuple[Int64s, Int64s, int]:
        """Pairs that leave, their places, and how many rows have no match after all: equal codes, other keys."""
        key = self._plan.stream_key
        met = key.is_met(stream_rows, self._layout.decode(self._staging, master_at, key.form.columns))
        is_wrong = (master_at >= 0) & ~met
        master_at = np.where(met, master_at, -1)
        if self._is_one_each:
            kept = np.flatnonzero(met == (self._plan.how == "semi"))
            return kept, master_at[kept], int(is_wrong.sum())
        is_first_of_last = (cell > 0) & (self._rule[kernels.IS_LAST] > 0)
        if not self._rule[kernels.IS_LAST]:
            shared.take_marks_off(np.abs(cell[is_wrong]))
        stays = is_first_of_last & (self._rule[kernels.IF_NOT] > 0)
        kept = np.flatnonzero(~is_wrong | stays)
        return kept, master_at[kept], int((is_wrong & is_first_of_last).sum())

    # Where a snapshot goes on.

    def progress(self) -> list[int]:
        """Of the first segment left: where its pages begin, how far it has come."""
        run = int(self._cursor[kernels.RUN])
        return [self.read.first_page(run), *self._cursor[kernels.IS_BEGUN : kernels.NEXT_MATCH + 1].tolist()]

    def go_on(self, progress: list[int]) -> None:
        """Begin the segment taken last where `progress` of another left it."""
        self._cursor[kernels.IS_BEGUN : kernels.NEXT_MATCH + 1] = progress


__all__ = ["Rounds"]
