"""Results of cells, kept in a file of JSON lines as they end: a long grid survives an interruption."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tidemill.lab.join_cell import CellSpec


class KeptCells:
    """Results by cell and number of the run; with a file, those of earlier runs of the command too.

    Cells that failed are run again. A last line that was cut is ignored.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._results: dict[tuple[CellSpec, int], dict[str, Any]] = {}
        if file is not None and file.exists():
            text = file.read_text()
            for line in text.splitlines():
                self._take(line)
            if text and not text.endswith("\n"):  # else the next line would be lost with the one that was cut
                file.write_text(text + "\n")

    def __contains__(self, place: tuple[CellSpec, int]) -> bool:
        return place in self._results

    def __getitem__(self, place: tuple[CellSpec, int]) -> dict[str, Any]:
        return self._results[place]

    def keep(self, cell: CellSpec, run: int, result: dict[str, Any]) -> None:
        self._results[cell, run] = result
        if self._file is not None:
            with self._file.open("a") as file:
                file.write(json.dumps({"cell": asdict(cell), "run": run, "result": result}) + "\n")

    def _take(self, line: str) -> None:
        try:
            told = json.loads(line)
            cell = CellSpec(**told["cell"])
        except (ValueError, TypeError, KeyError):
            return
        if not told["result"]["failed"]:
            self._results[cell, told["run"]] = told["result"]


__all__ = ["KeptCells"]
