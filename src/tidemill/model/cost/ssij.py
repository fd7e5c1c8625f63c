"""The cost model of SSIJ."""

from collections.abc import Iterator
from typing import ClassVar

from tidemill.join.parts.hot_rows import ENTRY_BYTES
from tidemill.join.ssij import SsijSizes
from tidemill.model.cost.hybrid import answered_first, borders, needs_from
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
    - It is the state after the join has learned: 50,000 rows with room for 21 pages.
    - Pages that come and go with generations.
    """

    name: ClassVar[str] = "ssij"

    def default_sizes(self, workload: Workload, memory_bytes: int) -> SsijSizes:
        return SsijSizes.from_budget(memory_bytes, **needs_from(workload))

    def size_grid(self, workload: Workload, memory_bytes: int) -> Iterator[SsijSizes]:
        """The default, and other borders between cached pages and waiting rows."""
        yield from borders(self.default_sizes(workload, memory_bytes))

    def steady_state(self, workload: Workload, sizes: SsijSizes) -> SteadyState:
        page_bytes = workload.rows_per_page * workload.master_row_bytes + ENTRY_BYTES
        cached = min(sizes.generation_bytes // page_bytes, workload.master_pages)
        rates = PageRates.of(workload).without_top(cached)
        return answered_first(
            workload, sizes, rates, missed_share=rates.asked_share, hot_bytes=cached * page_bytes
        )


MODEL = SsijModel()

__all__ = ["MODEL", "SsijModel"]
