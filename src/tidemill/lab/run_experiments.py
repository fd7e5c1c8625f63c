"""`tidemill lab run`: experiments one after the other, each in a child with a time-out; what fails is a result too."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Literal

from tidemill.lab.experiment import Experiment, Progress, all_experiments, experiment
from tidemill.lab.experiment_cell import ExperimentCell
from tidemill.lab.kept_cells import KeptCells

Verdict = Literal["holds", "does not hold here", "not measured", "failed"]
_VERDICTS: dict[bool | None, Verdict] = {True: "holds", False: "does not hold here", None: "not measured"}

QUICK_LIMIT_S = 600.0
"""A quick experiment promises a minute on two idle cores; on a busy machine it may get a tenth of them."""
FULL_LIMIT_S = 7200.0
CHILD = "tidemill.lab.experiment_cell"


@dataclass(frozen=True, kw_only=True)
class LabOptions:
    """What `tidemill lab run` was asked for."""

    ids: tuple[str, ...]
    quick: bool
    folder: Path
    """Data that experiments build and use again."""
    seed: int = 7
    limit_s: float | None = None
    """Of one experiment, instead of the usual."""

    @property
    def experiment_limit_s(self) -> float:
        return self.limit_s or (QUICK_LIMIT_S if self.quick else FULL_LIMIT_S)


def chosen(ids: Sequence[str]) -> tuple[str, ...]:
    """The ids, each once; `all` stands for every one there is."""
    if "all" in ids:
        return tuple(one.id for one in all_experiments())
    return tuple(dict.fromkeys(experiment(wanted).id for wanted in ids))


def run_experiments(
    options: LabOptions, progress: Progress, resume_file: Path | None = None
) -> Iterator[dict[str, Any]]:
    """One result an id, each as soon as it is there.

    Args:
        options: What to run.
        progress: Told what is being done, and how much of all of it is done.
        resume_file: Experiments found there are not run again, unless they failed or could not be measured; each one
            that ends is appended.
    """
    kept = KeptCells(resume_file)
    for number, name in enumerate(options.ids):
        cell = ExperimentCell(name, options.quick, options.seed)

        def step(doing: str, done: float, name: str = name, number: int = number) -> None:
            progress(f"{name}: {doing}", (number + done) / len(options.ids))

        if (cell, 0) not in kept or kept[cell, 0]["holds"] is None:
            step("starting", 0.0)
            kept.keep(cell, 0, run_one(cell, options, step))
        yield kept[cell, 0]


def run_one(cell: ExperimentCell, options: LabOptions, progress: Progress) -> dict[str, Any]:
    """The result of one experiment; `holds` is null where it failed or could not be measured."""
    options.folder.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with tempfile.TemporaryFile("w+") as complaints:
        finding, exit_code, late = _run(cell, options, progress, complaints)
        complaints.seek(0)
        last_words = (complaints.read().strip().splitlines() or ["no word on stderr"])[-1]
    limit = f"not done after {options.experiment_limit_s:.0f} s"
    failure = limit if late else f"exit code {exit_code}: {last_words}"
    return _result(
        experiment(cell.id), cell, finding if exit_code == 0 else None, failure, time.monotonic() - started
    )


def _result(
    of: Experiment, cell: ExperimentCell, finding: dict[str, Any] | None, failure: str, seconds: float
) -> dict[str, Any]:
    failed = finding is None
    answer = finding or {"holds": None, "measured": "", "reason": failure, "values": {}, "figures": []}
    verdict: Verdict = "failed" if failed else _VERDICTS[answer["holds"]]
    stated = {"claim": of.claim, "source": of.source, "sizes": of.sizes}
    return {
        **asdict(cell),
        **stated,
        **answer,
        "verdict": verdict,
        "failed": failed,
        "seconds": round(seconds, 1),
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _run(
    cell: ExperimentCell, options: LabOptions, progress: Progress, complaints: IO[str]
) -> tuple[dict[str, Any] | None, int, bool]:
    """Its finding, its exit code, and whether time was up."""
    child = subprocess.Popen(
        [
            sys.executable, "-m", CHILD,
            json.dumps(asdict(cell)), str(options.folder.resolve()),
        ],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints, text=True,
        start_new_session=True,  # so that processes that it started end with it
    )  # fmt: skip
    assert child.stdin is not None
    assert child.stdout is not None
    late = threading.Event()

    def end_late() -> None:
        late.set()
        _end(child)

    alarm = threading.Timer(options.experiment_limit_s, end_late)
    alarm.start()
    finding: dict[str, Any] | None = None
    try:
        for record in _records(child.stdout):
            if "doing" in record:
                progress(record["doing"], record["done"])
            finding = record.get("finding", finding)
        return finding, child.wait(), late.is_set()
    finally:
        alarm.cancel()
        _end(child)
        child.wait()
        child.stdin.close()
        child.stdout.close()


def _end(child: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _records(lines: IO[str]) -> Iterator[dict[str, Any]]:
    """Lines that are JSON objects; a library may print others."""
    for line in lines:
        with suppress(ValueError):
            record = json.loads(line)
            if isinstance(record, dict):
                yield record


__all__ = ["LabOptions", "Verdict", "chosen", "run_experiments", "run_one"]
