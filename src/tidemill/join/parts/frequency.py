"""How often keys were met of late, in a fixed number of bytes."""

import numpy as np

from tidemill.join.parts.kernels import Int64s, UInt32s, count_keys

LEAST_BYTES = 1024


class FrequencySketch:
    """A count-min sketch of two rows with conservative update; it may overcount, never undercount.

    Counts end at 65,535: with ageing only the very hottest keys get there, and those are hot rows.

    >>> sketch = FrequencySketch(64_000)
    >>> sketch.add(np.array([7, 7, 8, 7])).tolist()
    [1, 2, 1, 3]
    >>> sketch.halve()
    >>> sketch.estimate(np.array([7, 8, 9])).tolist()
    [1, 0, 0]
    """

    def __init__(self, size_bytes: int) -> None:
        self.counters = np.zeros((2, max(size_bytes, LEAST_BYTES) // 4), dtype=np.uint16)

    @property
    def bytes_held(self) -> int:
        return self.counters.nbytes

    def add(self, keys: Int64s) -> UInt32s:
        """Estimates after counting each key once, in order."""
        estimates = np.empty(len(keys), dtype=np.uint32)
        count_keys(self.counters, keys, 1, estimates)
        return estimates

    def estimate(self, keys: Int64s) -> UInt32s:
        estimates = np.empty(len(keys), dtype=np.uint32)
        count_keys(self.counters, keys, 0, estimates)
        return estimates

    def halve(self) -> None:
        """Age: what was met long ago counts half as much."""
        np.right_shift(self.counters, 1, out=self.counters)


__all__ = ["LEAST_BYTES", "FrequencySketch"]
