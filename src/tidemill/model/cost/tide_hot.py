"""Which stream rows find their master row among the hot rows of `tide`."""

import numpy as np

from tidemill.model.popularity import Floats, Popularity

FILLED_SHARE = 0.875
"""Of the entries on average: a renewal lets a quarter go, and it fills again until the next."""
PROBES_PER_ENTRY = 48
"""From which an entry's hits were counted when it is decided who goes; older ones count half, and half again."""
_HALVINGS = 30


def hot_probability(popularity: Popularity, entries: float) -> Floats:
    """For a key of each group, whether it is hot.

    Those with the most hits are. Hits are counted over a window, so a key of a given popularity has a Poisson number of
    them, and the border between hot and cold is blurred: with Zipf 1 and 3,400 of a million keys, the true top would
    answer 60.5 % of the stream, and 59.3 % were counted.
    """
    entries = min(entries, popularity.keys * (1 - 1e-9))
    hits = popularity.shares * PROBES_PER_ENTRY * entries
    low, high = -3.0, np.log(hits[0] + 10 * np.sqrt(hits[0]) + 10)  # logarithm of the least hits of a hot key
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        is_too_low = float(popularity.counts @ _at_least(hits, np.exp(middle))) > entries
        low, high = (middle, high) if is_too_low else (low, middle)
    return _at_least(hits, np.exp((low + high) / 2))


def hit_share(popularity: Popularity, entries: float) -> float:
    """Stream rows whose key is hot.

    >>> round(hit_share(Popularity(1_000_000, exponent=0), 10_000), 4)
    0.01
    >>> sales = Popularity(1_000_000, exponent=1)
    >>> round(hit_share(sales, 3_400), 3), round(sales.share_of_top(3_400), 3)
    (0.595, 0.605)
    """
    if entries <= 0:
        return 0.0
    return float((popularity.shares * popularity.counts) @ hot_probability(popularity, entries))


def _at_least(mean: Floats, wanted: float) -> Floats:
    """That a Poisson number of some mean reaches `wanted`, which need not be whole (Wilson and Hilferty)."""
    away = 3 * np.sqrt(wanted) * (np.cbrt(mean / wanted) - 1 + 1 / (9 * wanted))
    probability: Floats = 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (away + 0.044715 * away**3)))
    return probability


__all__ = ["FILLED_SHARE", "hit_share", "hot_probability"]
