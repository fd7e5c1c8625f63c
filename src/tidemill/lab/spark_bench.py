"""`tidemill bench spark`: joins hosted in Spark beside Spark's own plans and lookups, on the same data in one run."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby, product
from pathlib import Path
from typing import Any

from tidemill.lab.join_data import Progress
from tidemill.lab.kept_cells import KeptCells, median_run
from tidemill.lab.spark_cell import SparkCell
from tidemill.lab.spark_contenders import JOINS, LOOKUPS
from tidemill.lab.spark_data import SparkData
from tidemill.lab.spark_measure import measure

BATCHES = (1_000_000, 200_000, 2_000)
MEMORY_SHARES = (0.01, 0.05, 0.1)
SECONDS = 6.0
"""With which the default set ends within 25 minutes on two cores."""


@dataclass(frozen=True)
class SparkOptions:
    contenders: tuple[str, ...]
    batches: tuple[int, ...]
    memory_shares: tuple[float, ...]
    master_rows: int
    folder: Path
    seed: int
    seconds: float = SECONDS
    cores: int | None = None
    """To which the whole process tree is pinned; None for all that we have."""
    repeat: int = 1
    """Runs of each cell, of which the median counts."""

    @property
    def data(self) -> SparkData:
        return SparkData(self.folder.resolve(), self.master_rows, self.seed)

    def cells(self) -> list[SparkCell]:
        """All cells, those of one child together: a contender at one memory share."""
        return [
            self._cell(contender, batch_rows, share)
            for contender in self.contenders
            for share, batch_rows in product(self._shares(contender), self.batches)
        ]

    def _shares(self, contender: str) -> tuple[float | None, ...]:
        if contender in JOINS:
            return self.memory_shares
        if contender in LOOKUPS:  # one says enough of them: the one in the middle
            return (sorted(self.memory_shares)[len(self.memory_shares) // 2],)
        return (None,)

    def _cell(self, contender: str, batch_rows: int, share: float | None) -> SparkCell:
        cores = self.cores or len(os.sched_getaffinity(0))
        folder = str(self.data.folder)
        return SparkCell(
            contender, batch_rows, share, self.master_rows, self.seconds, cores, folder, self.seed
        )


def run_spark_bench(
    options: SparkOptions, progress: Progress, resume_file: Path | None = None
) -> list[dict[str, Any]]:
    """One result a contender, size of batch and memory share.

    Args:
        options: What to run.
        progress: Told of each build and child.
        resume_file: Cells found there are not run again; each one that ends is appended.
    """
    options.data.build(options.batches, progress)
    kept = KeptCells(resume_file)
    cells, children = options.cells(), list(_children(options.cells()))
    # Whole sets one after the other: a noisy minute then spoils one run of many cells, not all runs of one.
    for number, (run, child) in enumerate(product(range(options.repeat), children)):
        waiting = [cell for cell in child if (cell, run) not in kept]
        if waiting:
            progress(_title(child[0]), number / (len(children) * options.repeat))
            measure(waiting, partial(_keep, kept, run))
    return [median_run([kept[cell, run] for run in range(options.repeat)]) for cell in cells]


def _keep(kept: KeptCells, run: int, cell: SparkCell, result: dict[str, Any]) -> None:
    kept.keep(cell, run, result)


def _children(cells: list[SparkCell]) -> Iterator[list[SparkCell]]:
    for _, child in groupby(cells, key=lambda cell: (cell.contender, cell.memory_share)):
        yield list(child)


def _title(cell: SparkCell) -> str:
    return cell.contender + ("" if cell.memory_share is None else f", memory {cell.memory_share:.1%}")


__all__ = ["BATCHES", "MEMORY_SHARES", "SECONDS", "SparkOptions", "run_spark_bench"]
