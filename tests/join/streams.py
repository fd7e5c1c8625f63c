"""Streams, a master and counts for the tests of single joins."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.core.memory import MemoryBudget
from tidemill.join.catalog import make_join
from tidemill.join.protocol import SemiStreamJoin, StepReport
from tidemill.master import MasterData
from tidemill.testing.zipf import Zipf

STREAM = pa.schema([("row", pa.int64()), ("key", pa.int64())])
ROWS = 20_000


def build(
    folder: Path, keys: Iterable[int] = range(ROWS), *, wider_by: int = 0, pack: bool = False
) -> MasterData:
    """About 28 bytes a row: 40 pages of 16 KiB for 20,000 rows; or so many bytes more, or fewer if they are packed."""
    column = np.array(list(keys))
    names = [f"name of {key}" + " " * wider_by for key in column]
    table = pa.table({"id": column, "name": names, "half": column / 2})
    return MasterData.build(table, key="id", path=folder, pack=pack)


def build_uneven(folder: Path, keys: int) -> MasterData:
    """Even keys, of which some have several rows; rows of many lengths; small pages; two reads in flight."""
    chance = np.random.default_rng(1)
    column = np.repeat(np.arange(keys) * 2, chance.integers(1, 4, keys))
    names = ["x" * int(length) for length in chance.integers(0, 200, len(column))]
    table = pa.table({"id": column, "number": np.arange(len(column)), "name": names})
    MasterData.build(table, key="id", path=folder, page_bytes=4096)
    return MasterData.open(folder, reads_in_flight=2)


def batch(keys: Iterable[int]) -> pa.RecordBatch:
    column = pa.array(keys, pa.int64())
    return pa.RecordBatch.from_arrays([pa.array(range(len(column)), pa.int64()), column], schema=STREAM)


def skewed(batches: int, rows: int = 2000, *, spread: bool = True, seed: int = 5) -> list[pa.RecordBatch]:
    """Zipf 1 over all keys; without `spread` small keys are the popular ones."""
    zipf = Zipf(ROWS, exponent=1.0, seed=seed, spread=spread)
    return [batch(zipf.draw(rows)) for _ in range(batches)]


def join_on(name: str, master: MasterData, memory_bytes: int = 1_000_000, **options: Any) -> SemiStreamJoin:
    return make_join(name, master, STREAM, stream_key="key", budget=MemoryBudget(memory_bytes), **options)


def totals(reports: Iterable[StepReport]) -> Counter[str]:
    names = ("rows_in", "emitted_rows", "hot_hits", "disk_matches", "unmatched", "pages_read", "output_rows")
    return sum((Counter({n: getattr(r, n) for n in names}) for r in reports), Counter())


__all__ = ["ROWS", "STREAM", "batch", "build", "join_on", "skewed", "totals"]
