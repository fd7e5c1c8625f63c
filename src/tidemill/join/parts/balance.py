"""Hot rows under the cache inequality: a key stays where it takes less memory."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.join.parts.candidates import CandidatePool
from tidemill.join.parts.hot_rows import ENTRY_BYTES, HotRows
from tidemill.join.parts.kernels import Int64s, UInt32s, count_entries

_LEAST_CHANGE = 16  # a switch copies all hot rows: one row in so many must come or go
_STREAM_ROWS_PER_HOT_ROW = 0.5

Floats = npt.NDArray[np.float64]


class BalancedRows:
    """The hot rows, how often each was hit, and keys that should join them.

    A key is worth its place when the stream rows that would wait for it take more bytes than its
    master rows do. While it waits, those rows are counted as they are; while it is hot, they are
    estimated: of the rows that missed in the same span as many waited at a time as the queue holds,
    so hits by misses times the queue would wait for this key. Hits and misses are halved after each look.

    Args:
        schema: Of the rows kept.
        identity: Names the master data.
        candidate_bytes: Rows of keys on their way in.
        row_bytes: Average master row, to begin with.
    """

    def __init__(self, schema: pa.Schema, identity: str, *, candidate_bytes: int, row_bytes: int) -> None:
        self._pool = CandidatePool(candidate_bytes, schema, row_bytes)
        self.pool_bytes = max(candidate_bytes, self._pool.bytes_held)
        self._row_bytes = float(row_bytes)
        self._waiting_at_entry: list[Floats] = []
        self._least_worth = 0.0
        self._rows_since_switch = 0
        self.generation = HotRows.empty(schema, identity)
        self._hits: UInt32s = self.generation.frequencies.copy()
        self.queue_rows = 1
        self.misses = 0
        self.changes = 0
        """Keys put in or thrown out so far."""

    @property
    def bytes_held(self) -> int:
        return self.generation.bytes_held + self._pool.bytes_held

    def probe(self, keys: Int64s) -> Int64s:
        """Entry of each key, or -1; hits are counted."""
        found = self.generation.probe(keys)
        count_entries(self._hits, found)
        self._rows_since_switch += len(keys)
        return found

    def meet(
        self, keys: Int64s, master: pa.RecordBatch, start: Int64s, matches: Int64s, waiting_row_bytes: float
    ) -> None:
        """Note keys, equal ones side by side, whose waiting rows took more memory than their master rows."""
        if not len(keys) or self._pool.is_full:
            return
        first = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
        waiting = np.diff(np.append(first, len(keys))).astype(np.float64)
        worth = waiting * waiting_row_bytes / self._master_bytes(matches[first])
        # A key may have become hot while rows with it waited: it must not be a candidate once more.
        is_cold = self.generation.probe(keys[first]) < 0
        wins = is_cold & (worth > 1) & (worth > self._least_worth)
        if wins.any():
            chosen = first[wins]
            taken = self._pool.add(keys[chosen], master, start[chosen], matches[chosen])
            self._waiting_at_entry.append(waiting[wins][taken])

    def switch_is_due(self, *, looks: bool) -> bool:
        """Whether hot rows should be chosen anew: candidates have filled their place, or it is time to look."""
        enough = self._rows_since_switch >= _STREAM_ROWS_PER_HOT_ROW * self.generation.payload.num_rows
        return enough and (self._pool.is_full or (looks and self.misses >= self.queue_rows))

    def next_generation(self, target_bytes: int, waiting_row_bytes: float) -> HotRows | None:
        """Hot keys that still take less memory here, and candidates; None when too little would change.

        Args:
            target_bytes: What the generation may hold; the keys worth most come first.
            waiting_row_bytes: What a stream row takes that waits.
        """
        hot = self.generation
        keys, rows_per_key, payload = self._pool.contents()
        waiting = np.concatenate([self._expected_waiting(), *self._waiting_at_entry])
        hot_rows_per_key = np.diff(hot.row_start)
        all_rows = np.concatenate([hot_rows_per_key, rows_per_key])
        self._row_bytes = (hot.payload_bytes + payload.nbytes) / max(1, int(all_rows.sum()))
        sizes = self._master_bytes(all_rows)
        worth = waiting * waiting_row_bytes / sizes
        best_first = np.argsort(-worth, kind="stable")
        fits = (np.cumsum(sizes[best_first]) <= target_bytes) & (worth[best_first] >= 1)
        chosen = np.zeros(len(worth), dtype=np.bool_)
        chosen[best_first[fits]] = True
        keep, admit = chosen[: hot.entries], chosen[hot.entries :]
        changed_rows = int(hot_rows_per_key[~keep].sum() + rows_per_key[admit].sum())
        if changed_rows * _LEAST_CHANGE < max(1, hot.payload.num_rows):
            return None
        is_cut = bool((worth[~chosen] >= 1).any())
        self._least_worth = float(worth[chosen].min()) if is_cut and chosen.any() else 0.0
        admitted_rows = np.flatnonzero(np.repeat(admit, rows_per_key))
        hits = self._hits_of(waiting)[chosen]
        self.changes += int(admit.sum()) + int((~keep).sum())
        return hot.merged(keep, keys[admit], rows_per_key[admit], payload, admitted_rows, hits)

    def use(self, generation: HotRows) -> None:
        """Switch to this generation; candidates start anew."""
        self.generation = generation
        self._hits = generation.frequencies.copy()
        self._rows_since_switch = 0
        self.forget_candidates()

    def forget_candidates(self) -> None:
        self._pool.clear()
        self._waiting_at_entry = []

    def look_is_over(self) -> None:
        """Let what was counted matter half as much from now on."""
        np.right_shift(self._hits, 1, out=self._hits)
        self.misses //= 2
        self.queue_rows = 1

    def _master_bytes(self, rows: Int64s) -> Floats:
        return rows.astype(np.float64) * self._row_bytes + ENTRY_BYTES

    def _expected_waiting(self) -> Floats:
        return self._hits.astype(np.float64) * (self.queue_rows / max(1, self.misses))

    def _hits_of(self, waiting: Floats) -> UInt32s:
        """Hits that give back `waiting`, as if newcomers had been counted from the start."""
        return np.round(waiting * (self.misses / self.queue_rows)).astype(np.uint32)


__all__ = ["BalancedRows"]
