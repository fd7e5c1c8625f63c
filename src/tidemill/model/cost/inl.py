"""The cost model of index nested loops."""

from collections.abc import Iterator
from typing import ClassVar

from tidemill.join.inl import InlSizes
from tidemill.join.parts import arrivals
from tidemill.model.prediction import SteadyState, memory_split
from tidemill.model.work import Work
from tidemill.model.workload import Workload


class InlModel:
    """Work of index nested loops for a stream row: one read of the pages that hold its key.

    The rows of a key lie side by side, so n of them reach over 1 + (n - 1) / (rows a page) pages, which come with one
    read. A row whose key is beyond all keys of the master data is not looked for. Nothing is shared: neither
    memory nor skew makes it faster.

    >>> sales = Workload(master_rows=136_000, master_row_bytes=120, stream_row_bytes=20, zipf_exponent=1.0)
    >>> work = MODEL.steady_state(sales, MODEL.default_sizes(sales, 32_000_000)).work_per_row
    >>> work.reads, work.read_bytes, work.master_rows, 1 / work.steps
    (1.0, 16384.0, 136.0, 64.0)

    Source: Polyzotis et al., *Meshing Streaming Updates with Persistent Data*, TKDE 2008, §3.2, which expects at least
    one random read a row. Rows that follow each other and need neighbouring pages share a read; one in N does, which is
    left out.
    """

    name: ClassVar[str] = "inl"

    def default_sizes(self, workload: Workload, memory_bytes: int) -> InlSizes:
        return InlSizes.from_budget(
            memory_bytes,
            workload.expected_stream_row_bytes,
            workload.master_row_bytes,
            workload.index_bytes + workload.master_pages,
            longest_page_bytes=workload.page_bytes,
        )

    def size_grid(self, workload: Workload, memory_bytes: int) -> Iterator[InlSizes]:
        """The default alone: no size makes it faster."""
        yield self.default_sizes(workload, memory_bytes)

    def steady_state(self, workload: Workload, sizes: InlSizes) -> SteadyState:
        pages_of_a_key = 1 + (workload.rows_per_key - 1) / workload.rows_per_page
        pages = workload.matched_share * pages_of_a_key
        arrived = max(1, sizes.arrivals_bytes // (workload.stream_row_bytes + arrivals.WORK_BYTES_PER_ROW))
        rows_per_step = min(arrived, max(1.0, sizes.pages_per_step / pages_of_a_key))
        return SteadyState(
            work_per_row=Work(
                stream_rows=1,
                master_rows=pages * workload.rows_per_page,
                output_rows=workload.output_rows_per_row,
                reads=workload.matched_share,
                read_bytes=pages * workload.page_bytes,
                steps=1 / rows_per_step,
            ),
            hot_bytes=0,
            waiting_bytes=0,
            waiting_rows=rows_per_step,
            hit_share=0,
            memory_bytes=memory_split(sizes),
        )


MODEL = InlModel()

__all__ = ["MODEL", "InlModel"]
