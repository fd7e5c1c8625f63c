"""MESHJOIN: an endless scan of the master data meshed with a sliding window of the stream."""

from typing import ClassVar

from tidemill.join.mesh_sizes import MeshSizes
from tidemill.join.parts.sweep import SweepJoin


class MeshJoin(SweepJoin):
    """Stream rows with their master rows, by one scan that serves all waiting rows alike.

    The master pages are read round and round, some pages a step, without any index. With each step
    some new stream rows join a window that is hashed by key, and every page read meets the whole
    window. A row that joined the window has met every page once when the scan is back where it
    was; then it leaves. The cost of a page is so shared by as many rows as memory can hold.

    ```
    arrivals ──w rows──▶ window (hash) ──after one cycle──▶ leaves
                            ▲ meets
    … page 7, 8, 9 ─────────┘ b pages a step, round and round
    ```
    Good when there is no index, or keys of the stream are spread evenly and the window is large
    against the master data. Poor on skewed streams, and when freshness matters: each row waits for
    a whole cycle.

    Memory: the index of the open master data first; disk buffer 0.93 MB of pages, twice, or a
    quarter; of the rest arrivals 8 %, output 12 %, the window (25 bytes of hash a row and the row
    itself with half as much again for copies) the remainder; a queue entry a packet.

    Source: Polyzotis et al., *Meshing Streaming Updates with Persistent Data*, TKDE 2008, §3.1
    (Fig. 4). What differs, and why:
    - The paper takes the number of pages as a multiple of the pages a step. Here the last step of
      a cycle is shorter, so that the queue holds one packet for each step, rounded up.
    - As printed an idle stream spins through the master data for ever. Here nothing is read when
      nothing waits; the scan keeps its place.
    - A step takes up to w rows, not exactly w: the last rows of a quiet stream must leave too.
    - Rows that left the window need no work: chains of the hash end at the oldest number.
    - Left, semi and anti (the paper's newly inserted rows): a mark a row says whether it matched
      anywhere in its cycle.
    - Eq. 4 and Table 1 swap the two input costs: it is b / w pages a row.
    """

    name: ClassVar[str] = "mesh"

    def _packet_rows(self) -> int:
        has_place = self._window.packets < self.sizes.queue_packets
        return self.sizes.stream_rows_per_step if has_place else 0

    def _run_pages(self) -> int:
        return self.sizes.master_pages_per_step


__all__ = ["MeshJoin", "MeshSizes"]
