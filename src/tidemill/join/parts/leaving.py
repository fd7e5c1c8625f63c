"""Stream rows on their way out, beside the master rows that they met, in batches that fit."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from tidemill.core.recycled import Recycled
from tidemill.join.output import OutputPlan
from tidemill.join.parts import leaving_kernels as kernels
from tidemill.join.parts.aside import Aside
from tidemill.join.parts.kernels import Int64s
from tidemill.join.parts.putter import Asked, Putter
from tidemill.join.parts.tally import StepTally
from tidemill.master.rows import RowLayout, UInt8s

_ONE_EACH = ("inner", "left")


class Leaving:
    """Rows whose matches lie side by side in a buffer; they leave in their order, over as many batches as it takes.

    Args:
        plan: What leaves, and for which rows.
        layout: Of the master rows in `rows`.
        rows: Buffer of master rows.
        at: Where the matches of each stream row begin.
        matches: How many there are.
        sizes: Bytes that they take together.
        gather: Gives the stream rows at positions of `at`.
        stream_sizes: Of each stream row, or one for all.
        memory_from: Where the memory of master columns comes from.
        put_together: A faster way to an output of stream rows at positions of `at` beside master rows at places, which
            take so many bytes.
        ask: The same, on another core.
        skip: Matches of the first row that have left before.
    """

    def __init__(
        self,
        plan: OutputPlan,
        layout: RowLayout,
        rows: UInt8s,
        at: Int64s,
        matches: Int64s,
        sizes: Int64s,
        gather: Callable[[Int64s], pa.RecordBatch],
        *,
        stream_sizes: Int64s,
        memory_from: Recycled,
        put_together: Callable[[Int64s, Int64s, int], pa.RecordBatch] | None = None,
        ask: Callable[[Putter, Int64s, Int64s, int], Asked] | None = None,
        skip: int = 0,
    ) -> None:
        self.plan = plan
        self.at, self.matches = at, matches
        stream_sizes = stream_sizes + layout.grows_bytes
        self._ends = self._output_ends(sizes, stream_sizes) if skip == 0 and plan.how in _ONE_EACH else None
        self._layout, self._rows = layout, rows
        self._gather = gather
        self._stream_sizes = stream_sizes
        self._memory_from = memory_from
        self._put_together, self._ask = put_together, ask
        # Without master columns nothing of a master row is looked at.
        self._shape = (layout.last_open_offset, layout.fixed_bytes) if plan.chosen_columns else (-1, 0)
        # Next row, which of its matches, pairs, bytes, where its next match lies.
        self._cursor = np.zeros(5, dtype=np.int64)
        if skip and len(at):
            self._cursor[kernels.NEXT_MATCH] = skip
            before = at[0]
            for _ in range(skip if plan.chosen_columns else 0):
                before += int(layout.sizes(rows, np.array([before]))[0])
            self._cursor[4] = before
        self._pairs_per = pairs_per(plan)
        self.output_bytes = 0
        """Of the batch put out last, counted from above: asking Arrow costs 90 µs."""

    @property
    def next_row(self) -> int:
        return int(self._cursor[kernels.NEXT])

    @property
    def next_match(self) -> int:
        return int(self._cursor[kernels.NEXT_MATCH])

    @property
    def is_over(self) -> bool:
        return self.next_row == len(self.at)

    def stream_rows(self, *, from_first: bool = False) -> pa.RecordBatch:
        """The rows that have not left in full, or all."""
        return self._gather(np.arange(0 if from_first else self.next_row, len(self.at)))

    def matched_in(self, rows: slice) -> int:
        """How many of these have a match."""
        return int(np.count_nonzero(self.matches[rows]))

    @property
    def whole_bytes(self) -> int | None:
        """Of a batch of all rows, where each gives one pair at most; None where that is not so or some have left."""
        if self._ends is None or self.next_row:
            return None
        return int(self._ends[-1]) if len(self._ends) else 0

    def put_out(self, limit_bytes: int) -> tuple[slice, pa.RecordBatch | None]:
        """The rows that are finished with the next batch, and that batch, if any row of it leaves."""
        before = self.next_row
        if self._ends is not None:
            return self._put_out_one_each(self._ends, before, limit_bytes)
        most_pairs = int(
            min(np.maximum(self.matches[before:], 1).sum(), limit_bytes // kernels.PAIR_WORK_BYTES + 1)
        )
        pair_row, pair_at = np.empty((2, most_pairs), dtype=np.int64)
        self._cursor[kernels.PAIRS] = self._cursor[kernels.USED_BYTES] = 0
        found = (self._rows, self.at, self.matches)
        kernels.pair_up(
            *self._pairs_per,
            *found,
            self._stream_sizes,
            limit_bytes,
            *self._shape,
            self._cursor,
            pair_row,
            pair_at,
        )
        pairs = int(self._cursor[kernels.PAIRS])
        output = self._output(pair_row[:pairs], pair_at[:pairs]) if pairs else None
        self.output_bytes = int(self._cursor[kernels.USED_BYTES])
        return slice(before, self.next_row), output

    def ask_for_all(self, putter: Putter) -> Asked | None:
        """All rows as one batch, put together on another core, where `whole_bytes` says how much that is."""
        if self._ask is None:
            return None
        rows = np.arange(len(self.at))
        if self.plan.how == "inner":
            rows = rows[self.matches > 0]
        if not len(rows):
            return None
        return self._ask(
            putter, rows, self.at if len(rows) == len(self.at) else self.at[rows], self._rows_bytes(rows)
        )

    def _output_ends(self, sizes: Int64s, stream_sizes: Int64s) -> Int64s | None:
        """Bytes of output up to and with each row, when no row has more than one match; else None."""
        ends = np.empty_like(sizes)
        leaves_unmatched = self.plan.how == "left"
        is_one_each = kernels.add_up_ends(self.matches, sizes, stream_sizes, leaves_unmatched, ends)
        return ends if is_one_each else None

    def _put_out_one_each(
        self, ends: Int64s, before: int, limit_bytes: int
    ) -> tuple[slice, pa.RecordBatch | None]:
        """As `put_out`, where each row gives one pair at most: no need to walk through matches."""
        rows = self._next_one_each(ends, before, limit_bytes)
        output = self._output(rows, self.at[rows]) if len(rows) else None
        return slice(before, self.next_row), output

    def _next_one_each(self, ends: Int64s, before: int, limit_bytes: int) -> Int64s:
        """Rows that leave with the next batch."""
        done = int(ends[before - 1]) if before else 0
        until = max(before + 1, int(np.searchsorted(ends, done + limit_bytes, side="right")))
        self._cursor[kernels.NEXT] = until = min(until, len(ends))
        self.output_bytes = int(ends[until - 1]) - done if until else 0
        rows = np.arange(before, until)
        return rows[self.matches[before:until] > 0] if self.plan.how == "inner" else rows

    def put_out_beside(self, limit_bytes: int, aside: Aside) -> tuple[slice, list[pa.RecordBatch]]:
        """As `put_out`, in two batches, one of them made on another core."""
        before = self.next_row
        if self._ends is None or not aside.is_worth(len(self.at) // 2):
            finished, output = self.put_out(limit_bytes)
            return finished, [] if output is None else [output]
        first, second = np.array_split(self._next_one_each(self._ends, before, limit_bytes), 2)
        outputs: list[pa.RecordBatch] = []
        with aside.beside(lambda: self._output(first, self.at[first]), rows=len(first)) as putting:
            if len(second):
                outputs.append(self._output(second, self.at[second]))
        if len(first):
            outputs.insert(0, putting.result()[0])
        return slice(before, self.next_row), outputs

    def _rows_bytes(self, pair_row: Int64s) -> int:
        """That the master rows of these pairs take, where stream rows are equally long."""
        if self._ends is None:
            counted = int(self._cursor[kernels.USED_BYTES])
        else:
            first = int(pair_row[0])
            counted = int(self._ends[pair_row[-1]]) - (int(self._ends[first - 1]) if first else 0)
        return counted - len(pair_row) * (int(self._stream_sizes[0]) + kernels.PAIR_WORK_BYTES)

    def _output(self, pair_row: Int64s, pair_at: Int64s) -> pa.RecordBatch:
        if self._put_together is not None:
            return self._put_together(pair_row, pair_at, self._rows_bytes(pair_row))
        stream_rows = self._gather(pair_row)
        if not self.plan.chosen_columns:
            return self.plan.assemble(stream_rows, None, self.matches[pair_row] > 0)
        master_rows = self._layout.decode(self._rows, pair_at, self.plan.chosen_columns, self._memory_from)
        return self.plan.assemble(stream_rows, master_rows, pair_at >= 0)


def pairs_per(plan: OutputPlan) -> tuple[int, int, int]:
    """How many pairs a row gives for each match, when it has one, when it has none."""
    return {"inner": (1, 0, 0), "left": (1, 0, 1), "semi": (0, 1, 0), "anti": (0, 0, 1)}[plan.how]


def count_fates(plan: OutputPlan, matched: int, unmatched: int, found_in: str, tally: StepTally) -> None:
    """Settle rows: who found a match, and who leaves with output."""
    leaves = {"inner": matched, "left": matched + unmatched, "semi": matched, "anti": unmatched}[plan.how]
    tally.counts["emitted_rows"] += leaves
    tally.counts["dropped_rows"] += matched + unmatched - leaves
    tally.counts[found_in] += matched
    tally.counts["unmatched"] += unmatched


__all__ = ["Leaving", "count_fates", "pairs_per"]
