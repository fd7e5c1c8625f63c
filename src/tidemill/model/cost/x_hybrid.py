"""The cost model of X-HYBRIDJOIN."""

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from tidemill.join.x_hybrid import XHybridSizes
from tidemill.model.cost.hybrid import (
    HotPart,
    needs_from,
    partition_reads,
    partitions,
    waiting_capacity,
    waiting_state,
    waiting_work,
)
from tidemill.model.oldest_first import OldestFirst
from tidemill.model.page_rates import PageRates
from tidemill.model.prediction import SteadyState
from tidemill.model.workload import Workload


class XHybridModel:
    """Work of X-HYBRIDJOIN for a stream row: as HYBRIDJOIN, but nobody has to read the first pages.

    Rows of resident pages wait until the next phase begins, and then leave without a read. So they take room from the
    others, but no phase is longer for them: a half of the room is filled anew each time, and those of the new rows that
    ask for other pages are read for.

    >>> sales = Workload(
    ...     master_rows=136_000, master_row_bytes=120, stream_row_bytes=20, zipf_exponent=1.0, popular_first=True
    ... )
    >>> state = MODEL.steady_state(sales, MODEL.default_sizes(sales, 1_000_000))
    >>> round(state.hit_share, 2), round(1 / state.work_per_row.reads, 1)
    (0.6, 43.6)

    Source: Naeem et al., *X-HYBRIDJOIN for Near-Real-Time Data Warehousing*, 2011, §4.2, eq. 2 divided by w. What
    differs, and why:
    - w is derived, from the skew beyond the resident pages (`OldestFirst`).
    - The paper looks up all resident rows in every round (2 · d_T · c_H). Here it is done once for all rows that came
      since the last phase, from their side: one lookup a stream row.
    - In a store that is not in order of popularity the resident pages are as good as any others.
    """

    name: ClassVar[str] = "x_hybrid"

    def default_sizes(self, workload: Workload, memory_bytes: int) -> XHybridSizes:
        return XHybridSizes.from_budget(memory_bytes, **needs_from(workload))

    def size_grid(self, workload: Workload, memory_bytes: int) -> Iterator[XHybridSizes]:
        """The default, and equal halves of 1, 2, 3, … pages."""
        default = self.default_sizes(workload, memory_bytes)
        yield from partitions(workload, default, ("disk_buffer", "resident"))

    def steady_state(self, workload: Workload, sizes: XHybridSizes) -> SteadyState:
        resident = min(sizes.pages_per_step, workload.master_pages)
        everywhere = PageRates.of(workload)
        rates = everywhere.without_first(resident)
        phases = OldestFirst.half_of(
            rates,
            waiting_capacity(workload, sizes),
            rows_per_row=everywhere.asked_share,
            segment_pages=resident,
        )
        read = partition_reads(workload, phases)
        work = read + replace(waiting_work(workload, workload.matched_share), hot_probes=1)
        hits = everywhere.asked_share - rates.asked_share
        hot = HotPart(hit_share=hits, bytes_held=resident * workload.page_bytes)
        return waiting_state(workload, sizes, work, hot)


MODEL = XHybridModel()

__all__ = ["MODEL", "XHybridModel"]
