"""Cells of the Spark benchmark run in a child: its answers read, its end made certain, its failure kept for the table."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from tidemill.lab.spark_cell import RUN_PREFIX, SparkCell
from tidemill.lab.spark_contenders import MEMORY_OF
from tidemill.spark.hot_folder import own_temporary_folder

GRACE_S = 300.0
"""Beyond ten times the seconds of each cell: caches and tables of a contender's own are filled first."""
_MEASURED = (
    "rows_per_s", "batch_ms_p50", "add_batch_ms_p50", "batches", "warm_up_batches", "memory_peak_bytes",
    "same_rows", "verified_rows",
)  # fmt: skip


def measure(cells: list[SparkCell], ended: Callable[[SparkCell, dict[str, Any]], None]) -> None:
    """Run the cells of one contender and memory share; `ended` gets each with its result, rates or none."""
    waiting = {cell.batch_rows: cell for cell in cells}

    def hear(told: dict[str, Any]) -> None:
        found = told.get("cell")
        if found:
            cell = waiting.pop(found["batch_rows"])
            ended(cell, result(cell, found))

    with tempfile.TemporaryFile("w+") as complaints:
        last, exit_code = _run(cells, hear, complaints)
        complaints.seek(0)
        words = (complaints.read().strip().splitlines() or ["no word on stderr"])[-1]
    kind = next((kind for kind in ("refused", "missing") if kind in last), "failed")
    for cell in waiting.values():
        ended(cell, result(cell, {"reason": last.get(kind, f"exit code {exit_code}: {words}"), "kind": kind}))


def result(cell: SparkCell, found: dict[str, Any]) -> dict[str, Any]:
    """In the agreed form; where there is no rate, `reason` says why and `failed` whether that is a fault."""
    return {
        "contender": cell.contender,
        "batch_rows": cell.batch_rows,
        "memory_share": cell.memory_share,
        "memory_budget_bytes": cell.memory_bytes if cell.memory_share else None,
        **{name: found.get(name) for name in _MEASURED},
        "memory_of": MEMORY_OF[cell.contender],
        "master_rows": cell.master_rows,
        "cores": cell.cores,
        "reason": found.get("reason"),
        "failed": found.get("kind") == "failed",
        "missing": found.get("kind") == "missing",
    }


def _run(
    cells: list[SparkCell], hear: Callable[[dict[str, Any]], None], complaints: IO[str]
) -> tuple[dict[str, Any], int]:
    """The last record of the child and its exit code."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tidemill.lab.spark_cell", json.dumps([cell.to_dict() for cell in cells])],
        stdin=subprocess.PIPE,  # nothing is written: its end tells the child that we are gone
        stdout=subprocess.PIPE,
        stderr=complaints,
        text=True,
        start_new_session=True,  # so that the JVM and the servers below it can be ended together
    )
    assert child.stdout is not None
    limit_s = GRACE_S + 10 * sum(cell.seconds for cell in cells)
    alarm = threading.Timer(limit_s, _end, [child.pid])
    alarm.start()
    last: dict[str, Any] = {}
    try:
        for line in child.stdout:
            if line.startswith("{"):
                last = json.loads(line)
                hear(last)
        return last, child.wait()
    finally:
        alarm.cancel()
        _end(child.pid)
        child.wait()
        for folder in (Path(cells[0].folder), own_temporary_folder()):
            for left in folder.glob(f"{RUN_PREFIX}{child.pid}-*"):
                shutil.rmtree(left, ignore_errors=True)


def _end(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


__all__ = ["measure", "result"]
