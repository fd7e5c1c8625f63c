"""AMESHJOIN tuned while it runs: its sizes follow the arrival rate, and no row is lost."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from tidemill.core.errors import BudgetError
from tidemill.join.adaptive_mesh import AdaptiveMeshJoin
from tidemill.join.mesh_sizes import PACKET_OF_ROWS_BYTES, MeshSizes, waiting_row_bytes
from tidemill.join.parts.window import PACKET_BYTES
from tidemill.model.cost.adaptive_mesh import MODEL
from tidemill.model.cost.mesh import arrivals_rows, steps_of
from tidemill.model.work import Costs
from tidemill.model.workload import Workload

Goal = Literal["least_memory", "best_rate"]
_LOOKS = 8
"""In the time over which the rate is smoothed: looking takes about 20 ms, and more often there is nothing new to see."""
_ROUNDS = 4  # to solve w = λ · c_loop(w), which is a straight line but for the price of a lookup


class ArrivalRate:
    """Rows that come in a second, smoothed: what is `smoothing_seconds` old counts for a third of what is new.

    >>> rate = ArrivalRate(smoothing_seconds=10)
    >>> for second in range(60):
    ...     rate.saw(1000 if second < 30 else 4000, float(second))
    >>> round(rate.rows_per_s, -2)
    3800.0
    """

    def __init__(self, *, smoothing_seconds: float) -> None:
        self.rows_per_s = 0.0
        self.smoothing_seconds = smoothing_seconds
        self.now_seconds = 0.0
        self._since: float | None = None
        self._began = 0.0
        self._rows = 0

    def saw(self, rows: int, now_seconds: float) -> None:
        """So many rows have come since the last call; times come from any clock that does not go back."""
        self.now_seconds = now_seconds
        if self._since is None:
            self._since = self._began = now_seconds  # these rows came before anything was measured
            return
        self._rows += rows
        span = now_seconds - self._since
        if span <= 0:
            return
        # At first a plain mean: the first moments must not count for more than those after them.
        seen = now_seconds - self._began
        weight = max(span / seen, -math.expm1(-span / self.smoothing_seconds))
        self.rows_per_s += weight * (self._rows / span - self.rows_per_s)
        self._since, self._rows = now_seconds, 0


@dataclass(frozen=True, kw_only=True)
class Adjustment:
    """What a tuner did about the stream as it is now."""

    arrival_rows_per_s: float
    service_rows_per_s: float
    """Predicted for the sizes that are in use from now on."""
    stream_rows_per_step: int
    master_pages_per_step: int
    memory_bytes: int
    """Reserved."""

    @property
    def is_overload(self) -> bool:
        """Whether more comes than can be served, since more memory was refused."""
        return self.service_rows_per_s < self.arrival_rows_per_s

    @property
    def shed_share(self) -> float:
        """Of the stream that must go elsewhere, for the rest to be served."""
        return max(0.0, 1 - self.service_rows_per_s / self.arrival_rows_per_s)


class MeshTuner:
    """Gives an adaptive mesh join the sizes that the stream of the moment needs.

    The caller tells which rows came and now and then asks for an adjustment, between two steps:

    ```
    tuner.arrived(rows, now) ─▶ join.offer(rows) ─▶ join.step() ─▶ tuner.adjust() ─▶ …
    ```
    For the least memory it solves the paper's w = λ · c_loop(w) for each number of pages a step and takes the one that
    needs least. For the best rate it fills the memory with rows, and takes the number of pages that gives most. Where the
    budget refuses what a rate needs, the best rate that the budget allows is taken and `on_overload` is told: this is
    where shedding begins, and a later adjustment tells when it may end.

    Args:
        join: Running. Its budget is the most memory that may be used.
        workload: What is joined; `follow` changes it.
        costs: Of this machine and disk.
        goal: Whether memory follows the stream, or all of it is used.
        headroom: Share by which the service is faster than the stream, so that a backlog goes away.
        least_change: Share by which the rate must change before sizes do.
        smoothing_seconds: Of the measured rate.
        on_overload: Told of each adjustment that leaves or ends an overload.

    Source: Polyzotis et al., *Meshing Streaming Updates with Persistent Data*, TKDE 2008, §3.2 and §3.3.
    """

    def __init__(
        self,
        join: AdaptiveMeshJoin,
        workload: Workload,
        costs: Costs,
        *,
        goal: Goal = "least_memory",
        headroom: float = 0.1,
        least_change: float = 0.1,
        smoothing_seconds: float = 10.0,
        on_overload: Callable[[Adjustment], None] | None = None,
    ) -> None:
        self.arrivals = ArrivalRate(smoothing_seconds=smoothing_seconds)
        self.is_overload = False
        self._join, self._workload, self._costs = join, workload, costs
        self._goal, self._headroom, self._least_change = goal, headroom, least_change
        self._on_overload = on_overload
        self._tuned_for = 0.0
        self._looks_at = -math.inf

    def arrived(self, rows: int, now_seconds: float) -> None:
        """So many rows have come since the last call."""
        self.arrivals.saw(rows, now_seconds)

    def follow(self, workload: Workload) -> None:
        """The stream has another skew, or the master data has changed: judge anew."""
        self._workload, self._tuned_for, self._looks_at = workload, 0.0, -math.inf

    def adjust(self) -> Adjustment | None:
        """New sizes where the stream has changed enough; None where they stay."""
        rate, now = self.arrivals.rows_per_s, self.arrivals.now_seconds
        if (
            now < self._looks_at
            or rate == 0
            or abs(rate - self._tuned_for) <= self._least_change * self._tuned_for
        ):
            return None
        self._looks_at = now + self.arrivals.smoothing_seconds / _LOOKS
        if self._is_resized(rate * (1 + self._headroom)):
            self._tuned_for = rate
        return self._told(rate)

    def _is_resized(self, rows_per_s: float) -> bool:
        """Whether any sizes were accepted; where not, rows that wait are in the way, and leave within a cycle."""
        wished = self._least(rows_per_s) if self._goal == "least_memory" else []
        return any(self._accepts(sizes) for sizes in [*wished, *self._best()])

    def _told(self, rate: float) -> Adjustment:
        sizes = self._join.sizes
        told = Adjustment(
            arrival_rows_per_s=rate,
            service_rows_per_s=self._rate_of(sizes),
            stream_rows_per_step=sizes.stream_rows_per_step,
            master_pages_per_step=sizes.master_pages_per_step,
            memory_bytes=self._join.budget.held_bytes,
        )
        if self._on_overload is not None and (told.is_overload or self.is_overload):
            self._on_overload(told)
        self.is_overload = told.is_overload
        return told

    def _accepts(self, sizes: MeshSizes) -> bool:
        try:
            self._join.resize(
                stream_rows_per_step=sizes.stream_rows_per_step,
                master_pages_per_step=sizes.master_pages_per_step,
            )
        except BudgetError:
            return False
        return True

    def _least(self, rows_per_s: float) -> list[MeshSizes]:
        """Sizes that reach the rate within the budget, those that need least first."""
        reaching = (self._reaching(rows_per_s, pages) for pages in self._pages())
        fitting = [sizes for sizes in reaching if sizes is not None and self._fits(sizes)]
        return sorted(fitting, key=lambda sizes: sizes.total_bytes)

    def _best(self) -> list[MeshSizes]:
        """Sizes that fill the budget, the fastest first."""
        filled = (self._filled(pages) for pages in self._pages())
        return sorted((sizes for sizes in filled if sizes is not None), key=self._rate_of, reverse=True)

    def _reaching(self, rows_per_s: float, pages: int) -> MeshSizes | None:
        """The fewest rows a step that reach the rate with so many pages a step."""
        most = arrivals_rows(self._workload, self._join.sizes)
        rows = 1
        for _ in range(_ROUNDS):
            few = max(1, min(rows, most // 2))  # a step takes no more rows than can have arrived
            few_seconds, twice_seconds = (
                taken / self._rate_of(self._sizes(taken, pages)) for taken in (few, 2 * few)
            )
            row_seconds = (twice_seconds - few_seconds) / few
            if rows_per_s * row_seconds >= 1:  # adding and removing rows alone takes longer
                return None
            fixed_seconds = few_seconds - few * row_seconds
            rows = max(1, math.ceil(rows_per_s * fixed_seconds / (1 - rows_per_s * row_seconds)))
        return self._sizes(rows, pages) if rows <= most else None

    def _filled(self, pages: int) -> MeshSizes | None:
        """As many rows a step as the budget holds with so many pages a step."""
        one, two = (self._sizes(rows, pages).total_bytes for rows in (1, 2))
        rows = 1 + (self._join.budget.total_bytes - self._others_bytes - one) // (two - one)
        rows = min(rows, arrivals_rows(self._workload, self._join.sizes))
        return self._sizes(rows, pages) if rows > 0 else None

    def _fits(self, sizes: MeshSizes) -> bool:
        return sizes.total_bytes + self._others_bytes <= self._join.budget.total_bytes

    @property
    def _others_bytes(self) -> int:
        """Reserved in the same budget, but not by sizes."""
        return self._join.budget.held_bytes - self._join.sizes.total_bytes

    def _pages(self) -> list[int]:
        """Pages a step worth trying; those that divide a cycle spare the reads that are cut where rows leave."""
        pages = self._workload.master_pages
        small = [few for few in range(1, math.isqrt(pages) + 1) if pages % few == 0]
        return sorted({*steps_of(pages), *small, *(pages // few for few in small)})

    def _rate_of(self, sizes: MeshSizes) -> float:
        return MODEL.steady_state(self._workload, sizes).rows_per_s(self._costs)

    def _sizes(self, rows: int, pages: int) -> MeshSizes:
        """Those that the join takes when it is resized, once the rows that wait now have left."""
        before, workload = self._join.sizes, self._workload
        packets = -(-workload.master_pages // pages)
        packet_bytes = rows * waiting_row_bytes(self._join.plan.stream_row_bytes) + PACKET_OF_ROWS_BYTES
        return replace(
            before,
            stream_rows_per_step=rows,
            master_pages_per_step=pages,
            queue_packets=packets,
            queue_bytes=packets * PACKET_BYTES,
            pending_bytes=packets * packet_bytes + before.arrivals_bytes,
            disk_buffer_bytes=2 * workload.page_bytes * pages,
        )


__all__ = ["Adjustment", "ArrivalRate", "Goal", "MeshTuner"]
