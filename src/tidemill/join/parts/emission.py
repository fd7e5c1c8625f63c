"""Finished stream rows on their way out, in batches of bounded size."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tidemill.join.output import OutputPlan
from tidemill.join.parts.kernels import Bools, Int64s

FoundIn = Literal["hot_rows", "disk"]


@dataclass(frozen=True)
class Slice:
    """One output batch and the fates that it settles."""

    output: pa.RecordBatch | None
    emitted_rows: int
    dropped_rows: int
    matched_rows: int
    unmatched_rows: int


class Emission:
    """Output still to be cut: for each stream row a range of master rows, perhaps empty.

    A row with a thousand matches leaves over many slices; its fate is counted with its last one.
    Where codes are hashes the ranges are candidates: all rows of a code share one real key, which is
    compared here once for each stream row, and a row whose key differs is unmatched. `matched` says
    for each stream row given what came of that: a join that remembers matches asks it.

    Args:
        plan: Which columns leave, and what becomes of unmatched rows.
        stream: Batch that holds the stream rows.
        stream_index: Their positions in it.
        master: Batch that holds the chosen master columns.
        start: Position of the first match of each stream row.
        matches: Number of matches of each stream row, side by side from `start` on.
        found_in: Whose merit a match is.
        output_row_bytes: Average size of an output row, by which slices are cut.
        settles: False when more output of the same stream rows follows in another emission: then only
            matches of inner and left joins leave, and nobody's fate is counted.
        output_rows_done: Output rows that left before (after a restore).
    """

    def __init__(
        self,
        plan: OutputPlan,
        stream: pa.RecordBatch,
        stream_index: Int64s,
        master: pa.RecordBatch,
        start: Int64s,
        matches: Int64s,
        *,
        found_in: FoundIn,
        output_row_bytes: int,
        settles: bool = True,
        output_rows_done: int = 0,
    ) -> None:
        if plan.stream_key.form.is_hashed:
            matches = _confirmed(plan, stream, stream_index, master, start, matches)
        self.matched: Bools = matches > 0
        matched = self.matched
        keeps = _kept(plan, matched, settles=settles)
        self.plan, self.stream, self.master = plan, stream, master
        self.found_in: FoundIn = found_in
        self.settles = settles
        self._chosen_master = master.select(plan.chosen_columns) if plan.chosen_columns else master
        self._index, self._start, self._matches = stream_index[keeps], start[keeps], matches[keeps]
        multiplies = plan.how in ("inner", "left")
        output_rows = (
            np.maximum(self._matches, 1) if multiplies else np.ones(len(self._index), dtype=np.int64)
        )
        self._end = np.cumsum(output_rows)
        self._one_each = bool((output_rows == 1).all())
        self._done = output_rows_done
        self._dropped_matched = int((matched & ~keeps).sum()) if settles else 0
        self._dropped_unmatched = int((~matched & ~keeps).sum()) if settles else 0
        self.output_row_bytes = output_row_bytes

    @property
    def rows_left(self) -> int:
        """Stream rows whose fate is not yet counted."""
        if not self.settles:
            return 0
        return self._dropped_matched + self._dropped_unmatched + len(self._index) - self._rows_out()

    @property
    def is_over(self) -> bool:
        return self._done >= self._total and not (self._dropped_matched or self._dropped_unmatched)

    def next_slice(self, output_bytes: int) -> Slice:
        """The next output, of `output_bytes` at most but at least one row."""
        rows_before = self._rows_out()
        output = self._next_output(output_bytes)
        self._done += output.num_rows if output else 0
        settled = self._matches[rows_before : self._rows_out()] if self.settles else self._matches[:0]
        matched = int((settled > 0).sum())
        cut = Slice(
            output=output,
            emitted_rows=len(settled),
            dropped_rows=self._dropped_matched + self._dropped_unmatched,
            matched_rows=matched + self._dropped_matched,
            unmatched_rows=len(settled) - matched + self._dropped_unmatched,
        )
        self._dropped_matched = self._dropped_unmatched = 0
        return cut

    def to_parts(self) -> tuple[dict[str, Any], dict[str, pa.RecordBatch]]:
        """Facts and batches from which `from_parts` makes an emission of what is left."""
        rows_out = self._rows_out()
        left = slice(rows_out, None)
        starts, group = np.unique(self._start[left], return_inverse=True)
        widest = np.zeros(len(starts), dtype=np.int64)
        if self.plan.master_columns:  # else matches are counted, and `master` may hold none of them
            np.maximum.at(widest, group, self._matches[left])
        new_start = np.cumsum(widest) - widest
        wanted = np.repeat(starts - new_start, widest) + np.arange(int(widest.sum()))
        done = self._done - (int(self._end[rows_out - 1]) if rows_out else 0)
        ranges = [pa.array(new_start[group]), pa.array(self._matches[left])]
        facts = {
            "found_in": self.found_in,
            "output_row_bytes": self.output_row_bytes,
            "settles": self.settles,
            "output_rows_done": done,
        }
        return facts, {
            "leaving": self.stream.take(self._index[left]),
            "leaving_master": self.master.take(wanted),
            "leaving_ranges": pa.RecordBatch.from_arrays(ranges, ["start", "matches"]),
        }

    @classmethod
    def from_parts(
        cls, plan: OutputPlan, facts: dict[str, Any], parts: dict[str, pa.RecordBatch]
    ) -> "Emission":
        stream = parts["leaving"]
        start, matches = (column.to_numpy() for column in parts["leaving_ranges"].columns)
        everyone = np.arange(stream.num_rows)
        return cls(plan, stream, everyone, parts["leaving_master"], start, matches, **facts)

    @property
    def _total(self) -> int:
        return int(self._end[-1]) if len(self._end) else 0

    def _rows_out(self) -> int:
        return int(np.searchsorted(self._end, self._done, side="right"))

    def _next_output(self, output_bytes: int) -> pa.RecordBatch | None:
        rows = min(self._total - self._done, max(1, output_bytes // self.output_row_bytes))
        while rows > 0:
            output = self._gather(self._done, self._done + rows)
            if rows == 1 or output.nbytes <= output_bytes:
                return output
            rows //= 2  # these rows are wider than the average
        return None

    def _gather(self, begin: int, until: int) -> pa.RecordBatch:
        if self._one_each:
            cut = slice(begin, until)
            index, matches, at = self._index[cut], self._matches[cut], self._start[cut]
        else:
            wanted = np.arange(begin, until)
            row = np.searchsorted(self._end, wanted, side="right")
            nth = wanted - np.where(row > 0, self._end[row - 1], 0)
            index, matches, at = self._index[row], self._matches[row], self._start[row] + nth
        matched = matches > 0
        stream_rows = self.stream if _is_whole(index, self.stream) else self.stream.take(index)
        if not self.plan.chosen_columns:
            return self.plan.assemble(stream_rows, None, matched)
        if matched.all():
            return self.plan.assemble(stream_rows, self._chosen_master.take(at), None)
        positions = pa.array(at, pa.int64(), mask=~matched)
        return self.plan.assemble(stream_rows, self._chosen_master.take(positions), matched)


def _confirmed(
    plan: OutputPlan,
    stream: pa.RecordBatch,
    stream_index: Int64s,
    master: pa.RecordBatch,
    start: Int64s,
    matches: Int64s,
) -> Int64s:
    """The matches of rows whose real key is that of their candidates; 0 for the others."""
    found = np.flatnonzero(matches)
    key = plan.stream_key
    stream_keys = stream.select(key.columns).take(stream_index[found])
    met = key.is_met(stream_keys, master.select(key.form.columns).take(start[found]))
    if met.all():
        return matches
    confirmed = matches.copy()
    confirmed[found[~met]] = 0
    return confirmed


def _kept(plan: OutputPlan, matched: Bools, *, settles: bool) -> Bools:
    if not settles:
        return matched & (plan.how in ("inner", "left"))
    if plan.how == "left":
        return np.ones(len(matched), dtype=np.bool_)
    return ~matched if plan.how == "anti" else matched


def _is_whole(index: Int64s, batch: pa.RecordBatch) -> bool:
    """Whether the positions are all rows in their order, so that no copy is needed."""
    return len(index) == batch.num_rows and bool((index == np.arange(len(index))).all())


__all__ = ["Emission", "FoundIn", "Slice"]
