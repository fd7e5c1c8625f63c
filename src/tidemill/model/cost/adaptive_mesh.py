"""The cost model of AMESHJOIN between two changes of its sizes."""

from typing import ClassVar

from tidemill.join.mesh_sizes import MeshSizes
from tidemill.model.cost.mesh import Cycle, MeshModel, arrivals_rows
from tidemill.model.workload import Workload


class AdaptiveMeshModel(MeshModel):
    """Work of AMESHJOIN for a stream row: as MESHJOIN, but iterations are cut where rows leave.

    An iteration reads b pages and takes w rows, wherever the scan stands. A packet leaves one cycle after it came:
    when N is no multiple of b that is in the middle of a later iteration, always at the same offset. A read ends there,
    so an iteration takes two reads. Once a cycle the end of the master data cuts one more.

    >>> sales = Workload(master_rows=136_000, master_row_bytes=120, stream_row_bytes=20, zipf_exponent=1.0)
    >>> sizes = MODEL.default_sizes(sales, 1_000_000)
    >>> round(MODEL.cycle(sales, sizes).reads, 1)  # 1,000 pages / 14 = 71.4 iterations
    143.9

    Source: as MESHJOIN, §3.3. After a change the live packets, not eq. 1, say what memory is held: this is the state one
    cycle later. Theorem 3.2 must read λ ≤ μ: the rate given here is the one that the stream must not exceed.
    """

    name: ClassVar[str] = "adaptive_mesh"

    def cycle(self, workload: Workload, sizes: MeshSizes) -> Cycle:
        """Iterations go on over the end of a cycle, so there may be a fraction of one."""
        pages = min(sizes.master_pages_per_step, workload.master_pages)
        iterations = workload.master_pages / pages
        rows = min(sizes.stream_rows_per_step, arrivals_rows(workload, sizes))
        is_cut = workload.master_pages % pages > 0
        return Cycle(rows=iterations * rows, reads=2 * iterations + 1 if is_cut else iterations)


MODEL = AdaptiveMeshModel()

__all__ = ["MODEL", "AdaptiveMeshModel"]
