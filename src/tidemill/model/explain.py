"""Every join on one workload and memory: what is predicted for each, and which one `auto` takes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tidemill.core.errors import BudgetError
from tidemill.model.catalog import MODELLED, model_of
from tidemill.model.tune import Plan, best_rate
from tidemill.model.work import Costs
from tidemill.model.workload import Workload

CostsOf = Callable[[str], Costs]
"""Costs by the name of a join: a calibration tells apart how joins read."""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """The choice of `auto` beside all that it was chosen from."""

    workload: Workload
    costs_of: CostsOf
    memory_bytes: int
    chosen: Plan
    default_rows_per_s: Mapping[str, float]
    """With the sizes that a join takes without a tuner."""
    least_bytes: Mapping[str, int]
    """What joins need for which the memory is too small."""

    @property
    def plans(self) -> Iterator[Plan]:
        """Of all joins that can work, the fastest first."""
        yield from sorted((self.chosen, *self.chosen.runners_up), key=lambda plan: -plan.rows_per_s)

    def to_json(self) -> dict[str, Any]:
        """Plain numbers and names, for programs."""
        too_small = [
            {"algorithm": name, "rows_per_s": None, "least_bytes": least}
            for name, least in self.least_bytes.items()
        ]
        return {
            "workload": asdict(self.workload),
            "memory_bytes": self.memory_bytes,
            "auto": {"algorithm": self.chosen.algorithm, "why": self.chosen.why},
            "joins": [*(self._numbers(plan) for plan in self.plans), *too_small],
        }

    def _numbers(self, plan: Plan) -> dict[str, Any]:
        state, costs = plan.state, self.costs_of(plan.algorithm)
        return {
            "algorithm": plan.algorithm,
            "rows_per_s": plan.rows_per_s,
            "default_rows_per_s": self.default_rows_per_s[plan.algorithm],
            "reads_per_row": state.work_per_row.reads,
            "read_bytes_per_row": state.work_per_row.read_bytes,
            "hit_share": state.hit_share,
            "waiting_seconds": state.waiting_seconds(costs),
            "memory_bytes": dict(state.memory_bytes),
            "seconds_per_row": state.seconds_by_part(costs),
        }


def explain_join(
    workload: Workload, costs_of: CostsOf, memory_bytes: int, *, algorithms: Sequence[str] = MODELLED
) -> Explanation:
    """What each of the joins would do; a `BudgetError` names the least memory when none can work."""
    chosen = best_rate(workload, costs_of, memory_bytes, algorithms=algorithms)
    default_rows_per_s: dict[str, float] = {}
    least_bytes: dict[str, int] = {}
    for name in algorithms:
        model = model_of(name)
        try:
            sizes = model.default_sizes(workload, memory_bytes)
        except BudgetError as refusal:
            least_bytes[name] = refusal.least_bytes
        else:
            default_rows_per_s[name] = model.steady_state(workload, sizes).rows_per_s(costs_of(name))
    return Explanation(
        workload=workload,
        costs_of=costs_of,
        memory_bytes=memory_bytes,
        chosen=chosen,
        default_rows_per_s=default_rows_per_s,
        least_bytes=least_bytes,
    )


__all__ = ["CostsOf", "Explanation", "explain_join"]
