"""Master rows that stay in memory: an immutable generation of them, mappable from a file."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from tidemill.core.errors import InternalError
from tidemill.join.parts.hot_file import read_hot_file, write_hot_file
from tidemill.join.parts.kernels import Bools, Int64s, UInt32s, insert_keys, probe_keys
from tidemill.master.batches import one_batch

# Beside its rows a key costs 1.5 slots of 16 B, where its rows start, and its frequency twice
# (as built, and as counted since by whoever uses the generation).
ENTRY_BYTES = 24 + 8 + 4 + 4


@dataclass(frozen=True)
class HotRows:
    """A hash table from key to rows, and the rows in one chunk. Nothing in it changes once built.

    Workers map the same file; each counts hits for itself. `identity` names the master data that
    the rows came from, so that a generation of an older version is not used by mistake.
    """

    slots: Int64s
    row_start: Int64s
    frequencies: UInt32s
    payload: pa.RecordBatch
    identity: str
    payload_bytes: int
    bytes_held: int

    @classmethod
    def build(
        cls, keys: Int64s, rows_per_key: Int64s, frequencies: UInt32s, payload: pa.RecordBatch, identity: str
    ) -> "HotRows":
        """A generation of distinct keys; `payload` holds the rows of the first key, then of the second, …"""
        # Two thirds full: a miss then looks at 5 slots on average, most on one cache line.
        slots = np.zeros((len(keys) * 3 // 2 + 1, 2), dtype=np.int64)
        if insert_keys(slots, 0, keys, np.empty(len(keys), dtype=np.bool_)) != len(keys):
            # Entries would then point at the rows of other keys: wrong rows, without a word.
            raise InternalError("a key came twice into one generation of hot rows", code="hot_key_twice")
        row_start = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(rows_per_key)])
        return cls._of(slots, row_start, frequencies, payload, identity)

    @classmethod
    def empty(cls, schema: pa.Schema, identity: str) -> "HotRows":
        none = np.empty(0, dtype=np.int64)
        return cls.build(none, none, none.astype(np.uint32), one_batch([], schema), identity)

    @classmethod
    def open(cls, path: str | Path) -> "HotRows":
        """The generation in a file, mapped: no copy, pages come in as they are used."""
        slots, row_start, frequencies, payload, identity = read_hot_file(Path(path))
        return cls._of(slots, row_start, frequencies, payload, identity)

    @classmethod
    def _of(
        cls, slots: Int64s, row_start: Int64s, frequencies: UInt32s, payload: pa.RecordBatch, identity: str
    ) -> "HotRows":
        entries = len(frequencies)
        payload_bytes = payload.nbytes
        held = slots.nbytes + row_start.nbytes + payload_bytes + entries * 8
        return cls(slots, row_start, frequencies, payload, identity, payload_bytes, held)

    def write(self, path: str | Path) -> None:
        """Put the generation into a file for others to map: written aside, synced, renamed."""
        write_hot_file(Path(path), self.slots, self.row_start, self.frequencies, self.payload, self.identity)

    def merged(
        self,
        keep: Bools,
        keys: Int64s,
        rows_per_key: Int64s,
        payload: pa.RecordBatch,
        payload_rows: Int64s,
        frequencies: UInt32s,
    ) -> "HotRows":
        """A new generation: the entries marked in `keep`, then new keys with their rows in `payload`."""
        own_rows_per_key = np.diff(self.row_start)
        kept_rows = np.flatnonzero(np.repeat(keep, own_rows_per_key))
        # Column by column: at most one column exists twice.
        columns = [
            pa.concat_arrays([old.take(kept_rows), new.take(payload_rows)])
            for old, new in zip(self.payload.columns, payload.columns, strict=True)
        ]
        return HotRows.build(
            np.concatenate([self.keys()[keep], keys]),
            np.concatenate([own_rows_per_key[keep], rows_per_key]),
            frequencies,
            pa.RecordBatch.from_arrays(columns, schema=payload.schema),
            self.identity,
        )

    @property
    def entries(self) -> int:
        return len(self.frequencies)

    def probe(self, keys: Int64s) -> Int64s:
        """Entry of each key, -1 where it is not hot; rows of entry e start at `row_start[e]`."""
        found = np.empty(len(keys), dtype=np.int64)
        probe_keys(self.slots, self.entries, keys, found)
        return found

    def ranges(self, entries: Int64s) -> tuple[Int64s, Int64s]:
        """Where the rows of each entry start, and how many there are; none for -1."""
        hit = entries >= 0
        start = self.row_start[np.where(hit, entries, 0)]
        return start, np.where(hit, self.row_start[np.where(hit, entries + 1, 0)] - start, 0)

    def keys(self) -> Int64s:
        """Key of each entry."""
        used = self.slots[self.slots[:, 1] > 0]
        by_entry = np.empty(self.entries, dtype=np.int64)
        by_entry[used[:, 1] - 1] = used[:, 0]
        return by_entry


__all__ = ["ENTRY_BYTES", "HotRows"]
