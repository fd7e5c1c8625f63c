"""How often keys were met of late, in a fixed number of bytes."""

from typing import Any

import numpy as np
import numpy.typing as npt

from tidemill.join.parts.kernels import Int64s, UInt32s, count_keys

LEAST_BYTES = 1024


class FrequencySketch:
    """A count-min sketch of two rows with conservative update; it may overcount, never undercount.

    Counts end at 65,535, those of short counters at 255: with ageing only the hottest keys get there, and those are hot rows.

    Args:
        size_bytes: Of all counters.
        is_short: Whether they are of one byte instead of two: where only keys are counted that are not hot, more of them
            tell more than longer ones.

    >>> sketch = FrequencySketch(64_000)
    >>> sketch.add(np.array([7, 7, 8, 7])).tolist()
    [1, 2, 1, 3]
    >>> sketch.halve()
    >>> sketch.estimate(np.array([7, 8, 9])).tolist()
    [1, 0, 0]
    """

    def __init__(self, size_bytes: int, *, is_short: bool = False) -> None:
        kind: Any = np.uint8 if is_short else np.uint16
        width = max(size_bytes, LEAST_BYTES) // 2 // np.dtype(kind).itemsize
        self.counters: npt.NDArray[Any] = np.zeros((2, width), dtype=kind)

    @property
    def width(self) -> int:
        """Counters of a row: as many different keys are told apart more or less."""
        return int(self.counters.shape[1])

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
