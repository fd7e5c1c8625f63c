"""mesh-10a: the model of MESHJOIN beside its runs, as the pages of a step vary."""

from statistics import median

from tidemill.lab.disks import SCANNING_COSTS_OF_2008 as COSTS
from tidemill.lab.experiment import Experiment, Figure, Finding, Setting
from tidemill.lab.mesh_curves import (
    MB,
    as_built,
    errors,
    lab_workload,
    measured_curves,
    predicted_curve,
    some_pages,
)

MEMORY_SHARE = 0.05
FOLLOWS = 0.1
"""How far the worst prediction may be off."""


def run(setting: Setting) -> Finding:
    workload = lab_workload(setting)
    memory_bytes = int(MEMORY_SHARE * workload.master_bytes)
    built = as_built(workload, setting)
    pages = some_pages(predicted_curve(built, memory_bytes, COSTS), built.page_bytes, 7)
    measured, predicted = measured_curves(workload, memory_bytes, COSTS, pages, setting)
    off = errors(measured, predicted)
    worst = measured.buffer_bytes[off.index(max(off))] / MB
    holds = max(off) <= FOLLOWS
    return Finding(
        holds=holds,
        measured=f"{len(off)} buffers of {measured.buffer_bytes[0] / MB:.2f} to {measured.buffer_bytes[-1] / MB:.2f} MB in "
        f"{memory_bytes / MB:.1f} MB: off by {median(off):.1%} in the median, {max(off):.1%} at most ({worst:.2f} MB)",
        reason="" if holds else f"the model is off by {max(off):.0%} with a buffer of {worst:.2f} MB",
        values={"median_error": median(off), "largest_error": max(off)},
        figures=[
            Figure(
                title=f"MESHJOIN in {memory_bytes / MB:.1f} MB, virtual time",
                x_label="disk buffer, MB", y_label="rows/s", log_x=True,
                curves=[measured.as_curve("mesh"), predicted.as_curve("mesh", "predicted")],
            )
        ],
    )  # fmt: skip


EXPERIMENTS = [
    Experiment(
        id="mesh-10a",
        claim="The predicted rate of MESHJOIN follows the measured one as the pages of a step vary",
        source="Polyzotis et al., TKDE 2008, Fig. 10a",
        sizes="3.5 M master rows of 120 B and 21 MB; quick 350,000 and 2.1 MB; virtual time, disk of 2008 that scans",
        run=run,
    )
]
