"""What a model says before a run."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tidemill.model.work import Costs, Work
from tidemill.model.workload import Workload


@dataclass(frozen=True, kw_only=True)
class SteadyState:
    """A join in full swing: the work for one stream row and what is held meanwhile."""

    work_per_row: Work
    hot_bytes: float
    """Of the table of hot rows, as probed."""
    waiting_bytes: float
    """Of the table of waiting rows, as probed."""
    waiting_rows: float
    hit_share: float
    """Stream rows answered by hot rows."""
    memory_bytes: Mapping[str, int]
    """The split, by the names of the reservations."""
    overlapped: bool = False
    """Whether reads go on while the processor works."""

    def seconds_by_part(self, costs: Costs) -> dict[str, float]:
        """Of one stream row."""
        parts = costs.cpu_seconds(
            self.work_per_row, hot_bytes=self.hot_bytes, waiting_bytes=self.waiting_bytes
        )
        return {**parts, "read": costs.read_seconds(self.work_per_row)}

    def rows_per_s(self, costs: Costs) -> float:
        """The service rate."""
        parts = self.seconds_by_part(costs)
        read = parts.pop("read")
        cpu = sum(parts.values())
        return 1 / (max(cpu, read) if self.overlapped else cpu + read)

    def waiting_seconds(self, costs: Costs) -> float:
        """That a row which is no hit waits on average, by Little's law."""
        missed = max(1e-12, 1 - self.hit_share)
        return self.waiting_rows / (self.rows_per_s(costs) * missed)


def memory_split(sizes: object) -> dict[str, int]:
    """Bytes of each reservation, by its name, from the sizes of any join; bounds such as `least_…` are none."""
    return {
        name.removesuffix("_bytes"): value
        for name, value in vars(sizes).items()
        if name.endswith("_bytes") and not name.startswith(("least_", "most_"))
    }


class CostModel(Protocol):
    """The model of one algorithm. `Sizes` are those of the join itself."""

    @property
    def name(self) -> str:
        """As in the catalog of joins."""

    def default_sizes(self, workload: Workload, memory_bytes: int) -> Any:
        """Those that the join itself takes for a budget; a `BudgetError` names the least that works."""

    def size_grid(self, workload: Workload, memory_bytes: int) -> Iterator[Any]:
        """Sizes worth trying within a budget, the default among them; what a tuner chooses from."""

    def steady_state(self, workload: Workload, sizes: Any) -> SteadyState: ...


__all__ = ["CostModel", "SteadyState", "memory_split"]
