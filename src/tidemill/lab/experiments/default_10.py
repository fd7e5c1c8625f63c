"""default-10: the model of MESHJOIN beside its runs, as disk buffer and memory vary."""

from statistics import median

from tidemill.lab.disks import SCANNING_COSTS_OF_2008 as COSTS
from tidemill.lab.experiment import Curve, Experiment, Figure, Finding, Setting
from tidemill.lab.mesh_curves import (
    MB,
    PAPER_MASTER_ROWS,
    as_built,
    errors,
    lab_workload,
    measured_curves,
    predicted_curve,
    some_pages,
)

BUFFERS_AT_MB = 20
MEMORIES_MB = (20, 40, 80, 160, 320)
FOLLOWS = 0.1


def run(setting: Setting) -> Finding:
    workload = lab_workload(setting)

    def memory_of(paper_mb: int) -> int:
        return paper_mb * 1_000_000 * workload.master_rows // PAPER_MASTER_ROWS

    at = memory_of(BUFFERS_AT_MB)
    built = as_built(workload, setting)
    pages = some_pages(predicted_curve(built, at, COSTS), built.page_bytes, 5)
    over_buffers = measured_curves(workload, at, COSTS, pages, setting, done=(0.0, 0.6))
    over_memories = []
    for number, memory_bytes in enumerate(map(memory_of, MEMORIES_MB)):
        best = predicted_curve(built, memory_bytes, COSTS).best_buffer_bytes / built.page_bytes
        done = (0.6 + 0.08 * number, 0.68 + 0.08 * number)
        over_memories.append(
            measured_curves(workload, memory_bytes, COSTS, [round(best)], setting, done=done)
        )
    off_buffers = errors(*over_buffers)
    off_memories = [errors(*pair)[0] for pair in over_memories]
    off = [*off_buffers, *off_memories]
    holds = max(off) <= FOLLOWS
    memories = [measured.memory_bytes / MB for measured, _ in over_memories]
    return Finding(
        holds=holds,
        measured=f"off by {median(off):.1%} in the median; at most {max(off_buffers):.1%} over {len(off_buffers)} buffers in "
        f"{at / MB:g} MB, {max(off_memories):.1%} over memories of {memories[0]:g} to {memories[-1]:g} MB",
        reason="" if holds else f"the model is off by {max(off):.0%} at its worst",
        values={"median_error": median(off), "largest_error": max(off)},
        figures=[
            Figure(
                title=f"MESHJOIN over its disk buffer, {at / MB:g} MB, virtual time",
                x_label="disk buffer, MB", y_label="rows/s", log_x=True,
                curves=[over_buffers[0].as_curve("mesh"), over_buffers[1].as_curve("mesh", "predicted")],
            ),
            Figure(
                title="MESHJOIN with its best buffer over memory, virtual time",
                x_label="memory, MB", y_label="rows/s", log_x=True,
                curves=[
                    Curve(label="mesh", x=memories, y=[pair[0].rows_per_s[0] for pair in over_memories]),
                    Curve(label="mesh", x=memories, y=[pair[1].rows_per_s[0] for pair in over_memories], kind="predicted"),
                ],
            ),
        ],
    )  # fmt: skip


EXPERIMENTS = [
    Experiment(
        id="default-10",
        claim="The model of MESHJOIN follows the measured rate as disk buffer and memory vary",
        source="Naeem et al., BIRTE 2009, Fig. 10",
        sizes="3.5 M master rows and 20 to 320 MB; quick 350,000 and a tenth of each memory; virtual time, disk of 2008 that scans",
        run=run,
    )
]
