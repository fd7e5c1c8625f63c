"""Both goals of the MESHJOIN paper, for every join: the best rate for a memory, the least memory for a rate."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tidemill.core.errors import BudgetError, SpecError, TidemillError
from tidemill.core.units import format_bytes, format_count
from tidemill.model.catalog import MODELLED, model_of
from tidemill.model.prediction import CostModel, SteadyState
from tidemill.model.work import Costs
from tidemill.model.workload import Workload

SizesFrom = Literal["tuner", "default"]
"""Whether sizes are chosen from the grid of a model, or are those that the join takes by itself."""

AnyCosts = Costs | Callable[[str], Costs]
"""The same for all joins, or by their names: what a calibration measured for the way in which each works."""

PREFERRED = "tide"
TIE_SHARE = 0.1
"""Models err by about as much: within it `tide` is kept, which adapts to a stream that is not as it was described."""
_MEMORY_STEP = 2.0
_MEMORY_TOLERANCE = 0.01
_FIXED_PARTS = ("stream", "probe_hot", "add", "remove", "output")
"""Of a row's seconds: what remains when reads, scanned rows and rounds are shared by endlessly many rows."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to run, and what it is expected to do."""

    algorithm: str
    sizes: Any
    state: SteadyState
    rows_per_s: float
    memory_bytes: int
    why: str = ""
    runners_up: tuple["Plan", ...] = field(default=(), repr=False)
    """The other algorithms, best first, each as good as it gets in the same memory."""


def best_rate(
    workload: Workload,
    costs: AnyCosts,
    memory_bytes: int,
    *,
    algorithms: Sequence[str | CostModel] = MODELLED,
    sizes: SizesFrom = "tuner",
) -> Plan:
    """The plan with the highest rate that fits into the memory.

    Args:
        workload: What is joined.
        costs: Of this machine and disk; for all joins, or by name.
        memory_bytes: For everything that the join holds.
        algorithms: To choose from: names, or models of one's own.
        sizes: "tuner" tries the grid of sizes of each model, "default" takes the sizes of the join itself.
    """
    plans, refusals = _plans(_models(algorithms), workload, costs, memory_bytes, sizes)
    if not plans:
        least = min(refusals, key=lambda refusal: _least_bytes(refusal, memory_bytes))
        least_bytes = _least_bytes(least, memory_bytes)
        raise BudgetError(
            f"{format_bytes(memory_bytes)} are too little for any of {len(refusals)} joins on this master data",
            code="budget_too_small",
            next_move=f"give at least {least_bytes:,} bytes",
            total_bytes=memory_bytes,
            least_bytes=least_bytes,
        ) from least
    plans.sort(key=lambda plan: -plan.rows_per_s)
    chosen = next((p for p in plans if _is_tie(p.algorithm, plans[0].rows_per_s, p.rows_per_s)), plans[0])
    others = tuple(plan for plan in plans if plan is not chosen)
    return replace(chosen, why=_why_fast(chosen, others, costs), runners_up=others)


def least_memory(
    workload: Workload,
    costs: AnyCosts,
    rows_per_s: float,
    *,
    algorithms: Sequence[str | CostModel] = MODELLED,
    sizes: SizesFrom = "tuner",
    most_bytes: int | None = None,
) -> Plan:
    """The plan that reaches the rate with the least memory, to within one per cent.

    Args:
        workload: What is joined.
        costs: Of this machine and disk; for all joins, or by name.
        rows_per_s: Wanted; the arrival rate and some more.
        algorithms: To choose from: names, or models of one's own.
        sizes: As for `best_rate`.
        most_bytes: Memory that may be used; four times the master data when left out, beyond which nothing is gained.
    """
    if not 0 < rows_per_s < math.inf:
        raise SpecError(
            f"a rate of {rows_per_s} rows/s", code="bad_rate", next_move="give a rate of more than zero"
        )
    most_bytes = most_bytes or 4 * workload.master_bytes + 64 * 2**20
    models = _models(algorithms)
    searches = [_Search(model, workload, costs, rows_per_s, sizes) for model in models]
    found: list[Plan] = []
    # The preferred one first: what it needs bounds the search of the others.
    for search in sorted(searches, key=lambda one: one.model.name != PREFERRED):
        limit = min([most_bytes, *(plan.memory_bytes for plan in found)])
        if (plan := search.least(limit)) is not None:
            found.append(plan)
    if not found:
        raise _out_of_reach(searches, costs, rows_per_s, most_bytes)
    found.sort(key=lambda plan: plan.memory_bytes)
    least_bytes = found[0].memory_bytes
    chosen = next((p for p in found if _is_tie(p.algorithm, p.memory_bytes, least_bytes)), found[0])
    plans, _ = _plans(models, workload, costs, chosen.memory_bytes, sizes)
    plans.sort(key=lambda plan: -plan.rows_per_s)
    others = tuple(plan for plan in plans if plan.algorithm != chosen.algorithm)
    why = f"{format_count(chosen.rows_per_s)} rows/s predicted with {format_bytes(chosen.memory_bytes)}"
    if others:
        why += f"; {others[0].algorithm} reaches {format_count(others[0].rows_per_s)} in the same memory"
    return replace(chosen, why=f"{why}; {_where_time_goes(chosen, costs)}", runners_up=others)


class _Search:
    """The least memory with which one join reaches a rate, and the best seen on the way."""

    def __init__(
        self, model: CostModel, workload: Workload, costs: AnyCosts, rows_per_s: float, sizes: SizesFrom
    ) -> None:
        self.model = model
        self._case = workload, costs
        self._rows_per_s = rows_per_s
        self._sizes: SizesFrom = sizes
        self.best: Plan | None = None
        self.refusal: TidemillError | None = None

    def least(self, most_bytes: int) -> Plan | None:
        """None when `most_bytes` are not enough; a rate may fall again with more memory, so it is climbed to."""
        below, reached = 0, None
        for memory_bytes in self._ladder(most_bytes):
            if (reached := self._reaching(memory_bytes)) is not None:
                break
            below = memory_bytes
        if reached is None or below == 0:
            return reached
        above = reached.memory_bytes
        while above > below * (1 + _MEMORY_TOLERANCE) + 1:
            middle = int(math.sqrt(above * below))
            plan = self._reaching(middle)
            if plan is None:
                below = middle
            else:
                reached, above = plan, min(middle, plan.memory_bytes)
        return reached

    def _ladder(self, most_bytes: int) -> Iterator[int]:
        """Memories to try, each twice the one before, from the least that works on."""
        workload, _ = self._case
        memory_bytes = 1
        try:
            self.model.default_sizes(workload, memory_bytes)
        except BudgetError as refusal:
            self.refusal = refusal
            memory_bytes = _least_bytes(refusal, workload.page_bytes)
        while memory_bytes < most_bytes:
            yield memory_bytes
            memory_bytes = int(memory_bytes * _MEMORY_STEP)
        yield most_bytes

    def _reaching(self, memory_bytes: int) -> Plan | None:
        try:
            plan = _plan(self.model, *self._case, memory_bytes, self._sizes)
        except BudgetError as refusal:
            self.refusal = refusal
            return None
        if self.best is None or plan.rows_per_s > self.best.rows_per_s:
            self.best = plan
        return plan if plan.rows_per_s >= self._rows_per_s else None


def _models(algorithms: Iterable[str | CostModel]) -> list[CostModel]:
    return [model_of(one) if isinstance(one, str) else one for one in algorithms]


def _plans(
    models: Iterable[CostModel], workload: Workload, costs: AnyCosts, memory_bytes: int, sizes: SizesFrom
) -> tuple[list[Plan], list[BudgetError]]:
    """The best plan of each join that can work with the memory, and why the others cannot."""
    plans: list[Plan] = []
    refusals: list[BudgetError] = []
    for model in models:
        try:
            plans.append(_plan(model, workload, costs, memory_bytes, sizes))
        except BudgetError as refusal:
            refusals.append(refusal)
    return plans, refusals


def _plan(model: CostModel, workload: Workload, costs: AnyCosts, memory_bytes: int, sizes: SizesFrom) -> Plan:
    """The fastest of the sizes that one join may take."""
    default = model.default_sizes(workload, memory_bytes)
    tried = [default] if sizes == "default" else [default, *model.size_grid(workload, memory_bytes)]
    plans = [_predicted(model, workload, costs, one) for one in tried]
    return max(plans, key=lambda plan: plan.rows_per_s)


def _predicted(model: CostModel, workload: Workload, costs: AnyCosts, sizes: Any) -> Plan:
    state = model.steady_state(workload, sizes)
    return Plan(
        algorithm=model.name,
        sizes=sizes,
        state=state,
        rows_per_s=state.rows_per_s(_costs_of(model.name, costs)),
        memory_bytes=sum(state.memory_bytes.values()),
    )


def _costs_of(algorithm: str, costs: AnyCosts) -> Costs:
    return costs if isinstance(costs, Costs) else costs(algorithm)


def _is_tie(algorithm: str, more: float, less: float) -> bool:
    return algorithm == PREFERRED and less >= more * (1 - TIE_SHARE)


def _least_bytes(refusal: TidemillError, otherwise: int) -> int:
    return int(refusal.facts.get("least_bytes", otherwise))


def _out_of_reach(
    searches: Sequence[_Search], costs: AnyCosts, rows_per_s: float, most_bytes: int
) -> TidemillError:
    """No join reaches the rate: because the processor does not, or within this memory."""
    tried = [search.best for search in searches if search.best is not None]
    if not tried:
        least = min(
            _least_bytes(search.refusal, most_bytes) for search in searches if search.refusal is not None
        )
        return BudgetError(
            f"{format_bytes(most_bytes)} are too little for any join on this master data",
            code="budget_too_small",
            next_move=f"allow at least {least:,} bytes",
            total_bytes=most_bytes,
            least_bytes=least,
        )
    best = max(tried, key=lambda plan: plan.rows_per_s)
    row_seconds = min(_row_seconds(plan, costs) for plan in tried)
    facts: dict[str, Any] = {
        "wanted_rows_per_s": rows_per_s,
        "most_rows_per_s": best.rows_per_s,
        "algorithm": best.algorithm,
        "least_bytes": best.memory_bytes,
    }
    nearest = f"{best.algorithm} reaches {format_count(best.rows_per_s)} rows/s with {format_bytes(best.memory_bytes)}"
    if rows_per_s * row_seconds >= 1:
        return SpecError(
            f"no memory gives {format_count(rows_per_s)} rows/s: a row takes {row_seconds * 1e9:,.0f} ns even when reads "
            f"cost nothing, so that {format_count(1 / row_seconds)} rows/s are the limit of one core",
            code="rate_out_of_reach",
            next_move=f"share the stream among more cores, or ask for less: {nearest}",
            **facts,
        )
    return BudgetError(
        f"{format_bytes(most_bytes)} do not give {format_count(rows_per_s)} rows/s",
        code="rate_needs_memory",
        next_move=f"allow more memory, shed load, or ask for less: {nearest}",
        **facts,
    )


def _row_seconds(plan: Plan, costs: AnyCosts) -> float:
    """What a row takes however much memory there is."""
    parts = plan.state.seconds_by_part(_costs_of(plan.algorithm, costs))
    return sum(parts[part] for part in _FIXED_PARTS)


def _why_fast(chosen: Plan, others: Sequence[Plan], costs: AnyCosts) -> str:
    why = f"{format_count(chosen.rows_per_s)} rows/s predicted"
    if others:
        ratio = chosen.rows_per_s / others[0].rows_per_s
        if ratio >= 1:
            why += f", {ratio:.2g} times {others[0].algorithm}, the next best"
        else:
            why += f", {ratio:.0%} of {others[0].algorithm}: a tie, and {chosen.algorithm} adapts to a changing stream"
    return f"{why}; {_where_time_goes(chosen, costs)}"


def _where_time_goes(plan: Plan, costs: AnyCosts) -> str:
    parts = plan.state.seconds_by_part(_costs_of(plan.algorithm, costs))
    part, seconds = max(parts.items(), key=lambda one: one[1])
    return f"most of a row's time, {seconds / sum(parts.values()):.0%}, goes into {part.replace('_', ' ')}"


__all__ = ["PREFERRED", "TIE_SHARE", "AnyCosts", "Plan", "SizesFrom", "best_rate", "least_memory"]
