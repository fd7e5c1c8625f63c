"""Chances of counts of rare events."""

import numpy as np

from tidemill.model.popularity import Floats

_MANY = 200


def at_least(count: float, means: Floats) -> Floats:
    """Chance of at least so many events where that many are expected (Poisson).

    Between two counts the chance is between theirs.

    >>> at_least(1, np.array([0.0, 1.0])).round(3).tolist()
    [0.0, 0.632]
    >>> at_least(1.5, np.array([1.0])).round(3).tolist()
    [0.448]
    """
    whole = int(count)
    if whole > _MANY:  # nearly normal, and the normal nearly logistic
        above = (means - count + 0.5) / np.sqrt(np.maximum(1.0, means))
        return np.asarray(1 / (1 + np.exp(-1.702 * np.clip(above, -40, 40))))
    term, fewer = np.exp(-means), np.zeros_like(means)
    for k in range(whole):
        fewer = fewer + term
        term = term * means / (k + 1)
    return np.clip(1 - fewer - (count - whole) * term, 0.0, 1.0)


__all__ = ["at_least"]
