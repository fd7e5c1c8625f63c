"""A join that is too slow for its stream: what it gets is joined, the rest is told."""

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tidemill.core.memory import MemoryBudget
from tidemill.join.catalog import make_join
from tidemill.join.parts.keys import StreamKey
from tidemill.join.shedding.catalog import make_strategy
from tidemill.join.shedding.drive import drive_shedding
from tidemill.join.shedding.match_counts import MatchCounts
from tidemill.join.shedding.shedding import Shedding
from tidemill.master import MasterData

STREAM = pa.schema([("row", pa.int64()), ("key", pa.int64())])
KEYS = 500


@pytest.mark.parametrize("name", ["keep", "sample", "top", "cluster"])
def test_rows_are_joined_or_shed(tmp_path: Path, name: str) -> None:
    counts = 1 + np.arange(KEYS) % 7
    keys = np.repeat(np.arange(KEYS), counts)
    master = MasterData.build(
        pa.table({"key": keys, "pad": ["x" * 100] * len(keys)}), key="key", path=tmp_path
    )
    budget = MemoryBudget(2_500_000)
    known = MatchCounts.of(master, budget, memory_bytes=200_000)
    shedding = Shedding(make_strategy(name), budget, memory_bytes=800_000, seed=1)
    join = make_join("mesh", master, STREAM, stream_key="key", budget=budget)
    key = StreamKey.of(STREAM, "key", master.key_form)
    arriving = np.random.default_rng(2).integers(0, KEYS, 60_000)
    batches = [
        pa.record_batch([pa.array(np.arange(at, at + 1000)), pa.array(arriving[at : at + 1000])], schema=STREAM)
        for at in range(0, 60_000, 1000)
    ]  # fmt: skip
    rounds = [batches[at : at + 10] for at in range(0, 60, 10)]
    joined, shed, arrived = Counter[int](), Counter[int](), 0
    for step in drive_shedding(join, shedding, rounds, counts=(known, key)):
        for output in step.step.outputs:
            joined.update(output.column("row").to_pylist())
        for rows in step.shed:
            shed.update(rows.column("row").to_pylist())
        arrived += step.report.arrived_rows if step.report else 0
    assert arrived == 60_000
    assert shed.keys().isdisjoint(joined)
    assert joined.keys() | shed.keys() == set(range(60_000))
    assert max(shed.values()) == 1
    assert all(count == counts[arriving[row]] for row, count in joined.items())
