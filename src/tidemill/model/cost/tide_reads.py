"""How many waiting rows one read of `tide` serves."""

from dataclasses import dataclass

import numpy as np

from tidemill.model.popularity import Floats, Popularity

_HALVINGS = 24
_HEAVY = 0.3  # of an average region's misses, from which a key is looked at alone
_LONE_REGIONS = 32


@dataclass(frozen=True)
class RegionRates:
    """Regions in groups of alike ones: how many, and the share of all misses that comes to one of each."""

    regions: Floats
    shares: Floats

    @classmethod
    def scattered(cls, popularity: Popularity, hot: Floats, regions: int) -> "RegionRates":
        """Popular keys lie anywhere.

        A key that misses often makes its region differ from the others; the many rare ones make regions differ a
        little, as a sum of chances does.

        Args:
            popularity: Of the keys.
            hot: Whether a key of each group is hot.
            regions: Of the master data.
        """
        missed = popularity.shares * (1 - hot)
        missed = missed / max(1e-300, float(missed @ popularity.counts))
        heavy = (missed * regions > _HEAVY) & (np.cumsum(popularity.counts * (missed * regions > _HEAVY)) <= regions / 2)
        alone, keys = missed[heavy], popularity.counts[heavy]
        rest = 1 - float(alone @ keys)
        spread = float(np.sqrt((missed[~heavy] ** 2 @ popularity.counts[~heavy]) * regions)) / max(1e-12, rest)
        # Three points with the mean and the spread of the sums.
        points = np.maximum(1e-3, 1 + np.sqrt(3) * min(spread, 0.5) * np.array([-1.0, 0.0, 1.0])) * rest / regions
        others = (regions - keys.sum()) * np.array([1 / 6, 2 / 3, 1 / 6])
        return cls(np.append(keys, others), np.append(alone + rest / regions, points))

    @classmethod
    def in_order(cls, popularity: Popularity, hot: Floats, regions: int) -> "RegionRates":
        """Popular keys lie at the beginning."""
        missed = popularity.shares * (1 - hot) * popularity.counts
        cumulative = np.append(0.0, np.cumsum(missed)) / max(1e-300, float(missed.sum()))
        ranks = np.append(0.0, np.cumsum(popularity.counts))
        lone = np.arange(min(regions, _LONE_REGIONS) + 1)
        edges = np.unique(np.append(lone, np.geomspace(lone[-1], regions, _LONE_REGIONS).round()))
        share_before = np.interp(edges * popularity.keys / regions, ranks, cumulative)
        return cls(np.diff(edges), np.maximum(1e-15, np.diff(share_before) / np.diff(edges)))


def rows_per_region_read(rates: RegionRates, waiting_rows: float, *, densest_share: float) -> float:
    """Rows that wait for a region when it is read, on average over reads.

    A region is read when its oldest row has waited for so long, or when so many rows wait for it: age and number follow
    from how many rows wait in all, and from the share of reads that the number decides. With regions all alike and read
    by age alone, rows leave a region at any moment of its turn, so that half as many wait on average as are served.

    >>> alike = RegionRates(np.array([100.0]), np.array([0.01]))
    >>> round(rows_per_region_read(alike, 10_000, densest_share=0), 1)
    200.0
    >>> round(rows_per_region_read(alike, 10_000, densest_share=0.5), 1)
    200.7

    Args:
        rates: How misses spread over regions.
        waiting_rows: On the lists of all regions.
        densest_share: Of reads that go to the region for which most rows wait.
    """
    low, high = -3.0, 3.0 + np.log(waiting_rows + 1 / rates.shares.max()) + np.log(rates.shares.max() / rates.shares.min() + 1)
    served = 1.0
    for _ in range(_HALVINGS):
        age = np.exp((low + high) / 2)  # in misses: so many come while the oldest row waits
        served, waiting = _turn(rates, age, densest_share)
        low, high = ((low + high) / 2, high) if waiting < waiting_rows else (low, (low + high) / 2)
    return served


def _turn(rates: RegionRates, age: float, densest_share: float) -> tuple[float, float]:
    """Rows served by a read and rows that wait, when a region is read at `age` at the latest."""
    mean = 1 + rates.shares * age  # the first row begins the wait
    if densest_share <= 0:
        return _served_and_waiting(rates, mean, mean**2 + mean - 1)
    low, high = 0.0, np.log(mean.max() + 6 * np.sqrt(mean.max()) + 1)
    first = second = mean
    for _ in range(_HALVINGS):
        first, second, reached = _capped(mean, np.exp((low + high) / 2))
        reads = rates.regions * rates.shares / first
        is_often = float(reads @ reached) > densest_share * float(reads.sum())
        low, high = ((low + high) / 2, high) if is_often else (low, (low + high) / 2)
    return _served_and_waiting(rates, first, second)


def _capped(mean: Floats, most: float) -> tuple[Floats, Floats, Floats]:
    """First and second moment of a count with Poisson noise that ends at `most`, and how often it does."""
    deviation = np.sqrt(np.maximum(mean - 1, 1e-9))
    away = (most - mean) / deviation
    density = np.exp(-0.5 * away**2) / np.sqrt(2 * np.pi)
    below = 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (away + 0.044715 * away**3)))
    first = most * (1 - below) + mean * below - deviation * density
    second = most**2 * (1 - below) + (mean**2 + deviation**2) * below - deviation * (most + mean) * density
    first = np.maximum(first, 1.0)
    return first, np.maximum(second, first**2), 1 - below


def _served_and_waiting(rates: RegionRates, first: Floats, second: Floats) -> tuple[float, float]:
    """From the moments of the rows that wait for a region when it is read.

    While one of them waits for a read, one comes in `first` / rate; so n rows that came evenly waited n (n - 1) / 2 gaps.
    """
    reads = rates.regions * rates.shares / first
    waiting = rates.regions @ ((second - first) / (2 * first))
    return float(rates.regions @ rates.shares) / float(reads.sum()), float(waiting)


__all__ = ["RegionRates", "rows_per_region_read"]
