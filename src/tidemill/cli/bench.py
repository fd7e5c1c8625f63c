"""`tidemill bench` and its `joins`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli.bench_run import follow, refuse_bad, require
from tidemill.cli.bench_spark import spark

if TYPE_CHECKING:
    from tidemill.lab.bench_joins import BenchOptions

bench = typer.Typer(help="Measure joins beside their peers.", no_args_is_help=True)


@bench.callback()
def group() -> None:
    """Measure joins beside their peers."""


@bench.command()
def joins(
    zipf: Annotated[list[float] | None, typer.Option(help="Skew of the stream; may be repeated.")] = None,
    memory_share: Annotated[
        list[float] | None, typer.Option(help="Memory as a share of the master data; may be repeated.")
    ] = None,
    algorithms: Annotated[str | None, typer.Option(help="Joins and peers, with commas between.")] = None,
    rows: Annotated[int, typer.Option(help="Rows of master data.")] = 10_000_000,
    stream_rows: Annotated[
        str, typer.Option(help="Rows that end warm-up and measuring early, or auto for the seconds alone.")
    ] = "auto",
    seconds: Annotated[float, typer.Option(help="Warm-up, and measuring, of each cell.")] = 6.0,
    repeat: Annotated[int, typer.Option(help="Runs of each cell; the median counts.", min=1)] = 1,
    data: Annotated[Path, typer.Option("--data", help="Folder of the generated data.")] = Path(
        "tidemill-bench"
    ),
    seed: Annotated[int, typer.Option(help="The same seed gives the same rows.")] = 1,
    json_file: Annotated[Path | None, typer.Option("--json", help="File for the results.")] = None,
    plot: Annotated[Path | None, typer.Option(help="PNG file for a plot.")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="File of finished cells (JSON lines): go on where it ends.")
    ] = None,
) -> None:
    """Every join and every peer over skews and memory shares, beside a bound; rows are compared with DuckDB's."""
    for option, values in (
        ("--rows", [rows]), ("--seconds", [seconds]), ("--memory-share", memory_share or []),
    ):  # fmt: skip
        for value in values:
            require(option, value > 0 and value < float("inf"), value, "more than zero")
    for value in zipf or ():
        require("--zipf", 0 <= value < float("inf"), value, "zero or more")
    from tidemill.lab.bench_joins import MEMORY_SHARES, ZIPFS, BenchOptions, all_contenders, check_contenders

    names = [name.strip() for name in algorithms.split(",")] if algorithms else all_contenders()
    options = BenchOptions(
        contenders=check_contenders(names),
        zipfs=tuple(dict.fromkeys(zipf or ZIPFS)),
        memory_shares=tuple(dict.fromkeys(memory_share or MEMORY_SHARES)),
        master_rows=rows,
        stream_rows=_row_limit(stream_rows),
        folder=data,
        seed=seed,
        seconds=seconds,
        repeat=repeat,
    )
    bench_joins(options, json_file, plot, resume)


def bench_joins(
    options: "BenchOptions", json_file: Path | None, plot_file: Path | None, resume_file: Path | None = None
) -> None:
    """Run the grid, print it as tables, leave JSON and plot where asked; an error if a cell failed or is wrong."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from tidemill.lab.bench_joins import run_bench
    from tidemill.lab.envelope import write_results
    from tidemill.lab.joins_table import joins_tables, remarks

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120  # a file or a pipe has no width; the table must not be cut there
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        results = run_bench(options, follow(bar), resume_file)
    for table in joins_tables(results):
        console.print(table)
    for remark in remarks(results):
        console.print(remark)
    if json_file is not None:
        write_results(json_file, "joins", options.seed, results)
        console.print(f"results: {json_file}")
    if plot_file is not None:
        from tidemill.lab.plot_joins import plot_joins

        plot_joins(results, plot_file)
        console.print(f"plot: {plot_file}")
    refuse_bad(results, "DuckDB's join", "--algorithms")


def _row_limit(text: str) -> int | None:
    if text == "auto":
        return None
    require("--stream-rows", text.isdecimal() and int(text) > 0, text, "a number of rows, or auto")
    return int(text)


bench.command()(spark)

__all__ = ["bench", "bench_joins"]
