"""Stream rows that wait for one whole cycle over the master pages: hash, queue of packets, the rows."""

import itertools
from collections import deque
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.join.parts.kernels import Bools, Int64s
from tidemill.join.parts.window_kernels import FROM_THE_HEAD, chain_rows, probe_chains
from tidemill.master.batches import one_batch

# A key, a link, a chain's head and the mark of a match.
HASH_BYTES_PER_ROW = 8 + 8 + 8 + 1
# A tuple of two numbers in a queue.
PACKET_BYTES = 128
# Chunks of rows are joined up to this share of the window, so that a gather meets few of them. One
# share is copied while joined, another may hold rows that have left.
_CHUNK_SHARE = 8


class Window:
    """Rows numbered in order of arrival, in packets that leave together, oldest first.

    Args:
        most_rows: Places of the ring.
        rows_limit_bytes: What the rows may hold, without hash and queue.
        schema: Of the stream.
    """

    def __init__(self, most_rows: int, rows_limit_bytes: int, schema: pa.Schema) -> None:
        self.oldest = 0
        self.next_number = 0
        self._schema = schema
        self._most_rows = 0
        self._keys = np.empty(0, dtype=np.int64)
        self._matched = np.empty(0, dtype=np.bool_)
        self.resize(most_rows, rows_limit_bytes)
        self._packets: deque[tuple[int, int]] = deque()
        self._chunks: deque[tuple[int, pa.RecordBatch]] = deque()
        self._chunk_bytes = 0

    def resize(self, most_rows: int, rows_limit_bytes: int) -> None:
        """Change how many rows may wait; no fewer than do. Numbers stay, so a cursor stays valid."""
        live = np.arange(self.oldest, self.next_number)
        keys, matched = (
            (self.keys(live), self._matched[live % self._most_rows]) if len(live) else (None, None)
        )
        self._most_rows = most_rows
        self._rows_limit_bytes = rows_limit_bytes
        self._keys = np.empty(most_rows, dtype=np.int64)
        self._older = np.empty(most_rows, dtype=np.int64)
        self._heads = np.full(most_rows, -1, dtype=np.int64)
        self._matched = np.zeros(most_rows, dtype=np.bool_)
        if keys is not None:
            chain_rows(self._heads, self._older, self._keys, self.oldest, keys)
            self._matched[live % most_rows] = matched

    @property
    def rows(self) -> int:
        return self.next_number - self.oldest

    @property
    def packets(self) -> int:
        return len(self._packets)

    @property
    def bytes_held(self) -> int:
        return self._most_rows * HASH_BYTES_PER_ROW + self._chunk_bytes

    @property
    def rows_bytes_held(self) -> int:
        return self._chunk_bytes

    @property
    def queue_bytes_held(self) -> int:
        return len(self._packets) * PACKET_BYTES

    def fits(self, rows: int, size_bytes: int) -> bool:
        """Whether that many rows of that size may come; a quarter is kept for copies and rows that left."""
        rows_bytes = (self._chunk_bytes + size_bytes) * (_CHUNK_SHARE + 2) // _CHUNK_SHARE
        return rows == 0 or (self.rows + rows <= self._most_rows and rows_bytes <= self._rows_limit_bytes)

    def add(self, rows: pa.RecordBatch, keys: Int64s, leaves_at: int) -> None:
        """A packet of rows, which it owns; it leaves when the scan has reached page count `leaves_at`."""
        chain_rows(self._heads, self._older, self._keys, self.next_number, keys)
        self._matched[self._places(self.next_number, self.next_number + rows.num_rows)] = False
        self._chunks.append((self.next_number, rows))
        self._chunk_bytes += rows.nbytes
        self.next_number += rows.num_rows
        self._packets.append((self.next_number, leaves_at))
        self._join_chunks()

    def first_leaves_at(self) -> int | None:
        """Page count at which the oldest packet leaves; None when nothing waits."""
        return self._packets[0][1] if self._packets else None

    def expired_until(self, pages_joined: int) -> int:
        """Number behind the last row whose cycle is over."""
        until = self.oldest
        for end, leaves_at in self._packets:
            if leaves_at > pages_joined:
                break
            until = end
        return until

    def probe(self, master_keys: Int64s, cursor: Int64s, most_pairs: int) -> tuple[Int64s, Int64s]:
        """Pairs of row number and master row with equal keys, from the cursor on."""
        numbers, master_rows = np.empty(most_pairs, np.int64), np.empty(most_pairs, np.int64)
        count = probe_chains(
            self._heads, self._older, self._keys, self.oldest, master_keys, cursor, numbers, master_rows
        )
        return numbers[:count], master_rows[:count]

    def mark(self, numbers: Int64s) -> None:
        """Note that these rows matched."""
        self._matched[numbers % self._most_rows] = True

    def matched(self, begin: int, until: int) -> Bools:
        """Which of the rows with these numbers have matched so far."""
        return self._matched[self._places(begin, until)]

    def keys(self, numbers: Int64s) -> Int64s:
        return self._keys[numbers % self._most_rows]

    def by_chunk(self, numbers: Int64s) -> Int64s:
        """The order in which rows with these numbers lie chunk by chunk, as `gather` needs them."""
        starts = np.array([start for start, _ in self._chunks], dtype=np.int64)
        return np.argsort(np.searchsorted(starts, numbers, side="right"), kind="stable")

    def gather(self, numbers: Int64s) -> pa.RecordBatch:
        """The rows with these numbers, which come chunk by chunk."""
        starts = np.array([start for start, _ in self._chunks], dtype=np.int64)
        chunk = np.searchsorted(starts, numbers, side="right") - 1
        edges = np.searchsorted(chunk, np.arange(len(starts) + 1))
        parts = [
            rows.take(numbers[begin:until] - start)
            for (start, rows), begin, until in zip(self._chunks, edges[:-1], edges[1:], strict=True)
            if until > begin
        ]
        return one_batch(parts, self._schema)

    def column(self, name: str) -> "pa.Array[Any]":
        """One column of all waiting rows, oldest first."""
        columns = [rows.column(name) for _, rows in self._chunks]
        left = self.oldest - self._chunks[0][0]
        return pa.concat_arrays(columns).slice(left)

    def let_go(self, until: int) -> None:
        """Rows below this number have left."""
        self.oldest = until
        while self._packets and self._packets[0][0] <= until:
            self._packets.popleft()
        while self._chunks and self._chunks[0][0] + self._chunks[0][1].num_rows <= until:
            self._chunk_bytes -= self._chunks.popleft()[1].nbytes

    def contents(self) -> tuple[pa.RecordBatch, Bools, list[list[int]]]:
        """Waiting rows, oldest first, which of them matched, and row count and end of each packet."""
        numbers = np.arange(self.oldest, self.next_number)
        ends = [self.oldest, *(end for end, _ in self._packets)]
        sizes = [end - begin for begin, end in itertools.pairwise(ends)]
        packets = [[rows, leaves_at] for rows, (_, leaves_at) in zip(sizes, self._packets, strict=True)]
        return self.gather(numbers), self.matched(self.oldest, self.next_number), packets

    def _places(self, begin: int, until: int) -> Int64s:
        return np.arange(begin, until) % self._most_rows

    def _join_chunks(self) -> None:
        """Join neighbours of like size, so that there are few chunks and each row is copied a few times."""
        most_rows = self._most_rows // _CHUNK_SHARE
        while len(self._chunks) > 1:
            (start, before), (_, last) = self._chunks[-2], self._chunks[-1]
            if before.num_rows > 2 * last.num_rows or before.num_rows + last.num_rows > most_rows:
                return
            joined = one_batch([before, last], self._schema)
            self._chunks.pop()
            self._chunks[-1] = (start, joined)
            self._chunk_bytes += joined.nbytes - before.nbytes - last.nbytes


__all__ = ["FROM_THE_HEAD", "HASH_BYTES_PER_ROW", "PACKET_BYTES", "Window"]
