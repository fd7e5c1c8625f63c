"""The cost model of CACHEJOIN."""

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from tidemill.join.cache_sizes import CacheSizes
from tidemill.join.parts.hot_rows import ENTRY_BYTES
from tidemill.join.parts.hot_set import AGEING_ROWS_PER_ENTRY, LEAST_AGEING_ROWS, LEAST_GAIN
from tidemill.model.chance import at_least
from tidemill.model.cost.hybrid import answered_first, borders, needs_from
from tidemill.model.page_rates import PageRates, popularity_of
from tidemill.model.popularity import Floats
from tidemill.model.prediction import SteadyState
from tidemill.model.workload import Workload

_KEY_BYTES = 8  # of a master row; hot rows hold it in their table
# Times of ageing. Counts are halved after each, which would be 1.5, but a generation also remembers who was chosen before. Of
# 1.5, 3, 6 and 12 the one that is nearest to two settled runs over 400,000 rows with 20 % of memory: of Zipf 1 30.8 % missed
# (32.1 with 3, 30.9 with 6, 30.3 with 12), of Zipf 1.25 6.8 % (8.1, 7.5, 7.0).
_REMEMBERED = 6.0
# Of the rows at a place of the sketch: a key has two places and believes the lower count. Assumed, not measured.
_SHARED_PLACES = 0.5
_BISECTIONS = 30


class CacheModel:
    """Work of CACHEJOIN for a stream row: a lookup among hot rows, and of the rest reads of single pages.

    The hot rows are a generation of fixed size, so who is hot does not depend on who waits. Rows that miss wait for their
    pages: those of the oldest are read, one by one, until half of the waiting rows have left (`OldestFirst`).

    >>> sales = Workload(master_rows=136_000, master_row_bytes=120, stream_row_bytes=20, zipf_exponent=1.0)
    >>> state = MODEL.steady_state(sales, MODEL.default_sizes(sales, 1_000_000))
    >>> round(state.hit_share, 2), round(1 / state.work_per_row.reads, 1)
    (0.58, 7.6)

    Source: Naeem et al., *Big Data Velocity Management*, IEEE Access 2020, §II-B and §VI, whose eq. 2 without the cache
    inequality is that of CACHEJOIN; divided by w_N + w_S it is the work of one row. What differs, and why:
    - w_N and w_S are derived from the skew and from the keys that fit.
    - The hot keys are not the most popular ones but those counted most often (`_hot_share`): where the stream has little skew
      or the sketch is small, chance decides. In virtual time 1.9 % instead of 6.6 % of a stream of Zipf 0.5 were hits.
    - It is the state after the join has learned: 40,000 rows with room for 115 hot rows.
    - Keys that come and go with generations are left out: up to 0.25 a row were counted, a small part of its reads.
    """

    name: ClassVar[str] = "cache"

    def default_sizes(self, workload: Workload, memory_bytes: int) -> CacheSizes:
        return CacheSizes.from_budget(memory_bytes, **needs_from(workload))

    def size_grid(self, workload: Workload, memory_bytes: int) -> Iterator[CacheSizes]:
        """The default, and other borders between hot rows and waiting rows."""
        yield from borders(self.default_sizes(workload, memory_bytes))

    def steady_state(self, workload: Workload, sizes: CacheSizes) -> SteadyState:
        cold = 1 - _hot_share(workload, sizes)
        rates = PageRates.of(workload, cold)
        # A switch must bring half a percent of the stream: so much may be left undone.
        missed = min(workload.matched_share, rates.asked_share + LEAST_GAIN)
        hot_bytes = min(_hot_keys(workload, sizes), workload.master_keys) * _key_bytes(workload)
        rates = rates.scaled(missed / max(1e-12, rates.asked_share))
        return answered_first(workload, sizes, rates, missed_share=missed, hot_bytes=hot_bytes)


def _hot_share(workload: Workload, sizes: CacheSizes) -> Floats:
    """Of the keys of each group of the popularity, those that are hot.

    Who is hot is decided by counts: those of a key itself in the time that is remembered, which scatter, and those of
    others that share its place in the sketch. The most that fit are hot.
    """
    keys = popularity_of(workload)
    asked = keys.shares * workload.matched_share
    hot_keys = _hot_keys(workload, sizes)
    if hot_keys >= keys.keys:
        return np.ones_like(asked)
    remembered = _REMEMBERED * max(LEAST_AGEING_ROWS, AGEING_ROWS_PER_ENTRY * hot_keys)
    missed = workload.matched_share * (1 - keys.share_of_top(hot_keys))
    others = _SHARED_PLACES * missed * remembered / max(1, sizes.frequency_bytes // 4)
    counts = asked * remembered + others
    low, high = 0.0, 2 * float(np.interp(hot_keys, np.cumsum(keys.counts), counts)) + 50
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        is_too_many = np.dot(keys.counts, at_least(middle, counts)) > hot_keys
        low, high = (middle, high) if is_too_many else (low, middle)
    return at_least(high, counts)


def _hot_keys(workload: Workload, sizes: CacheSizes) -> float:
    return float(sizes.hot_generation_bytes / _key_bytes(workload))


def _key_bytes(workload: Workload) -> float:
    return workload.rows_per_key * (workload.master_row_bytes - _KEY_BYTES) + ENTRY_BYTES


MODEL = CacheModel()

__all__ = ["MODEL", "CacheModel"]
