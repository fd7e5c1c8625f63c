"""The cost model of SSIJ."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import ClassVar

import numpy as np

from tidemill.core.errors import BudgetError
from tidemill.join.parts.hot_rows import ENTRY_BYTES
from tidemill.join.ssij import SsijSizes
from tidemill.model.cost.hybrid import (
    HotPart,
    needs_from,
    page_reads,
    waiting_phases,
    waiting_state,
    waiting_work,
)
from tidemill.model.page_rates import PageRates
from tidemill.model.prediction import SteadyState
from tidemill.model.workload import Workload


class SsijModel:
    name: ClassVar[str] = "ssij"

    def default_sizes(self, workload: Workload, memory_bytes: int) -> SsijSizes:
        return SsijSizes.from_budget(memory_bytes, **needs_from(workload))

    def size_grid(self, workload: Workload, memory_bytes: int) -> Iterator[SsijSizes]:
        """The default, and other borders between cached pages and waiting rows."""
        default = self.default_sizes(workload, memory_bytes)
        both = default.hot_rows_bytes + default.pending_bytes
        found = [default]
        for share in np.linspace(0.05, 0.95, 19):
            with suppress(BudgetError):
                hot_bytes = int(both * share)
                found.append(replace(default, hot_rows_bytes=hot_bytes, pending_bytes=both - hot_bytes))
        yield from dict.fromkeys(found)

    def steady_state(self, workload: Workload, sizes: SsijSizes) -> SteadyState:
        page_bytes = workload.rows_per_page * workload.master_row_bytes + ENTRY_BYTES
        cached = min(np.floor(sizes.generation_bytes / page_bytes), workload.master_pages)
        everywhere = PageRates.of(workload)
        rates = everywhere.without_top(cached)
        missed = rates.asked_share
        phases = waiting_phases(workload, sizes, rates)
        work = page_reads(workload, phases, sizes.pages_per_step) + replace(
            waiting_work(workload, missed), hot_probes=1
        )
        hot = HotPart(hit_share=everywhere.asked_share - missed, bytes_held=cached * page_bytes)
        return waiting_state(workload, sizes, work, hot)


MODEL = SsijModel()

__all__ = ["MODEL", "SsijModel"]
