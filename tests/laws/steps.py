"""How many pages a step reads, whatever a join calls them."""

from dataclasses import fields, replace
from typing import Any

from tidemill.join.mesh_sizes import PACKET_OF_ROWS_BYTES, waiting_row_bytes
from tidemill.join.output import OutputPlan
from tidemill.join.parts.window import PACKET_BYTES
from tidemill.join.protocol import SemiStreamJoin
from tidemill.master import MasterData

_INDEX_BYTES_OF_A_PAGE = 64


def pages_of_a_step(join: SemiStreamJoin) -> int:
    """The most pages that a step may read; 0 for a join that reads none in steps."""
    sizes = getattr(join, "sizes", None)
    return int(getattr(sizes, "pages_per_step", getattr(sizes, "master_pages_per_step", 0)))


def fewer_pages(sizes: Any, pages: int, master: MasterData, plan: OutputPlan) -> Any:
    """The sizes with so many pages a step, or fewer where it has fewer, and what hangs on them."""
    known = {field.name for field in fields(sizes)}
    if "pages_per_step" in known:
        return replace(sizes, pages_per_step=min(pages, sizes.pages_per_step))
    if "regions_per_read" in known:
        region_pages = min(pages, sizes.region_pages)
        regions = max(1, min(pages // region_pages, sizes.regions_per_read))
        return replace(
            sizes,
            region_pages=region_pages,
            regions_per_read=regions,
            reads_per_step=max(1, min(pages // (region_pages * regions), sizes.reads_per_step)),
            index_bytes=sizes.index_bytes + master.pages * _INDEX_BYTES_OF_A_PAGE,
        )
    if "master_pages_per_step" in known:
        return _fewer_pages_of_a_cycle(sizes, min(pages, sizes.master_pages_per_step), master, plan)
    return sizes


def _fewer_pages_of_a_cycle(sizes: Any, pages: int, master: MasterData, plan: OutputPlan) -> Any:
    """A cycle then has more steps, and the queue a packet for each of them, of as many rows in all."""
    steps_before, steps = (-(-max(1, master.pages) // n) for n in (sizes.master_pages_per_step, pages))
    packets = max(sizes.queue_packets, steps) if sizes.queue_packets == steps_before else sizes.queue_packets
    rows = max(1, sizes.window_rows // packets)
    waiting_bytes = packets * (rows * waiting_row_bytes(plan.stream_row_bytes) + PACKET_OF_ROWS_BYTES)
    return replace(
        sizes,
        master_pages_per_step=pages,
        queue_packets=packets,
        stream_rows_per_step=rows,
        queue_bytes=max(sizes.queue_bytes, packets * PACKET_BYTES),
        pending_bytes=max(sizes.pending_bytes, waiting_bytes + sizes.arrivals_bytes),
    )


__all__ = ["fewer_pages", "pages_of_a_step"]
