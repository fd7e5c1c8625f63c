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
    """Work of SSIJ for a stream row: a lookup among cached pages, and of the rest reads of single pages.

    The most popular pages are cached, as many as a generation holds. Where popular keys lie scattered, a page is as popular
    as its most popular key and a hundred others (`PageRates`). Rows of other pages wait for them (`OldestFirst`).

    >>> sales = Workload(
    ...     master_rows=136_000, master_row_bytes=120, stream_row_bytes=20, zipf_exponent=1.0, popular_first=True
    ... )
    >>> state = MODEL.steady_state(sales, MODEL.default_sizes(sales, 1_000_000))
    >>> round(state.hit_share, 2), round(1 / state.work_per_row.reads, 1)
    (0.62, 16.5)

    Source: Bornea et al., *Semi-Streamed Index Join*, ICDE 2011, as told in Naeem et al., IEEE Access 2020, §II-B; neither
    gives equations. The form is that of `cache`. What the model leaves out:
    - It is the state after many rows. Pages on their way into the cache have room for a fifth of it, and those that are
      met first take that room: in a short run in virtual time at Zipf 1, with room for ten pages, 2 % instead of 24 % of
      the stream were hits, and reads 16 % more.
    - Pages that come and go with generations.
    """

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
        cached = min(sizes.generation_bytes // page_bytes, workload.master_pages)
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
