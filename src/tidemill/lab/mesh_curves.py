"""MESHJOIN over the size of its disk buffer: rates as predicted, and as counted in virtual time."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from tidemill.core.errors import BudgetError
from tidemill.join.mesh_sizes import MeshSizes
from tidemill.lab.experiment import Curve, Setting
from tidemill.lab.virtual import run_virtual
from tidemill.lab.virtual_rows import as_stored, open_store
from tidemill.model.cost.mesh import MODEL, sizes_from, steps_of
from tidemill.model.work import Costs
from tidemill.model.workload import Workload

PAPER_MASTER_ROWS = 3_500_000
QUICK_MASTER_ROWS = 350_000
MB = 1e6


@dataclass(frozen=True, kw_only=True)
class BufferCurve:
    """Rates of one memory over disk buffers, from small to large."""

    memory_bytes: int
    buffer_bytes: tuple[float, ...]
    rows_per_s: tuple[float, ...]

    @property
    def best_rows_per_s(self) -> float:
        return max(self.rows_per_s)

    @property
    def best_buffer_bytes(self) -> float:
        return self.buffer_bytes[self.rows_per_s.index(self.best_rows_per_s)]

    def gain_of_doubling(self, buffer_bytes: float) -> float:
        """What the rate gains, as a share, when such a buffer is doubled; between buffers on straight lines."""
        before, after = np.interp([buffer_bytes, 2 * buffer_bytes], self.buffer_bytes, self.rows_per_s)
        return float(after / before - 1)

    def as_curve(self, label: str, kind: Literal["measured", "predicted"] = "measured") -> Curve:
        return Curve(label=label, x=[size / MB for size in self.buffer_bytes], y=self.rows_per_s, kind=kind)


def paper_workload(master_rows: int = PAPER_MASTER_ROWS, *, zipf_exponent: float = 0.5) -> Workload:
    """Rows of 120 and 20 bytes, as in both papers on MESHJOIN."""
    return Workload(
        master_rows=master_rows, master_row_bytes=120, stream_row_bytes=20, zipf_exponent=zipf_exponent
    )


def lab_workload(setting: Setting, *, zipf_exponent: float = 0.5) -> Workload:
    """What is really joined: the paper's master data, or a tenth of it if quick."""
    rows = QUICK_MASTER_ROWS if setting.quick else PAPER_MASTER_ROWS
    return paper_workload(rows, zipf_exponent=zipf_exponent)


def as_built(workload: Workload, setting: Setting) -> Workload:
    """The workload with the pages of its store, which is built unless it is there."""
    setting.progress("building master data", 0.0)
    master = open_store(workload, setting.folder)
    try:
        return as_stored(workload, master)
    finally:
        master.close()


def sizes_with(workload: Workload, memory_bytes: int, pages: int) -> MeshSizes | None:
    """The split with so many pages a step, or None where the memory cannot have it."""
    try:
        sizes = MeshSizes.from_budget(memory_bytes, **sizes_from(workload), master_pages_per_step=pages)
    except BudgetError:
        return None
    return sizes if sizes.master_pages_per_step == pages else None


def predicted_rate(workload: Workload, sizes: MeshSizes, costs: Costs) -> float:
    return MODEL.steady_state(workload, sizes).rows_per_s(costs)


def predicted_curve(
    workload: Workload, memory_bytes: int, costs: Costs, pages: Iterable[int] | None = None
) -> BufferCurve:
    """Rates before any run, for each number of pages a step that the memory can have."""
    fitting = _fitting(workload, memory_bytes, pages or steps_of(workload.master_pages))
    rates = {size.master_pages_per_step: predicted_rate(workload, size, costs) for size in fitting}
    return _curve(workload, memory_bytes, rates)


def measured_curves(
    workload: Workload,
    memory_bytes: int,
    costs: Costs,
    pages: Sequence[int],
    setting: Setting,
    *,
    done: tuple[float, float] = (0.0, 1.0),
) -> tuple[BufferCurve, BufferCurve]:
    """Rates counted in virtual time, and predicted for the same runs.

    Args:
        workload: What is joined, as asked for and not as built.
        memory_bytes: The budget of each run.
        costs: Seconds of the operations that are counted.
        pages: Of a step, one run each.
        setting: Folder and seed.
        done: Share of the experiment that is done before and after.
    """
    measured, predicted = {}, {}
    built = as_built(workload, setting)
    fitting = list(_fitting(built, memory_bytes, pages))
    for number, sizes in enumerate(fitting):
        share = done[0] + (done[1] - done[0]) * number / len(fitting)
        setting.progress(f"{memory_bytes / MB:g} MB, {sizes.master_pages_per_step} pages a step", share)
        run = run_virtual(
            "mesh",
            workload,
            memory_bytes=memory_bytes,
            sizes=sizes,
            seed=setting.seed,
            stream_rows=cycle_rows(sizes),
            folder=setting.folder,
        )
        measured[sizes.master_pages_per_step] = run.state.rows_per_s(costs)
        predicted[sizes.master_pages_per_step] = predicted_rate(run.workload, sizes, costs)
    return _curve(built, memory_bytes, measured), _curve(built, memory_bytes, predicted)


def cycle_rows(sizes: MeshSizes) -> int:
    """Stream rows of one scan: after the first each is as the last, so that longer stretches tell no more."""
    return max(1_000, sizes.window_rows)


def some_pages(curve: BufferCurve, page_bytes: int, count: int) -> list[int]:
    """Pages a step from a sixteenth of a curve's best to its largest, in equal ratios, and its best."""
    first = max(curve.buffer_bytes[0], curve.best_buffer_bytes / 16) / page_bytes
    last = curve.buffer_bytes[-1] / page_bytes
    ratio = (last / first) ** (1 / (count - 1))
    found = {round(first * ratio**n) for n in range(count)} | {round(curve.best_buffer_bytes / page_bytes)}
    return sorted(found)


def is_one_hill(values: Sequence[float], *, forgiven: float = 0.02) -> bool:
    """Whether the values rise to their top and fall from there, small steps the wrong way forgiven.

    >>> is_one_hill([1, 5, 4.95, 6, 2]), is_one_hill([1, 5, 3, 6])
    (True, False)
    """
    top = max(range(len(values)), key=values.__getitem__)
    rises = all(after >= before - forgiven * abs(before) for before, after in pairwise(values[: top + 1]))
    falls = all(after <= before + forgiven * abs(before) for before, after in pairwise(values[top:]))
    return rises and falls


def errors(measured: BufferCurve, predicted: BufferCurve) -> list[float]:
    """By how much each prediction is off, as a share of what was measured."""
    pairs = zip(measured.rows_per_s, predicted.rows_per_s, strict=True)
    return [abs(told / found - 1) for found, told in pairs]


def _fitting(workload: Workload, memory_bytes: int, pages: Iterable[int]) -> Iterator[MeshSizes]:
    for count in pages:
        sizes = sizes_with(workload, memory_bytes, count)
        if sizes is not None:
            yield sizes


def _curve(workload: Workload, memory_bytes: int, rates: dict[int, float]) -> BufferCurve:
    return BufferCurve(
        memory_bytes=memory_bytes,
        buffer_bytes=tuple(float(pages * workload.page_bytes) for pages in rates),
        rows_per_s=tuple(rates.values()),
    )


__all__ = [
    "MB",
    "PAPER_MASTER_ROWS",
    "BufferCurve",
    "as_built",
    "cycle_rows",
    "errors",
    "is_one_hill",
    "lab_workload",
    "measured_curves",
    "paper_workload",
    "predicted_curve",
    "predicted_rate",
    "sizes_with",
    "some_pages",
]
