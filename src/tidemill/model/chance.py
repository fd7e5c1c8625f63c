"""Chances of counts of rare events."""

import numpy as np

from tidemill.model.popularity import Floats


def at_least(count: float, means: Floats) -> Floats:
    """Chance of at least so many events where that many are expected (Poisson).

    >>> at_least(1, np.array([0.0, 1.0])).round(3).tolist()
    [0.0, 0.632]
    """
    fewer = int(np.ceil(count))
    # Sums of many terms; the means beyond which none of them counts are left out.
    means = np.minimum(means, fewer + 40 + 12 * fewer**0.5)
    term = np.exp(-means)
    total = np.zeros_like(means)
    for k in range(fewer):
        total += term
        term = term * means / (k + 1)
    return np.clip(1 - total, 0.0, 1.0)


__all__ = ["at_least"]
