"""The cost model of CACHEJOIN."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import ClassVar

import numpy as np

from tidemill.core.errors import BudgetError
from tidemill.join.cache_sizes import CacheSizes
from tidemill.join.parts.hot_rows import ENTRY_BYTES
from tidemill.model.cost.hybrid import (
    HotPart,
    needs_from,
    page_reads,
    waiting_phases,
    waiting_state,
    waiting_work,
)
from tidemill.model.page_rates import PageRates, popularity_of
from tidemill.model.prediction import SteadyState
from tidemill.model.workload import Workload

_KEY_BYTES = 8


class CacheModel:
    name: ClassVar[str] = "cache"

    def default_sizes(self, workload: Workload, memory_bytes: int) -> CacheSizes:
        return CacheSizes.from_budget(memory_bytes, **needs_from(workload))

    def size_grid(self, workload: Workload, memory_bytes: int) -> Iterator[CacheSizes]:
        """The default, and other borders between hot rows and waiting rows."""
        default = self.default_sizes(workload, memory_bytes)
        both = default.hot_rows_bytes + default.pending_bytes
        found = [default]
        for share in np.linspace(0.05, 0.95, 19):
            with suppress(BudgetError):
                hot_bytes = int(both * share)
                found.append(replace(default, hot_rows_bytes=hot_bytes, pending_bytes=both - hot_bytes))
        yield from dict.fromkeys(found)

    def steady_state(self, workload: Workload, sizes: CacheSizes) -> SteadyState:
        keys = popularity_of(workload)
        key_bytes = workload.rows_per_key * (workload.master_row_bytes - _KEY_BYTES) + ENTRY_BYTES
        hot_keys = min(sizes.hot_generation_bytes / key_bytes, keys.keys)
        ends = np.cumsum(keys.counts)
        cold = np.clip((ends - hot_keys) / keys.counts, 0, 1)
        rates = PageRates.of(workload, cold)
        missed = rates.asked_share
        phases = waiting_phases(workload, sizes, rates)
        work = page_reads(workload, phases, sizes.pages_per_step) + replace(
            waiting_work(workload, missed), hot_probes=1
        )
        hot = HotPart(hit_share=workload.matched_share - missed, bytes_held=hot_keys * key_bytes)
        return waiting_state(workload, sizes, work, hot)


MODEL = CacheModel()

__all__ = ["MODEL", "CacheModel"]
