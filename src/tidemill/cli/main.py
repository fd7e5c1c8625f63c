"""The commands and their options; what a command does is imported when it runs, so that help is quick."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from tidemill.cli.bench import bench
from tidemill.cli.calibrate import calibrate
from tidemill.cli.explain_join import explain
from tidemill.cli.master import master
from tidemill.core.errors import SpecError, TidemillError

EXIT_CODES = {
    0: "done",
    1: "rows lost, doubled or altered",
    2: "wrong request",
    3: "source",
    4: "file of ours",
    5: "loader or warehouse",
    6: "memory too small",
    70: "fault of ours",
    130: "interrupted",
    141: "reader of the output left",
}

MOST_ROWS = 999_999
"""The loader answers with a million rows at most, and one more than shown tells whether there are more."""

app = typer.Typer(
    help="An active data warehouse on Apache Spark.",
    epilog="Exit codes: " + "; ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items()) + ".",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

DataFolder = Annotated[Path, typer.Option("--data", help="Folder of the warehouse and all its files.")]
AsJson = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]


def run() -> None:
    """Console entry: an error becomes one line and the exit code of its family."""
    # `--debug` is welcome after the command too: that is where it lands when a command is run again with it.
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    try:
        app(args=arguments, prog_name="tidemill")
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:  # noqa: BLE001 -- the last place that can turn a trace into a sentence
        sys.exit(_explain(error, debug=len(arguments) < len(sys.argv) - 1))


def _explain(error: Exception, *, debug: bool) -> int:
    """Exit code of the error, after its one line on stderr."""
    if debug:
        import traceback

        traceback.print_exception(error)
    text = str(error)
    exit_code = 70
    if isinstance(error, TidemillError):
        exit_code = error.exit_code
    else:
        hint = "" if debug else ". Next: run again with --debug, and report what it prints"
        text = f"unexpected {type(error).__name__}: {error}{hint}"
    typer.echo(f"tidemill: {' '.join(text.split())}", err=True)
    return exit_code


@app.callback()
def everywhere(
    debug: Annotated[bool, typer.Option("--debug", help="Show the trace of an error.")] = False,
) -> None:
    """An active data warehouse on Apache Spark."""


@app.command()
def demo(
    rows: Annotated[int | None, typer.Option(help="Stop after this many sales.")] = None,
    rate: Annotated[float | None, typer.Option(help="Sales a second (1,000 unless given).")] = None,
    seconds: Annotated[
        float | None, typer.Option(help="How long to sell (40 unless --rows is given).")
    ] = None,
    data: DataFolder = Path("tidemill-demo"),
    memory: Annotated[str, typer.Option(help="Memory of the join.")] = "32 MB",
    seed: Annotated[int, typer.Option(help="The same seed gives the same rows.")] = 1,
    fresh: Annotated[
        bool, typer.Option("--fresh/--keep", help="Remove data of an earlier demo first, or go on with it.")
    ] = True,
    json_output: AsJson = False,
    plain: Annotated[bool, typer.Option("--plain", help="Lines instead of a live screen.")] = False,
) -> None:
    """Run everything on this machine, from a source to warehouse tables, and check every row."""
    from tidemill.core.units import parse_bytes

    for option, value in (("--rows", rows), ("--rate", rate), ("--seconds", seconds)):
        _require_positive(option, value)
    parse_bytes(memory)
    from tidemill.cli.demo import DemoOptions
    from tidemill.cli.demo import demo as run_demo

    run_demo(
        DemoOptions(
            rows=rows,
            rate=rate,
            seconds=seconds,
            data=data,
            memory=memory,
            seed=seed,
            fresh=fresh,
            json_output=json_output,
            plain=plain,
        )
    )


app.add_typer(bench, name="bench")
app.add_typer(explain, name="explain")
app.command()(calibrate)
app.add_typer(master, name="master")


@app.command()
def sql(
    query: Annotated[str, typer.Argument(help="One SQL query; it can read, never write.")],
    data: DataFolder = Path("tidemill-demo"),
    json_output: AsJson = False,
    csv_output: Annotated[bool, typer.Option("--csv", help="Answer in CSV.")] = False,
    max_rows: Annotated[int, typer.Option(help="Rows to show at most.", min=1, max=MOST_ROWS)] = 1000,
) -> None:
    """Ask the warehouse, whether its loader runs or not."""
    if json_output and csv_output:
        raise SpecError(
            "--json and --csv exclude each other", code="two_formats", next_move="give one of them"
        )
    from tidemill.cli.sql import sql as run_sql

    run_sql(
        query, data=data, max_rows=max_rows, form="json" if json_output else "csv" if csv_output else "table"
    )


@app.command()
def doctor(
    data: DataFolder = Path("tidemill-demo"),
    deep: Annotated[bool, typer.Option("--deep", help="Start Spark too (about 15 s).")] = False,
    json_output: AsJson = False,
) -> None:
    """Look at what Tidemill needs of this machine, and say how to fix what is missing."""
    from tidemill.cli.doctor import doctor as run_doctor

    run_doctor(data=data, deep=deep, json_output=json_output)


@app.command()
def version(json_output: AsJson = False) -> None:
    """Versions of Tidemill and of what it stands on."""
    from tidemill.cli.version import version as run_version

    run_version(json_output=json_output)


def _require_positive(option: str, value: float | None) -> None:
    # `not >` instead of `<=`, so that "nan" is refused too
    if value is not None and not 0 < value < float("inf"):
        raise SpecError(
            f"{option} must be more than zero, not {value}",
            code="not_positive",
            next_move=f"give {option} a positive number",
            option=option,
            given=value,
        )


__all__ = ["EXIT_CODES", "app", "run"]
