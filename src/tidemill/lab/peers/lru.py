"""A cache of the least recently used kind, of the same bytes, over batched lookups: what most systems ship."""

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from tidemill.lab.join_data import JoinData
from tidemill.lab.peers.batched_inl import BYTES_PER_LOOKUP
from tidemill.lab.rows import gather
from tidemill.lab.store import open_store
from tidemill.master.batches import one_batch

CACHE_SHARE = 0.4
"""Of the budget: while rows come and go the cache exists twice, and lookups need room."""
PIECE_ROWS = 20_000


class LruCache:
    """Exact at the grain of a piece of a batch: after each, the rows used longest ago leave."""

    def __init__(self, data: JoinData, memory_bytes: int) -> None:
        self._store = open_store(data)
        self._capacity = max(1, int(memory_bytes * CACHE_SHARE) // (self._store.row_bytes + 16))
        self._piece_rows = max(1, min(PIECE_ROWS, memory_bytes // 5 // BYTES_PER_LOOKUP))
        self._keys = np.empty(0, np.int64)
        self._used_at = np.empty(0, np.int64)
        self._rows = one_batch([], self._store.schema)
        self._now = 0

    @property
    def bytes_read(self) -> int:
        return self._store.bytes_read

    def join(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for first in range(0, batch.num_rows, self._piece_rows):
                yield self._join_piece(batch.slice(first, self._piece_rows))

    def _join_piece(self, piece: pa.RecordBatch) -> pa.RecordBatch:
        self._now += 1
        keys, which = np.unique(piece.column("key").to_numpy(), return_inverse=True)
        at = np.minimum(np.searchsorted(self._keys, keys), max(0, len(self._keys) - 1))
        hit = self._keys[at] == keys if len(self._keys) else np.zeros(len(keys), np.bool_)
        self._used_at[at[hit]] = self._now
        self._admit(keys[~hit])
        at = np.minimum(np.searchsorted(self._keys, keys), max(0, len(self._keys) - 1))
        known = self._keys[at] == keys if len(self._keys) else np.zeros(len(keys), np.bool_)
        output = gather(piece, self._rows, np.where(known, at, -1)[which])
        self._evict()
        return output

    def _admit(self, keys: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> None:
        _, found = self._store.lookup(keys)
        together = np.concatenate([self._keys, found.column(self._store.key).to_numpy()])
        order = np.argsort(together, kind="stable")
        self._rows = one_batch([self._rows, found], self._store.schema).take(order)
        self._used_at = np.concatenate([self._used_at, np.full(found.num_rows, self._now)])[order]
        self._keys = together[order]

    def _evict(self) -> None:
        surplus = len(self._keys) - self._capacity
        if surplus > 0:
            keep = np.sort(np.argpartition(self._used_at, surplus)[surplus:])
            self._rows = self._rows.take(keep)
            self._keys, self._used_at = self._keys[keep], self._used_at[keep]


def open_contender(data: JoinData, memory_bytes: int) -> LruCache:
    return LruCache(data, memory_bytes)
