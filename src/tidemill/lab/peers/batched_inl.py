"""Batched index nested loops: the keys of a batch once each, their pages with sixteen reads in flight."""

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from tidemill.lab.join_data import JoinData
from tidemill.lab.peers import Outputs
from tidemill.lab.rows import gather
from tidemill.lab.store import open_store

BYTES_PER_LOOKUP = 16 * 1024 + 300
"""One page a key in the worst case, and its row."""


class BatchedInl:
    """What a careful client of a store does; batches are cut so that pages and rows fit the budget."""

    def __init__(self, data: JoinData, memory_bytes: int) -> None:
        self._store = open_store(data)
        self._keys_at_a_time = max(1, memory_bytes // BYTES_PER_LOOKUP)

    def join(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Outputs]:
        for batch in batches:
            for first in range(0, batch.num_rows, self._keys_at_a_time):
                yield (self._join_piece(batch.slice(first, self._keys_at_a_time)),)

    def _join_piece(self, piece: pa.RecordBatch) -> pa.RecordBatch:
        keys, which = np.unique(piece.column("key").to_numpy(), return_inverse=True)
        key_positions, found = self._store.lookup(keys)
        row_of_key = np.full(len(keys), -1, np.int64)
        row_of_key[key_positions] = np.arange(found.num_rows)
        return gather(piece, found, row_of_key[which])


def open_contender(data: JoinData, memory_bytes: int) -> BatchedInl:
    return BatchedInl(data, memory_bytes)
