"""The cache join beyond the laws: hot rows, reads shared by waiting rows, budgets, refusals."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidemill.core.errors import BudgetError, SpecError, StoreError
from tidemill.core.memory import MemoryBudget
from tidemill.join.cache import CacheJoin, CacheSizes
from tidemill.join.catalog import make_join
from tidemill.join.drive import drive
from tidemill.join.parts.hot_rows import HotRows
from tidemill.join.protocol import StepReport
from tidemill.master import MasterData
from tidemill.testing.zipf import Zipf

STREAM = pa.schema([("row", pa.int64()), ("key", pa.int64())])
ROWS = 20_000


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> MasterData:
    keys = np.arange(ROWS)
    table = pa.table({"id": keys, "name": [f"name of {key}" for key in keys], "half": keys / 2})
    return MasterData.build(table, key="id", path=tmp_path_factory.mktemp("m"))


def batch(keys: Iterable[int]) -> pa.RecordBatch:
    column = pa.array(keys, pa.int64())
    return pa.RecordBatch.from_arrays([pa.array(range(len(column)), pa.int64()), column], schema=STREAM)


def join_on(master: MasterData, memory_bytes: int = 1_000_000, **options: Any) -> CacheJoin:
    join = make_join("cache", master, STREAM, stream_key="key", budget=MemoryBudget(memory_bytes), **options)
    assert isinstance(join, CacheJoin)
    return join


def totals(reports: Iterable[StepReport]) -> Counter[str]:
    names = ("rows_in", "emitted_rows", "hot_hits", "disk_matches", "unmatched", "pages_read")
    return sum((Counter({n: getattr(r, n) for n in names}) for r in reports), Counter())


def skewed(batches: int, rows: int = 2000) -> list[pa.RecordBatch]:
    zipf = Zipf(ROWS, exponent=1.0, seed=5, spread=True)
    return [batch(zipf.draw(rows)) for _ in range(batches)]


def test_a_skewed_stream_moves_from_disk_to_hot_rows(master: MasterData):
    join = join_on(master)
    cold = totals(drive(join, skewed(2), drain_each_batch=True))
    list(drive(join, skewed(20), drain_each_batch=True))
    warm = totals(drive(join, skewed(4), drain_each_batch=True))
    assert cold["hot_hits"] / cold["rows_in"] < 0.35
    assert warm["hot_hits"] / warm["rows_in"] > 0.55
    assert warm["emitted_rows"] == 8000


def test_hot_rows_follow_a_stream_whose_taste_changes(master: MasterData):
    join = join_on(master, 600_000)
    first, then = np.arange(0, 500), np.arange(10_000, 10_500)
    chance = np.random.default_rng(1)
    list(drive(join, (batch(chance.choice(first, 2000)) for _ in range(20))))
    before = totals(drive(join, [batch(chance.choice(first, 2000))]))
    list(drive(join, (batch(chance.choice(then, 2000)) for _ in range(30))))
    after = totals(drive(join, [batch(chance.choice(then, 2000))]))
    assert before["hot_hits"] > 1000
    assert after["hot_hits"] > 1000


def test_one_read_serves_all_rows_that_wait_for_its_page(master: MasterData):
    join = join_on(master, 3_000_000)
    page_of_first_keys = master.read_page(0).num_rows
    counts = totals(drive(join, [batch(list(range(page_of_first_keys)) * 3)]))
    assert counts["pages_read"] == 1
    assert counts["disk_matches"] == 3 * page_of_first_keys


def test_keys_outside_every_page_cost_no_read(master: MasterData):
    counts = totals(drive(join_on(master, how="left"), [batch([-5, ROWS, 2**62])]))
    assert (counts["unmatched"], counts["emitted_rows"], counts["pages_read"]) == (3, 3, 0)


def test_workers_share_hot_rows_through_a_file(master: MasterData, tmp_path: Path):
    builder = join_on(master, auto_switch=False)
    list(drive(builder, skewed(4)))
    assert builder.hot_rows.entries == 0
    generation = builder.next_generation()
    assert generation is not None
    generation.write(tmp_path / "hot")
    other = join_on(master, auto_switch=False)
    content = (tmp_path / "hot").read_bytes()
    other.use_hot_rows(HotRows.open(tmp_path / "hot"))
    counts = totals(drive(other, skewed(4)))
    assert counts["hot_hits"] > 0.3 * counts["rows_in"]
    assert (tmp_path / "hot").read_bytes() == content


def test_no_new_generation_when_the_stream_is_uniform(master: MasterData):
    join = join_on(master, 20_000_000, auto_switch=False)
    list(drive(join, [batch(range(0, ROWS, 5))]))
    assert join.next_generation() is None


def test_hot_rows_of_another_master_are_refused(master: MasterData):
    generation = HotRows.empty(pa.schema([("name", pa.string()), ("half", pa.float64())]), "000009-other")
    with pytest.raises(SpecError, match="000009-other"):
        join_on(master).use_hot_rows(generation)


def test_hot_rows_may_be_switched_while_output_is_leaving(master: MasterData):
    join = join_on(master, 200_000, auto_switch=False)
    keys = list(range(300)) * 8
    list(drive(join, [batch(keys)]))
    first = join.next_generation()
    assert first is not None
    join.use_hot_rows(first)
    seen: Counter[int] = Counter()
    for report in drive(join, [batch(keys)]):
        seen.update(key for out in report.outputs for key in out.column("key").to_pylist())
        assert all(
            name == f"name of {key}"
            for out in report.outputs
            for key, name in zip(out.column("key").to_pylist(), out.column("name").to_pylist(), strict=True)
        )
        join.use_hot_rows(first)
    assert seen == Counter(keys)


def test_a_budget_too_small_names_the_least_that_works(master: MasterData):
    with pytest.raises(BudgetError) as refusal:
        join_on(master, 5000)
    least = refusal.value.least_bytes
    assert f"{least:,}" in str(refusal.value)
    assert totals(drive(join_on(master, least), [batch(range(50))]))["disk_matches"] == 50
    with pytest.raises(BudgetError):
        join_on(master, least - 1)


@pytest.mark.parametrize("total_bytes", [60_000, 1_000_000, 64_000_000, 4_000_000_000])
def test_sizes_use_the_budget_and_never_more(total_bytes: int):
    sizes = CacheSizes.from_budget(total_bytes, 20, 110, 5000)
    assert sizes.total_bytes == total_bytes
    assert 2 * sizes.pages_per_step * 16 * 1024 <= sizes.disk_buffer_bytes


def test_sizes_that_cannot_work_are_refused():
    with pytest.raises(BudgetError, match="pending at least twice"):
        CacheSizes(1000, 100, 100, 1000, 1000, 1000, 1000, pages_per_step=1)


def test_a_row_too_wide_for_the_budget_is_an_error_not_a_loop(master: MasterData):
    schema = pa.schema([("key", pa.int64()), ("note", pa.string())])
    join = make_join("cache", master, schema, stream_key="key", budget=MemoryBudget(200_000))
    wide = pa.RecordBatch.from_pylist([{"key": 1, "note": "x" * 100_000}], schema)
    with pytest.raises(BudgetError, match="100 kB"):
        list(drive(join, [wide]))


def test_offering_more_than_room_or_other_columns_is_refused(master: MasterData):
    join = join_on(master, 100_000)
    with pytest.raises(SpecError, match="room for"):
        join.offer(batch(range(10_000)))
    with pytest.raises(SpecError) as refusal:
        join.offer(pa.RecordBatch.from_pydict({"key": [1]}))
    assert refusal.value.code == "stream_schema"
    assert join.pending_rows == 0


def test_unsigned_stream_keys_beyond_int64_match_nothing(master: MasterData):
    schema = pa.schema([("key", pa.uint64())])
    join = make_join("cache", master, schema, stream_key="key", budget=MemoryBudget(10**6), how="left")
    reports = list(drive(join, [pa.RecordBatch.from_pydict({"key": [2**64 - 1, 3, 2**63]}, schema)]))
    rows = [row for r in reports for out in r.outputs for row in out.to_pylist()]
    assert {row["key"]: row["name"] for row in rows} == {2**64 - 1: None, 3: "name of 3", 2**63: None}


def test_snapshots_are_refused_when_damaged_or_of_another_join(master: MasterData):
    join = join_on(master)
    join.offer(batch(range(100)))
    snapshot = join.snapshot()
    for at in (3, 40, len(snapshot) // 2, len(snapshot) - 1):
        bad = bytearray(snapshot)
        bad[at] ^= 1
        with pytest.raises(StoreError):
            join_on(master).restore(bytes(bad))
    with pytest.raises(StoreError, match="snapshot is of a cache join"):
        join_on(master, how="left").restore(snapshot)


def test_a_damaged_page_stops_the_join_and_is_no_missing_match(tmp_path: Path):
    store = MasterData.build(pa.table({"id": range(5000), "v": range(5000)}), key="id", path=tmp_path)
    file = tmp_path / "versions" / "000001" / "pages.bin"
    content = bytearray(file.read_bytes())
    content[9000] ^= 1
    file.write_bytes(content)
    join = join_on(MasterData.open(tmp_path), how="left")
    with pytest.raises(StoreError) as refusal:
        list(drive(join, [batch(range(5000))]))
    assert refusal.value.code == "page_corrupt"
    assert store.rows == 5000
