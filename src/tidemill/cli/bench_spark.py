"""`tidemill bench spark`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli.bench_run import follow, refuse_bad, require

if TYPE_CHECKING:
    from tidemill.lab.spark_bench import SparkOptions


def spark(
    contenders: Annotated[
        str | None,
        typer.Option(help="Those to run, with commas between; all but tide-cluster when left out."),
    ] = None,
    batches: Annotated[str | None, typer.Option(help="Rows of a batch, sizes with commas between.")] = None,
    memory_share: Annotated[
        list[float] | None, typer.Option(help="Memory as a share of the master data; may be repeated.")
    ] = None,
    master_rows: Annotated[int, typer.Option(help="Rows of master data.")] = 10_000_000,
    seconds: Annotated[float, typer.Option(help="After which a cell begins no new batch.")] = 6.0,
    cores: Annotated[
        int | None, typer.Option(help="Pin everything to so many cores; all when left out.", min=1)
    ] = None,
    repeat: Annotated[int, typer.Option(help="Runs of each cell; the median counts.", min=1)] = 1,
    data: Annotated[Path, typer.Option("--data", help="Folder of the generated data.")] = Path(
        "tidemill-bench-spark"
    ),
    seed: Annotated[int, typer.Option(help="The same seed gives the same rows.")] = 1,
    json_file: Annotated[Path | None, typer.Option("--json", help="File for the results.")] = None,
    plot: Annotated[Path | None, typer.Option(help="PNG file for a plot.")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="File of finished cells (JSON lines): go on where it ends.")
    ] = None,
) -> None:
    """Joins in Spark's workers beside Spark's own plans and lookups; rows are compared with Spark's join."""
    for option, values in (
        ("--master-rows", [master_rows]), ("--seconds", [seconds]), ("--memory-share", memory_share or []),
    ):  # fmt: skip
        for value in values:
            require(option, 0 < value < float("inf"), value, "more than zero")
    from tidemill.lab.spark_bench import BATCHES, MEMORY_SHARES, SparkOptions
    from tidemill.lab.spark_contenders import BY_DEFAULT, check_contenders

    names = [name.strip() for name in contenders.split(",")] if contenders else BY_DEFAULT
    options = SparkOptions(
        contenders=check_contenders(names),
        batches=_sizes(batches) if batches else BATCHES,
        memory_shares=tuple(dict.fromkeys(memory_share or MEMORY_SHARES)),
        master_rows=master_rows,
        folder=data,
        seed=seed,
        seconds=seconds,
        cores=cores,
        repeat=repeat,
    )
    bench_spark(options, json_file, plot, resume)


def bench_spark(
    options: "SparkOptions", json_file: Path | None, plot_file: Path | None, resume_file: Path | None = None
) -> None:
    """Run the grid, print it as tables, leave JSON and plot where asked; an error if a cell failed or is wrong."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from tidemill.lab.envelope import write_results
    from tidemill.lab.spark_bench import run_spark_bench
    from tidemill.lab.spark_table import remarks, spark_tables

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 160  # a file or a pipe has no width; the table must not be cut there
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        results = run_spark_bench(options, follow(bar), resume_file)
    for table in spark_tables(results):
        console.print(table)
    for remark in remarks(results):
        console.print(remark)
    if json_file is not None:
        write_results(json_file, "spark", options.seed, results)
        console.print(f"results: {json_file}")
    if plot_file is not None:
        from tidemill.lab.spark_plot import plot_spark

        plot_spark(results, plot_file)
        console.print(f"plot: {plot_file}")
    refuse_bad(results, "Spark's join", "--contenders")


def _sizes(text: str) -> tuple[int, ...]:
    sizes = [size.strip().replace("_", "") for size in text.split(",")]
    for size in sizes:
        require("--batches", size.isdecimal() and int(size) >= 4, size, "sizes of four rows and more")
    return tuple(dict.fromkeys(map(int, sizes)))


__all__ = ["bench_spark", "spark"]
