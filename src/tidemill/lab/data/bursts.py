"""Arrivals in bursts that look alike on every scale of time."""

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]

BIAS = 0.7
_LEAST_BLOCKS = 16


def burst_counts(rows: int, intervals: int, *, seed: int, bias: float = BIAS) -> Int64s:
    """Rows that arrive in each interval, by the b-model: of any span of time one half gets the share `bias`.

    Which half it is, is drawn anew for every span, from the whole down to single intervals. The result is self-similar
    with the Hurst exponent of `burst_hurst`: 0.5 would be independent arrivals, near 1 bursts of bursts.

    Args:
        rows: In all.
        intervals: Rounded up to a power of two.
        seed: Of the draws.
        bias: From 0.5, the same everywhere, to 1, all in one interval.

    >>> counts = burst_counts(10_000, 64, seed=7)
    >>> int(counts.sum()), int(counts.max()) > 5 * 10_000 // 64
    (10000, True)
    """
    random = np.random.default_rng(seed)
    shares = np.ones(1)
    while len(shares) < intervals:
        first = np.where(random.random(len(shares)) < 0.5, bias, 1 - bias)
        shares = np.stack([shares * first, shares * (1 - first)], axis=1).ravel()
    ends = np.round(np.cumsum(shares) * rows).astype(np.int64)
    ends[-1] = rows
    return np.diff(ends, prepend=0)


def burst_hurst(bias: float) -> float:
    """The Hurst exponent of the b-model.

    The mean square over spans of m intervals falls as m to the power of 2 H - 2, and halving a span multiplies it by
    2 (bias² + (1 - bias)²).

    >>> round(burst_hurst(0.7), 3), round(burst_hurst(0.8), 3)
    (0.893, 0.778)
    """
    return float(0.5 - np.log2(bias**2 + (1 - bias) ** 2) / 2)


def hurst_exponent(counts: Int64s) -> float:
    """An estimate from arrivals alone: how slowly their variance falls when intervals are put together.

    >>> poisson = np.random.default_rng(7).poisson(100, 4096)
    >>> 0.4 < hurst_exponent(poisson) < 0.6
    True
    """
    sizes = [2**n for n in range(64) if len(counts) >= 2**n * _LEAST_BLOCKS]
    variances = [
        counts[: len(counts) // size * size].reshape(-1, size).mean(axis=1, dtype=np.float64).var()
        for size in sizes
    ]
    slope = np.polyfit(np.log(sizes), np.log(variances), 1)[0]
    return float(1 + slope / 2)


__all__ = ["BIAS", "burst_counts", "burst_hurst", "hurst_exponent"]
