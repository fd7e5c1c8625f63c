"""One experiment in a process of its own: how far it is, then what it found, as JSON lines."""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tidemill.lab.experiment import Finding, Setting, experiment


def _plain(value: Any) -> Any:
    """A number of NumPy, or a range, as JSON has it."""
    return list(value) if isinstance(value, range) else value.item()


@dataclass(frozen=True)
class ExperimentCell:
    """Equal cells are the same run."""

    id: str
    quick: bool
    seed: int


def found(finding: Finding) -> dict[str, Any]:
    """The finding in plain values; NumPy's become Python's, and what is no number is refused."""
    text = json.dumps(asdict(finding), default=_plain, allow_nan=False)
    told: dict[str, Any] = json.loads(text)
    return told


def run_cell(cell: ExperimentCell, folder: Path, say: Callable[[dict[str, Any]], None]) -> None:
    """Run it, telling its progress and at last its finding."""

    def progress(doing: str, done: float) -> None:
        say({"doing": doing, "done": done})

    setting = Setting(quick=cell.quick, folder=folder, seed=cell.seed, progress=progress)
    say({"finding": found(experiment(cell.id).run(setting))})


def _say(record: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


def end_with_parent() -> None:
    """Wait for the end of stdin, which comes when the parent is gone, however it went; then end all that was started."""
    sys.stdin.read()
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, daemon=True).start()
    run_cell(ExperimentCell(**json.loads(sys.argv[1])), Path(sys.argv[2]), _say)

__all__ = ["ExperimentCell", "found", "run_cell"]
