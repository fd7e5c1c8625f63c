"""What "auto" means: the join, and the memory, that the cost models choose for the workers of a host."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from tidemill.core.errors import BudgetError, SpecError
from tidemill.core.units import parse_bytes
from tidemill.join.catalog import JOINS
from tidemill.join.output import OutputPlan
from tidemill.join.tide import TideJoin
from tidemill.master import MasterData
from tidemill.model.calibration import FILE_NAME, Calibration
from tidemill.model.catalog import model_of
from tidemill.model.prediction import CostModel, SteadyState
from tidemill.model.tune import Plan, best_rate, least_memory
from tidemill.model.work import COSTS_TODAY, Costs
from tidemill.model.workload import Workload
from tidemill.spark.lookup import HostedLookup
from tidemill.spark.worker_join import HostShares, join_bytes, refused_for_host

CANDIDATES = ("tide", "moij", "cache", "hybrid", "x_hybrid", "ssij", "inl")
"""Those with an index. The mesh family scans all master data for each micro-batch, since no row may wait beyond it."""
ASSUMED_ZIPF = 1.0
_HEADROOM = 0.1
_TRANSPORT_ROW_SECONDS = 1.3e-6
"""From the JVM and back with eight master columns, without any join: 1.5 M rows/s on two cores (docs/benchmarks.md)."""
_LEAST_BYTES = 16_000_000
"""Of memory="auto": what is saved below is little beside what the Python workers themselves take."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What a call asks for, what it leaves to the models, and what it tells them of the stream."""

    algorithm: str
    memory_bytes: int | None
    """Of a host; None for the least that keeps up with the rate."""
    rows_per_s: float | None
    """That a host must keep up with."""
    zipf_exponent: float | None

    @classmethod
    def of(cls, *, memory: str | int, algorithm: str, rate: float | None, zipf: float | None) -> "Wish":
        """Checked: memory="auto" needs a rate, and nothing else takes one."""
        if memory == "auto" and rate is None:
            raise SpecError(
                'memory="auto" without a rate: the least that works would be as slow as the disk',
                code="no_rate",
                next_move="say how many rows a second a host must keep up with, rate=…",
            )
        if memory != "auto" and rate is not None:
            raise SpecError(
                f"a rate of {rate:,.0f} rows/s and a memory of {memory}",
                code="rate_and_memory",
                next_move='leave one of them open: memory="auto" with a rate, or a memory without',
            )
        memory_bytes = None if memory == "auto" else parse_bytes(memory)
        return cls(algorithm=algorithm, memory_bytes=memory_bytes, rows_per_s=rate, zipf_exponent=zipf)

    def divided(self, lookups: int) -> "Wish":
        """For each of several lookups in a row: it has that part of a worker's time, so it must be so much faster."""
        return replace(self, rows_per_s=self.rows_per_s and self.rows_per_s * lookups)


def decided(told: HostedLookup, master: MasterData, wish: Wish, workers: int) -> HostedLookup:
    """The lookup with the algorithm and the memory that the models choose, where that is left to them."""
    if wish.memory_bytes is not None and (wish.algorithm != "auto" or told.condition is not None):
        return told
    if told.condition is not None:
        raise SpecError(
            'memory="auto" with a condition: what each pair costs is not known before it is tried',
            code="no_model_of_condition",
            next_move='give a memory, such as "256 MB"',
        )
    if master.rows == 0:
        return replace(told, memory_bytes=told.memory_bytes or _LEAST_BYTES, why="there are no master rows")
    chosen = chosen_plan(
        master,
        told.plan,
        algorithm=wish.algorithm,
        memory_bytes=told.memory_bytes if wish.memory_bytes is not None else None,
        workers=workers,
        wish=wish,
    )
    return replace(told, algorithm=chosen.algorithm, memory_bytes=chosen.memory_bytes, why=chosen.why)


@dataclass(frozen=True)
class HostedSizes:
    """Of the join of one worker, with all hot rows that it can see."""

    memory_bytes: int
    """Of the host."""
    worker: Any


class HostedModel:
    """The cost model of a join whose workers share the memory of a host.

    A worker has its share for itself, whichever join it is; but the hot rows of `tide` lie in a file that all map, so each
    sees them all. Sizes are those of the join itself: they must also fit the master versions to come.
    """

    def __init__(self, name: str, master: MasterData, plan: OutputPlan, workers: int) -> None:
        self.name = name
        self._master, self._plan, self._workers = master, plan, workers

    def default_sizes(self, workload: Workload, memory_bytes: int) -> HostedSizes:  # noqa: ARG002 - the master data is open
        try:
            return HostedSizes(memory_bytes, self._worker_sizes(memory_bytes))
        except BudgetError as refusal:
            raise refused_for_host(refusal, self._master.path.name, memory_bytes, self._workers) from refusal

    def size_grid(self, workload: Workload, memory_bytes: int) -> Iterator[HostedSizes]:
        yield self.default_sizes(workload, memory_bytes)

    def steady_state(self, workload: Workload, sizes: HostedSizes) -> SteadyState:
        state = model_of(self.name).steady_state(workload, sizes.worker)
        return replace(state, memory_bytes={"host": sizes.memory_bytes})

    def _worker_sizes(self, memory_bytes: int) -> Any:
        if self.name == TideJoin.name:
            shares = HostShares.of(self._master, self._plan, memory_bytes, self._workers)
            return replace(shares.worker, hot_rows_bytes=max(64, shares.hot_bytes), moves_memory=False)
        kind: Any = JOINS[self.name]
        return kind.sizes_for(self._master, self._plan, join_bytes(memory_bytes, self._workers))


def chosen_plan(
    master: MasterData,
    plan: OutputPlan,
    *,
    algorithm: str,
    memory_bytes: int | None,
    workers: int,
    wish: Wish,
) -> Plan:
    """The join for one master table; its rate is that of the host.

    Args:
        master: Of the version that is current now.
        plan: Of the rows that will come.
        algorithm: "auto", or the one that memory is wanted for.
        memory_bytes: Of the host; None for the least that reaches the rate.
        workers: Of the host.
        wish: Rate and skew.
    """
    zipf = ASSUMED_ZIPF if wish.zipf_exponent is None else wish.zipf_exponent
    workload = Workload.of(master, stream_row_bytes=plan.stream_row_bytes, zipf_exponent=zipf)
    costs, source = costs_of(master)
    names = CANDIDATES if algorithm == "auto" else (algorithm,)
    models: list[str | CostModel] = [HostedModel(name, master, plan, workers) for name in names]
    found = best_rate(workload, costs, memory_bytes or _LEAST_BYTES, algorithms=models, sizes="default")
    wanted = (wish.rows_per_s or 0) * (1 + _HEADROOM) / workers
    if memory_bytes is None and found.rows_per_s < wanted:
        found = least_memory(workload, costs, wanted, algorithms=models, sizes="default")
    skew = "assumed" if wish.zipf_exponent is None else "as told"
    why = f"on each of {workers} workers {found.why}; Zipf {zipf:g} {skew}; costs {source}"
    return replace(found, rows_per_s=found.rows_per_s * workers, why=why)


def costs_of(master: MasterData) -> tuple[Callable[[str], Costs], str]:
    """Seconds of each operation of a join by its name, in a worker, and where they come from."""
    file = master.path / FILE_NAME
    if file.exists():
        measured = Calibration.read(file)
        return lambda name: _in_worker(measured.costs_of(name)), f"measured {measured.measured_at}"
    return (
        lambda _name: _in_worker(COSTS_TODAY),
        "of a current machine, `tidemill calibrate` measures this one",
    )


def _in_worker(costs: Costs) -> Costs:
    return replace(costs, stream_row_seconds=costs.stream_row_seconds + _TRANSPORT_ROW_SECONDS)


__all__ = [
    "ASSUMED_ZIPF",
    "CANDIDATES",
    "HostedModel",
    "HostedSizes",
    "Wish",
    "chosen_plan",
    "costs_of",
    "decided",
]
