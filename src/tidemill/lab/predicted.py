"""Predicted beside measured rates, over the grid of the join benchmark."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tidemill.core.errors import BudgetError
from tidemill.lab.virtual import run_virtual
from tidemill.model.catalog import model_of
from tidemill.model.work import COSTS_OF_2008, Costs
from tidemill.model.workload import Workload

ZIPFS = (0.0, 0.5, 1.0, 1.25)
MEMORY_SHARES = (0.005, 0.01, 0.05, 0.1, 0.2)
"""Of the bytes of the master rows."""
MASTER_ROW_BYTES = 119
STREAM_ROW_BYTES = 20


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One algorithm on one workload with one budget."""

    algorithm: str
    zipf: float
    memory_share: float
    predicted: float
    """Rows a second."""
    measured: float
    noise: float = 0.0
    """Spread of repetitions by their median; none in virtual time."""
    is_settled: bool = True

    @property
    def error(self) -> float:
        """By how much of the measured rate the prediction is off."""
        return abs(self.predicted / self.measured - 1)


@dataclass(frozen=True)
class Errors:
    """Of some predictions.

    >>> Errors.of([0.1, 0.2, 0.3])
    Errors(median=0.2, high=0.29)
    """

    median: float
    high: float
    """Nineteen of twenty are smaller."""

    @classmethod
    def of(cls, errors: Sequence[float]) -> "Errors":
        median, high = np.percentile(errors, [50, 95]).tolist()
        return cls(round(median, 6), round(high, 6))

    def __str__(self) -> str:
        return f"median {self.median:.1%}, 95th percentile {self.high:.1%}"


def workload_of(zipf: float, master_rows: int) -> Workload:
    """That of the join benchmark, in another size."""
    return Workload(
        master_rows=master_rows,
        master_row_bytes=MASTER_ROW_BYTES,
        stream_row_bytes=STREAM_ROW_BYTES,
        zipf_exponent=zipf,
    )


def compare_virtual(
    algorithm: str,
    zipf: float,
    memory_share: float,
    *,
    master_rows: int,
    folder: Path,
    seed: int = 7,
    costs: Costs = COSTS_OF_2008,
    stream_rows: int | None = None,
) -> Compared | None:
    """Both rates in virtual time; None where the memory is too small for the join."""
    workload = workload_of(zipf, master_rows)
    memory_bytes = int(workload.master_bytes * memory_share)
    try:
        run = run_virtual(
            algorithm,
            workload,
            memory_bytes=memory_bytes,
            folder=folder,
            seed=seed,
            stream_rows=stream_rows,
        )
    except BudgetError:
        return None
    return Compared(
        algorithm=algorithm,
        zipf=zipf,
        memory_share=memory_share,
        predicted=predicted_rate(algorithm, run.workload, memory_bytes, costs),
        measured=run.state.rows_per_s(costs),
        is_settled=run.is_settled,
    )


def predicted_rate(algorithm: str, workload: Workload, memory_bytes: int, costs: Costs) -> float:
    """Rows a second with the sizes that the join itself takes; no run is needed."""
    model = model_of(algorithm)
    return model.steady_state(workload, model.default_sizes(workload, memory_bytes)).rows_per_s(costs)


def by_algorithm(cells: Sequence[Compared]) -> Iterator[tuple[str, Errors]]:
    """Errors of each algorithm, by name."""
    for name in sorted({cell.algorithm for cell in cells}):
        yield name, Errors.of([cell.error for cell in cells if cell.algorithm == name])


__all__ = [
    "MEMORY_SHARES",
    "ZIPFS",
    "Compared",
    "Errors",
    "by_algorithm",
    "compare_virtual",
    "predicted_rate",
    "workload_of",
]
