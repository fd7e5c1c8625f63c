"""default-6: the best disk buffer of MESHJOIN grows with memory."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from tidemill.lab.disks import SCANNING_COSTS_OF_2008 as COSTS
from tidemill.lab.experiment import Curve, Experiment, Figure, Finding, Setting
from tidemill.lab.mesh_curves import (
    MB,
    PAPER_MASTER_ROWS,
    BufferCurve,
    lab_workload,
    measured_curves,
    paper_workload,
    predicted_curve,
)
from tidemill.model.work import COSTS_OF_2008, Costs
from tidemill.model.workload import Workload

PAPER_MB = {20: 0.93, 40: 1.35, 80: 1.91, 160: 2.63}
GROWTH = (1.2, 1.7)
"""Of the best buffer for twice the memory; the paper's grow by 1.38 to 1.45, the root of two is 1.41."""
AROUND = (0.5, 1.0, 2.0)
"""Buffers that are run, in shares of the predicted best."""
SAME_TOP = 0.02
"""Rates this close are the same top: where it is flat, the best buffer itself says little."""


def run(setting: Setting) -> Finding:
    paper = {memory: best_buffer(paper_workload(), memory, COSTS) for memory in PAPER_MB}
    seeking = {memory: best_buffer(paper_workload(), memory, COSTS_OF_2008) for memory in PAPER_MB}
    counted, told = _counted(lab_workload(setting), setting)
    tops = [has_top_at_one(measured) for measured in counted.values()]
    ratios = growth(list(paper.values()))
    run_ratios = growth([told[memory].best_buffer_bytes for memory in told])
    smaller = 1 - sum(paper[memory] / size for memory, size in PAPER_MB.items()) / len(PAPER_MB)
    holds = all(GROWTH[0] <= ratio <= GROWTH[1] for ratio in [*ratios, *run_ratios]) and all(tops)
    return Finding(
        holds=holds,
        measured=f"best buffers {_list(paper.values())} MB at {_list(map(float, PAPER_MB))} MB, each time "
        f"{min(ratios):.2f} to {max(ratios):.2f} as large for twice the memory (the paper's {_list(PAPER_MB.values())} MB); "
        f"{sum(tops)} of {len(tops)} runs in virtual time have their top where it was predicted",
        reason=f"the buffers are {smaller:.0%} smaller than the paper's: ours holds its pages twice, as read and put together. "
        f"With a seek for each read it is {_list(seeking.values())} MB"
        if holds
        else "the best buffer does not grow with about the root of memory, or runs have their top elsewhere",
        values={f"best_buffer_mb_at_{memory}_mb": size for memory, size in paper.items()},
        figures=[
            Figure(
                title="Best disk buffer of MESHJOIN, 3.5 M master rows",
                x_label="memory, MB", y_label="disk buffer, MB", log_x=True,
                curves=[
                    Curve(label="scanning disk", x=list(paper), y=list(paper.values()), kind="predicted"),
                    Curve(label="a seek each read", x=list(seeking), y=list(seeking.values()), kind="predicted"),
                    Curve(label="BIRTE 2009", x=list(PAPER_MB), y=list(PAPER_MB.values()), kind="paper"),
                ],
            ),
            Figure(
                title="Rates around the predicted best buffer, virtual time",
                x_label="disk buffer, MB", y_label="rows/s", log_x=True,
                curves=[
                    curve
                    for memory in counted
                    for curve in (
                        counted[memory].as_curve(f"{memory / MB:g} MB"),
                        told[memory].as_curve(f"{memory / MB:g} MB", "predicted"),
                    )
                ],
            ),
        ],
    )  # fmt: skip


def best_buffer(workload: Workload, memory_mb: float, costs: Costs) -> float:
    """MB of the disk buffer with the highest predicted rate, of every number of pages."""
    most = int(memory_mb * MB / 4 / workload.page_bytes)
    curve = predicted_curve(workload, int(memory_mb * MB), costs, range(1, most))
    return curve.best_buffer_bytes / MB


def growth(sizes: Sequence[float]) -> list[float]:
    return [after / before for before, after in pairwise(sizes)]


def has_top_at_one(curve: BufferCurve) -> bool:
    """Whether the middle one of the buffers that were run is as good as any."""
    return curve.rows_per_s[len(curve.rows_per_s) // 2] >= (1 - SAME_TOP) * curve.best_rows_per_s


def _counted(workload: Workload, setting: Setting) -> tuple[dict[int, BufferCurve], dict[int, BufferCurve]]:
    """For each memory, in bytes, the counted rates around the predicted best, and the predicted ones."""
    counted, told = {}, {}
    for number, memory_mb in enumerate(PAPER_MB):
        memory_bytes = memory_mb * 1_000_000 * workload.master_rows // PAPER_MASTER_ROWS
        best = best_buffer(workload, memory_bytes / MB, COSTS) * MB / workload.page_bytes
        pages = sorted({max(1, round(best * share)) for share in AROUND})
        done = (number / len(PAPER_MB), (number + 1) / len(PAPER_MB))
        counted[memory_bytes], told[memory_bytes] = measured_curves(
            workload, memory_bytes, COSTS, pages, setting, done=done
        )
    return counted, told


def _list(values: Iterable[float]) -> str:
    return ", ".join(f"{value:.3g}" for value in values)


EXPERIMENTS = [
    Experiment(
        id="default-6",
        claim="The best disk buffer of MESHJOIN grows with memory: 0.93, 1.35, 1.91, 2.63 MB at 20, 40, 80, 160 MB",
        source="Naeem et al., BIRTE 2009, Fig. 6",
        sizes="model at 3.5 M master rows; runs in virtual time over 350,000 and a tenth of each memory (quick) or the same; "
        "disk of 2008 that scans",
        run=run,
    )
]
