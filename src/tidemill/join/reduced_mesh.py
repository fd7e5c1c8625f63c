"""R-MESHJOIN: the mesh join with its disk buffer, its queue and its scan freed from one another."""

from typing import ClassVar

from tidemill.join.mesh_sizes import MeshSizes
from tidemill.join.output import OutputPlan
from tidemill.join.parts.sweep import SweepJoin
from tidemill.master.protocol import Master

PARTITIONS = 64
"""Parts of the queue by default: fine enough that room comes often, coarse enough that each is a real batch."""


class ReducedMeshJoin(SweepJoin):
    """Stream rows with their master rows, by a scan to which rows may join at any page.

    As in the mesh join every page that is read meets all waiting rows, and a row leaves when the
    scan is back where it joined. But the queue has a fixed number of partitions, however many steps
    a cycle takes. Whatever has arrived fills those that are free, the last one perhaps in part. So the
    disk buffer is as large as the disk likes it, whether the master data has a thousand pages or a
    million, and a burst is taken in at once instead of a few rows a step.

    ```
    queue      │ part 1 │ part 2 │  …  │ part P │     each knows the page at which it joined
    scan       ──▶ 0 ▒▒▒ 57 ▒▒▒ 114 ▒▒▒ …            the same number of pages a step for any master data
    ```
    Good where the mesh join is, and for streams that come in bursts. Poor on skewed streams, and
    when freshness matters: each row waits for a whole cycle.

    Memory: as the mesh join, but the disk buffer (0.93 MB of pages, twice, or a quarter of what is
    free) and the queue do not depend on the size of the master data, nor does the least that works.

    Source: Naeem et al., *R-MESHJOIN for Near-Real-Time Data Warehousing*, DOLAP 2010, known here
    through the related work of *Big Data Velocity Management*, IEEE Access 2020, §II-A. The texts give
    no algorithm, only that it removes the dependencies among MESHJOIN's components. We chose:
    - the number of partitions is a size of its own, and rows a partition follow from memory;
    - a partition leaves one cycle after it joined, wherever that was; a read ends at that page;
    - a partition takes what has arrived, at least one row, and is not topped up later.
    As in the mesh join an idle stream reads nothing, and left, semi and anti are added.
    """

    name: ClassVar[str] = "reduced_mesh"

    @classmethod
    def sizes_for(cls, master: Master, plan: OutputPlan, total_bytes: int) -> MeshSizes:
        """The split of `total_bytes` for this master data and stream, with `PARTITIONS` partitions."""
        return MeshSizes.from_budget(
            total_bytes,
            plan.stream_row_bytes,
            master.row_bytes,
            master.index_bytes,
            master_pages=master.pages,
            longest_page_bytes=master.page_columns_bytes,
            queue_packets=PARTITIONS,
        )

    def _packet_rows(self) -> int:
        """What all free partitions hold: rows that join at the same page leave as one packet."""
        return self.sizes.stream_rows_per_step * (self.sizes.queue_packets - self._window.packets)

    def _run_pages(self) -> int:
        return self.sizes.master_pages_per_step


__all__ = ["PARTITIONS", "MeshSizes", "ReducedMeshJoin"]
