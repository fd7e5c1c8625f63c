"""Stream rows that wait for master pages, found by age and by key."""

import numpy as np
import pyarrow as pa

from tidemill.join.parts.kernels import Bools, Int32s, Int64s, choose_pages, finish_rows
from tidemill.master.batches import one_batch

# Key, two page numbers, place in key order and mark: 21 bytes, and once more while rows are put
# together or sorted.
WORK_BYTES_PER_ROW = 56


class Pending:
    """Waiting rows in order of arrival, with an order by key beside it.

    New rows gather in `add`; the first use after that puts survivors and new rows into one chunk.
    Older rows keep the lower positions, so the position is the age: no queue is stored.
    """

    def __init__(self, limit_bytes: int, schema: pa.Schema, master_pages: int) -> None:
        self.waiting_rows = 0
        self.limit_bytes = limit_bytes
        self._schema = schema
        self._marked = np.zeros(master_pages, dtype=np.bool_)
        self._forget_fresh()
        self._start_empty()

    @property
    def bytes_held(self) -> int:
        rows = self.rows.num_rows + self._fresh_rows
        return self.rows_bytes + self._fresh_bytes + rows * WORK_BYTES_PER_ROW

    def room(self, row_bytes: int) -> int:
        """Rows of this size that may still come; each counts twice, since putting together copies."""
        return max(0, self.limit_bytes - self.used_bytes) // (2 * row_bytes + WORK_BYTES_PER_ROW)

    @property
    def used_bytes(self) -> int:
        """What counts against the limit once finished rows are let go."""
        settled_rows = self.waiting_rows - self._fresh_rows
        row_bytes = 2 * (settled_rows * self.average_row_bytes + self._fresh_bytes)
        return int(row_bytes + self.waiting_rows * WORK_BYTES_PER_ROW)

    @property
    def average_row_bytes(self) -> float:
        return self.rows_bytes / max(1, self.rows.num_rows)

    def let_go(self) -> None:
        """Free the rows that wait no more, though none comes in their place yet."""
        if not self._fresh and self.rows.num_rows:
            self._keep_survivors()

    def add(self, rows: pa.RecordBatch, keys: Int64s, first_page: Int32s, last_page: Int32s) -> None:
        self.let_go()
        self._gather_later(rows, keys, first_page, last_page)
        self.waiting_rows += rows.num_rows

    def gather(self) -> None:
        """Put new rows behind those that wait longer."""
        if not self._fresh:
            return
        batches, *arrays = zip(*self._fresh, strict=True)
        keys, first_page, last_page = (np.concatenate(parts) for parts in arrays)
        rows = one_batch(batches, self._schema)
        self._forget_fresh()
        self._settle(rows, keys, first_page, last_page)

    def oldest_pages(self) -> tuple[int, int]:
        """First and last page that can hold the key of the oldest waiting row."""
        oldest = self._oldest_position()
        return int(self._first_page[oldest]), int(self._last_page[oldest])

    def choose_pages(self, most_pages: int, segment_pages: int = 1) -> Int64s:
        """Segments that start with the pages of the oldest waiting rows, ascending."""
        chosen = np.empty(most_pages, dtype=np.int64)
        count = choose_pages(
            self._waiting,
            self._first_page,
            self._last_page,
            self._oldest_position(),
            min(segment_pages, most_pages),
            self._marked,
            chosen,
        )
        return np.sort(chosen[:count])

    def finish_within(self, pages: Int64s) -> Int64s:
        """Positions, in key order, of the waiting rows whose pages are all among `pages`; they wait no more."""
        finished = np.empty(self.waiting_rows, dtype=np.int64)
        count = finish_rows(pages, self._by_key, self._first_page, self._last_page, self._waiting, finished)
        self.waiting_rows -= count
        return finished[:count]

    def finish_oldest_key(self) -> Int64s:
        """Positions of all waiting rows that share the key of the oldest; they wait no more."""
        key = self.keys[self._oldest_position()]
        positions = np.flatnonzero(self._waiting & (self.keys == key))
        self._waiting[positions] = False
        self.waiting_rows -= len(positions)
        return positions

    def still_waiting(self) -> pa.RecordBatch:
        """The waiting rows, oldest first."""
        self.gather()
        return self.rows.take(np.flatnonzero(self._waiting))

    def _keep_survivors(self) -> None:
        """Let go of rows that wait no more; those that do are the first to be put together again."""
        still = np.flatnonzero(self._waiting)
        survivors = (self.rows.take(still), self.keys[still], self._first_page[still], self._last_page[still])
        self._start_empty()
        if len(still):
            self._gather_later(*survivors)

    def _gather_later(
        self, rows: pa.RecordBatch, keys: Int64s, first_page: Int32s, last_page: Int32s
    ) -> None:
        self._fresh.append((rows, keys, first_page, last_page))
        self._fresh_rows += rows.num_rows
        self._fresh_bytes += rows.nbytes

    def _forget_fresh(self) -> None:
        self._fresh: list[tuple[pa.RecordBatch, Int64s, Int32s, Int32s]] = []
        self._fresh_rows = 0
        self._fresh_bytes = 0

    def _start_empty(self) -> None:
        no_pages = np.empty(0, dtype=np.int32)
        self._settle(one_batch([], self._schema), np.empty(0, dtype=np.int64), no_pages, no_pages)

    def _oldest_position(self) -> int:
        ahead = self._waiting[self._oldest :]
        self._oldest += int(ahead.argmax()) if len(ahead) else 0
        return self._oldest

    def _settle(self, rows: pa.RecordBatch, keys: Int64s, first_page: Int32s, last_page: Int32s) -> None:
        self.rows: pa.RecordBatch = rows
        self.rows_bytes: int = rows.nbytes
        self.keys: Int64s = keys
        self._first_page: Int32s = first_page
        self._last_page: Int32s = last_page
        self._by_key = _by_page_and_key(keys, first_page)
        self._waiting: Bools = np.ones(len(keys), dtype=np.bool_)
        self._oldest = 0


def _by_page_and_key(keys: Int64s, first_page: Int32s) -> Int32s:
    """Order in which pages ascend, and keys within a page; in a store in key order that is key order."""
    order = np.argsort(keys, kind="stable")
    pages = first_page[order]
    if (pages[1:] < pages[:-1]).any():
        order = np.lexsort((keys, first_page))
    return order.astype(np.int32)


__all__ = ["WORK_BYTES_PER_ROW", "Pending"]
