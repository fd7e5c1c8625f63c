"""`tidemill bench joins`: every join and every peer over skews and memory shares, beside a bound."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from tidemill.core.errors import unknown_choice
from tidemill.join.catalog import JOINS
from tidemill.lab.bound import AssemblySpeed, add_bounds
from tidemill.lab.device import measure_device
from tidemill.lab.join_cell import CellSpec
from tidemill.lab.join_data import JoinData, Progress
from tidemill.lab.kept_cells import KeptCells
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
        """All cells; peers without a budget have one a skew, at the largest memory share."""
        return [
            self._cell(contender, zipf, share)
            for zipf, share, contender in product(self.zipfs, self.memory_shares, self.contenders)
            if contender not in WITHOUT_BUDGET or share == max(self.memory_shares)
        ]

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
    results = [_median([kept[cell, run] for run in range(options.repeat)]) for cell in cells]
    results += _at_other_shares(results, options.memory_shares)
    _add_bounds(options, results, progress)
    return results


def _build(options: BenchOptions, progress: Progress) -> None:
    """The forms that the contenders read, Parquet for the judge and the store for its row size; and the streams."""
    forms = {"parquet", "store", *(PEERS[name] for name in options.contenders if name in PEERS)}
    for form, seconds in options.data.build(sorted(forms), progress).items():
        progress(f"built {form} in {seconds:.0f} s", 1.0)
    for stream in {cell.stream for cell in options.cells()}:
        stream.build(progress)


def _median(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The run whose rate is the median (the lower of two), with all rates; or the first that has none."""
    rates = [run["rows_per_s"] for run in runs]
    if None in rates:
        return runs[rates.index(None)]
    wrong = [run for run in runs if not run["same_rows"]]
    middle = runs[rates.index(statistics.median_low(rates))]
    return {**(wrong or [middle])[0], "rows_per_s_of_runs": rates}


def _at_other_shares(results: list[dict[str, Any]], shares: Sequence[float]) -> list[dict[str, Any]]:
    """Peers without a budget again, for the shares at which they need not be measured."""
    return [
        {**result, "memory_share": share, "memory_budget_bytes": int(result["memory_budget_bytes"] * share / result["memory_share"])}
        for result, share in product(results, shares)
        if result["contender"] in WITHOUT_BUDGET and share != result["memory_share"]
    ]  # fmt: skip


def _add_bounds(options: BenchOptions, results: list[dict[str, Any]], progress: Progress) -> None:
    progress("measuring disk and output assembly", 1.0)
    device, assembly = measure_device(options.data.parquet), AssemblySpeed(options.data)
    for zipf in options.zipfs:
        seconds = assembly.seconds_per_row(zipf, options.seed)
        for share in options.memory_shares:
            add_bounds(
                [r for r in results if (r["zipf"], r["memory_share"]) == (zipf, share)], seconds, device
            )


__all__ = [
    "MEMORY_SHARES",
    "SECONDS",
    "ZIPFS",
    "BenchOptions",
    "all_contenders",
    "check_contenders",
    "run_bench",
]
