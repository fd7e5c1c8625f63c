"""MOIJ beyond the laws: the cache inequality, memory that moves, eviction."""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pytest
from tests.join.streams import ROWS, batch, build, join_on, skewed, totals

from tidemill.core.errors import BudgetError
from tidemill.join.drive import drive
from tidemill.join.moij import MoijJoin, MoijSizes
from tidemill.master import MasterData


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> MasterData:
    return build(tmp_path_factory.mktemp("m"))


def moij(master: MasterData, memory_bytes: int = 1_000_000) -> MoijJoin:
    join = join_on("moij", master, memory_bytes, how="left")
    assert isinstance(join, MoijJoin)
    return join


def hot_keys(join: MoijJoin) -> set[int]:
    return set(join._hot.generation.keys().tolist())


def test_a_skewed_stream_moves_from_disk_to_hot_rows(master: MasterData):
    join = moij(master)
    cold = totals(drive(join, skewed(2)))
    list(drive(join, skewed(20)))
    warm = totals(drive(join, skewed(4)))
    assert cold["hot_hits"] / cold["rows_in"] < 0.4
    assert warm["hot_hits"] / warm["rows_in"] > 0.55
    assert warm["emitted_rows"] == 8000


def test_memory_moves_from_waiting_to_hot_rows_and_back(tmp_path_factory: pytest.TempPathFactory):
    """With master rows of 200 bytes three rows must wait for a key before it may turn hot."""
    join = moij(build(tmp_path_factory.mktemp("wide"), wider_by=170), 600_000)
    chance = np.random.default_rng(1)

    def stream(keys: Iterable[int]) -> Iterable[pa.RecordBatch]:
        return (batch(chance.choice(list(keys), 2000)) for _ in range(15))

    at_start = join.budget.holdings()["pending"]
    list(drive(join, stream(range(300))))
    few_keys = join.budget.holdings()
    assert few_keys["pending"] < at_start
    assert len(hot_keys(join) & set(range(300))) > 200
    list(drive(join, stream(range(ROWS))))
    many_keys = join.budget.holdings()
    assert many_keys["pending"] > few_keys["pending"]
    for held in (few_keys, many_keys):
        assert held["pending"] + held["hot_rows"] == join.sizes.shared_bytes


def test_hot_rows_follow_a_stream_whose_taste_changes(master: MasterData):
    join = moij(master, 600_000)
    chance = np.random.default_rng(2)
    list(drive(join, (batch(chance.choice(500, 2000)) for _ in range(20))))
    before = totals(drive(join, [batch(chance.choice(500, 2000))]))
    list(drive(join, (batch(10_000 + chance.choice(500, 2000)) for _ in range(30))))
    after = totals(drive(join, [batch(10_000 + chance.choice(500, 2000))]))
    assert before["hot_hits"] > 1000
    assert after["hot_hits"] > 1000


def test_a_key_with_more_master_rows_than_waiting_ones_stays_on_disk(
    tmp_path_factory: pytest.TempPathFactory,
):
    """The paper's example (§II-B): three rows wait for each of two keys, one of them has many master rows."""
    parts = build(tmp_path_factory.mktemp("parts"), [10] * 30 + [30] * 2 + list(range(100, 5000)))
    join = moij(parts, 300_000)
    filler = np.arange(100, 5000)
    for turn in range(40):
        rows = [10] * 3 + [30] * 12 + filler[turn * 100 : turn * 100 + 100].tolist()
        counts = totals(drive(join, [batch(rows)]))
        assert counts["output_rows"] == 3 * 30 + 12 * 2 + 100
    assert 30 in hot_keys(join)
    assert 10 not in hot_keys(join)


def test_all_rows_of_a_key_leave_for_every_waiting_row(tmp_path_factory: pytest.TempPathFactory):
    twice = build(tmp_path_factory.mktemp("twice"), sorted([*range(3000), *range(3000)]))
    join = moij(twice, 300_000)
    keys = np.random.default_rng(3).choice(200, 5000)
    assert totals(drive(join, [batch(keys)] * 3))["output_rows"] == 3 * 2 * 5000


@pytest.mark.parametrize("total_bytes", [60_000, 1_000_000, 4_000_000_000])
def test_sizes_use_the_budget_and_never_more(total_bytes: int):
    sizes = MoijSizes.from_budget(total_bytes, 20, 110, 5000)
    assert sizes.total_bytes == total_bytes
    assert sizes.eviction_rounds == 10


def test_a_budget_too_small_names_the_least_that_works(master: MasterData):
    with pytest.raises(BudgetError) as refusal:
        moij(master, 5000)
    least = refusal.value.least_bytes
    assert totals(drive(moij(master, least), [batch(range(50))]))["disk_matches"] == 50
