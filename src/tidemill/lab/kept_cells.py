"""Results of cells, kept in a file of JSON lines as they end: a long grid survives an interruption."""

import json
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class KeptCells:
    """Results by cell and number of the run; with a file, those of earlier runs of the command too.

    A cell is a frozen dataclass of plain values. Cells that failed are run again. A last line that was cut is ignored.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._results: dict[str, dict[str, Any]] = {}
        if file is not None and file.exists():
            text = file.read_text()
            for line in text.splitlines():
                self._take(line)
            if text and not text.endswith("\n"):  # else the next line would be lost with the one that was cut
                file.write_text(text + "\n")

    def __contains__(self, place: "tuple[DataclassInstance, int]") -> bool:
        return _key(asdict(place[0]), place[1]) in self._results

    def __getitem__(self, place: "tuple[DataclassInstance, int]") -> dict[str, Any]:
        return self._results[_key(asdict(place[0]), place[1])]

    def keep(self, cell: "DataclassInstance", run: int, result: dict[str, Any]) -> None:
        self._results[_key(asdict(cell), run)] = result
        if self._file is not None:
            with self._file.open("a") as file:
                file.write(json.dumps({"cell": asdict(cell), "run": run, "result": result}) + "\n")

    def _take(self, line: str) -> None:
        try:
            told = json.loads(line)
            key = _key(told["cell"], told["run"])
        except (ValueError, TypeError, KeyError):
            return
        if not told["result"]["failed"]:
            self._results[key] = told["result"]


def median_run(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The run whose rate is the median (the lower of two), with all rates; or the first that has none or wrong rows."""
    rates = [run["rows_per_s"] for run in runs]
    if None in rates:
        return runs[rates.index(None)]
    wrong = [run for run in runs if not run["same_rows"]]
    middle = runs[rates.index(statistics.median_low(rates))]
    return {**(wrong or [middle])[0], "rows_per_s_of_runs": rates}


def _key(cell: dict[str, Any], run: int) -> str:
    return json.dumps([cell, run], sort_keys=True)


__all__ = ["KeptCells", "median_run"]
