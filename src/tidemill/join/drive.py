"""The loop around a join: offer what it has room for, step, drain."""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from tidemill.core.errors import BudgetError
from tidemill.core.units import format_bytes
from tidemill.join.parts.row_taker import fixed_width
from tidemill.join.protocol import SemiStreamJoin, StepReport


def drive(
    join: SemiStreamJoin, batches: Iterable[pa.RecordBatch], *, drain_each_batch: bool = False
) -> Iterator[StepReport]:
    """Reports of all steps until every row of every batch is finished.

    Args:
        join: Keeps its hot rows afterwards; it may be driven again.
        batches: Of any size; they are cut to the room that the join has.
        drain_each_batch: Finish each batch before the next is taken, as inside Spark, where no row
            may wait across micro-batches.
    """
    for batch in batches:
        rest, equal_bytes = batch, _equal_row_bytes(batch)
        while rest.num_rows:
            piece = _fitting(join, rest, equal_bytes)
            if piece.num_rows:
                join.offer(piece)
                rest = rest.slice(piece.num_rows)
            elif not join.pending_rows:
                raise _too_wide(rest)
            yield join.step()
        if drain_each_batch:
            yield from join.drain()
    yield from join.drain()


def _fitting(join: SemiStreamJoin, batch: pa.RecordBatch, equal_bytes: int | None) -> pa.RecordBatch:
    """The longest start of the batch that surely fits; halved while its own rows are wider than the average."""
    if join.room(1) == 0:  # asked first: the size of a cut batch costs more than the answer
        return batch.slice(0, 0)
    rows = min(batch.num_rows, join.room(equal_bytes or _row_bytes(batch)))
    piece = batch.slice(0, rows)
    while equal_bytes is None and rows and rows > join.room(_row_bytes(piece)):
        rows //= 2
        piece = batch.slice(0, rows)
    return piece


def _equal_row_bytes(batch: pa.RecordBatch) -> int | None:
    """Of each row, where all are equally long and any part takes as much for each: Arrow needs 10 us to add it up."""
    has_bits = any(column.buffers()[0] is not None for column in batch.columns)
    if not batch.num_rows or has_bits or not all(fixed_width(field.type) for field in batch.schema):
        return None
    return _row_bytes(batch)


def _row_bytes(batch: pa.RecordBatch) -> int:
    return -(-batch.nbytes // max(1, batch.num_rows))


def _too_wide(batch: pa.RecordBatch) -> BudgetError:
    row_bytes = batch.slice(0, 1).nbytes
    return BudgetError(
        f"a stream row of {format_bytes(row_bytes)} does not fit into an empty join",
        code="row_too_wide",
        next_move="give the join more memory, or leave wide columns out of the stream",
        row_bytes=row_bytes,
    )


__all__ = ["drive"]
