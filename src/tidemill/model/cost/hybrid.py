"""The cost model of HYBRIDJOIN, and what its kin share: what the oldest waiting row reads and whom that serves."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

import numpy as np

from tidemill.core.errors import BudgetError
from tidemill.join.hybrid import HybridSizes
from tidemill.join.parts import pending
from tidemill.join.parts.needs import WaitingSizes
from tidemill.model.cost.mesh import steps_of
from tidemill.model.oldest_first import OldestFirst
from tidemill.model.page_rates import PageRates
from tidemill.model.prediction import SteadyState, memory_split
from tidemill.model.work import Work
from tidemill.model.workload import Workload

SizesT = TypeVar("SizesT")


class HybridModel:
    """Work of HYBRIDJOIN for a stream row: one read of a partition for all rows that wait for its pages.

    Every row waits, and half of the waiting rows leave in a disk phase. How many a read serves on average is what the
    paper's w is: it follows from how often pages are asked for and from the age to which rows come (`OldestFirst`).

    >>> sales = Workload(master_rows=136_000, master_row_bytes=120, stream_row_bytes=20, zipf_exponent=1.0)
    >>> sizes = MODEL.default_sizes(sales, 1_000_000)
    >>> round(waiting_capacity(sales, sizes)), sizes.pages_per_step
    (5350, 8)
    >>> round(1 / MODEL.steady_state(sales, sizes).work_per_row.reads, 1)
    36.3

    Source: Naeem et al., *X-HYBRIDJOIN for Near-Real-Time Data Warehousing*, 2011, §4.2: eq. 2 with one part of the disk
    buffer, divided by w, is the work of one row here. What differs, and why:
    - w is no input. It is derived, so that a prediction needs no run.
    - Eq. 1 is an identity: it says M = M for any split. Memory is that of the join's own sizes.
    - New rows come when half of those that wait have left, not after each partition.
    - Rows whose key the master data does not have are known by the index and do not wait.
    """

    name: ClassVar[str] = "hybrid"

    def default_sizes(self, workload: Workload, memory_bytes: int) -> HybridSizes:
        return HybridSizes.from_budget(memory_bytes, **needs_from(workload))

    def size_grid(self, workload: Workload, memory_bytes: int) -> Iterator[HybridSizes]:
        """The default, and partitions of 1, 2, 3, … pages."""
        yield from partitions(workload, self.default_sizes(workload, memory_bytes), ("disk_buffer",))

    def steady_state(self, workload: Workload, sizes: HybridSizes) -> SteadyState:
        phases = waiting_phases(workload, sizes, PageRates.of(workload), segment_pages=sizes.pages_per_step)
        read = partition_reads(workload, phases)
        return waiting_state(workload, sizes, read + waiting_work(workload, workload.matched_share))


@dataclass(frozen=True, kw_only=True)
class HotPart:
    """What answers rows on arrival."""

    hit_share: float = 0.0
    bytes_held: float = 0.0


def needs_from(workload: Workload) -> dict[str, Any]:
    """What the splits of all joins on an index ask for, beside the budget."""
    return {
        "stream_row_bytes": workload.expected_stream_row_bytes,
        "master_row_bytes": workload.master_row_bytes,
        "index_bytes": workload.index_bytes + workload.master_pages,
        "longest_page_bytes": workload.page_bytes,
    }


def waiting_capacity(workload: Workload, sizes: Any) -> float:
    """Rows that can wait; each counts twice, and once what is held beside it."""
    row_bytes = 2 * workload.stream_row_bytes + pending.WORK_BYTES_PER_ROW
    return max(2.0, float(sizes.pending_bytes) / row_bytes)


def waiting_phases(
    workload: Workload, sizes: Any, rates: PageRates, *, segment_pages: int = 1
) -> OldestFirst:
    """Phases that begin when rows fill their room and end when half of them have left."""
    return OldestFirst.half_of(
        rates, waiting_capacity(workload, sizes), segment_pages=min(segment_pages, workload.master_pages)
    )


def partition_reads(workload: Workload, phases: OldestFirst) -> Work:
    """Of one stream row, where each step reads one partition; one near the end of the master data is shorter."""
    length, pages = phases.segment_pages, workload.master_pages
    pages_per_read = length * (1 - (length - 1) / (2 * pages))
    one = Work(
        reads=1,
        read_bytes=pages_per_read * workload.page_bytes,
        master_rows=pages_per_read * workload.rows_per_page,
        steps=1,
    )
    return one.scaled(phases.reads_per_row)


def page_reads(workload: Workload, phases: OldestFirst, pages_per_step: int) -> Work:
    """Of one stream row, where each step reads the pages of the oldest rows; neighbours come with one read."""
    pages = phases.reads_per_row
    together = min(1.0, (min(pages_per_step, phases.reads_per_phase) - 1) / workload.master_pages)
    return Work(
        reads=pages * (1 - max(0.0, together)),
        read_bytes=pages * workload.page_bytes,
        master_rows=pages * workload.rows_per_page,
        steps=pages / pages_per_step,
    )


def waiting_work(workload: Workload, waits_share: float) -> Work:
    """Of one stream row, beside reads: all come, some wait and leave again."""
    return Work(
        stream_rows=1, added=waits_share, removed=waits_share, output_rows=workload.output_rows_per_row
    )


def waiting_state(workload: Workload, sizes: Any, work: Work, hot: HotPart | None = None) -> SteadyState:
    """Three quarters of the room are taken on average: it is filled, then emptied by half."""
    rows = waiting_capacity(workload, sizes)
    hot = hot or HotPart()
    return SteadyState(
        work_per_row=work,
        hot_bytes=hot.bytes_held,
        waiting_bytes=rows * (workload.stream_row_bytes + pending.WORK_BYTES_PER_ROW),
        waiting_rows=0.75 * rows,
        hit_share=hot.hit_share,
        memory_bytes=memory_split(sizes),
    )


def answered_first(
    workload: Workload, sizes: Any, rates: PageRates, *, missed_share: float, hot_bytes: float
) -> SteadyState:
    """Of a join that looks a row up in memory first and lets it wait for single pages if it is not there.

    Args:
        workload: Master data and skew.
        sizes: Of the join.
        rates: How often pages are asked for by rows that memory does not answer.
        missed_share: Of the stream, these rows.
        hot_bytes: Of what answers.
    """
    phases = waiting_phases(workload, sizes, rates)
    reads = page_reads(workload, phases, sizes.pages_per_step)
    work = reads + replace(waiting_work(workload, missed_share), hot_probes=1)
    hot = HotPart(hit_share=workload.matched_share - missed_share, bytes_held=hot_bytes)
    return waiting_state(workload, sizes, work, hot)


def borders(default: SizesT) -> Iterator[SizesT]:
    """The default, and other borders between hot rows and waiting rows."""
    sizes: Any = default
    both = sizes.hot_rows_bytes + sizes.pending_bytes
    found = [default]
    for share in np.linspace(0.05, 0.95, 19):
        with suppress(BudgetError):
            hot_bytes = int(both * share)
            found.append(replace(sizes, hot_rows_bytes=hot_bytes, pending_bytes=both - hot_bytes))
    yield from dict.fromkeys(found)


def partitions(workload: Workload, default: WaitingSizes, buffers: tuple[str, ...]) -> Iterator[Any]:
    """The default sizes, and others with partitions of 1, 2, 3, … pages in each of the buffers."""
    total = default.total_bytes
    found = [default]
    for pages in steps_of(workload.master_pages):
        buffer_bytes = 2 * pages * workload.page_bytes
        parts = {f"{name}_bytes": buffer_bytes for name in buffers}
        others = sum(
            value
            for name, value in vars(default).items()
            if name.endswith("_bytes") and name not in (*parts, "pending_bytes")
        )
        left = total - others - sum(parts.values())
        if left <= 0:
            break
        with suppress(BudgetError):  # too little for the rows that arrive
            found.append(replace(default, **parts, pages_per_step=pages, pending_bytes=left))
    yield from dict.fromkeys(found)


MODEL = HybridModel()

__all__ = [
    "MODEL",
    "HotPart",
    "HybridModel",
    "answered_first",
    "borders",
    "needs_from",
    "page_reads",
    "partition_reads",
    "partitions",
    "waiting_capacity",
    "waiting_phases",
    "waiting_state",
    "waiting_work",
]
