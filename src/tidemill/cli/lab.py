"""`tidemill lab`: the papers' claims, put to the test."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemill.cli.bench_run import follow
from tidemill.core.errors import InternalError

if TYPE_CHECKING:
    from rich.console import Console

    from tidemill.lab.run_experiments import LabOptions

lab = typer.Typer(help="Put the papers' claims to the test.", no_args_is_help=True)

COLOURS = {"holds": "green", "does not hold here": "yellow", "not measured": "dim", "failed": "red"}


@lab.callback()
def group() -> None:
    """Put the papers' claims to the test."""


@lab.command("list")
def list_experiments(
    json_output: Annotated[bool, typer.Option("--json", help="Answer in JSON.")] = False,
) -> None:
    """Every experiment with its claim."""
    from tidemill.lab.experiment import all_experiments

    found = list(all_experiments())
    if json_output:
        import json

        told = [{"id": e.id, "claim": e.claim, "source": e.source, "sizes": e.sizes} for e in found]
        typer.echo(json.dumps(told, indent=1))
        return
    from rich.table import Table

    table = Table("id", "claim", "source")
    for one in found:
        table.add_row(one.id, one.claim, one.source)
    _console().print(table)


@lab.command()
def run(
    ids: Annotated[list[str], typer.Argument(help="Experiments by id, or all.")],
    quick: Annotated[
        bool, typer.Option("--quick", help="Scaled down to a minute each at most on two cores.")
    ] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="File for the results.")] = None,
    plots: Annotated[
        Path | None,
        typer.Option(help="Folder for figures and results, from which `lab report` makes a page."),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="File of finished experiments (JSON lines): go on where it ends.")
    ] = None,
    data: Annotated[
        Path, typer.Option("--data", help="Folder of generated data, used again by later runs.")
    ] = Path("tidemill-lab"),
    seed: Annotated[int, typer.Option(help="The same seed gives the same rows.")] = 7,
) -> None:
    """Run experiments and say which claims hold here; each runs in a process of its own."""
    from tidemill.lab.run_experiments import LabOptions, chosen

    options = LabOptions(ids=chosen(ids), quick=quick, folder=data, seed=seed)
    run_lab(options, json_file, plots, resume)


def run_lab(
    options: "LabOptions", json_file: Path | None, plots: Path | None, resume_file: Path | None
) -> None:
    """Run, print each verdict as it comes, leave JSON and figures where asked; an error if an experiment failed."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from tidemill.lab.envelope import write_results
    from tidemill.lab.run_experiments import run_experiments

    console, results = _console(), []
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        for result in run_experiments(options, follow(bar), resume_file):
            results.append(result)
            _print_verdict(console, result)
            if plots is not None:
                _keep_with_figures(result, plots)
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        write_results(json_file, "lab", options.seed, results)
        console.print(f"results: {json_file}")
    if plots is not None:
        console.print(f"figures: {plots}; one page of them: tidemill lab report {plots}")
    _refuse_failed(results)


@lab.command()
def report(
    folder: Annotated[Path, typer.Argument(help="What `lab run --plots` left.")],
) -> None:
    """One HTML page with every claim, verdict and figure, predicted beside measured."""
    from tidemill.lab.report import write_report

    typer.echo(f"report: {write_report(folder)}")


def _print_verdict(console: "Console", result: dict[str, Any]) -> None:
    """Claim, verdict, numbers and reason; `escape` because a claim may hold brackets."""
    from rich.markup import escape

    verdict = result["verdict"]
    console.print(
        f"[bold]{result['id']}[/bold]  [{COLOURS[verdict]}]{verdict}[/]  ({result['seconds']:.0f} s)"
    )
    for name in ("claim", "measured", "reason"):
        if result[name]:
            console.print(f"  {name + ':':<10}{escape(result[name])}")


def _keep_with_figures(result: dict[str, Any], folder: Path) -> None:
    """The result under its id: a later run of one experiment replaces that one alone."""
    from tidemill.lab.envelope import write_results
    from tidemill.lab.plot_experiment import plot_experiment

    plot_experiment(result, folder)
    write_results(folder / f"{result['id']}.json", "lab", result["seed"], [result])


def _refuse_failed(results: list[dict[str, Any]]) -> None:
    failed = [result["id"] for result in results if result["failed"]]
    if failed:
        raise InternalError(
            f"experiments {', '.join(failed)} failed, their reasons are printed above",
            code="experiment_failed",
            next_move="run them again by id, with --resume to keep the others",
            ids=failed,
        )


def _console() -> "Console":
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120  # a file or a pipe has no width; a table must not be cut there
    return console


__all__ = ["lab", "run_lab"]
