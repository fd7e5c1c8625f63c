"""MESHJOIN at its best sizes beside index nested loops, in virtual time on a disk of 2008."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tidemill.core.errors import BudgetError
from tidemill.lab.data.data_set import DataSet, open_master
from tidemill.lab.disks import SCANNING_COSTS_OF_2008
from tidemill.lab.experiment import Curve, Setting
from tidemill.lab.mesh_curves import cycle_rows
from tidemill.lab.virtual import run_virtual
from tidemill.lab.virtual_rows import as_stored
from tidemill.model.catalog import model_of
from tidemill.model.work import COSTS_OF_2008, Costs
from tidemill.model.workload import Workload

COSTS: dict[str, Costs] = {"mesh": SCANNING_COSTS_OF_2008, "inl": COSTS_OF_2008}
"""One scans its disk, the other seeks for every row."""
INL_STREAM_ROWS = 3_000
"""Of a stretch; nothing settles there, each row costs what the last one did."""


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Rows a second at one place of a figure."""

    x: float
    measured: dict[str, float]
    predicted: dict[str, float]

    @property
    def lead(self) -> float:
        """How many times as fast as index nested loops MESHJOIN is."""
        return self.measured["mesh"] / self.measured["inl"]


def rates_at(x: float, data: DataSet, memory_bytes: int, setting: Setting) -> Rates | None:
    """Both joins on one set of data in one memory; None where it is too little for one of them."""
    measured, predicted = {}, {}
    workload = _as_built(data, setting)
    for name, costs in COSTS.items():
        model = model_of(name)
        try:
            grid = list(model.size_grid(workload, memory_bytes))
        except BudgetError:
            return None
        rates = [model.steady_state(workload, sizes).rows_per_s(costs) for sizes in grid]
        predicted[name], sizes = max(zip(rates, grid, strict=True), key=lambda pair: pair[0])
        run = run_virtual(
            name,
            data.workload,
            data=data,
            memory_bytes=memory_bytes,
            sizes=sizes if name == "mesh" else None,
            stream_rows=INL_STREAM_ROWS if name == "inl" else cycle_rows(sizes),
            folder=setting.folder,
        )
        measured[name] = run.state.rows_per_s(costs)
    return Rates(x=x, measured=measured, predicted=predicted)


def _as_built(data: DataSet, setting: Setting) -> Workload:
    """The set in numbers, with the pages of its store.

    Keys without a master row lie among the others here, so that they are looked for like them: for a model they are
    keys with fewer rows, not keys that an index knows to be missing.
    """
    master = open_master(data, setting.folder)
    try:
        stored = as_stored(data.workload, master)
        return replace(stored, matched_share=1.0, rows_per_key=stored.matched_share * stored.rows_per_key)
    finally:
        master.close()


def curves(found: Sequence[Rates]) -> list[Curve]:
    """Of both joins, as counted and as predicted."""
    x = [rates.x for rates in found]
    return [
        curve
        for name in COSTS
        for curve in (
            Curve(label=name, x=x, y=[rates.measured[name] for rates in found]),
            Curve(label=name, x=x, y=[rates.predicted[name] for rates in found], kind="predicted"),
        )
    ]


def largest_error(found: Sequence[Rates]) -> float:
    return max(
        abs(rates.predicted[name] / rates.measured[name] - 1) for rates in found for name in rates.measured
    )


__all__ = ["COSTS", "Rates", "curves", "largest_error", "rates_at"]
