"""How often the keys of a Zipf stream come, in sums that need no list of all keys."""

from functools import cached_property

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_EXACT_RANKS = 4096
_GROUPS_PER_DOUBLING = 16


class Popularity:
    """Shares of `keys` keys, where the k-th most popular has one proportional to 1 / k ** `exponent`.

    The first ranks stand alone; later ones are put into groups that grow with the rank and share one frequency, so that a
    sum over a hundred million keys takes a few thousand terms.

    >>> sales = Popularity(1_000_000, exponent=1.0)
    >>> round(sales.share_of_top(10_000), 3), round(Popularity(1000, exponent=0).share_of_top(100), 3)
    (0.68, 0.1)
    """

    def __init__(self, keys: int, *, exponent: float) -> None:
        self.keys = keys
        self.exponent = exponent

    @cached_property
    def _edges(self) -> Floats:
        """Ranks at which groups begin, from 0, and the number of keys."""
        exact = min(self.keys, _EXACT_RANKS)
        doublings = np.log2(max(1.0, self.keys / exact))
        later = exact * 2 ** np.linspace(0, doublings, int(doublings * _GROUPS_PER_DOUBLING) + 2)
        return np.unique(np.concatenate([np.arange(exact), np.round(later), [self.keys]]).astype(np.float64))

    @cached_property
    def counts(self) -> Floats:
        """Keys of each group, the most popular group first."""
        return np.diff(self._edges)

    @cached_property
    def shares(self) -> Floats:
        """Of one key of each group; times `counts` they add up to 1."""
        first, after = self._edges[:-1] + 0.5, self._edges[1:] + 0.5
        if self.exponent == 1:
            sums = np.log(after / first)
        else:
            power = 1 - self.exponent
            sums = (after**power - first**power) / power
        alone = self.counts == 1
        sums[alone] = (self._edges[:-1][alone] + 1) ** -self.exponent
        weights: Floats = sums / self.counts
        shares: Floats = weights / np.dot(weights, self.counts)
        return shares

    def share_of_top(self, keys: float) -> float:
        """Stream rows that ask for one of the most popular keys."""
        cumulative = np.concatenate([[0.0], np.cumsum(self.shares * self.counts)])
        return float(np.interp(min(keys, self.keys), self._edges, cumulative))

    def distinct(self, rows: float, *, beyond_top: float = 0) -> float:
        """Different keys among so many stream rows, not counting the most popular `beyond_top` keys."""
        tail = np.clip((self._edges[1:] - beyond_top) / self.counts, 0, 1)
        met = -np.expm1(rows * np.log1p(-np.minimum(self.shares, 1 - 1e-12)))
        return float(np.dot(met, self.counts * tail))


__all__ = ["Popularity"]
