"""Pages of the scan that meet the window together, and the pairs that come of it."""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tidemill.join.conditions import Candidates, Condition
from tidemill.join.parts.kernels import Int64s
from tidemill.join.parts.keys import StreamKey
from tidemill.join.parts.window import FROM_THE_HEAD, Window


@dataclass
class Run:
    """Pages that meet the window together, and how far that has come."""

    first_page: int
    pages: int
    rows: pa.RecordBatch
    keys: Int64s
    cursor: Int64s = field(default_factory=lambda: np.array([0, FROM_THE_HEAD], dtype=np.int64))
    numbers: Int64s = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """Pairs found and not yet put out: numbers of waiting rows …"""
    master_rows: Int64s = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """… and positions in `rows`."""

    candidates: Candidates | None = None
    """Where the condition is not that of equal keys; the cursor then counts them."""

    @property
    def is_over(self) -> bool:
        total = self.candidates.total if self.candidates else self.rows.num_rows
        return self.cursor[0] >= total and len(self.numbers) == 0

    def pairs_of_equal_keys(self, key: StreamKey, window: Window, most_pairs: int) -> tuple[Int64s, Int64s]:
        """The next pairs of row number and master row, chunk by chunk of the window."""
        numbers, master_rows = window.probe(self.keys, self.cursor, most_pairs)
        in_order = window.by_chunk(numbers)
        numbers, master_rows = numbers[in_order], master_rows[in_order]
        if key.form.is_hashed and len(numbers):
            # Equal codes are candidates: the real keys decide.
            stored = self.rows.select(key.form.columns).take(master_rows)
            met = key.is_met(window.gather(numbers).select(key.columns), stored)
            numbers, master_rows = numbers[met], master_rows[met]
        return numbers, master_rows

    def pairs_by(self, condition: Condition, window: Window, most_pairs: int) -> tuple[Int64s, Int64s]:
        """The next candidates that fulfil the condition, chunk by chunk of the window."""
        candidates = self.candidates or condition.candidates(window, self.rows)
        begin = int(self.cursor[0])
        until = min(begin + most_pairs, candidates.total)
        self.cursor[0] = until
        numbers, master_rows = candidates.block(begin, until)
        in_order = window.by_chunk(numbers)
        numbers, master_rows = numbers[in_order], master_rows[in_order]
        holds = condition.holds(window.gather(numbers), self.rows.take(master_rows))
        return numbers[holds], master_rows[holds]


__all__ = ["Run"]
