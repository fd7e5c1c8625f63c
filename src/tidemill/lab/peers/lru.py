"""A cache of the least recently used kind, of the same bytes, over batched lookups: what most systems ship."""

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.lab.join_data import JoinData
from tidemill.lab.peers import Outputs
from tidemill.lab.peers.batched_inl import BYTES_PER_LOOKUP
from tidemill.lab.rows import MASTER_NAMES, beside
from tidemill.lab.store import open_store

Int64s = npt.NDArray[np.int64]

CACHE_SHARE = 0.7
LOOKUP_SHARE = 0.25
"""Of the budget: pages and rows of the keys that are looked up together."""
BYTES_BESIDE_ROW = 48
"""Key, place, time of use, and copies of these while keys come and go."""
MOST_PIECE_ROWS = 20_000
EVICTED_SHARE = 0.05
"""Of the cache at a time: choosing costs a pass over all times of use, 2 ms at 200,000 rows."""


class LruCache:
    """Rows in places of equal size, found by binary search; exact at the grain of a piece of a batch.

    When a piece needs more places than are free, the rows used longest ago leave, a twentieth of the cache at a time.
    """

    def __init__(self, data: JoinData, memory_bytes: int) -> None:
        self._store = open_store(data)
        self._layout = self._store.layout
        self._place_bytes = self._layout.encode(self._store.read_page(0).slice(0, 1))[0].size
        share = int(memory_bytes * CACHE_SHARE)
        self._piece_rows = max(1, min(MOST_PIECE_ROWS, int(memory_bytes * LOOKUP_SHARE) // BYTES_PER_LOOKUP))
        capacity = max(self._piece_rows, share // (self._place_bytes + BYTES_BESIDE_ROW))
        self._places = np.zeros(capacity * self._place_bytes // 8, np.uint64).view(np.uint8)
        self._used_at = np.zeros(capacity, np.int64)
        self._free = np.arange(capacity)
        self._keys: Int64s = np.empty(0, np.int64)
        self._place_of: Int64s = np.empty(0, np.int64)
        self._now = 0

    def join(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Outputs]:
        for batch in batches:
            for first in range(0, batch.num_rows, self._piece_rows):
                yield (self._join_piece(batch.slice(first, self._piece_rows)),)

    def _join_piece(self, piece: pa.RecordBatch) -> pa.RecordBatch:
        self._now += 1
        keys, which = np.unique(piece.column("key").to_numpy(), return_inverse=True)
        places = self._find(keys)
        self._used_at[places[places >= 0]] = self._now
        self._admit(keys[places < 0])
        places = self._find(keys)
        at = np.where(places < 0, -1, places * self._place_bytes)
        return beside(piece, self._layout.decode(self._places, at[which], MASTER_NAMES).columns)

    def _find(self, keys: Int64s) -> Int64s:
        """Place of each key, or -1."""
        if not len(self._keys):
            return np.full(len(keys), -1)
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[at] == keys, self._place_of[at], -1)

    def _admit(self, keys: Int64s) -> None:
        _, found = self._store.lookup(keys)
        if found.num_rows > len(self._free):
            self._evict(max(found.num_rows, int(len(self._used_at) * EVICTED_SHARE)))
        places, self._free = np.split(self._free, [found.num_rows])
        rows, _ = self._layout.encode(found)
        # All rows of the benchmark are equally long; were one not, this would refuse.
        self._places.reshape(-1, self._place_bytes)[places] = rows.reshape(-1, self._place_bytes)
        self._used_at[places] = self._now
        new_keys = found.column(self._store.key).to_numpy()
        at = np.searchsorted(self._keys, new_keys)
        self._keys, self._place_of = (
            np.insert(self._keys, at, new_keys),
            np.insert(self._place_of, at, places),
        )

    def _evict(self, count: int) -> None:
        """Free the places used longest ago; those of this piece are the newest and stay."""
        used_at = self._used_at[self._place_of]
        leaving = np.argpartition(used_at, min(count, len(used_at)) - 1)[:count]
        leaving = leaving[used_at[leaving] < self._now]
        self._free = np.concatenate([self._free, self._place_of[leaving]])
        self._keys, self._place_of = np.delete(self._keys, leaving), np.delete(self._place_of, leaving)


def open_contender(data: JoinData, memory_bytes: int) -> LruCache:
    return LruCache(data, memory_bytes)
