"""The cost model of MESHJOIN, and what its kin share: what one cycle over the master pages takes and serves."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from tidemill.core.errors import BudgetError
from tidemill.join.mesh_sizes import MeshSizes
from tidemill.join.parts import arrivals
from tidemill.join.parts.window import HASH_BYTES_PER_ROW
from tidemill.model.prediction import SteadyState, memory_split
from tidemill.model.work import Work
from tidemill.model.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Cycle:
    """One scan of all master pages."""

    rows: float
    """Stream rows that it serves; as many wait meanwhile, each for one cycle."""
    reads: float


class MeshModel:
    """Work of MESHJOIN for a stream row: what a cycle costs, shared by the rows that it serves.

    All pages are read in steps of b pages, and each step takes w rows. So a cycle of N pages has N / b steps,
    rounded up, serves w rows in each, and looks up each master row once. Skew has no part in it.

    >>> sales = Workload(master_rows=136_000, master_row_bytes=120, stream_row_bytes=20, zipf_exponent=1.0)
    >>> sizes = MODEL.default_sizes(sales, 1_000_000)
    >>> sales.master_pages, sizes.master_pages_per_step, sizes.stream_rows_per_step
    (1000, 14, 100)
    >>> work = MODEL.steady_state(sales, sizes).work_per_row
    >>> round(1 / work.reads), round(work.master_rows, 2)
    (100, 18.89)

    Source: Polyzotis et al., *Meshing Streaming Updates with Persistent Data*, TKDE 2008, §3.2. Eq. 2 divided by w
    is the work of one row here. What differs, and why:
    - Eq. 4 and Table 1 swap the two input costs: b / w pages are read for a row, b / c_loop in a second.
    - N is no multiple of b: the last step of a cycle is shorter, and takes w rows all the same.
    - Result rows are counted from the stream's side (matches of a stream row), not of a master row as the paper does.
    - A step takes no more rows than the arrivals can hold. Where a cycle has few steps that is less than w.
    - w = λ · c_loop has no solution for a stream that is faster than reading, adding and removing rows alone.
    """

    name: ClassVar[str] = "mesh"
    _queue_packets: ClassVar[int | None] = None

    def default_sizes(self, workload: Workload, memory_bytes: int) -> MeshSizes:
        return self._sizes(workload, memory_bytes, None)

    def size_grid(self, workload: Workload, memory_bytes: int) -> Iterator[MeshSizes]:
        """The default, and steps of other lengths."""
        found = [self.default_sizes(workload, memory_bytes)]
        for pages in steps_of(workload.master_pages):
            if pages * 2 * workload.page_bytes < memory_bytes:
                with suppress(BudgetError):  # a buffer that leaves too little for the window
                    found.append(self._sizes(workload, memory_bytes, pages))
        yield from dict.fromkeys(found)

    def steady_state(self, workload: Workload, sizes: MeshSizes) -> SteadyState:
        cycle = self.cycle(workload, sizes)
        return SteadyState(
            work_per_row=scan_work(workload, cycle)
            + Work(stream_rows=1, added=1, removed=1, output_rows=workload.output_rows_per_row),
            hot_bytes=0,
            waiting_bytes=window_bytes(workload, sizes, cycle.rows),
            waiting_rows=cycle.rows,
            hit_share=0,
            memory_bytes=memory_split(sizes),
        )

    def cycle(self, workload: Workload, sizes: MeshSizes) -> Cycle:
        """Each step takes its rows, as long as the queue has a place for them."""
        steps = -(-workload.master_pages // sizes.master_pages_per_step)
        packets = min(steps, sizes.queue_packets)
        rows = min(sizes.stream_rows_per_step, arrivals_rows(workload, sizes))
        return Cycle(rows=packets * rows, reads=steps)

    def _sizes(self, workload: Workload, memory_bytes: int, pages_per_step: int | None) -> MeshSizes:
        return MeshSizes.from_budget(
            memory_bytes,
            **sizes_from(workload),
            queue_packets=self._queue_packets,
            master_pages_per_step=pages_per_step,
        )


def sizes_from(workload: Workload) -> dict[str, Any]:
    """What the splits of the mesh family ask for, beside the budget."""
    return {
        "stream_row_bytes": workload.expected_stream_row_bytes,
        "master_row_bytes": workload.master_row_bytes,
        "index_bytes": workload.index_bytes,
        "master_pages": workload.master_pages,
        "longest_page_bytes": workload.page_bytes,
    }


def scan_work(workload: Workload, cycle: Cycle) -> Work:
    """Of reading all pages once and looking up their rows, for one of the rows that the cycle serves."""
    return Work(
        master_rows=workload.master_rows,
        reads=cycle.reads,
        read_bytes=workload.master_pages * workload.page_bytes,
        steps=cycle.reads,
    ).scaled(1 / cycle.rows)


def arrivals_rows(workload: Workload, sizes: MeshSizes) -> int:
    """Stream rows that can stand ready for one step."""
    return max(1, sizes.arrivals_bytes // (workload.stream_row_bytes + arrivals.WORK_BYTES_PER_ROW))


def window_bytes(workload: Workload, sizes: MeshSizes, rows: float) -> float:
    """Of the hash, which is made for the whole window, and of the rows that wait in it."""
    return sizes.window_rows * HASH_BYTES_PER_ROW + rows * workload.stream_row_bytes


def steps_of(master_pages: int, growth: float = 1.2) -> Iterator[int]:
    """Pages a step worth trying, each `growth` times the one before; all pages at last."""
    pages = 1
    while pages < master_pages:
        yield pages
        pages = max(pages + 1, int(pages * growth))
    yield master_pages


MODEL = MeshModel()

__all__ = [
    "MODEL",
    "Cycle",
    "MeshModel",
    "arrivals_rows",
    "scan_work",
    "sizes_from",
    "steps_of",
    "window_bytes",
]
