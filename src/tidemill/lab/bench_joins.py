"""`tidemill bench joins`: every join and every peer over skews and memory shares, beside a bound."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from tidemill.core.errors import unknown_choice
from tidemill.join.catalog import JOINS
from tidemill.lab.bound import add_bounds
from tidemill.lab.bound_cell import ASSEMBLY
from tidemill.lab.device import DeviceCurve, measure_device
from tidemill.lab.join_cell import CellSpec
from tidemill.lab.join_data import JoinData, Progress
from tidemill.lab.kept_cells import KeptCells, median_run
from tidemill.lab.measure import measure
from tidemill.lab.peers import PEERS, WITHOUT_BUDGET

ZIPFS = (0.0, 0.5, 1.0, 1.25)
MEMORY_SHARES = (0.005, 0.01, 0.05, 0.1, 0.2)
SECONDS = 6.0


@dataclass(frozen=True)
class BenchOptions:
    contenders: tuple[str, ...]
    zipfs: tuple[float, ...]
    memory_shares: tuple[float, ...]
    master_rows: int
    folder: Path
    seed: int
    stream_rows: int | None = None
    """Rows that end warm-up and measuring early; None leaves it to the seconds."""
    seconds: float = SECONDS
    """Of warm-up and of measuring, each."""
    repeat: int = 1
    """Runs of each cell; the one with the median rate stands."""

    @property
    def data(self) -> JoinData:
        return JoinData(self.folder.resolve(), self.master_rows)

    def cells(self) -> list[CellSpec]:
        """All cells in the order in which they run."""
        return [
            self._cell(name, zipf, share)
            for zipf, share in product(self.zipfs, self.memory_shares)
            for name in self._order(share)
        ]

    def assembly_cell(self, zipf: float, share: float) -> CellSpec:
        """The cell whose speed is part of the bound of the others of that skew and memory share."""
        return self._cell(ASSEMBLY, zipf, share)

    def _order(self, share: float) -> list[str]:
        """Contenders, and in their midst assembling alone: what slows the machine for minutes slows it as well.

        Peers without a budget run once a skew, at the largest memory share.
        """
        names = [n for n in self.contenders if n not in WITHOUT_BUDGET or share == max(self.memory_shares)]
        middle = len(names) // 2
        return [*names[:middle], ASSEMBLY, *names[middle:]]

    def _cell(self, contender: str, zipf: float, share: float) -> CellSpec:
        return CellSpec(
            contender, zipf, share, self.master_rows, self.stream_rows, self.seconds, str(self.data.folder), self.seed
        )  # fmt: skip


def all_contenders() -> list[str]:
    return [*(name for name in JOINS if name != "reference"), *PEERS]


def check_contenders(names: Sequence[str]) -> tuple[str, ...]:
    for name in names:
        if name not in all_contenders():
            raise unknown_choice("contender", name, all_contenders())
    return tuple(dict.fromkeys(names))


def run_bench(
    options: BenchOptions, progress: Progress, resume_file: Path | None = None
) -> list[dict[str, Any]]:
    """One result a contender, skew and memory share, with its bounds.

    Args:
        options: What to run.
        progress: Told of each build and cell.
        resume_file: Cells found there are not run again; each one that ends is appended.
    """
    _build(options, progress)
    kept = KeptCells(resume_file)
    cells = options.cells()
    # Whole grids one after the other: a noisy minute then spoils one run of many cells, not all runs of one.
    for number, (run, cell) in enumerate(product(range(options.repeat), cells)):
        share_done = number / (len(cells) * options.repeat)
        progress(f"{cell.contender}, Zipf {cell.zipf:g}, memory {cell.memory_share:.1%}", share_done)
        if (cell, run) not in kept:
            kept.keep(cell, run, measure(cell))
    runs = {cell: [kept[cell, run] for run in range(options.repeat)] for cell in cells}
    results = [median_run(found) for cell, found in runs.items() if cell.contender != ASSEMBLY]
    results += _at_other_shares(results, options.memory_shares)
    progress("measuring the disk", 1.0)
    return results + _add_bounds(options, results, runs, measure_device(options.data.parquet))


def _build(options: BenchOptions, progress: Progress) -> None:
    """The forms that the contenders read, Parquet for the judge and the store for its row size; and the streams."""
    forms = {"parquet", "store", *(PEERS[name] for name in options.contenders if name in PEERS)}
    for form, seconds in options.data.build(sorted(forms), progress).items():
        progress(f"built {form} in {seconds:.0f} s", 1.0)
    for stream in {cell.stream for cell in options.cells()}:
        stream.build(progress)


def _at_other_shares(results: list[dict[str, Any]], shares: Sequence[float]) -> list[dict[str, Any]]:
    """Peers without a budget again, for the shares at which they need not be measured."""
    return [
        {**result, "memory_share": share, "memory_budget_bytes": int(result["memory_budget_bytes"] * share / result["memory_share"])}
        for result, share in product(results, shares)
        if result["contender"] in WITHOUT_BUDGET and share != result["memory_share"]
    ]  # fmt: skip


def _add_bounds(
    options: BenchOptions,
    results: list[dict[str, Any]],
    runs: dict[CellSpec, list[dict[str, Any]]],
    device: DeviceCurve,
) -> list[dict[str, Any]]:
    """Give the results their bounds; cells of assembling that are no use come back, to be told with the others."""
    bad = []
    for zipf, share in product(options.zipfs, options.memory_shares):
        assemblies = runs[options.assembly_cell(zipf, share)]
        bad += [found for found in assemblies if found["failed"] or found["same_rows"] is False][:1]
        here = [r for r in results + bad if (r["zipf"], r["memory_share"]) == (zipf, share)]
        add_bounds(here, assemblies, device)
    return bad


__all__ = [
    "MEMORY_SHARES",
    "SECONDS",
    "ZIPFS",
    "BenchOptions",
    "all_contenders",
    "check_contenders",
    "run_bench",
]
