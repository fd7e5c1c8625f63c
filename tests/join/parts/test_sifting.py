"""Rows that missed wait the same way whether one compiled call sees to it or several do."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidemill.core.memory import MemoryBudget
from tidemill.join.catalog import make_join
from tidemill.join.drive import drive
from tidemill.join.parts.probe_join import ProbeJoin
from tidemill.master import MasterData

ROWS = 20_000
STREAM = pa.schema([("key", pa.int64()), ("event", pa.int32()), ("price", pa.float64())])


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> MasterData:
    keys = np.arange(10, 10 + 3 * ROWS, 3)
    rows = pa.table({"id": keys, "name": [f"product {key}" for key in keys]})
    return MasterData.build(rows, key="id", path=tmp_path_factory.mktemp("master"), page_bytes=4096)


def stream(rows: int) -> pa.RecordBatch:
    chance = np.random.default_rng(3)
    often, any_key = 10 + 3 * chance.integers(0, 60, rows), chance.integers(0, 10 + 3 * ROWS, rows)
    keys = np.where(
        chance.random(rows) < 0.6, often, any_key
    )  # some do not exist, some lie before all others
    columns = [pa.array(keys), pa.array(np.arange(rows, dtype=np.int32)), pa.array(chance.random(rows))]
    return pa.RecordBatch.from_arrays(columns, schema=STREAM)


@pytest.mark.parametrize("memory_bytes", [120_000, 400_000])
@pytest.mark.parametrize("key", [["key"], ["key", "shop"]])
def test_one_call_or_several(
    memory_bytes: int, key: list[str], master: MasterData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same rows, same counts in every step, same sketch; also where a row does not hold its code."""
    batch = stream(30_000)
    if len(key) == 2:
        keys = np.arange(10, 10 + 3 * ROWS, 3)
        rows = pa.table({"id": keys, "of_shop": keys % 7, "name": keys.astype(str)})
        master = MasterData.build(rows, key=["id", "of_shop"], path=tmp_path, page_bytes=4096)
        batch = batch.append_column("shop", pa.array(batch.column(0).to_numpy() % 7))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    found: list[Any] = []
    for may_sift in (True, False):
        if not may_sift:
            monkeypatch.setattr(ProbeJoin, "_may_sift", lambda *_: False)
        budget = MemoryBudget(memory_bytes)
        join: Any = make_join("tide", master, batch.schema, stream_key=key, how="left", budget=budget)
        counted: list[tuple[int, int]] = []
        count = join._count
        monkeypatch.setattr(join, "_count", lambda *met, c=counted, count=count: (c.append(met), count(*met)))
        reports = list(drive(join, [batch.slice(0, 11_000), batch.slice(11_000)]))
        counts = [(r.rows_in, r.waited_rows, r.hot_hits, r.disk_matches, r.pages_read) for r in reports]
        pairs = Counter(str(row) for r in reports for output in r.outputs for row in output.to_pylist())
        found.append((counts, pairs, join._sketch.counters.tolist(), [met for met in counted if met[0]]))
    assert found[0] == found[1]
    assert sum(found[0][1].values()) == 30_000
    assert any(met_again for _, met_again in found[0][3])


def test_rows_of_a_stream_with_nulls_go_the_other_way(master: MasterData) -> None:
    join: Any = make_join("tide", master, STREAM, stream_key="key", how="left", budget=MemoryBudget(400_000))
    rows = [{"key": n if n % 5 else None, "event": n, "price": None} for n in range(1000)]
    batch = pa.RecordBatch.from_pylist(rows, schema=STREAM)
    reports = list(drive(join, [stream(1000), batch, stream(1000)]))
    assert sum(report.emitted_rows for report in reports) == 3000
    found = [row for r in reports for output in r.outputs for row in output.to_pylist()]
    assert sum(row["key"] is None for row in found) == 200
    assert all(row["name"] is None for row in found if row["key"] is None)
    assert sum(row["price"] is None for row in found) == 1000
