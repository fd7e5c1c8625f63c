"""`tidemill doctor`: a line a check, with the fix where one is needed."""

import json
import os
from dataclasses import asdict
from pathlib import Path

import typer

from tidemill.cli.checks import Check, Status, all_checks

_COLOURS: dict[Status, str] = {"OK": "green", "WARN": "yellow", "FAIL": "red"}


def doctor(*, data: Path, deep: bool, json_output: bool) -> None:
    """Print the checks; leave with code 2 when one failed, since nothing would start."""
    done: list[Check] = []
    for check in all_checks(data, deep=deep):
        done.append(check)
        if not json_output:
            _print(check)
    failed = [check.name for check in done if check.status == "FAIL"]
    if json_output:
        typer.echo(json.dumps({"ok": not failed, "checks": [asdict(check) for check in done]}, indent=1))
    elif failed:
        typer.echo(f"\n{len(failed)} of {len(done)} checks failed: {', '.join(failed)}")
    else:
        typer.echo(
            "\nNothing stands in the way." + ("" if deep else " `tidemill doctor --deep` starts Spark too.")
        )
    if failed:
        raise typer.Exit(2)


def _print(check: Check) -> None:
    mark = _paint(f"{check.status:<4}", _COLOURS[check.status])
    typer.echo(f"{mark}  {check.name:<13}  {check.finding}")
    if check.fix:
        typer.echo(f"      {'':<13}  fix: {check.fix}")


def _paint(text: str, colour: str) -> str:
    """Coloured for a terminal; plain in a pipe (by `echo`) and under NO_COLOR."""
    return text if os.environ.get("NO_COLOR") else typer.style(text, fg=colour)


__all__ = ["doctor"]
