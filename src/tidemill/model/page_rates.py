"""How often the pages of the master data are asked for, when some of their keys are hot and ask no more."""

from dataclasses import dataclass, replace

import numpy as np

from tidemill.model.popularity import Floats, Popularity
from tidemill.model.workload import Workload

_ALONE = 64
_CLASSES_PER_DOUBLING = 12


@dataclass(frozen=True, kw_only=True)
class PageRates:
    """Pages in classes, the most popular first: how many, and the share of the stream that asks for one of each.

    >>> shop = Workload(master_rows=100_000, master_row_bytes=120, stream_row_bytes=20, zipf_exponent=1.0)
    >>> rates = PageRates.of(shop)
    >>> round(rates.total_pages), round(rates.asked_share, 6)
    (736, 1.0)
    """

    pages: Floats
    shares: Floats
    in_order: bool
    """Whether neighbours on disk are of one class; else classes lie scattered."""

    @classmethod
    def of(
        cls,
        workload: Workload,
        cold: Floats | None = None,
        *,
        unit_pages: int = 1,
        unit_count: int | None = None,
    ) -> "PageRates":
        """Those of pages, or of units of neighbouring pages.

        Args:
            workload: Master data and skew.
            cold: For each group of keys of `popularity_of` the share of its keys that still ask for their page; all if
                None.
            unit_pages: Pages that are always read together.
            unit_count: Units there are, where that is known better.
        """
        keys = popularity_of(workload)
        counts = keys.counts if cold is None else keys.counts * cold
        units = unit_count or max(1, -(-workload.master_pages // unit_pages))
        if workload.popular_first:
            return cls._ordered(keys, counts, units, workload.matched_share)
        return cls._scattered(*_coarse(keys.counts, counts, keys.shares * workload.matched_share), units)

    @classmethod
    def _ordered(cls, keys: Popularity, counts: Floats, units: int, matched_share: float) -> "PageRates":
        """Pages of keys that follow each other in popularity."""
        edges = _edges(units)
        key_edges = np.concatenate([[0.0], np.cumsum(keys.counts)])
        asked = np.concatenate([[0.0], np.cumsum(counts * keys.shares * matched_share)])
        pages = np.diff(edges)
        shares = np.diff(np.interp(edges * (keys.keys / units), key_edges, asked)) / pages
        return cls(pages=pages, shares=shares, in_order=True)

    @classmethod
    def _scattered(cls, counts: Floats, shares: Floats, units: int) -> "PageRates":
        """Pages by the most popular key that asks for each.

        Keys fall on pages at random, so the key of rank k is the most popular of its page when none of the k before
        it fell there: e ** (-k / pages) of the cases. The page is asked for by that key, and by what falls on it of all
        later ones. No share is lost or counted twice.
        """
        ends = np.cumsum(counts)
        reached = np.exp(-ends / units)
        pages = units * -np.diff(reached, prepend=1.0)
        asked = counts * shares
        later = asked.sum() - np.cumsum(asked)
        rates = shares + (later + asked / 2) / units
        without = units * float(reached[-1]) if len(reached) else float(units)
        scale = asked.sum() / max(1e-300, float(np.dot(pages, rates)))
        return cls(pages=np.append(pages, without), shares=np.append(rates * scale, 0.0), in_order=False)

    @property
    def total_pages(self) -> float:
        return float(self.pages.sum())

    @property
    def asked_share(self) -> float:
        """Of the stream, what asks for a page at all."""
        return float(np.dot(self.pages, self.shares))

    def scaled(self, factor: float) -> "PageRates":
        """The same pages, asked for more or less often."""
        return replace(self, shares=self.shares * factor)

    def without_top(self, pages: float) -> "PageRates":
        """The same, but nobody asks for the most popular pages."""
        left = np.clip((np.cumsum(self.pages) - pages) / np.maximum(1e-300, self.pages), 0, 1)
        return replace(self, shares=self.shares * left)

    def without_first(self, pages: float) -> "PageRates":
        """The same, but nobody asks for the pages with which the master data begins."""
        if self.in_order:
            return self.without_top(pages)
        kept = self.pages * max(0.0, 1 - pages / self.total_pages)
        gone = self.total_pages - kept.sum()
        return replace(self, pages=np.append(kept, gone), shares=np.append(self.shares, 0.0))


def popularity_of(workload: Workload) -> Popularity:
    """Of the keys of the master data."""
    return Popularity(workload.master_keys, exponent=workload.zipf_exponent)


def _edges(count: int) -> Floats:
    """Where classes begin among so many things in order: the first alone, later ones in growing groups."""
    alone = min(count, _ALONE)
    doublings = np.log2(max(1.0, count / alone))
    later = alone * 2 ** np.linspace(0, doublings, int(doublings * _CLASSES_PER_DOUBLING) + 2)
    return np.unique(np.concatenate([np.arange(alone), np.round(later), [count]]).astype(np.float64))


def _coarse(ranks: Floats, counts: Floats, shares: Floats) -> tuple[Floats, Floats]:
    """Fewer groups of keys with the same sums: three hundred instead of thousands."""
    ends = np.cumsum(ranks)
    first = np.unique(np.searchsorted(ends, _edges(int(ends[-1]))[:-1], side="right"))
    keys, asked = np.add.reduceat(counts, first), np.add.reduceat(counts * shares, first)
    some = keys > 0
    return keys[some], asked[some] / keys[some]


__all__ = ["PageRates", "popularity_of"]
