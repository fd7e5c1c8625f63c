"""`tidemill bench joins`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tidemill.core.units import format_bytes, format_count
from tidemill.lab.bench_joins import BenchOptions, run_bench
from tidemill.lab.envelope import write_results


def bench_joins(options: BenchOptions, json_file: Path | None, plot_file: Path | None) -> None:
    """Run the grid, print it as a table, and leave JSON and plot where asked."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120  # a file or a pipe has no width; the table must not be cut there
    with Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=Console(stderr=True)
    ) as bar:
        results = run_bench(options, _follow(bar))
    console.print(_table(results))
    if json_file is not None:
        write_results(json_file, "joins", options.seed, results)
        console.print(f"results: {json_file}")
    if plot_file is not None:
        from tidemill.lab.plot_joins import plot_joins

        plot_joins(results, plot_file)
        console.print(f"plot: {plot_file}")


def _follow(bar: Progress) -> Callable[[str, float], None]:
    task = bar.add_task("starting", total=1.0)
    return lambda text, share: bar.update(task, description=text, completed=share)


def _table(results: list[dict[str, Any]]) -> Table:
    table = Table(title="Semi-stream joins", title_justify="left")
    for name in (
        "contender",
        "Zipf",
        "memory",
        "rows/s",
        "of the bound",
        "read a row",
        "memory held",
        "same rows",
    ):
        table.add_column(name, justify="left" if name == "contender" else "right")
    order = sorted(results, key=lambda r: (r["zipf"], r["memory_share"], -r["rows_per_s"]))
    for r in order:
        table.add_row(
            r["contender"],
            f"{r['zipf']:g}",
            f"{r['memory_share']:.1%}",
            format_count(r["rows_per_s"]),
            f"{r['rows_per_s'] / r['bound_rows_per_s']:.1%}",
            format_bytes(r["bytes_read"] / r["stream_rows"]) if r["bytes_read"] else "-",
            format_bytes(r["memory_peak_bytes"]),
            "yes" if r["same_rows"] else "NO",
        )
    return table


__all__ = ["bench_joins"]
