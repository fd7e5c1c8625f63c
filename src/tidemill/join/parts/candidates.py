"""Master rows that were met often on disk and may become hot."""

import numpy as np
import pyarrow as pa

from tidemill.join.parts.kernels import Bools, Int64s, insert_keys
from tidemill.master.batches import one_batch

# A key's slots (1.5 of 16 B), the key itself and its row count.
_KEY_BYTES = 24 + 8 + 8


class CandidatePool:
    """Rows of distinct keys, copied out of their pages, inside a fixed number of bytes."""

    def __init__(self, limit_bytes: int, schema: pa.Schema, row_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._row_bytes = row_bytes
        self._schema = schema
        self._most_keys = max(1, limit_bytes // (row_bytes + _KEY_BYTES))
        self._slots = np.zeros((self._most_keys * 3 // 2 + 1, 2), dtype=np.int64)
        self._entries = 0
        self._payload_bytes = 0
        self._refused = False
        self._batches: list[pa.RecordBatch] = []
        self._keys: list[Int64s] = []
        self._rows_per_key: list[Int64s] = []

    @property
    def bytes_held(self) -> int:
        return self._slots.nbytes + self._payload_bytes + self._entries * 16

    @property
    def is_full(self) -> bool:
        return self._entries >= self._most_keys or self._refused

    def add(self, keys: Int64s, master: pa.RecordBatch, start: Int64s, rows_per_key: Int64s) -> Bools:
        """Copy the rows of those keys that are new, as far as there is room; keys are distinct.

        The answer marks the keys that were taken.
        """
        taken = self._fitting(rows_per_key)
        keys, start, rows_per_key = keys[taken], start[taken], rows_per_key[taken]
        is_new = np.empty(len(keys), dtype=np.bool_)
        self._entries = insert_keys(self._slots, self._entries, keys, is_new)
        taken[taken] = is_new
        if not is_new.any():
            return taken
        start, rows_per_key = start[is_new], rows_per_key[is_new]
        before = np.cumsum(rows_per_key) - rows_per_key
        rows = master.take(np.repeat(start - before, rows_per_key) + np.arange(int(rows_per_key.sum())))
        if self.bytes_held + rows.nbytes > self._limit_bytes:
            self._refused = True  # wider than the average: what is there must be used first
            return np.zeros_like(taken)
        self._batches.append(rows)
        self._payload_bytes += rows.nbytes
        self._keys.append(keys[is_new])
        self._rows_per_key.append(rows_per_key)
        return taken

    def contents(self) -> tuple[Int64s, Int64s, pa.RecordBatch]:
        """Keys, rows of each, and those rows in one chunk."""
        none = np.empty(0, dtype=np.int64)
        return (
            np.concatenate([none, *self._keys]),
            np.concatenate([none, *self._rows_per_key]),
            one_batch(self._batches, self._schema),
        )

    def clear(self) -> None:
        self._slots[:] = 0
        self._entries = 0
        self._payload_bytes = 0
        self._refused = False
        self._batches, self._keys, self._rows_per_key = [], [], []

    def _fitting(self, rows_per_key: Int64s) -> Bools:
        """Which keys fit, were they all new and of average size."""
        room = self._limit_bytes - self.bytes_held
        fits = np.cumsum(rows_per_key * self._row_bytes + 16) <= room
        fits[max(0, self._most_keys - self._entries) :] = False
        self._refused |= not fits.all()
        return fits


__all__ = ["CandidatePool"]
