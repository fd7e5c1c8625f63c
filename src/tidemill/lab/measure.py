"""A cell run in a child: its memory sampled, its answers read, its failure kept for the table."""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import IO, Any

from tidemill.lab import bound_cell, join_cell
from tidemill.lab.join_cell import CellSpec
from tidemill.lab.kernel_counts import private_bytes

SAMPLE_EVERY_S = 0.02
GRACE_S = 180.0
"""Beyond ten times the seconds of a cell: a sweep over 50 M rows and DuckDB's join of them take their time."""


def measure(spec: CellSpec) -> dict[str, Any]:
    """The cell's result; where it has no rate, `reason` says why and `failed` whether that is a fault."""
    with tempfile.TemporaryFile("w+") as complaints:
        told, peak_bytes, exit_code = _run(spec, complaints)
        complaints.seek(0)
        last_words = (complaints.read().strip().splitlines() or ["no word on stderr"])[-1]
    reason = told.get("refused")
    if reason is None and "verified" not in told:
        reason = f"exit code {exit_code}: {last_words}"
    measured = told.get("measured", {}) if reason is None else {}
    return {
        "contender": spec.contender,
        "zipf": spec.zipf,
        "memory_share": spec.memory_share,
        "master_rows": spec.master_rows,
        **dict.fromkeys(("rows_per_s", "bytes_read", "reads", "stream_rows", "seconds", "warm_up_rows")),
        **measured,
        "memory_peak_bytes": peak_bytes if reason is None else None,
        "memory_budget_bytes": spec.memory_bytes,
        "same_rows": None,
        "verified_rows": 0,
        **(told.get("verified", {}) if reason is None else {}),
        "reason": reason,
        "failed": reason is not None and "refused" not in told,
    }


def _run(spec: CellSpec, complaints: IO[str]) -> tuple[dict[str, Any], int, int]:
    """What the child told, its memory above idle at most, its exit code."""
    child = subprocess.Popen(
        [sys.executable, "-m", _module(spec), spec.to_json()],
        stdout=subprocess.PIPE,
        stderr=complaints,
        text=True,
        env={**os.environ, "POLARS_MAX_THREADS": "2"},
    )
    assert child.stdout is not None
    alarm = threading.Timer(10 * spec.seconds + GRACE_S, child.kill)
    alarm.start()
    told: dict[str, Any] = {}
    try:
        with MemorySampler(child.pid) as sampler:
            for record in _records(child.stdout):
                told |= record
                sampler.baseline_bytes = None if "measured" in told else told.get("idle_bytes")
        return told, sampler.peak_bytes, child.wait()
    finally:
        alarm.cancel()
        child.kill()
        child.wait()


def _module(spec: CellSpec) -> str:
    return bound_cell.__name__ if spec.contender == bound_cell.ASSEMBLY else join_cell.__name__


def _records(lines: IO[str]) -> Iterator[dict[str, Any]]:
    """Lines that are JSON objects; a library may print others."""
    for line in lines:
        if line.startswith("{"):
            yield json.loads(line)


class MemorySampler:
    """Private memory of a process, highest above its baseline; looks away while it has none."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.baseline_bytes: int | None = None
        self.peak_bytes = 0

    def __enter__(self) -> "MemorySampler":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(SAMPLE_EVERY_S):
            if self.baseline_bytes is not None:
                self.peak_bytes = max(self.peak_bytes, private_bytes(self._pid) - self.baseline_bytes)


__all__ = ["MemorySampler", "measure"]
