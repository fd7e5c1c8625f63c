"""Predicted against measured rates: all joins, over the grid of the join benchmark."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product

from tidemill.lab.calibrate import calibrate
from tidemill.lab.experiment import Curve, Experiment, Figure, Finding, Setting
from tidemill.lab.kept_cells import KeptCells
from tidemill.lab.predicted import MEMORY_SHARES, ZIPFS, Compared, Errors, by_algorithm, compare_virtual
from tidemill.lab.predicted_real import Bench
from tidemill.model.catalog import MODELLED

MOST_MEDIAN, MOST_HIGH = 0.10, 0.25
MOST_MEDIAN_REAL = 0.25
QUICK_ROWS, FULL_ROWS = 50_000, 400_000
LARGE_ROWS = 1_500_000
"""For `mesh`, `adaptive_mesh` and `balanced` with 0.5 % of memory, which is less than they need for fewer master rows."""
LEAST_SHARE_OF_FULL_ROWS = 0.01
QUICK_GRID = ((0.0, 1.0), (0.1,))
INL_ROWS = 2_000
"""Of a stretch: rows of `inl` do not wait for each other, and it is 50 times slower than the others."""


@dataclass(frozen=True)
class GridCell:
    """One run in virtual time; equal cells are the same run."""

    algorithm: str
    zipf: float
    memory_share: float
    seed: int


def run_virtual_grid(setting: Setting) -> Finding:
    """All cells in virtual time, with costs of 2008.

    Cells are kept in a file of the data folder until all are done: a run that was interrupted goes on there.
    """
    zipfs, shares = QUICK_GRID if setting.quick else (ZIPFS, MEMORY_SHARES)
    # Cells with little memory read most and take longest: they come last.
    cells = [
        GridCell(name, zipf, share, setting.seed)
        for share, zipf, name in product(shares[::-1], zipfs, MODELLED)
    ]
    setting.folder.mkdir(parents=True, exist_ok=True)
    file = setting.folder / f"models-virtual-{'quick' if setting.quick else 'full'}.jsonl"
    kept = KeptCells(file)
    for number, cell in enumerate(cells):
        setting.progress(
            f"{cell.algorithm}, Zipf {cell.zipf:g}, {cell.memory_share:.1%} of memory", number / len(cells)
        )
        if (cell, 0) not in kept:
            compared = _compare(cell, setting)
            kept.keep(cell, 0, {"failed": False, "compared": asdict(compared) if compared else None})
    results = [kept[cell, 0]["compared"] for cell in cells]
    found = [Compared(**result) for result in results if result]
    file.unlink()
    return _finding(found, "in virtual time", Errors(MOST_MEDIAN, MOST_HIGH))


def _compare(cell: GridCell, setting: Setting) -> Compared | None:
    """None where memory is too small for the join."""
    for rows in (QUICK_ROWS,) if setting.quick else (FULL_ROWS, LARGE_ROWS):
        compared = compare_virtual(
            cell.algorithm,
            cell.zipf,
            cell.memory_share,
            master_rows=rows,
            folder=setting.folder,
            seed=cell.seed,
            stream_rows=INL_ROWS if cell.algorithm == "inl" else None,
        )
        if compared is not None:
            return compared
    return None


def run_real_grid(setting: Setting) -> Finding:
    """The same on this machine, with its own costs; repetitions of all joins in turns."""
    zipfs, shares = ((1.0,), (0.1,)) if setting.quick else (ZIPFS, MEMORY_SHARES)
    found: list[Compared] = []
    for zipf_number, zipf in enumerate(zipfs):
        calibration = None  # Anew for each stream: the machine is not as fast as it was some minutes ago.
        for share_number, share in enumerate(shares):
            done = (zipf_number + share_number / len(shares)) / len(zipfs)
            setting.progress(f"Zipf {zipf:g}, {share:.1%} of memory", done)
            bench = Bench(
                folder=setting.folder,
                master_rows=LARGE_ROWS if share < LEAST_SHARE_OF_FULL_ROWS else FULL_ROWS,
                zipf=zipf,
                memory_share=share,
                seconds=0.6 if setting.quick else 0.8,
                seed=setting.seed,
            )
            calibration = calibration or calibrate(bench.store_path())
            found += bench.compare(MODELLED, 2 if setting.quick else 3, calibration)
    return _finding(found, "on this machine", Errors(MOST_MEDIAN_REAL, float("inf")))


def _finding(cells: Sequence[Compared], where: str, most: Errors) -> Finding:
    errors = Errors.of([cell.error for cell in cells])
    noise = Errors.of([cell.noise for cell in cells])
    holds = errors.median <= most.median and errors.high <= most.high
    each = dict(by_algorithm(cells))
    worst = sorted(each, key=lambda name: -each[name].median)[:3]
    spread = f"; repetitions spread by {noise}" if noise.high else ""
    values = {"cells": float(len(cells)), "median_error": errors.median, "high_error": errors.high}
    values |= {"median_noise": noise.median, "high_noise": noise.high}
    values["unsettled"] = float(sum(not cell.is_settled for cell in cells))
    for name, told in each.items():
        values |= {f"{name}_median_error": told.median, f"{name}_high_error": told.high}
    return Finding(
        holds=holds,
        measured=f"error {where} over {len(cells)} cells: {errors}{spread}",
        reason="" if holds else "largest for " + "; ".join(f"{name} ({each[name]})" for name in worst),
        values=values,
        figures=[_figure(cells, where)],
    )


def _figure(cells: Sequence[Compared], where: str) -> Figure:
    names = sorted({cell.algorithm for cell in cells})
    points = [
        Curve(
            label=name,
            x=[cell.measured for cell in cells if cell.algorithm == name],
            y=[cell.predicted for cell in cells if cell.algorithm == name],
        )
        for name in names
    ]
    rates = [cell.measured for cell in cells]
    ends = [min(rates), max(rates)]
    return Figure(
        title=f"predicted and measured rates {where}",
        x_label="measured rows/s",
        y_label="predicted rows/s",
        curves=[*points, Curve(label="equal", x=ends, y=ends, kind="predicted")],
        log_x=True,
        log_y=True,
    )


_CLAIM = "The models predict the rate of every join over the grid of the join benchmark"

EXPERIMENTS = [
    Experiment(
        id="models-virtual",
        claim=f"{_CLAIM} in virtual time with costs of 2008: median error at most 10 %, 95th percentile at most 25 %.",
        source="ours: docs/models.md",
        sizes="master rows of 119 bytes, stream rows of 20; quick: 50,000 master rows, Zipf 0 and 1, memory 10 %; "
        "full: 400,000 (1,500,000 for joins that could not work with 0.5 % of that), Zipf 0 … 1.25, memory 0.5 … 20 %. In the "
        "quick form cells whose memory is too small for a join are left out.",
        run=run_virtual_grid,
    ),
    Experiment(
        id="models-real",
        claim=f"{_CLAIM} on this machine with calibrated costs: median error at most 25 %; the 95th percentile is stated.",
        source="ours: docs/models.md",
        sizes="400,000 master rows of 119 bytes, read past the page cache; quick: Zipf 1, memory 10 %, two repetitions of 0.6 s; "
        "full: Zipf 0 … 1.25, memory 0.5 … 20 % (1,500,000 master rows with 0.5 %), three repetitions of 0.8 s, calibrated anew for "
        "each exponent; repetitions of all joins in turns.",
        run=run_real_grid,
    ),
]

__all__ = ["EXPERIMENTS"]
