"""The cost model of R-MESHJOIN."""

from typing import ClassVar

from tidemill.join.mesh_sizes import MeshSizes
from tidemill.join.reduced_mesh import PARTITIONS
from tidemill.model.cost.mesh import Cycle, MeshModel, arrivals_rows
from tidemill.model.workload import Workload


class ReducedMeshModel(MeshModel):
    """Work of R-MESHJOIN for a stream row: what a cycle costs, shared by all rows that memory holds.

    Rows join at any step at which there is room, as many as have arrived. With a stream that never pauses the window
    is full after the first steps of a cycle; each row leaves at the same place one cycle later and makes room for
    another. So a cycle serves a whole window, unless it has too few steps for that many arrivals.

    >>> sales = Workload(master_rows=136_000, master_row_bytes=120, stream_row_bytes=20, zipf_exponent=1.0)
    >>> cycle = MODEL.cycle(sales, MODEL.default_sizes(sales, 1_000_000))
    >>> cycle.rows, cycle.reads
    (7232, 72)

    Source: the texts give no algorithm and no equations for it; this is eq. 2 of MESHJOIN with a window and a number of
    steps that do not depend on each other, for the algorithm that `join/reduced_mesh.py` states.
    """

    name: ClassVar[str] = "reduced_mesh"
    _queue_packets: ClassVar[int | None] = PARTITIONS

    def cycle(self, workload: Workload, sizes: MeshSizes) -> Cycle:
        steps = -(-workload.master_pages // sizes.master_pages_per_step)
        arrived = steps * arrivals_rows(workload, sizes)
        return Cycle(rows=min(sizes.window_rows, arrived), reads=steps)


MODEL = ReducedMeshModel()

__all__ = ["MODEL", "ReducedMeshModel"]
