"""`tidemill calibrate`: what operations cost on this machine and store."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from tidemill.model.calibration import Calibration


def calibrate(
    store: Annotated[
        Path | None, typer.Argument(help="Folder of a master store; without, one is made for the purpose.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File to write; calibration.json in the store, else here.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Answer in JSON.")] = False,
) -> None:
    """Measure what reads, lookups and rows cost here, for `tidemill explain join --costs` and tuning."""
    from tidemill.lab.calibrate import calibrate as measure
    from tidemill.lab.calibrate import calibrate_anywhere
    from tidemill.model.calibration import FILE_NAME

    def progress(doing: str, done: float) -> None:
        if not json_output:
            typer.echo(f"{done:4.0%} {doing}", err=True)

    found = measure(store, progress=progress) if store else calibrate_anywhere(Path(), progress=progress)
    file = out or (store or Path()) / FILE_NAME
    file.write_text(found.to_json() + "\n")
    if json_output:
        typer.echo(found.to_json())
        return
    show(found)
    typer.echo(f"written to {file}")


def show(found: "Calibration") -> None:
    """Tables of what a row and a read cost, and of the disk."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120  # a file or a pipe has no width; the table must not be cut there
    console.print(
        f"measured {found.measured_at} on store {found.store}, rows of {found.master_row_bytes} bytes"
    )
    for title, head, lines in (_rows_table(found), _reads_table(found), _disk_table(found)):
        console.print(_table(title, head, lines))


def _table(title: str, head: list[str], lines: list[list[str]]) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for number, name in enumerate(head):
        table.add_column(name, justify="right" if number else "left")
    for line in lines:
        table.add_row(*line)
    return table


def _rows_table(found: "Calibration") -> tuple[str, list[str], list[list[str]]]:
    parts = ["stream_row", "add", "remove", "output_row", "hot_change", "step"]
    lines = [
        [family, *(f"{getattr(costs, f'{part}_seconds') * 1e9:,.0f}" for part in parts)]
        for family, costs in found.by_family.items()
    ]
    return "nanoseconds of one", ["joins that", *(part.replace("_", " ") for part in parts)], lines


def _reads_table(found: "Calibration") -> tuple[str, list[str], list[list[str]]]:
    sizes = next(iter(found.by_family.values())).read.sizes
    lines = [
        [f"read by {family}", *(f"{costs.read.seconds(size) * 1e6:,.0f} µs" for size in sizes)]
        for family, costs in found.by_family.items()
    ]
    probe = found.costs.probe
    lines.append(["lookup", *(f"{probe.seconds(size) * 1e9:,.0f} ns" for size in sizes)])
    return (
        "by size of a read, or of the table looked up",
        ["", *(f"{int(size / 1024):,} KiB" for size in sizes)],
        lines,
    )


def _disk_table(found: "Calibration") -> tuple[str, list[str], list[list[str]]]:
    speeds = found.device_bytes_per_s
    sizes = list(next(iter(speeds.values())))
    lines = [
        [f"{in_flight} in flight", *(f"{by_size[size] / 1e6:,.0f}" for size in sizes)]
        for in_flight, by_size in speeds.items()
    ]
    return "MB/s of the disk, past the page cache", ["", *(f"{size // 1024:,} KiB" for size in sizes)], lines


__all__ = ["calibrate"]
