"""Stream rows whose fate is known on arrival, on their way out beside the hot rows that they met."""

import numpy as np
import pyarrow as pa
from numba import njit, types

from tidemill.core.recycled import Recycled
from tidemill.join.output import OutputPlan
from tidemill.join.parts.cell_kernels import size_at
from tidemill.join.parts.departures import Departure
from tidemill.join.parts.kernels import Int64s
from tidemill.join.parts.putter import Putter
from tidemill.join.parts.row_taker import RowTaker
from tidemill.join.parts.side_by_side import SideBySide
from tidemill.master.row_kernels import INT64S, READ_BYTES, READ_INT64S, UInt8s
from tidemill.master.rows import RowLayout

_NEXT, _NEXT_MATCH, _PLACE, _PAIRS, _BYTES = range(5)
PAIR_BYTES = 16
"""Of a pair beside its rows: number and place."""


@njit(
    types.void(READ_BYTES, READ_INT64S, READ_INT64S, READ_INT64S, types.int64, INT64S, INT64S, INT64S),
    cache=True,
)
def _pair_up(
    rows: UInt8s, at: Int64s, matches: Int64s, rule: Int64s, limit_bytes: int, cursor: Int64s, pair_row: Int64s, pair_at: Int64s
) -> None:  # fmt: skip
    """Pairs of stream row and hot row, from the cursor on, until one more would not fit; the first always does.

    `rule`: pairs for each match, once if there is one, once if there is none; bytes of a stream row; what tells the
    size of a hot row; whether there are hot rows at all, or only codes.
    """
    base = rows.ctypes.data
    while cursor[_NEXT] < len(at):
        i = cursor[_NEXT]
        wanted = max(matches[i] * rule[0], rule[1]) if matches[i] else rule[2]
        while cursor[_NEXT_MATCH] < wanted:
            place, size = -1, rule[5]
            if matches[i] and rule[0] and rule[6]:
                place = cursor[_PLACE] if cursor[_NEXT_MATCH] else at[i]
                size = size_at(base + place, rule[4], rule[5])
            output = size + rule[3] + PAIR_BYTES
            if cursor[_PAIRS] == len(pair_row) or (cursor[_PAIRS] and cursor[_BYTES] + output > limit_bytes):
                return
            pair_row[cursor[_PAIRS]], pair_at[cursor[_PAIRS]] = i, place
            cursor[_PAIRS] += 1
            cursor[_BYTES] += output
            cursor[_NEXT_MATCH] += 1
            cursor[_PLACE] = place + size
        cursor[_NEXT] += 1
        cursor[_NEXT_MATCH] = 0


class Hits:
    """They leave in their order, over as many batches as it takes.

    Args:
        plan: What leaves, and for which rows.
        layout: Of hot rows.
        batch: Holds the stream rows.
        positions: Of those that leave.
        at: Where the hot rows of each begin; those of a key lie side by side.
        matches: How many there are.
        stream_row_bytes: On average.
        beside: A faster way to the output.
        memory: Where that of the output comes from, if it goes that way.
    """

    def __init__(
        self, plan: OutputPlan, layout: RowLayout, batch: pa.RecordBatch, positions: Int64s, at: Int64s, matches: Int64s,
        stream_row_bytes: int, beside: SideBySide, memory: Recycled,
    ) -> None:  # fmt: skip
        self._plan, self._layout = plan, layout
        self._batch, self._positions = batch, positions
        self._at, self._matches = at, matches
        hot_shape = (layout.last_open_offset, layout.fixed_bytes)
        keeps_rows = bool(plan.master_columns)
        self._rule = np.array(
            [*pairs_per(plan), stream_row_bytes + layout.grows_bytes, *hot_shape, keeps_rows], dtype=np.int64
        )
        self._cursor = np.zeros(5, dtype=np.int64)
        self._taker = RowTaker(plan.stream_schema)
        self._beside, self._memory = beside, memory
        self._sources = beside.sources(batch)

    @property
    def rows_left(self) -> int:
        return len(self._at) - int(self._cursor[_NEXT])

    @property
    def next_match(self) -> int:
        """Of the first row that is left: how many of its pairs have left."""
        return int(self._cursor[_NEXT_MATCH])

    def stream_rows(self) -> pa.RecordBatch:
        """Those that have not left in full."""
        return self._batch.take(self._positions[int(self._cursor[_NEXT]) :])

    def ask_for_all(self, putter: Putter, hot_rows: UInt8s, limit_bytes: int) -> Departure | None:
        """Have all put together on another core; None where that cannot be done, or they take more than so many bytes.

        Nobody may move hot rows before they have left.
        """
        if self._sources is None or self._cursor.any():
            return None
        pair_row, pair_at = self._pairs(hot_rows, limit_bytes)
        output_bytes, pairs = int(self._cursor[_BYTES]), len(pair_row)
        is_all = not self.rows_left and pairs > 0 and output_bytes <= limit_bytes
        self._cursor[:] = 0
        if not is_all:
            return None
        numbers = self._positions[pair_row]
        rows_bytes = output_bytes - pairs * (int(self._rule[3]) + PAIR_BYTES)
        put_out = self._beside.ask_batch(
            putter, self._batch, self._sources, numbers, hot_rows, pair_at, rows_bytes, self._memory
        )
        matched = int(np.count_nonzero(self._matches))
        return Departure(put_out, len(self._at), matched, output_bytes, stream_rows=self.stream_rows)

    def next_output(self, hot_rows: UInt8s, limit_bytes: int) -> tuple[pa.RecordBatch | None, int, int]:
        """The next batch, and how many rows with and without a match finished."""
        before = int(self._cursor[_NEXT])
        pair_row, pair_at = self._pairs(hot_rows, limit_bytes)
        until = int(self._cursor[_NEXT])
        matched = int(np.count_nonzero(self._matches[before:until]))
        output = self._output(hot_rows, pair_row, pair_at) if len(pair_row) else None
        return output, matched, until - before - matched

    def _pairs(self, hot_rows: UInt8s, limit_bytes: int) -> tuple[Int64s, Int64s]:
        """Those that leave next: which row, and where its hot row lies."""
        self._cursor[_PAIRS] = self._cursor[_BYTES] = 0
        most = int(np.maximum(self._matches[int(self._cursor[_NEXT]) :], 1).sum())
        most = max(1, min(most, limit_bytes // (int(self._rule[3]) + PAIR_BYTES)))
        pair_row, pair_at = np.empty((2, most), dtype=np.int64)
        _pair_up(hot_rows, self._at, self._matches, self._rule, limit_bytes, self._cursor, pair_row, pair_at)
        pairs = int(self._cursor[_PAIRS])
        return pair_row[:pairs], pair_at[:pairs]

    def _output(self, hot_rows: UInt8s, pair_row: Int64s, pair_at: Int64s) -> pa.RecordBatch:
        if self._sources is not None:
            numbers = self._positions[pair_row]
            rows_bytes = int(self._cursor[_BYTES]) - len(pair_row) * (int(self._rule[3]) + PAIR_BYTES)
            return self._beside.of_batch(self._sources, numbers, hot_rows, pair_at, rows_bytes, self._memory)
        stream_rows = self._taker.take(self._batch, self._positions[pair_row])
        if not self._plan.chosen_columns:
            return self._plan.assemble(stream_rows, None, self._matches[pair_row] > 0)
        master_rows = self._layout.decode(hot_rows, pair_at, self._plan.chosen_columns)
        return self._plan.assemble(stream_rows, master_rows, pair_at >= 0)


def pairs_per(plan: OutputPlan) -> tuple[int, int, int]:
    """How many pairs a row gives for each match, when it has one, when it has none."""
    return {"inner": (1, 0, 0), "left": (1, 0, 1), "semi": (0, 1, 0), "anti": (0, 0, 1)}[plan.how]


__all__ = ["PAIR_BYTES", "Hits", "pairs_per"]
