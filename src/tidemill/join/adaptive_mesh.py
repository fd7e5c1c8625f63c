"""AMESHJOIN: the mesh join whose rows and pages a step may change while rows wait."""

from dataclasses import replace
from typing import Any, ClassVar

from tidemill.core.errors import BudgetError, SpecError
from tidemill.core.units import format_bytes
from tidemill.join.mesh_sizes import PACKET_OF_ROWS_BYTES, MeshSizes, waiting_row_bytes
from tidemill.join.parts.sweep import SweepJoin
from tidemill.join.parts.window import HASH_BYTES_PER_ROW, PACKET_BYTES


class AdaptiveMeshJoin(SweepJoin):
    """Stream rows with their master rows, by a scan whose pace follows the stream.

    It works as the mesh join does. But each packet of stream rows remembers at which page it joined
    the window, and leaves right before the scan reaches that page again. So packets of different
    sizes and steps of different lengths may live side by side, and no row is lost or met twice
    when they change. A tuner calls `resize` when the stream turns faster or slower.

    ```
    packet   a (from page 0)   b (from page 2)   c (from page 3)
    scan     … 8, 9 │ a leaves │ 0, 1 │ b leaves │ 2 │ c leaves │ 3 …
    ```
    Good when the rate of the stream changes and memory should follow it. Poor as the mesh join is:
    on skewed streams, and when freshness matters.

    Memory: as the mesh join until `resize`; then the disk buffer follows the pages a step, and the
    window the rows a step times the steps of a cycle. After a change memory is what the live packets
    need, which may be more than the formula of the new sizes says: the window gets no smaller than
    its rows, and takes new ones as old ones leave.

    Source: Polyzotis et al., *Meshing Streaming Updates with Persistent Data*, TKDE 2008, §3.3
    (Fig. 6, Example 3.1). What differs, and why:
    - Pages a step must be between 1 and the pages there are; the paper does not say so.
    - Expiry is checked after each page, as the example has it: a run of pages is cut where the next
      packet leaves, so an iteration with several such places takes several steps.
    - After a change memory is the sum of the live packets, not eq. 1.
    - Theorem 3.2 must read that the stream is no faster than the join, in each iteration; a join
      that is slower does not go wrong here, it has no room.
    - As in the mesh join an idle stream reads nothing, and left, semi and anti are added.
    """

    name: ClassVar[str] = "adaptive_mesh"

    _iteration_until = 0
    """Pages joined when the iteration under way ends."""

    def resize(self, *, stream_rows_per_step: int, master_pages_per_step: int) -> None:
        """Change the sizes from the next iteration on; refused without a trace when memory does not allow it."""
        pages = max(1, self._master.pages)
        if stream_rows_per_step < 1 or not 1 <= master_pages_per_step <= pages:
            raise SpecError(
                f"{stream_rows_per_step} rows and {master_pages_per_step} pages a step",
                code="sizes_out_of_range",
                next_move=f"give 1 row or more, and 1 to {pages} pages",
                stream_rows_per_step=stream_rows_per_step,
                master_pages_per_step=master_pages_per_step,
            )
        self._lay_out(stream_rows_per_step, master_pages_per_step, self._window.rows, self._window.packets)

    def _lay_out(self, rows_per_step: int, pages_per_step: int, live_rows: int, live_packets: int) -> None:
        pages_in_flight = self._run.pages if self._run else 0
        packets = -(-max(1, self._master.pages) // pages_per_step)
        # The ring is counted in packets: as many as hold both the new window and the live rows.
        places = max(packets, -(-live_rows // rows_per_step))
        row_bytes = waiting_row_bytes(self.plan.stream_row_bytes)
        packet_bytes = rows_per_step * row_bytes + PACKET_OF_ROWS_BYTES
        # Live rows lie in the places of the new window; what is more than that, if they are wide, comes on top.
        in_window = places * (packet_bytes - rows_per_step * HASH_BYTES_PER_ROW)
        rows_bytes = max(self.sizes.arrivals_bytes, self._window.rows_bytes_held * 3 // 2 - in_window)
        changed = replace(
            self.sizes,
            stream_rows_per_step=rows_per_step,
            master_pages_per_step=pages_per_step,
            queue_packets=places,
            queue_bytes=max(places, live_packets + 1) * PACKET_BYTES,
            pending_bytes=places * packet_bytes + rows_bytes,
            disk_buffer_bytes=2
            * max(1, self._master.page_columns_bytes)
            * max(pages_per_step, pages_in_flight),
        )
        self._change_reservations(changed)
        self._window.resize(changed.window_rows, changed.rows_bytes)
        self._iteration_until = self._pages_joined + pages_in_flight

    def _change_reservations(self, changed: MeshSizes) -> None:
        more_for_condition = self._condition_bytes(changed) - self._condition_bytes(self.sizes)
        least = self.budget.held_bytes - self.sizes.total_bytes + changed.total_bytes + more_for_condition
        if least > self.budget.total_bytes:
            raise BudgetError(
                f"{changed.stream_rows_per_step:,} rows and {changed.master_pages_per_step:,} pages a step need "
                f"{format_bytes(least)}, the budget is {format_bytes(self.budget.total_bytes)}",
                code="over_budget",
                next_move=f"give at least {least:,} bytes, or smaller sizes",
                least_bytes=least,
            )
        # Those that shrink first.
        names = ["pending", "queue", "disk_buffer"]
        growth = {n: getattr(changed, f"{n}_bytes") - getattr(self.sizes, f"{n}_bytes") for n in names}
        for name in sorted(names, key=lambda n: growth[n]):
            self.budget.reserve(name, getattr(changed, f"{name}_bytes"))
        self.sizes = changed
        self.budget.reserve("condition", self._condition_bytes(changed))

    def _packet_rows(self) -> int:
        """A packet at the start of each iteration; one begins at once when nothing waits."""
        if self._pages_joined < self._iteration_until and self._window.rows:
            return 0
        self._iteration_until = self._pages_joined + self.sizes.master_pages_per_step
        has_place = self._window.queue_bytes_held + PACKET_BYTES <= self.sizes.queue_bytes
        return self.sizes.stream_rows_per_step if has_place else 0

    def _run_pages(self) -> int:
        return self._iteration_until - self._pages_joined

    def restore(self, snapshot: bytes) -> None:
        """Also takes over the sizes in use when the snapshot was taken."""
        facts: dict[str, Any] = self._unpack(snapshot)[0]
        self._window, self._run = self._empty_window(), None
        rows_per_step, pages_per_step = facts["per_step"]
        if [rows_per_step, pages_per_step] != [
            self.sizes.stream_rows_per_step,
            self.sizes.master_pages_per_step,
        ]:
            live = [rows for rows, _ in facts["packets"]]
            self._lay_out(rows_per_step, pages_per_step, sum(live), len(live))
        super().restore(snapshot)
        self._iteration_until = self._pages_joined + (self._run.pages if self._run else 0)


__all__ = ["AdaptiveMeshJoin", "MeshSizes"]
