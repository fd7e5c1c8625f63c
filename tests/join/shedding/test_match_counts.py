"""Counts of master rows: right for keys that are held, their mean for the others, inside the memory."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tidemill.core.errors import BudgetError
from tidemill.core.memory import MemoryBudget
from tidemill.join.parts.keys import StreamKey
from tidemill.join.shedding.match_counts import KEY_BYTES, RESERVATION, MatchCounts
from tidemill.master import MasterData


@pytest.fixture(scope="module")
def counted() -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.random.default_rng(3).zipf(1.6, 3000).clip(max=2000).astype(np.int64)


@pytest.fixture(scope="module")
def master(
    tmp_path_factory: pytest.TempPathFactory, counted: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> MasterData:
    """Keys 0, 2, 4 … with these counts; some go on over several pages."""
    keys = np.repeat(2 * np.arange(len(counted)), counted)
    table = pa.table({"key": keys, "pad": ["x" * 40] * len(keys)})
    return MasterData.build(table, key="key", path=tmp_path_factory.mktemp("master"))


def test_exact_where_all_keys_fit(
    master: MasterData, counted: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> None:
    budget = MemoryBudget(2_000_000)
    counts = MatchCounts.of(master, budget, memory_bytes=1_000_000)
    assert counts.is_exact
    assert counts.pages_read == master.pages > 10
    assert budget.holdings() == {RESERVATION: KEY_BYTES * len(counted)}
    every = np.arange(-1, 2 * len(counted) + 1)
    found = counts.of_codes(every, np.ones(len(every), np.bool_))
    assert found[1:-1:2].tolist() == counted.tolist()
    assert found[0::2].sum() == 0
    assert counts.of_codes(every, np.zeros(len(every), np.bool_)).sum() == 0


def test_the_heaviest_keys_where_not_all_fit(
    master: MasterData, counted: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> None:
    budget = MemoryBudget(100_000)
    counts = MatchCounts.of(master, budget, memory_bytes=100_000)
    held = len(counts.codes)
    assert 0 < held < len(counted)
    assert counts.counts.sum() == np.sort(counted)[-held:].sum()
    assert counts.other_keys == len(counted) - held
    assert counts.other_rows == counted.sum() - counts.counts.sum()
    some_other = np.setdiff1d(2 * np.arange(len(counted)), counts.codes)[:3]
    assert counts.of_codes(some_other, np.ones(3, np.bool_)) == pytest.approx(
        np.full(3, counts.other_rows / counts.other_keys)
    )


def test_rows_are_looked_up_by_their_key(tmp_path: Path) -> None:
    table = pa.table({"key": ["a", "b", "b"], "price": [1, 2, 3]})
    master = MasterData.build(table, key="key", path=tmp_path)
    counts = MatchCounts.of(master, MemoryBudget(2_000_000), memory_bytes=1_000_000)
    batch = pa.record_batch({"product": ["b", "a", None, "c"]})
    key = StreamKey.of(batch.schema, "product", master.key_form)
    assert counts.of_rows(batch, key).tolist() == [2, 1, 0, 0]


def test_too_little_memory_names_the_least(master: MasterData) -> None:
    with pytest.raises(BudgetError, match="give at least") as caught:
        MatchCounts.of(master, MemoryBudget(1_000_000), memory_bytes=2_000)
    MatchCounts.of(master, MemoryBudget(1_000_000), memory_bytes=caught.value.least_bytes)
