"""mesh-5: how memory and rate of MESHJOIN depend on the pages of a step, each with the other held."""

from dataclasses import dataclass

from tidemill.lab.disks import SCANNING_COSTS_OF_2008 as COSTS
from tidemill.lab.experiment import Curve, Experiment, Figure, Finding, Setting
from tidemill.lab.mesh_curves import (
    MB,
    BufferCurve,
    as_built,
    errors,
    is_one_hill,
    lab_workload,
    measured_curves,
    paper_workload,
    predicted_curve,
    predicted_rate,
    sizes_with,
    some_pages,
)
from tidemill.model.cost.mesh import steps_of
from tidemill.model.workload import Workload

RATE_ROWS_PER_S = 10_000.0
MEMORY_SHARE = 0.05
LARGEST_BUFFER_SHARE = 0.25
"""Of the master data: beyond it a step takes longer than anybody waits."""
SHARP = 0.5
"""What is left of the best rate when the buffer takes all the memory that it can, at most."""
DEEP = 1.2
"""Memory at either end of the curve over the least, at least."""
CLOSE = 0.1


@dataclass(frozen=True)
class MemoryCurve:
    """Least memory for a rate, over pages a step."""

    pages: tuple[int, ...]
    memory_bytes: tuple[int, ...]

    @property
    def has_a_minimum_inside(self) -> bool:
        least, ends = min(self.memory_bytes), (self.memory_bytes[0], self.memory_bytes[-1])
        return min(ends) >= DEEP * least and is_one_hill([-size for size in self.memory_bytes])

    @property
    def best_pages(self) -> int:
        return self.pages[self.memory_bytes.index(min(self.memory_bytes))]

    def as_curve(self, label: str, page_bytes: int) -> Curve:
        x = [count * page_bytes / MB for count in self.pages]
        return Curve(label=label, x=x, y=[size / MB for size in self.memory_bytes], kind="predicted")


def run(setting: Setting) -> Finding:
    paper = paper_workload()
    memory_curve = _memory_curve(paper)
    rate_curve = predicted_curve(paper, int(MEMORY_SHARE * paper.master_bytes), COSTS)
    joined = lab_workload(setting)
    memory_bytes = int(MEMORY_SHARE * joined.master_bytes)
    built = as_built(joined, setting)
    pages = some_pages(predicted_curve(built, memory_bytes, COSTS), built.page_bytes, 6)
    measured, predicted = measured_curves(joined, memory_bytes, COSTS, pages, setting, done=(0.0, 0.7))
    reached = _reached(joined, built, setting)
    off = max([*errors(measured, predicted), *(abs(rate / RATE_ROWS_PER_S - 1) for rate in reached.values())])
    shapes = {
        "memory has a minimum": memory_curve.has_a_minimum_inside,
        "the predicted rate rises, then drops": _drops_sharply(rate_curve),
        "the counted rate rises, then drops": _drops_sharply(measured),
        "runs do what the model says": off <= CLOSE,
    }
    lacking = [name for name, is_so in shapes.items() if not is_so]
    least, ends = min(memory_curve.memory_bytes) / MB, memory_curve.memory_bytes
    return Finding(
        holds=not lacking,
        measured=(
            f"{RATE_ROWS_PER_S:,.0f} rows/s take {least:.1f} MB at a buffer of {memory_curve.best_pages * paper.page_bytes / MB:.2f} MB, "
            f"{ends[0] / MB:.1f} MB at one page and {ends[-1] / MB:.0f} MB at the largest; with {rate_curve.memory_bytes / MB:.0f} MB the rate is "
            f"{rate_curve.best_rows_per_s:,.0f} at {rate_curve.best_buffer_bytes / MB:.2f} MB and {rate_curve.rows_per_s[-1]:,.0f} at the largest; "
            f"runs over {joined.master_rows:,} rows are within {off:.1%} of the model"
        ),
        reason=f"not so: {', '.join(lacking)}" if lacking else "",
        values={"least_memory_bytes": min(ends), "best_rows_per_s": rate_curve.best_rows_per_s, "largest_error": off},
        figures=[
            Figure(
                title=f"Memory for {RATE_ROWS_PER_S:,.0f} rows/s, {paper.master_rows / 1e6:g} M master rows",
                x_label="disk buffer, MB", y_label="memory, MB", log_x=True, log_y=True,
                curves=[memory_curve.as_curve("mesh", paper.page_bytes)],
            ),
            Figure(
                title=f"Rate in 5 % of memory, {paper.master_rows / 1e6:g} M master rows",
                x_label="disk buffer, MB", y_label="rows/s", log_x=True,
                curves=[rate_curve.as_curve("mesh", "predicted")],
            ),
            Figure(
                title=f"Rate in 5 % of memory, {joined.master_rows / 1e6:g} M master rows, virtual time",
                x_label="disk buffer, MB", y_label="rows/s", log_x=True,
                curves=[measured.as_curve("mesh"), predicted.as_curve("mesh", "predicted")],
            ),
        ],
    )  # fmt: skip


def _drops_sharply(curve: BufferCurve) -> bool:
    """Up to a top, then down to less than half of it."""
    rises = curve.rows_per_s[0] < 0.98 * curve.best_rows_per_s
    return rises and is_one_hill(curve.rows_per_s) and curve.rows_per_s[-1] <= SHARP * curve.best_rows_per_s


def _memory_curve(workload: Workload) -> MemoryCurve:
    most = int(LARGEST_BUFFER_SHARE * workload.master_bytes / workload.page_bytes)
    found = {count: least_memory(workload, count) for count in steps_of(most)}
    return MemoryCurve(tuple(found), tuple(found.values()))


def least_memory(workload: Workload, pages: int, *, tolerance: float = 0.002) -> int:
    """Bytes with which steps of so many pages reach the rate: the rate only rises with memory."""
    low, high = 1, 8 * workload.master_bytes
    while high - low > tolerance * high:
        middle = (low + high) // 2
        sizes = sizes_with(workload, middle, pages)
        if sizes is None or predicted_rate(workload, sizes, COSTS) < RATE_ROWS_PER_S:
            low = middle
        else:
            high = middle
    return high


def _reached(workload: Workload, built: Workload, setting: Setting) -> dict[int, float]:
    """Rates of runs in the memory that the model found enough, at the best buffer, half and four times of it."""
    best = _memory_curve(built).best_pages
    found = {}
    for number, pages in enumerate((max(2, best // 2), best, 4 * best)):
        done = (0.7 + 0.1 * number, 0.8 + 0.1 * number)
        memory_bytes = least_memory(built, pages)
        measured, _ = measured_curves(workload, memory_bytes, COSTS, [pages], setting, done=done)
        found[pages] = measured.rows_per_s[0]
    return found


EXPERIMENTS = [
    Experiment(
        id="mesh-5",
        claim="For a fixed rate the memory of MESHJOIN has a minimum in the pages of a step; "
        "for a fixed memory its rate rises with them to a maximum, then drops sharply",
        source="Polyzotis et al., TKDE 2008, Fig. 5",
        sizes="model at 3.5 M master rows of 120 B; runs in virtual time over 350,000 (quick) or 3.5 M, memory 5 %, "
        "disk of 2008 that scans",
        run=run,
    )
]
