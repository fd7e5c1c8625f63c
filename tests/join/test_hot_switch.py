"""Hot rows that change while rows wait: every row still meets its own master row."""

import numpy as np
import pyarrow as pa
import pytest

from tidemill.core.errors import InternalError
from tidemill.core.memory import MemoryBudget
from tidemill.join.catalog import JOINS, make_join
from tidemill.join.drive import drive
from tidemill.join.parts.hot_rows import HotRows
from tidemill.master import MasterData
from tidemill.testing.zipf import Zipf

KEYS = 20_000
STREAM = pa.schema([("key", pa.int64()), ("event", pa.int64())])


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> MasterData:
    keys = np.arange(KEYS)
    table = pa.table({"key": keys, "twice": keys * 2, "name": [f"master row of key {k}" for k in keys]})
    return MasterData.build(table, key="key", path=tmp_path_factory.mktemp("m") / "s", page_bytes=4096)


@pytest.mark.parametrize("name", sorted(JOINS.keys() - {"reference"}))
def test_a_long_skewed_stream_meets_the_right_rows(master: MasterData, name: str) -> None:
    """Long enough for many switches, with a batch that is not drained when the switch comes."""
    budget = MemoryBudget(master.row_bytes * KEYS // 5)
    join = make_join(name, master, STREAM, stream_key="key", budget=budget, how="left")
    drawn = Zipf(KEYS, exponent=1.0, seed=3, spread=True)
    batches = [pa.record_batch([drawn.draw(5_000), np.arange(5_000)], schema=STREAM) for _ in range(12)]
    outputs = pa.Table.from_batches([out for r in drive(join, batches) for out in r.outputs])
    assert outputs.num_rows == 60_000
    wrong = outputs.column("key").to_numpy() * 2 != outputs.column("twice").to_numpy()
    assert int(wrong.sum()) == 0


def test_a_key_that_comes_twice_is_refused() -> None:
    twos = np.array([7, 7], np.int64)
    payload = pa.record_batch({"name": ["a", "b"]})
    with pytest.raises(InternalError, match="twice"):
        HotRows.build(twos, np.ones(2, np.int64), np.ones(2, np.uint32), payload, "m")
