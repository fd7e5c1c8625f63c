"""Runs one join and prints by how many bytes this process grew; started by the test beside it."""

import ctypes
import gc
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from tidemill.core.memory import MemoryBudget
from tidemill.join.catalog import make_join
from tidemill.join.drive import drive
from tidemill.master import MasterData
from tidemill.testing.zipf import Zipf

MASTER_ROWS, BATCH_ROWS = 600_000, 20_000
STREAM = pa.schema([("row", pa.int64()), ("key", pa.int64())])


def build(folder: str) -> None:
    """In a process of its own, so that the table leaves no trace in the one that is measured."""
    keys = np.arange(MASTER_ROWS)
    names = pa.array(np.char.add("a product with the name ", keys.astype("U10")))
    columns = {f"measure_{n}": keys * n for n in range(8)}
    # Packed: as columns rows are then longer than as they lie in pages and in memory.
    MasterData.build(pa.table({"id": keys, "name": names, **columns}), key="id", path=folder, pack=True)


def batches(keys: np.ndarray) -> Iterator[pa.RecordBatch]:
    for at in range(0, len(keys), BATCH_ROWS):
        part = keys[at : at + BATCH_ROWS]
        yield pa.RecordBatch.from_arrays([pa.array(np.arange(len(part))), pa.array(part)], schema=STREAM)


def own_bytes() -> int:
    """Memory that this process alone has written. PSS would also move with other processes that
    start or end while sharing the same libraries, by more than what is measured here."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this kernel does not report RssAnon")


def stream_keys(kind: str, rows: int) -> np.ndarray:
    """Zipf 1 over all keys, or keys beyond the last one, none of them twice."""
    if kind == "absent":
        return MASTER_ROWS + np.random.default_rng(3).permutation(rows)
    return Zipf(MASTER_ROWS, exponent=1.0, seed=3, spread=True).draw(rows)


def measure(folder: str, name: str, budget_bytes: int, stream_rows: int, reads: int, kind: str) -> None:
    keys = stream_keys(kind, stream_rows)
    gc.collect()
    pa.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)  # else what the set-up freed would hide what the join takes
    baseline = most = own_bytes()
    # Several at a time: what threads that read leave behind would show here.
    master = MasterData.open(folder, reads_in_flight=reads)
    join = make_join(name, master, STREAM, stream_key="key", budget=MemoryBudget(budget_bytes), how="left")
    finished = hot_hits = held = 0
    for step, report in enumerate(drive(join, batches(keys))):
        finished += report.emitted_rows
        hot_hits += report.hot_hits
        held = max(held, sum(report.held_bytes.values()))
        # A switch is the peak; other steps are sampled.
        if step % 10 == 0 or report.seconds.get("switch", 0.0) > 0.001:
            most = max(most, own_bytes())
    print(
        json.dumps(
            {
                "growth_bytes": most - baseline,
                "held_bytes": held,
                "finished_rows": finished,
                "hot_hits": hot_hits,
                "master_bytes": master.rows * master.row_bytes,
            }
        )
    )


if __name__ == "__main__":
    if len(sys.argv) == 2:
        build(sys.argv[1])
    else:
        measure(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]), sys.argv[6])
