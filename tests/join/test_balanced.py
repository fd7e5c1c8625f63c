"""SSBJ beyond the laws: who turns hot, who does not, and what that saves."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidemill.core.errors import BudgetError
from tidemill.core.memory import MemoryBudget
from tidemill.join.balanced import BalancedJoin
from tidemill.join.catalog import make_join
from tidemill.join.drive import drive
from tidemill.join.protocol import StepReport
from tidemill.master import MasterData
from tidemill.testing.zipf import Zipf

STREAM = pa.schema([("row", pa.int64()), ("key", pa.int64())])
ROWS = 40_000


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> MasterData:
    """Keys below 100 have 20 rows each, the others one."""
    keys = np.sort(np.concatenate([np.arange(ROWS), np.repeat(np.arange(100), 19)]))
    table = pa.table({"id": keys, "name": [f"name of {key}" for key in keys], "n": np.arange(len(keys))})
    return MasterData.build(table, key="id", path=tmp_path_factory.mktemp("m"))


def batch(keys: Iterable[int]) -> pa.RecordBatch:
    column = pa.array(keys, pa.int64())
    return pa.RecordBatch.from_arrays([pa.array(range(len(column)), pa.int64()), column], schema=STREAM)


def join_on(master: MasterData, memory_bytes: int = 600_000, **options: Any) -> BalancedJoin:
    budget = MemoryBudget(memory_bytes)
    join = make_join("balanced", master, STREAM, stream_key="key", budget=budget, **options)
    assert isinstance(join, BalancedJoin)
    return join


def totals(reports: Iterable[StepReport]) -> Counter[str]:
    names = ("rows_in", "emitted_rows", "hot_hits", "disk_matches", "unmatched", "pages_read")
    return sum((Counter({n: getattr(r, n) for n in names}) for r in reports), Counter())


def skewed(batches: int) -> list[pa.RecordBatch]:
    zipf = Zipf(ROWS - 100, exponent=1.0, seed=5, spread=True)
    return [batch(100 + zipf.draw(2000)) for _ in range(batches)]


def test_a_skewed_stream_reads_fewer_pages_than_the_mesh_join(master: MasterData):
    balanced = join_on(master)
    mesh = make_join("mesh", master, STREAM, stream_key="key", budget=MemoryBudget(600_000))
    list(drive(balanced, skewed(40)))  # warm
    by_balanced, by_mesh = totals(drive(balanced, skewed(40))), totals(drive(mesh, skewed(40)))
    assert by_balanced["emitted_rows"] == by_mesh["emitted_rows"] == 80_000
    assert by_balanced["hot_hits"] > 0.25 * 80_000
    assert by_balanced["pages_read"] < 0.9 * by_mesh["pages_read"]


def test_a_uniform_stream_makes_nothing_hot(master: MasterData):
    counts = totals(drive(join_on(master), [batch(np.random.default_rng(1).integers(100, ROWS, 40_000))]))
    assert counts["hot_hits"] < 0.02 * counts["rows_in"]


def test_a_key_with_many_master_rows_must_be_more_frequent_to_turn_hot(master: MasterData):
    """Equally frequent keys: those of one row win by the inequality, those of twenty do not."""
    keys = np.random.default_rng(2).permutation(np.concatenate([np.arange(50), np.arange(200, 250)] * 300))
    filler = np.random.default_rng(3).integers(1000, ROWS, 60_000)
    mixed = np.random.default_rng(4).permutation(np.concatenate([keys, filler]))
    join = join_on(master, 400_000)
    list(drive(join, [batch(part) for part in np.array_split(mixed, 30)]))
    hot = join._hot.generation.keys()
    assert ((hot >= 200) & (hot < 250)).sum() > 10
    assert (hot < 50).sum() < ((hot >= 200) & (hot < 250)).sum()


def test_hot_rows_follow_a_stream_whose_taste_changes(master: MasterData):
    join = join_on(master)
    chance = np.random.default_rng(1)
    then = chance.choice(np.arange(10_000, 10_200), (60, 2000))
    list(drive(join, [batch(part) for part in chance.choice(np.arange(200, 400), (40, 2000))]))
    list(drive(join, [batch(part) for part in then]))
    after = totals(drive(join, [batch(part) for part in then[:2]]))
    assert after["hot_hits"] > 2000
    assert after["emitted_rows"] == 4000


def test_a_budget_too_small_names_the_least_that_works(master: MasterData):
    with pytest.raises(BudgetError, match="too little for a balanced join") as refusal:
        join_on(master, 5000)
    least = refusal.value.least_bytes
    counts = totals(drive(join_on(master, least), [batch(range(200, 250))]))
    assert counts["hot_hits"] + counts["disk_matches"] == 50
    with pytest.raises(BudgetError):
        join_on(master, least - 1)


def test_a_key_whose_rows_lie_in_two_runs_never_turns_hot_with_half_of_them(tmp_path: Path):
    keys = np.repeat(np.arange(2000), 5)
    table = pa.table({"id": keys, "name": [f"name of {key}" for key in keys], "n": np.arange(10_000)})
    store = MasterData.build(table, key="id", path=tmp_path, page_bytes=4096)
    sizes = join_on(store, 1_000_000).sizes
    page_by_page = replace(
        sizes,
        master_pages_per_step=1,
        queue_packets=store.pages,
        queue_bytes=128 * store.pages,
        stream_rows_per_step=sizes.window_rows // store.pages,
    )
    at_edges = [store.read_page(page).column("id")[0].as_py() for page in range(1, 40)]
    wanted = np.random.default_rng(1).choice(np.array(at_edges), 40_000)
    join = join_on(store, 2_000_000, sizes=page_by_page)
    outputs = sum(r.output_rows for r in drive(join, [batch(part) for part in np.array_split(wanted, 20)]))
    assert outputs == 5 * len(wanted)
