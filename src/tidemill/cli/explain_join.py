"""`tidemill explain join`: what each join would do with this master data, stream and memory."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli.bench_run import require

if TYPE_CHECKING:
    from rich.table import Table

    from tidemill.model.explain import CostsOf, Explanation
    from tidemill.model.tune import Plan

explain = typer.Typer(help="Say what would be done, and why.", no_args_is_help=True)

_LEAST_PART_SHARE = 0.04  # smaller parts of the memory are left out of the table; --json has all


@explain.callback()
def group() -> None:
    """Say what would be done, and why."""


@explain.command()
def join(
    rows: Annotated[int, typer.Option(help="Rows of master data.", min=1)],
    memory: Annotated[str, typer.Option(help='Memory of the join, such as "64 MB".')],
    row_bytes: Annotated[int, typer.Option(help="Of a master row.", min=1)] = 120,
    stream_row_bytes: Annotated[int, typer.Option(help="Of a stream row.", min=1)] = 20,
    zipf: Annotated[float, typer.Option(help="Skew of the stream's keys; 0 is uniform.")] = 1.0,
    matched_share: Annotated[float, typer.Option(help="Stream rows that have a master row.")] = 1.0,
    rows_per_key: Annotated[float, typer.Option(help="Master rows of a key.")] = 1.0,
    costs: Annotated[
        str, typer.Option(help="File of `tidemill calibrate`, or: today, 2008 (a disk of that year).")
    ] = "today",
    algorithms: Annotated[str | None, typer.Option(help="Joins, with commas between; all if none.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Answer in JSON.")] = False,
) -> None:
    """Predicted rate, memory split, reads and waiting time of each join, and which one `auto` takes and why."""
    require("--zipf", 0 <= zipf < float("inf"), zipf, "zero or more")
    require("--matched-share", 0 <= matched_share <= 1, matched_share, "between 0 and 1")
    require("--rows-per-key", 1 <= rows_per_key <= rows, rows_per_key, "1 or more, and no more than --rows")
    from tidemill.core.units import parse_bytes
    from tidemill.model.catalog import MODELLED
    from tidemill.model.explain import explain_join
    from tidemill.model.workload import Workload

    workload = Workload(
        master_rows=rows,
        master_row_bytes=row_bytes,
        stream_row_bytes=stream_row_bytes,
        zipf_exponent=zipf,
        matched_share=matched_share,
        rows_per_key=rows_per_key,
    )
    names = [name.strip() for name in algorithms.split(",")] if algorithms else MODELLED
    told = explain_join(workload, costs_of(costs), parse_bytes(memory), algorithms=names)
    if json_output:
        typer.echo(json.dumps({**told.to_json(), "costs": costs}))
        return
    show(told)


def costs_of(named: str) -> "CostsOf":
    """Built-in costs by their name, else those of a file, which tells joins apart."""
    from tidemill.model.work import COSTS_OF_2008, COSTS_TODAY

    if named in (built_in := {"today": COSTS_TODAY, "2008": COSTS_OF_2008}):
        return lambda _join: built_in[named]
    from tidemill.model.calibration import Calibration

    return Calibration.read(Path(named)).costs_of


def show(told: "Explanation") -> None:
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 140  # a file or a pipe has no width; the table must not be cut there
    console.print(_table(told))
    console.print(f"auto takes {told.chosen.algorithm}: {told.chosen.why}")


def _table(told: "Explanation") -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from tidemill.core.units import format_bytes

    table = Table(box=SIMPLE_HEAD, title=_title(told), title_justify="left")
    table.add_column("join")
    for heading in ("rows/s", "default sizes", "reads a\n1,000 rows", "bytes read\na row", "hits", "waits"):
        table.add_column(heading, justify="right")
    table.add_column("memory")
    for plan in told.plans:
        mark = " *" if plan.algorithm == told.chosen.algorithm else ""
        table.add_row(f"{plan.algorithm}{mark}", *_cells(told, plan))
    for name, least in told.least_bytes.items():
        table.add_row(name, "-", "-", "-", "-", "-", "-", f"needs {format_bytes(least)} ({least:,} bytes)")
    return table


def _title(told: "Explanation") -> str:
    from tidemill.core.units import format_bytes, format_count

    of = told.workload
    return (
        f"{format_count(of.master_rows)} master rows of {of.master_row_bytes} B, stream rows of {of.stream_row_bytes} B, "
        f"Zipf {of.zipf_exponent:g}, {format_bytes(told.memory_bytes)} "
        f"({told.memory_bytes / of.master_bytes:.2%} of the master data)"
    )


def _cells(told: "Explanation", plan: "Plan") -> list[str]:
    from tidemill.core.units import format_bytes, format_count, format_ms

    state = plan.state
    total = sum(state.memory_bytes.values())
    parts = sorted(state.memory_bytes.items(), key=lambda part: -part[1])
    return [
        format_count(plan.rows_per_s),
        format_count(told.default_rows_per_s[plan.algorithm]),
        _three_figures(state.work_per_row.reads * 1000),
        format_bytes(state.work_per_row.read_bytes),
        f"{state.hit_share:.0%}",
        format_ms(state.waiting_seconds(told.costs_of(plan.algorithm)) * 1000),
        ", ".join(
            f"{name} {format_bytes(part)}" for name, part in parts if part >= _LEAST_PART_SHARE * total
        ),
    ]


def _three_figures(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


__all__ = ["costs_of", "explain", "join"]
