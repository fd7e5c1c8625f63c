"""R-MESHJOIN beyond the laws: disk buffer and queue know nothing of the size of the master data."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidemill.core.memory import MemoryBudget
from tidemill.join.catalog import make_join
from tidemill.join.drive import drive
from tidemill.join.reduced_mesh import PARTITIONS, ReducedMeshJoin
from tidemill.master import MasterData

STREAM = pa.schema([("row", pa.int64()), ("key", pa.int64())])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("m")


def master_of(folder: Path, rows: int) -> MasterData:
    table = pa.table({"id": np.arange(rows), "name": [f"name of {key}" for key in range(rows)]})
    return MasterData.build(table, key="id", path=folder / str(rows), page_bytes=8192)


def batch(keys: Iterable[int]) -> pa.RecordBatch:
    column = pa.array(keys, pa.int64())
    return pa.RecordBatch.from_arrays([pa.array(range(len(column)), pa.int64()), column], schema=STREAM)


def join_on(master: MasterData, memory_bytes: int, **options: Any) -> ReducedMeshJoin:
    budget = MemoryBudget(memory_bytes)
    join = make_join("reduced_mesh", master, STREAM, stream_key="key", budget=budget, **options)
    assert isinstance(join, ReducedMeshJoin)
    return join


def test_buffer_and_queue_do_not_depend_on_the_master_data(folder: Path):
    sizes = [join_on(master_of(folder, rows), 500_000).sizes for rows in (20_000, 60_000)]
    assert sizes[0].master_pages_per_step == pytest.approx(sizes[1].master_pages_per_step, abs=1)
    assert sizes[0].queue_packets == sizes[1].queue_packets == PARTITIONS


def test_a_burst_is_taken_in_at_once(folder: Path):
    master = master_of(folder, 20_000)
    reduced = join_on(master, 500_000)
    mesh = make_join("mesh", master, STREAM, stream_key="key", budget=MemoryBudget(500_000))
    counts = {}
    for join in (reduced, mesh):
        keys = [batch(np.arange(200) * 100)] * 4
        counts[join.name] = sum(r.pages_read for r in drive(join, keys, drain_each_batch=True))
        assert join.pending_rows == 0
    # Each burst of 200 rows: one cycle here, more there when it comes in by a few rows a step.
    assert counts["reduced_mesh"] <= counts["mesh"]
    assert counts["reduced_mesh"] == 4 * master.pages


def test_full_partitions_let_rows_wait_outside_and_lose_none(folder: Path):
    master = master_of(folder, 20_000)
    join = join_on(master, 200_000)
    keys = np.arange(30_000) % 25_000
    seen: Counter[int] = Counter()
    most_packets = 0
    for report in drive(join, (batch(part) for part in np.array_split(keys, 700))):
        seen.update(row for out in report.outputs for row in out.column("key").to_pylist())
        most_packets = max(most_packets, report.held_bytes["queue"] // 128)
    assert seen == Counter(key for key in keys.tolist() if key < 20_000)
    assert 10 < most_packets <= PARTITIONS
