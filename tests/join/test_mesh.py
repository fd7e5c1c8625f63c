"""MESHJOIN beyond the laws: what a cycle costs, who leaves when, sizes down to one row and one page."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.core.errors import BudgetError, StoreError
from tidemill.core.memory import MemoryBudget
from tidemill.join.catalog import make_join
from tidemill.join.drive import drive
from tidemill.join.mesh import MeshJoin, MeshSizes
from tidemill.join.output import How, OutputPlan
from tidemill.join.protocol import StepReport
from tidemill.master import MasterData

STREAM = pa.schema([("row", pa.int64()), ("key", pa.int64())])
ROWS = 12_000


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> MasterData:
    """Each third key twice."""
    keys = np.sort(np.concatenate([np.arange(ROWS), np.arange(0, ROWS, 3)]))
    table = pa.table({"id": keys, "name": [f"name of {key}" for key in keys], "n": np.arange(len(keys))})
    return MasterData.build(table, key="id", path=tmp_path_factory.mktemp("m"), page_bytes=8192)


def batch(keys: Iterable[int]) -> pa.RecordBatch:
    column = pa.array(keys, pa.int64())
    return pa.RecordBatch.from_arrays([pa.array(range(len(column)), pa.int64()), column], schema=STREAM)


def join_on(master: MasterData, memory_bytes: int = 2_000_000, **options: Any) -> MeshJoin:
    join = make_join("mesh", master, STREAM, stream_key="key", budget=MemoryBudget(memory_bytes), **options)
    assert isinstance(join, MeshJoin)
    return join


def stepping(master: MasterData, rows: int, pages: int) -> MeshSizes:
    """So many rows and pages a step, with the queue that fits them."""
    ample = MeshSizes.from_budget(
        2_000_000, 20, 40, master.index_bytes, master_pages=master.pages, longest_page_bytes=9000
    )
    return replace(
        ample,
        stream_rows_per_step=rows,
        master_pages_per_step=pages,
        queue_packets=-(-master.pages // pages),
        queue_bytes=128 * master.pages,
        disk_buffer_bytes=2 * 9000 * pages,
    )


def found(reports: Iterable[StepReport]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for r in reports for out in r.outputs for row in out.to_pylist())


def expected(keys: list[int], how: How) -> Counter[int]:
    """Output rows by stream row, by arithmetic alone."""
    matches = [0 if not 0 <= key < ROWS else 2 if key % 3 == 0 else 1 for key in keys]
    rows = {
        "inner": matches,
        "left": [max(1, m) for m in matches],
        "semi": [min(1, m) for m in matches],
        "anti": [int(m == 0) for m in matches],
    }
    return +Counter(dict(enumerate(rows[how])))


@settings(max_examples=30, deadline=None)
@given(
    keys=st.lists(st.integers(-50, ROWS + 50), max_size=300),
    rows=st.integers(1, 40),
    pages=st.integers(1, 60),
    how=st.sampled_from(get_args(How)),
)
def test_any_rows_and_pages_a_step_give_the_same_output(
    master: MasterData, keys: list[int], rows: int, pages: int, how: How
):
    join = join_on(master, 9_000_000, sizes=stepping(master, rows, min(pages, master.pages)), how=how)
    outputs = found(drive(join, [batch(keys)]))
    assert sum((Counter({row[0]: n}) for row, n in outputs.items()), Counter()) == expected(keys, how)
    if how == "inner":
        assert all(name == f"name of {key}" for _, key, name, _ in outputs)


def test_a_row_leaves_after_one_cycle_and_meets_each_page_once(master: MasterData):
    join = join_on(master, sizes=stepping(master, 5, 4))
    join.offer(batch([7]))
    reports = list(join.drain())
    assert sum(r.pages_read for r in reports) == master.pages
    assert len(reports) == -(-master.pages // 4)
    assert [r.emitted_rows for r in reports] == [0] * (len(reports) - 1) + [1]


def test_pages_a_row_are_pages_a_step_by_rows_a_step(master: MasterData):
    join = join_on(master, sizes=stepping(master, 100, 2))
    reports = list(drive(join, [batch(np.arange(20_000) % ROWS)]))
    read = sum(r.pages_read for r in reports)
    assert 20_000 / 100 * 2 <= read <= 20_000 / 100 * 2 + 2 * master.pages


def test_an_idle_stream_reads_nothing_and_the_scan_keeps_its_place(master: MasterData):
    join = join_on(master, sizes=stepping(master, 5, 3))
    join.offer(batch([1]))
    for _ in range(4):
        join.step()
    begun = join.snapshot()
    list(join.drain())
    assert [join.step().pages_read for _ in range(5)] == [0] * 5
    join.offer(batch([ROWS - 1]))
    list(join.drain())
    other = join_on(master, sizes=stepping(master, 5, 3))
    other.restore(begun)
    assert sum(r.pages_read for r in other.drain()) == master.pages - 12


def test_a_skewed_stream_fills_many_steps_with_the_pairs_of_one_page(master: MasterData):
    join = join_on(master, 200_000)
    reports = list(drive(join, [batch([6] * 5000)]))
    assert sum(found(reports).values()) == 10_000
    assert max(r.held_bytes["output"] for r in reports) <= join.sizes.output_bytes


def test_a_budget_too_small_names_the_least_that_works(master: MasterData):
    with pytest.raises(BudgetError, match="too little") as refusal:
        join_on(master, 5000)
    least = refusal.value.least_bytes
    assert sum(found(drive(join_on(master, least), [batch(range(1, 50, 3))])).values()) == 17
    with pytest.raises(BudgetError):
        join_on(master, least - 1)


@pytest.mark.parametrize("total_bytes", [200_000, 1_000_000, 64_000_000, 4_000_000_000])
def test_sizes_use_the_budget_and_never_more(total_bytes: int):
    sizes = MeshSizes.from_budget(total_bytes, 20, 110, 5000, master_pages=500)
    assert sizes.total_bytes == total_bytes
    assert sizes.queue_packets == -(-500 // sizes.master_pages_per_step)


def test_text_keys_are_compared_not_only_their_codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    names = [f"key {n}" for n in range(500)]
    store = MasterData.build(pa.table({"id": names, "n": range(500)}), key="id", path=tmp_path)
    schema = pa.schema([("row", pa.int64()), ("key", pa.string())])
    rows = pa.RecordBatch.from_arrays(
        [pa.array(range(600)), pa.array([f"key {n}" for n in range(600)])], schema=schema
    )
    real_codes = type(
        OutputPlan.of(schema, store.schema, stream_key="key", master_key=store.key).stream_key.form
    ).codes
    # Keys that are not in the store get the codes of keys that are.
    collide = lambda form, columns: real_codes(form, [pc.replace_substring(columns[0], "key 5", "key ")])  # noqa: E731
    for how, expected in (("inner", 500), ("anti", 100)):
        join = make_join("mesh", store, schema, stream_key="key", budget=MemoryBudget(10**6), how=how)
        assert sum(found(drive(join, [rows])).values()) == expected
    join = make_join("mesh", store, schema, stream_key="key", budget=MemoryBudget(10**6))
    monkeypatch.setattr(type(join.plan.stream_key.form), "codes", collide)
    assert all(f"key {n}" == key for _, key, n in found(drive(join, [rows])))


def test_snapshots_of_another_kind_are_refused(master: MasterData):
    with pytest.raises(StoreError, match="snapshot is of a mesh join"):
        join_on(master, how="left").restore(join_on(master).snapshot())


def test_a_place_in_the_window_forgets_the_match_of_the_row_before(master: MasterData):
    join = join_on(master, 9_000_000, sizes=stepping(master, 2, master.pages), how="anti")
    reports = list(drive(join, [batch([5] * 30 + [-1] * 30)]))
    assert sorted(row[0] for row in found(reports)) == list(range(30, 60))
