"""Output of stream columns and master columns in one piece of memory, where their types allow."""

import numpy as np
import pyarrow as pa

from tidemill.core.recycled import Recycled
from tidemill.join.output import OutputPlan
from tidemill.join.parts.kernels import Int64s
from tidemill.join.parts.putter import Asked, Putter
from tidemill.join.parts.putter_kernels import ask_batch, ask_rows
from tidemill.join.parts.row_taker import fixed_width
from tidemill.join.parts.side_by_side_kernels import put_beside_batch, put_beside_rows
from tidemill.master.lent import batch_of, head_of, lend
from tidemill.master.row_kernels import CACHE_LINE_BYTES
from tidemill.master.rows import RowLayout, UInt8s


class SideBySide:
    """Makes batches as `OutputPlan.assemble` does, with a sixth of the work beside the columns themselves.

    Args:
        plan: What leaves.
        master: Layout of master rows.
        stream: Layout of stream rows that waited.
    """

    def __init__(self, plan: OutputPlan, master: RowLayout, stream: RowLayout) -> None:
        self._schema = plan.output_schema
        self._widths = [fixed_width(field.type) for field in plan.stream_schema]
        self._stream = stream.columns(tuple(plan.stream_schema.names))
        self._master = master.columns(plan.chosen_columns)
        sides = (*self._stream.slots, *self._master.slots)
        self.is_able = (
            bool(plan.chosen_columns) and all(self._widths) and all(slot.is_as_given for slot in sides)
        )
        marks = [] if plan.matched_as is None else [2]
        self._head = head_of([3 if slot.has_values else 2 for slot in sides] + marks)
        self._fixed_bytes = master.fixed_bytes
        self._longest_bytes = sum(slot.longest_bytes for slot in self._master.slots)
        self._edges_bytes = 8 * self._head.size + 3 * CACHE_LINE_BYTES * (2 + len(sides))

    def sources(self, batch: pa.RecordBatch) -> Int64s | None:
        """Where the values of stream columns lie and how wide they are; None if there are NULLs or other columns."""
        if not self.is_able:
            return None
        lines = []
        for column, width in zip(batch.columns, self._widths, strict=True):
            if column.null_count:
                return None
            _, values = column.buffers()
            lines.append([values.address + column.offset * width if values else 0, width, 0])
        return np.array(lines, dtype=np.int64)

    def of_batch(
        self, sources: Int64s, numbers: Int64s, rows: UInt8s, at: Int64s, rows_bytes: int, memory: Recycled,
        matched: int | None = None,
    ) -> pa.RecordBatch:  # fmt: skip
        """Stream rows by number beside master rows by place; a negative place gives NULLs.

        Args:
            sources: Of the stream's batch, which the caller keeps.
            numbers: Of stream rows.
            rows: Buffer of master rows.
            at: Where they lie in it.
            rows_bytes: That these master rows take in it together, or more.
            memory: Where that of the output comes from.
            matched: How many places there are; saves counting them.
        """
        return batch_of(
            memory,
            self._size_bytes(at, rows_bytes, matched),
            lambda room: put_beside_batch(self._head, sources, numbers, rows, at, self._master.facts, room),
            self._schema,
        )

    def ask_batch(
        self, putter: Putter, batch: pa.RecordBatch, sources: Int64s, numbers: Int64s, rows: UInt8s, at: Int64s,
        rows_bytes: int, memory: Recycled, matched: int | None = None,
    ) -> Asked:  # fmt: skip
        """As `of_batch`, on another core; the stream's batch is kept until it is done. `matched` saves it counting."""
        loan = lend(memory, self._size_bytes(at, rows_bytes, matched))
        arguments = (self._head, sources, numbers, rows, at, self._master.facts)
        return putter.ask(ask_batch, arguments, loan, self._schema, (batch, self))

    def ask_rows(
        self, putter: Putter, stream_rows: UInt8s, stream_at: Int64s, rows: UInt8s, at: Int64s, rows_bytes: int,
        memory: Recycled, matched: int | None = None,
    ) -> Asked:  # fmt: skip
        """As `of_rows`, on another core. `matched` saves counting."""
        loan = lend(memory, self._size_bytes(at, rows_bytes, matched))
        arguments = (self._head, stream_rows, stream_at, self._stream.facts, rows, at, self._master.facts)
        return putter.ask(ask_rows, arguments, loan, self._schema, (self,))

    def of_rows(
        self,
        stream_rows: UInt8s,
        stream_at: Int64s,
        rows: UInt8s,
        at: Int64s,
        rows_bytes: int,
        memory: Recycled,
    ) -> pa.RecordBatch:
        """As `of_batch`, with stream rows by place."""
        stream = (stream_rows, stream_at, self._stream.facts)
        return batch_of(
            memory,
            self._size_bytes(at, rows_bytes),
            lambda room: put_beside_rows(self._head, *stream, rows, at, self._master.facts, room),
            self._schema,
        )

    def _size_bytes(self, at: Int64s, rows_bytes: int, matched: int | None = None) -> int:
        """Memory for a batch of these rows at most."""
        matched = int(np.count_nonzero(at >= 0)) if matched is None else matched
        values = rows_bytes - matched * self._fixed_bytes + len(at) * self._longest_bytes
        bitmaps = (3 + len(self._schema)) * (len(at) // 8)
        columns = self._stream.most_bytes(len(at)) + self._master.most_bytes(len(at))
        return columns + max(0, values) + bitmaps + self._edges_bytes


__all__ = ["SideBySide"]
