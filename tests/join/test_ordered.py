"""Ordered output beyond the law: a hold that is too small, names, refusals, what it costs."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidemill.core.errors import BudgetError, SpecError
from tidemill.core.memory import MemoryBudget
from tidemill.join.catalog import make_join
from tidemill.join.drive import drive
from tidemill.join.ordered import OrderedJoin
from tidemill.join.protocol import StepReport
from tidemill.master import MasterData

STREAM = pa.schema([("sequence", pa.int64()), ("key", pa.int64())])


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> MasterData:
    """Key 7 has 3,000 rows, the others one."""
    keys = np.sort(np.concatenate([np.arange(5000), np.full(2999, 7)]))
    table = pa.table({"id": keys, "name": [f"name of {key}" for key in keys], "n": np.arange(len(keys))})
    return MasterData.build(table, key="id", path=tmp_path_factory.mktemp("m"))


def batch(keys: Iterable[int]) -> pa.RecordBatch:
    column = pa.array(keys, pa.int64())
    return pa.RecordBatch.from_arrays([pa.array(range(len(column)), pa.int64()), column], schema=STREAM)


def join_on(master: MasterData, name: str, memory_bytes: int, **options: Any) -> OrderedJoin:
    budget = MemoryBudget(memory_bytes)
    join = make_join(name, master, STREAM, stream_key="key", budget=budget, ordered=True, **options)
    assert isinstance(join, OrderedJoin)
    return join


def sequences(reports: Iterable[StepReport]) -> list[int]:
    return [n for report in reports for out in report.outputs for n in out.column("sequence").to_pylist()]


@pytest.mark.parametrize("name", ["cache", "mesh"])
def test_the_column_that_numbers_rows_hides_behind_one_of_the_same_name(master: MasterData, name: str):
    join = join_on(master, name, 2_000_000, how="left")
    keys = np.random.default_rng(1).integers(100, 6000, 3000)
    reports = list(drive(join, [batch(keys)]))
    assert join.output_schema.names == ["sequence", "key", "name", "n"]
    assert sequences(reports) == list(range(3000))
    assert sum(report.emitted_rows for report in reports) == 3000


@pytest.mark.parametrize("name", ["cache", "mesh"])
def test_a_row_with_more_output_than_the_hold_passes_alone(master: MasterData, name: str):
    """Each key 7 gives 3,000 rows, three times what is held: groups are halved until it is alone."""
    join = join_on(master, name, 250_000)
    keys = [1, 2, 7, 3, 4, 5, 6, 8, 7, 9] * 2
    reports = list(drive(join, [batch(keys)]))
    expected = [n for n, key in enumerate(keys) for _ in range(3000 if key == 7 else 1)]
    assert sequences(reports) == expected
    assert max(report.held_bytes["hold"] for report in reports) <= join.join.budget.holdings()["hold"]


def test_the_hold_is_a_quarter_and_the_join_works_in_the_rest(master: MasterData):
    join = join_on(master, "mesh", 1_000_000)
    assert join.join.budget.holdings()["hold"] == 250_000
    assert join.join.sizes.total_bytes <= 750_000


def test_what_cannot_be_is_refused(master: MasterData):
    join = join_on(master, "mesh", 1_000_000)
    with pytest.raises(SpecError, match="room for"):
        join.offer(batch(range(100_000)))
    with pytest.raises(SpecError, match="were declared"):
        join.offer(pa.RecordBatch.from_pydict({"key": [1]}))
    with pytest.raises(BudgetError):
        join_on(master, "mesh", 5000)
    assert join.step().rows_in == 0
