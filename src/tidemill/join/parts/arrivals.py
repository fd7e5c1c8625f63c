"""Rows taken and not yet looked at, in order of arrival."""

from collections import deque

import pyarrow as pa

from tidemill.core.errors import BudgetError
from tidemill.core.units import format_bytes

# Beside a row itself: key, presence, entry, start, count and two gather positions while it is probed.
WORK_BYTES_PER_ROW = 56
MET_WORK_BYTES = 25
"""Of a row that meets hot rows in one compiled call: presence, number and place of one that leaves, number and region of
one that misses."""
_QUEUED_WORK_BYTES = 9  # key and presence
_QUEUE_SHARE = 0.3
_PIECES_AT_WORK = 3  # one is probed, two are put together


class Arrivals:
    """A queue of batches inside a fixed number of bytes.

    Bytes of a batch are asked for when it comes, and of a part of it only where rows differ in length: Arrow takes 20 µs.

    Args:
        limit_bytes: For all of them, with work space.
        expected_row_bytes: Of a row on average.
        equal_rows: Whether all rows are equally long.
        in_pieces: Whether rows are taken in pieces of `piece_rows`, several of which are at work at a time: then those that
            have not been taken need no work space yet, and have less of the bytes.
    """

    def __init__(
        self,
        limit_bytes: int,
        expected_row_bytes: int,
        *,
        equal_rows: bool = False,
        in_pieces: bool = False,
    ) -> None:
        self._in_pieces = in_pieces
        self.work_bytes = WORK_BYTES_PER_ROW
        """Beside each row that is taken next."""
        self._queue_bytes = int(_QUEUE_SHARE * limit_bytes) if in_pieces else limit_bytes
        self._queued_work_bytes = _QUEUED_WORK_BYTES if in_pieces else WORK_BYTES_PER_ROW
        self.rows = 0
        self.begun = 0
        self._limit_bytes = limit_bytes
        self._expected_row_bytes = expected_row_bytes
        self._equal_rows = equal_rows
        self._batches: deque[tuple[pa.RecordBatch, int]] = deque()
        self._batch_bytes = 0
        self._taken_bytes: deque[int] = deque()

    @property
    def bytes_held(self) -> int:
        return sum(self._taken_bytes) + self._queued_bytes

    @property
    def _queued_bytes(self) -> int:
        return self._batch_bytes + self.rows * self._queued_work_bytes

    def room(self, row_bytes: int | None = None) -> int:
        """Rows that may come; none until half of the space is free, lest batches crumble to a few rows."""
        each = (row_bytes or self._expected_row_bytes) + self._queued_work_bytes
        left_bytes = self._limit_bytes - self.bytes_held
        if self._in_pieces:
            left_bytes = min(left_bytes, self._queue_bytes - self._queued_bytes)
        rows = left_bytes // each if left_bytes > self._queue_bytes // 2 else 0
        if not rows and self._in_pieces and not self.bytes_held:  # one that is wide may have all of it
            rows = int(each - self._queued_work_bytes + WORK_BYTES_PER_ROW <= self._limit_bytes)
        return rows

    def add(self, batch: pa.RecordBatch, batch_bytes: int | None = None) -> None:
        """Take a batch, of so many bytes if they were added up before."""
        batch_bytes = batch.nbytes if batch_bytes is None else batch_bytes
        needed = batch_bytes + batch.num_rows * self._queued_work_bytes
        if self.bytes_held + needed > self._limit_bytes:
            raise BudgetError(
                f"{batch.num_rows} stream rows take {format_bytes(needed)}, arrivals have "
                f"{format_bytes(self._limit_bytes - self.bytes_held)} of {format_bytes(self._limit_bytes)} left",
                code="rows_too_wide",
                next_move="offer fewer rows at a time (room(row_bytes=...) counts them), or give more memory",
                needed_bytes=needed,
                limit_bytes=self._limit_bytes,
            )
        self._batches.append((batch, batch_bytes))
        self._batch_bytes += batch_bytes
        self.rows += batch.num_rows

    def next_row_bytes(self) -> int:
        """Average size of the rows that come next."""
        return -(-self._batches[0][1] // self.next_rows)

    @property
    def front(self) -> pa.RecordBatch:
        """The oldest batch, of which the first `begun` rows were taken."""
        return self._batches[0][0]

    def peek(self, most_rows: int) -> pa.RecordBatch:
        """The rows that `take` would give; they stay."""
        return self.front.slice(self.begun, most_rows)

    @property
    def next_rows(self) -> int:
        """Of the oldest batch, of which `take` gives some."""
        return self.front.num_rows - self.begun if self._batches else 0

    @property
    def most_rows(self) -> int:
        """That may be here at a time, if they are as long as expected and all are at work."""
        return self._limit_bytes // (self._expected_row_bytes + WORK_BYTES_PER_ROW)

    @property
    def piece_rows(self) -> int:
        """Of one piece, so that some are at work beside those that come."""
        at_work = self._limit_bytes - self._queue_bytes
        return max(1, at_work // _PIECES_AT_WORK // (self._expected_row_bytes + self.work_bytes))

    def fitting(self, rows: int) -> int:
        """How many of so many rows find work space beside those that were taken."""
        if not self._in_pieces:
            return rows
        each = self.next_row_bytes() + self.work_bytes
        taken_bytes = sum(self._taken_bytes)
        in_all = (self._limit_bytes - self.bytes_held) // (self.work_bytes - _QUEUED_WORK_BYTES)
        at_work = (self._limit_bytes - self._queue_bytes - taken_bytes) // each
        return min(rows, in_all, max(at_work, int(not taken_bytes)))

    def take(self, most_rows: int, *, beside_others: bool = False) -> pa.RecordBatch:
        """The oldest rows, from one batch; they count as held until `let_go`, those taken before only if so wanted."""
        batch = self.peek(most_rows)
        self.pass_by(batch.num_rows, beside_others=beside_others)
        return batch

    def pass_by(self, rows: int, *, beside_others: bool = False) -> None:
        """As `take`, where the caller has the front of which these rows are."""
        batch, all_bytes = self._batches.popleft()
        left_rows, begin = batch.num_rows - self.begun, self.begun
        self.begun += rows
        if self._equal_rows:
            taken_bytes = all_bytes - -(-all_bytes * (left_rows - rows) // left_rows)
            rest_bytes = all_bytes - taken_bytes
        else:
            taken_bytes, rest_bytes = batch.slice(begin, rows).nbytes, batch.slice(self.begun).nbytes
        if rows < left_rows:
            self._batches.appendleft((batch, rest_bytes))
        else:
            self.begun, rest_bytes = 0, 0
        self._batch_bytes += rest_bytes - all_bytes
        self.rows -= rows
        if not beside_others:
            self._taken_bytes.clear()
        self._taken_bytes.append(taken_bytes + rows * self.work_bytes)

    def let_go(self) -> None:
        """What was taken first is finished or waits elsewhere."""
        if self._taken_bytes:
            self._taken_bytes.popleft()

    def batches(self) -> list[pa.RecordBatch]:
        batches = [batch for batch, _ in self._batches]
        return [batches[0].slice(self.begun), *batches[1:]] if batches else []


__all__ = ["MET_WORK_BYTES", "WORK_BYTES_PER_ROW", "Arrivals"]
