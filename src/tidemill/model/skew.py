"""The Zipf exponent of a stream, from a sample of its keys."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from tidemill.core.errors import SpecError
from tidemill.model.popularity import Floats, Popularity

_EXACT_COUNTS = 16
"""Keys met 1 … 15 times are counted apart, those met more often together."""
_MOST_EXPONENT = 3.0
_CHANCE = 4.0  # twice the gain in likelihood that a uniform sample reaches once in twenty


def zipf_exponent(sample: npt.NDArray[np.int64], *, keys: int) -> float:
    """The exponent under which the sample is most likely; 0 where it may as well be uniform.

    Which key is how popular need not be known, and most keys may never be met: what counts is how many keys were met
    once, twice, … as often as that. For each exponent Zipf's law says how many to expect. Regression on ranks and
    frequencies would take the many keys met once for one long flat tail.

    Args:
        sample: Keys in the order met or in any other; those without a master row left out.
        keys: Different keys that the stream may ask for: those of the master data.

    >>> sample = np.random.default_rng(7).integers(0, 1_000_000, 20_000)
    >>> zipf_exponent(sample, keys=1_000_000)
    0.0
    """
    if not len(sample):
        raise SpecError(
            "the skew of a stream cannot be told from no rows",
            code="empty_sample",
            next_move="give a sample of a few thousand keys or more",
        )
    _, times = np.unique(sample, return_counts=True)
    met = np.bincount(np.minimum(times, _EXACT_COUNTS), minlength=_EXACT_COUNTS + 1)[1:]
    keys = max(keys, len(times))

    def likelihood(exponent: float) -> float:
        expected = _expected_met(Popularity(keys, exponent=exponent), len(sample))
        return float(np.dot(met, np.log(expected)) - expected.sum())

    found = _highest(likelihood)
    return found if 2 * (likelihood(found) - likelihood(0.0)) > _CHANCE else 0.0


def _expected_met(popularity: Popularity, rows: int) -> Floats:
    """Keys expected to be met 1, 2, … 15 times and more often, among so many rows."""
    times = rows * popularity.shares
    exactly = np.exp(-times)
    never = exactly
    expected = np.empty(_EXACT_COUNTS)
    so_far = np.zeros_like(times)
    for count in range(1, _EXACT_COUNTS):
        exactly = exactly * times / count
        so_far += exactly
        expected[count - 1] = np.dot(exactly, popularity.counts)
    expected[-1] = np.dot(np.maximum(0.0, 1 - never - so_far), popularity.counts)
    return np.maximum(expected, 1e-9)


def _highest(function: Callable[[float], float]) -> float:
    """Where the function is highest between 0 and 3: the best of a coarse grid, then of finer ones around it."""
    low, high = 0.0, _MOST_EXPONENT
    while high - low > 1e-3:  # finer than any sample can tell
        places = np.linspace(low, high, 13)
        best = int(np.argmax([function(float(place)) for place in places]))
        low, high = float(places[max(0, best - 1)]), float(places[min(12, best + 1)])
    return (low + high) / 2


__all__ = ["zipf_exponent"]
