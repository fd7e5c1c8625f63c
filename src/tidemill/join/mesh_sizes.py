"""How the joins of the mesh family split their memory budget."""

from dataclasses import dataclass

import numpy as np

from tidemill.core.errors import BudgetError
from tidemill.core.units import format_bytes
from tidemill.join.paper_sizes import PAPER_SIZES
from tidemill.join.parts import arrivals
from tidemill.join.parts.kernels import Int64s
from tidemill.join.parts.window import HASH_BYTES_PER_ROW, PACKET_BYTES

# Two positions of a pair, its place among the chunks and the order by it, while it is put together.
OUTPUT_WORK_BYTES_PER_ROW = 64
PACKET_OF_ROWS_BYTES = 64  # what a packet adds to the bytes of its rows: offsets and bitmaps of its columns


@dataclass(frozen=True)
class MeshSizes:
    """How a budget is split. A part is what its reservation may hold at most.

    >>> sizes = MeshSizes.from_budget(32_000_000, 20, 120, 400_000, master_pages=7000)
    >>> sizes.total_bytes <= 32_000_000, sizes.master_pages_per_step, sizes.queue_packets
    (True, 56, 125)
    >>> sizes.stream_rows_per_step
    3459
    """

    stream_rows_per_step: int
    master_pages_per_step: int
    queue_packets: int
    """Packets that wait at once, each of `stream_rows_per_step` rows."""
    pending_bytes: int
    """Hash of the waiting rows, and the rows."""
    queue_bytes: int
    arrivals_bytes: int
    disk_buffer_bytes: int
    """Pages as read, and once more put together."""
    index_bytes: int
    output_bytes: int

    def __post_init__(self) -> None:
        wrong = {name: value for name, value in vars(self).items() if value <= 0}
        if wrong or self.rows_bytes < self.arrivals_bytes:
            raise BudgetError(
                f"a mesh join cannot work with sizes {vars(self)}",
                code="bad_sizes",
                next_move="make each part more than zero, and pending at least "
                f"{HASH_BYTES_PER_ROW} bytes a waiting row and the arrivals",
                sizes=dict(vars(self)),
            )

    @property
    def window_rows(self) -> int:
        return self.stream_rows_per_step * self.queue_packets

    @property
    def rows_bytes(self) -> int:
        """What the waiting rows themselves may hold."""
        return self.pending_bytes - self.window_rows * HASH_BYTES_PER_ROW

    @property
    def total_bytes(self) -> int:
        return sum(value for name, value in vars(self).items() if name.endswith("_bytes"))

    @classmethod
    def from_budget(
        cls,
        total_bytes: int,
        stream_row_bytes: int,
        master_row_bytes: int,
        index_bytes: int,
        *,
        master_pages: int,
        longest_page_bytes: int = 16 * 1024,
        queue_packets: int | None = None,
        master_pages_per_step: int | None = None,
    ) -> "MeshSizes":
        """Sizes that use the budget; a `BudgetError` names the least that works.

        The disk buffer gets the paper's size, or a quarter of what is free where that is less; when
        the queue would then lack one row for each step of a cycle, the size that needs least in all.

        Args:
            total_bytes: To be split.
            stream_row_bytes: Expected size of a stream row.
            master_row_bytes: Average size of a master row.
            index_bytes: Held by the open master data, whether a join uses it or not.
            master_pages: Length of a cycle.
            longest_page_bytes: Of the master data.
            queue_packets: Packets that wait at once; one for each step of a cycle when not given.
            master_pages_per_step: Instead of the paper's disk buffer; fewer where the budget asks for it.
        """
        needs = MeshNeeds.of(
            stream_row_bytes, master_row_bytes, index_bytes, master_pages, longest_page_bytes, queue_packets
        )
        needs.refuse_less("a mesh join", total_bytes)
        free = total_bytes - needs.fixed_bytes
        wanted = min(PAPER_SIZES["mesh"].disk_buffer_bytes or 0, free // 4) // (needs.page_bytes // 2)
        chosen = min(max(1, master_pages_per_step or wanted), len(needs.packets)) - 1
        if needs.steps_bytes[chosen] > free:
            chosen = int(needs.steps_bytes.argmin())
        in_queue = int(needs.packets[chosen])
        spare = free - int(needs.steps_bytes[chosen])
        sized = {
            "arrivals_bytes": needs.arrival_bytes + spare * 2 // 25,
            "disk_buffer_bytes": (chosen + 1) * needs.page_bytes,
            "index_bytes": max(1, index_bytes),
            "output_bytes": needs.output_bytes + spare * 3 // 25,
            "queue_bytes": in_queue * PACKET_BYTES,
        }
        pending = total_bytes - sum(sized.values())
        rows_bytes = pending // in_queue - PACKET_OF_ROWS_BYTES
        return cls(
            stream_rows_per_step=max(1, rows_bytes // waiting_row_bytes(stream_row_bytes)),
            master_pages_per_step=chosen + 1,
            queue_packets=in_queue,
            pending_bytes=pending,
            **sized,
        )


@dataclass(frozen=True)
class MeshNeeds:
    """What each part needs at least, for each number of pages a step from one on."""

    arrival_bytes: int
    page_bytes: int
    output_bytes: int
    index_bytes: int
    fixed_bytes: int
    packets: Int64s
    steps_bytes: Int64s
    """Disk buffer, queue and one waiting row a packet."""

    @classmethod
    def of(
        cls,
        stream_row_bytes: int,
        master_row_bytes: int,
        index_bytes: int,
        master_pages: int,
        longest_page_bytes: int,
        queue_packets: int | None,
    ) -> "MeshNeeds":
        arrival = stream_row_bytes + arrivals.WORK_BYTES_PER_ROW
        page = 2 * max(1, longest_page_bytes)
        # The widest master row is not known, but it fits into the longest page.
        output = arrival + max(master_row_bytes, longest_page_bytes) + OUTPUT_WORK_BYTES_PER_ROW
        pages = np.arange(1, max(1, master_pages) + 1, dtype=np.int64)
        packets = -(-len(pages) // pages) if queue_packets is None else np.full_like(pages, queue_packets)
        packet = PACKET_BYTES + PACKET_OF_ROWS_BYTES + waiting_row_bytes(stream_row_bytes)
        fixed = max(1, index_bytes) + 3 * arrival + output
        return cls(arrival, page, output, index_bytes, fixed, packets, pages * page + packets * packet)

    @property
    def least_bytes(self) -> int:
        return self.fixed_bytes + int(self.steps_bytes.min())

    def refuse_less(self, what: str, total_bytes: int, *, others_bytes: int = 0) -> None:
        least = self.least_bytes + others_bytes
        if total_bytes < least:
            raise BudgetError(
                f"{format_bytes(total_bytes)} are too little for {what} on this master data",
                code="budget_too_small",
                next_move=f"give at least {least:,} bytes ({format_bytes(self.index_bytes)} of them hold the index)",
                total_bytes=total_bytes,
                least_bytes=least,
            )


def waiting_row_bytes(stream_row_bytes: int) -> int:
    """What a row of this size takes while it waits: hash, itself, half as much again for copies."""
    return HASH_BYTES_PER_ROW + (stream_row_bytes * 3 + 1) // 2


__all__ = ["OUTPUT_WORK_BYTES_PER_ROW", "PACKET_OF_ROWS_BYTES", "MeshNeeds", "MeshSizes", "waiting_row_bytes"]
