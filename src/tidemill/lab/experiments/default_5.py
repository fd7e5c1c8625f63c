"""default-5: the knee in the rate of MESHJOIN over its disk buffer."""

from tidemill.lab.disks import SCANNING_COSTS_OF_2008 as COSTS
from tidemill.lab.experiment import Experiment, Figure, Finding, Setting
from tidemill.lab.mesh_curves import (
    MB,
    PAPER_MASTER_ROWS,
    BufferCurve,
    as_built,
    lab_workload,
    measured_curves,
    paper_workload,
    predicted_curve,
    some_pages,
)

MEMORY_BYTES = 80_000_000
STEEP, FLAT = 0.3, 0.1
"""What a doubled buffer brings: at least before the knee, from the smallest; at most behind it, up to the best."""


def run(setting: Setting) -> Finding:
    paper = predicted_curve(paper_workload(), MEMORY_BYTES, COSTS)
    workload = lab_workload(setting)
    memory_bytes = MEMORY_BYTES * workload.master_rows // PAPER_MASTER_ROWS
    built = as_built(workload, setting)
    every = some_pages(predicted_curve(built, memory_bytes, COSTS), built.page_bytes, 7)
    half = round(predicted_curve(built, memory_bytes, COSTS).best_buffer_bytes / built.page_bytes / 2)
    pages = sorted({1, 2, half} | {count for count in every if count * built.page_bytes < memory_bytes / 4})
    measured, predicted = measured_curves(workload, memory_bytes, COSTS, pages, setting)
    holds = has_knee(paper) and has_knee(measured)
    return Finding(
        holds=holds,
        measured=f"{describe(paper)} (model, 3.5 M rows); {describe(measured)} (virtual time, {workload.master_rows / 1e6:g} M rows)",
        reason="" if holds else "the rate does not rise steeply first, or still rises steeply towards its top",
        values={
            "best_buffer_bytes": paper.best_buffer_bytes,
            "first_gain": gains(paper)[0],
            "last_gain": gains(paper)[1],
        },
        figures=[
            Figure(
                title="MESHJOIN in 80 MB, 3.5 M master rows", x_label="disk buffer, MB", y_label="rows/s",
                curves=[_beginning(paper).as_curve("mesh", "predicted")],
            ),
            Figure(
                title=f"MESHJOIN in {memory_bytes / MB:g} MB, {workload.master_rows / 1e6:g} M master rows, virtual time",
                x_label="disk buffer, MB", y_label="rows/s",
                curves=[measured.as_curve("mesh"), predicted.as_curve("mesh", "predicted")],
            ),
        ],
    )  # fmt: skip


def has_knee(curve: BufferCurve) -> bool:
    """Whether doubling the smallest buffer brings much, and the last doubling up to the best little."""
    first, last = gains(curve)
    return first >= STEEP and last <= FLAT


def gains(curve: BufferCurve) -> tuple[float, float]:
    return curve.gain_of_doubling(curve.buffer_bytes[0]), curve.gain_of_doubling(curve.best_buffer_bytes / 2)


def describe(curve: BufferCurve) -> str:
    first, last = gains(curve)
    return (
        f"doubling the buffer brings {first:.0%} from {curve.buffer_bytes[0] / MB:.2f} MB and {last:.1%} up to the best, "
        f"{curve.best_buffer_bytes / MB:.2f} MB"
    )


def _beginning(curve: BufferCurve) -> BufferCurve:
    """Up to three times the best buffer: what Fig. 5 shows."""
    shown = [size <= 3 * curve.best_buffer_bytes for size in curve.buffer_bytes]
    count = sum(shown)
    return BufferCurve(
        memory_bytes=curve.memory_bytes,
        buffer_bytes=curve.buffer_bytes[:count],
        rows_per_s=curve.rows_per_s[:count],
    )


EXPERIMENTS = [
    Experiment(
        id="default-5",
        claim="At a fixed memory the rate of MESHJOIN has a pronounced knee in the size of the disk buffer",
        source="Naeem et al., BIRTE 2009, Fig. 5",
        sizes="model at 3.5 M master rows and 80 MB; runs in virtual time over 350,000 and 8 MB (quick) or the same; "
        "disk of 2008 that scans",
        run=run,
    )
]
