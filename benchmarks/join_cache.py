"""Rows per second of the cache join: Zipf 1, memory 5 % of the master data, drained after each batch.

`python benchmarks/join_cache.py` (1 M master rows), `--master-rows 10000000` for ten.
"""

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa

from tidemill.core.memory import MemoryBudget
from tidemill.core.units import format_count
from tidemill.join.catalog import make_join
from tidemill.join.drive import drive
from tidemill.join.protocol import SemiStreamJoin
from tidemill.master import MasterData
from tidemill.testing.zipf import Zipf

STREAM = pa.schema([("sale_id", pa.int64()), ("product_id", pa.int64()), ("quantity", pa.int32())])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--master-rows", type=int, default=1_000_000)
    parser.add_argument("--memory-percent", type=float, default=5.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        master = MasterData.build(
            master_table(arguments.master_rows), key="product_id", path=Path(folder) / "m"
        )
        print(
            f"built {format_count(master.rows)} rows x {master.row_bytes} B in {time.perf_counter() - started:.1f} s"
        )
        budget = MemoryBudget(int(master.rows * master.row_bytes * arguments.memory_percent / 100))
        join = make_join("cache", master, STREAM, stream_key="product_id", how="left", budget=budget)
        zipf = Zipf(master.rows, exponent=1.0, seed=11, spread=True)
        measure(join, zipf, batch_rows=100_000, batches=20, label="cold, batches of 100,000")
        measure(join, zipf, batch_rows=100_000, batches=20, label="warm, batches of 100,000")
        measure(join, zipf, batch_rows=500, batches=400, label="warm, batches of 500")


def master_table(rows: int) -> pa.Table:
    """Eight columns of about 110 bytes in key order."""
    numbers = np.arange(rows, dtype=np.int64)
    names = pa.array(np.char.add("product number ", numbers.astype("U10")))
    columns = {f"measure_{i}": numbers * (i + 3) % 1009 for i in range(8)}
    return pa.table({"product_id": numbers, "name": names, **columns})


def measure(join: SemiStreamJoin, zipf: Zipf, *, batch_rows: int, batches: int, label: str) -> None:
    stream = [stream_batch(zipf.draw(batch_rows)) for _ in range(batches)]
    seconds: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    started = time.perf_counter()
    for report in drive(join, stream, drain_each_batch=True):
        seconds.update(report.seconds)
        counts.update(steps=1, hot=report.hot_hits, pages=report.pages_read, rows=report.rows_in)
    took = time.perf_counter() - started
    phases = ", ".join(f"{name} {spent / took:.0%}" for name, spent in seconds.most_common())
    print(
        f"{label}: {format_count(counts['rows'] / took)} rows/s, {took / batches * 1e3:.2f} ms a batch, "
        f"hot {counts['hot'] / counts['rows']:.0%}, {counts['pages'] / batches:.0f} pages and "
        f"{counts['steps'] / batches:.0f} steps a batch ({phases})"
    )


def stream_batch(keys: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> pa.RecordBatch:
    rows = len(keys)
    return pa.RecordBatch.from_arrays(
        [pa.array(np.arange(rows)), pa.array(keys), pa.array(np.ones(rows, dtype=np.int32))], schema=STREAM
    )


if __name__ == "__main__":
    main()
