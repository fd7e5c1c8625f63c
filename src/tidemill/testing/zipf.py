"""Ranks with Zipf frequencies, bounded, seeded, for any exponent from 0 on."""

import numpy as np
import numpy.typing as npt


class Zipf:
    """Draws 0 … `count` - 1, where the k-th has a share proportional to 1 / (k + 1) ** `exponent`.

    NumPy's own `zipf` is unbounded and needs exponents above 1; sales live at 0 … 1. With
    `spread=True` the shares are shuffled over the numbers, so that popular ones are no neighbours.

    >>> drawn = Zipf(1000, exponent=1.0, seed=7).draw(10_000)
    >>> int(drawn.min()), bool((drawn == 0).mean() > 0.1), bool(drawn.max() < 1000)
    (0, True, True)
    """

    def __init__(self, count: int, *, exponent: float, seed: int, spread: bool = False) -> None:
        shares = np.cumsum(np.arange(1, count + 1, dtype=np.float64) ** -exponent)
        self._cumulative = shares / shares[-1]
        self._random = np.random.default_rng(seed)
        # Its own generator: which numbers are popular does not depend on how many were drawn.
        self._spread = np.random.default_rng(seed + 1).permutation(count) if spread else None

    def draw(self, count: int) -> npt.NDArray[np.int64]:
        """The next `count` numbers of the sequence."""
        ranks = np.searchsorted(self._cumulative, self._random.random(count), side="right")
        # The last share may have been rounded to just below 1.
        bounded = np.minimum(ranks, len(self._cumulative) - 1).astype(np.int64)
        return bounded if self._spread is None else self._spread[bounded].astype(np.int64)


__all__ = ["Zipf"]
