"""`tidemill bench joins`: every join and every peer over skews and memory shares, beside a bound."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from tidemill.core.errors import InternalError, unknown_choice
from tidemill.join.catalog import JOINS
from tidemill.lab.join_cell import CellSpec
from tidemill.lab.join_data import JoinData, stream_batches
from tidemill.lab.peers import PEERS
from tidemill.lab.rows import MASTER_NAMES, gather
from tidemill.lab.store import open_store

ZIPFS = (0.0, 0.5, 1.0, 1.25)
MEMORY_SHARES = (0.005, 0.01, 0.05, 0.1, 0.2)
MOST_SECONDS = 12.0
"""Of warm-up and of measuring, each: slow contenders get fewer rows."""
READ_BYTES = 4 * 2**20
SAMPLE_EVERY_S = 0.02


@dataclass(frozen=True)
class BenchOptions:
    contenders: tuple[str, ...]
    zipfs: tuple[float, ...]
    memory_shares: tuple[float, ...]
    master_rows: int
    stream_rows: int
    folder: Path
    seed: int


def all_contenders() -> list[str]:
    return [*(name for name in JOINS if name != "reference"), *PEERS]


def check_contenders(names: Sequence[str]) -> tuple[str, ...]:
    for name in names:
        if name not in all_contenders():
            raise unknown_choice("contender", name, all_contenders())
    return tuple(names)


def run_bench(options: BenchOptions, progress: Callable[[str, float], None]) -> list[dict[str, Any]]:
    """One result a cell, with the bound of its skew and memory share."""
    data = JoinData(options.folder.resolve(), options.master_rows)
    data.build(progress)
    assemble_seconds_per_row = {z: seconds_to_assemble(data, z, options.seed) for z in options.zipfs}
    disk_bytes_per_s = device_speed(data)
    cells = list(product(options.zipfs, options.memory_shares, options.contenders))
    results: list[dict[str, Any]] = []
    for number, (zipf, share, contender) in enumerate(cells):
        progress(f"{contender}, Zipf {zipf:g}, memory {share:.1%}", number / len(cells))
        spec = CellSpec(
            contender, zipf, share, options.master_rows, options.stream_rows, MOST_SECONDS, str(data.folder), options.seed
        )  # fmt: skip
        results.append(measure(spec))
    for zipf, share in product(options.zipfs, options.memory_shares):
        cell = [r for r in results if (r["zipf"], r["memory_share"]) == (zipf, share)]
        _add_bound(cell, assemble_seconds_per_row[zipf], disk_bytes_per_s)
    return results


def measure(spec: CellSpec) -> dict[str, Any]:
    """Run a cell in a child and sample its memory above what it held before it opened anything."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tidemill.lab.join_cell", spec.to_json()], stdout=subprocess.PIPE, text=True
    )
    sampler = _Sampler(child.pid)
    told: dict[str, Any] = {}
    assert child.stdout is not None
    for line in child.stdout:
        told |= json.loads(line)
        sampler.on = "idle" in told and "measured" not in told
    sampler.stop()
    if child.wait() != 0 or "verified" not in told:
        raise InternalError(
            f"the cell of {spec.contender} ended with exit code {child.returncode}",
            code="cell_failed",
            next_move=f"run python -m tidemill.lab.join_cell '{spec.to_json()}'",
        )
    return {
        "contender": spec.contender,
        "zipf": spec.zipf,
        "memory_share": spec.memory_share,
        **told["measured"],
        "memory_peak_bytes": sampler.peak_bytes,
        "same_rows": told["verified"],
    }


class _Sampler:
    """Private memory of a process, highest above its first sample."""

    def __init__(self, pid: int) -> None:
        self._status = Path(f"/proc/{pid}/status")
        self._baseline: int | None = None
        self._stopped = threading.Event()
        self.peak_bytes = 0
        self.on = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(SAMPLE_EVERY_S):
            if self.on:
                try:
                    lines = dict(line.split(":", 1) for line in self._status.read_text().splitlines())
                except OSError:
                    return
                held = int(lines["RssAnon"].split()[0]) * 1024
                self._baseline = held if self._baseline is None else self._baseline
                self.peak_bytes = max(self.peak_bytes, held - self._baseline)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


def seconds_to_assemble(data: JoinData, zipf: float, seed: int, rows: int = 300_000) -> float:
    """Seconds a row to put the output together when every master row is in memory already."""
    store = open_store(data)
    master = store.read_batch(np.arange(min(store.pages, 10_000))).select(MASTER_NAMES)
    seconds = 0.0
    for batch in stream_batches(master.num_rows, zipf, rows, seed):
        keys = batch.column("key").to_numpy()
        positions = np.where(keys < master.num_rows, keys, -1)
        started = time.perf_counter()
        gather(batch, master, positions)
        seconds += time.perf_counter() - started
    return seconds / rows


def device_speed(data: JoinData) -> float:
    """Bytes a second of large sequential reads past the page cache."""
    import mmap

    file = max(data.store.rglob("pages.bin"))
    handle = os.open(file, os.O_RDONLY | os.O_DIRECT)
    buffer = mmap.mmap(-1, READ_BYTES)
    try:
        started, done = time.perf_counter(), 0
        while time.perf_counter() - started < 0.5:
            count = os.preadv(
                handle, [buffer], done % (os.fstat(handle).st_size // READ_BYTES * READ_BYTES or 1)
            )
            done += count
            if count < READ_BYTES:
                break
        return done / (time.perf_counter() - started)
    finally:
        os.close(handle)
        buffer.close()


def _add_bound(cell: list[dict[str, Any]], assemble_seconds: float, disk_bytes_per_s: float) -> None:
    """The larger of assembling and of reading the fewest bytes that any contender read."""
    read = [r["bytes_read"] / r["stream_rows"] for r in cell if r["bytes_read"] > 0]
    disk_seconds = min(read, default=0.0) / disk_bytes_per_s
    for result in cell:
        result["bound_rows_per_s"] = 1 / max(assemble_seconds, disk_seconds)


__all__ = ["MEMORY_SHARES", "ZIPFS", "BenchOptions", "all_contenders", "check_contenders", "run_bench"]
