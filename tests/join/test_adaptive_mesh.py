"""AMESHJOIN beyond the laws: sizes that change while rows wait."""

from collections import Counter
from collections.abc import Iterable
from typing import get_args

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.core.errors import BudgetError, SpecError
from tidemill.core.memory import MemoryBudget
from tidemill.join.adaptive_mesh import AdaptiveMeshJoin
from tidemill.join.catalog import make_join
from tidemill.join.output import How
from tidemill.master import MasterData

STREAM = pa.schema([("row", pa.int64()), ("key", pa.int64())])
ROWS = 3000


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> MasterData:
    """Every key twice, 0 to 1499; pages hold few rows."""
    keys = np.arange(ROWS) // 2
    table = pa.table({"id": keys, "name": [f"name of {key} " + "x" * 100 for key in keys]})
    return MasterData.build(table, key="id", path=tmp_path_factory.mktemp("m"), page_bytes=8192)


def batch(keys: Iterable[int], first_row: int = 0) -> pa.RecordBatch:
    column = pa.array(keys, pa.int64())
    rows = pa.array(range(first_row, first_row + len(column)), pa.int64())
    return pa.RecordBatch.from_arrays([rows, column], schema=STREAM)


def join_on(
    master: MasterData, memory_bytes: int = 8_000_000, how: How = "inner", rows: int = 3, pages: int = 2
) -> AdaptiveMeshJoin:
    budget = MemoryBudget(memory_bytes)
    plan = make_join("reference", master, STREAM, stream_key="key", budget=MemoryBudget(10**8), how=how).plan
    sizes = AdaptiveMeshJoin.sizes_for(master, plan, min(memory_bytes, 300_000))
    join = make_join("adaptive_mesh", master, STREAM, stream_key="key", budget=budget, how=how, sizes=sizes)
    assert isinstance(join, AdaptiveMeshJoin)
    join.resize(stream_rows_per_step=rows, master_pages_per_step=pages)
    return join


changes = st.tuples(st.integers(1, 30), st.integers(1, 50))


@settings(max_examples=60, deadline=None)
@given(
    how=st.sampled_from(get_args(How)),
    moves=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9), st.none() | changes), max_size=15),
    reborn_at=st.integers(0, 15),
)
def test_no_row_is_lost_or_doubled_through_any_changes(
    master: MasterData, how: How, moves: list[tuple[int, int, tuple[int, int] | None]], reborn_at: int
):
    join, given_keys = join_on(master, how=how), []
    seen: Counter[int] = Counter()
    chance = np.random.default_rng(len(moves))

    def step() -> None:
        report = join.step()
        seen.update(row for out in report.outputs for row in out.column("row").to_pylist())
        reserved = join.budget.holdings()
        assert all(held <= reserved[part] for part, held in report.held_bytes.items())

    for move, (offered, steps, change) in enumerate(moves):
        keys = chance.integers(-100, 1600, min(offered, join.room(16))).tolist()
        join.offer(batch(keys, len(given_keys)))
        given_keys += keys
        if change is not None:
            rows, pages = change
            join.resize(stream_rows_per_step=rows, master_pages_per_step=min(pages, master.pages))
        for _ in range(steps):
            step()
        if move == reborn_at:
            snapshot, join = join.snapshot(), join_on(master, how=how)
            join.restore(snapshot)
    while join.pending_rows:
        step()
    hit, miss = {"inner": (2, 0), "left": (2, 1), "semi": (1, 0), "anti": (0, 1)}[how]
    expected = {row: hit if 0 <= key < 1500 else miss for row, key in enumerate(given_keys)}
    assert seen == +Counter(expected)


def test_a_packet_meets_every_page_once_whatever_changes_in_between(master: MasterData):
    join = join_on(master, pages=1)
    join.offer(batch([4]))
    read = 0
    for pages in (3, 1, 5, master.pages):
        read += join.step().pages_read
        join.resize(stream_rows_per_step=1, master_pages_per_step=pages)
    assert 0 < read < master.pages
    while join.pending_rows:
        read += join.step().pages_read
    assert read == master.pages


def test_memory_follows_the_live_packets(master: MasterData):
    join = join_on(master, rows=2000, pages=4)
    join.offer(batch(range(150)))
    join.step()
    at_first = join.budget.holdings()["pending"]
    join.resize(stream_rows_per_step=1, master_pages_per_step=1)
    with_live_rows = join.budget.holdings()["pending"]
    list(join.drain())
    join.resize(stream_rows_per_step=1, master_pages_per_step=1)
    assert at_first > with_live_rows > join.budget.holdings()["pending"]


def test_sizes_that_cannot_be_are_refused_and_change_nothing(master: MasterData):
    join = join_on(master, 400_000)
    before = join.budget.holdings()
    for rows, pages in ((0, 1), (1, 0), (1, master.pages + 1)):
        with pytest.raises(SpecError):
            join.resize(stream_rows_per_step=rows, master_pages_per_step=pages)
    with pytest.raises(BudgetError) as refusal:
        join.resize(stream_rows_per_step=10**6, master_pages_per_step=1)
    assert refusal.value.least_bytes > 400_000
    assert join.budget.holdings() == before
