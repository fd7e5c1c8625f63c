"""MOIJ: where hot rows and waiting rows come to rest."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.core.errors import BudgetError
from tidemill.model.catalog import model_of
from tidemill.model.cost.moij import MODEL
from tidemill.model.page_rates import popularity_of
from tidemill.model.workload import Workload

# 1,000 pages of 100 rows. A waiting row takes 8 + 24 bytes, a hot one 168 and 16 of its entry: as much as 5.75 waiting.
SALES = Workload(
    master_rows=100_000, master_row_bytes=160, stream_row_bytes=22, zipf_exponent=1.0, page_bytes=16_000
)
MEMORY_BYTES = 1_600_000


def test_the_catalog_knows_it():
    assert model_of("moij") is MODEL


def test_a_key_is_hot_where_its_waiting_rows_would_take_more():
    state = MODEL.steady_state(SALES, MODEL.default_sizes(SALES, MEMORY_BYTES))
    keys = popularity_of(SALES)
    would_wait = keys.shares * state.waiting_rows / (1 - state.hit_share)
    border = int(np.searchsorted(-would_wait, -184 / 32))  # rank of the last key that should be hot
    assert state.hit_share == pytest.approx(keys.share_of_top(border), abs=0.03)


def test_without_skew_all_memory_is_for_waiting_rows():
    uniform = replace(SALES, zipf_exponent=0.0)
    sizes = MODEL.default_sizes(uniform, MEMORY_BYTES)
    state = MODEL.steady_state(uniform, sizes)
    assert state.hit_share == pytest.approx(0, abs=0.002)
    assert state.waiting_bytes == pytest.approx(sizes.shared_bytes, rel=0.03)


def test_more_skew_moves_the_border_towards_hot_rows():
    states = [
        MODEL.steady_state(workload, MODEL.default_sizes(workload, MEMORY_BYTES))
        for workload in (replace(SALES, zipf_exponent=zipf) for zipf in (0.5, 0.8, 1.0, 1.25))
    ]
    assert [s.hot_bytes for s in states] == sorted(s.hot_bytes for s in states)
    assert [s.waiting_bytes for s in states] == sorted((s.waiting_bytes for s in states), reverse=True)


def test_both_parts_stay_within_what_they_share():
    sizes = MODEL.default_sizes(SALES, MEMORY_BYTES)
    state = MODEL.steady_state(SALES, sizes)
    assert 0.95 * sizes.shared_bytes < state.hot_bytes + state.waiting_bytes <= sizes.shared_bytes


def test_every_row_is_looked_up_and_misses_wait():
    # The paper's eq. 2 leaves out the lookup of the rows that miss.
    state = MODEL.steady_state(SALES, MODEL.default_sizes(SALES, MEMORY_BYTES))
    work = state.work_per_row
    assert (work.hot_probes, work.added) == (1, pytest.approx(1 - state.hit_share))
    assert 0 < work.hot_changes < 0.05


def test_a_read_is_a_segment():
    sizes = replace(
        MODEL.default_sizes(SALES, MEMORY_BYTES), segment_pages=5, read_pages=5, pages_per_step=40
    )
    work = MODEL.steady_state(SALES, sizes).work_per_row
    assert work.read_bytes == pytest.approx(work.reads * 5 * 16_000)
    assert work.steps * 8 >= work.reads * 0.98  # eight segments a step at most


def test_too_little_memory_names_the_least_that_works():
    with pytest.raises(BudgetError) as refusal:
        MODEL.default_sizes(SALES, 20_000)
    assert refusal.value.code == "budget_too_small"


def test_the_grid_stays_within_the_budget():
    grid = list(MODEL.size_grid(SALES, 8_000_000))
    assert grid[0] == MODEL.default_sizes(SALES, 8_000_000)
    assert all(sizes.total_bytes <= 8_000_000 for sizes in grid)
    assert len({sizes.segment_pages for sizes in grid}) > 4


@given(st.floats(0, 1.5), st.integers(400_000, 8_000_000), st.booleans())
@settings(max_examples=15, deadline=None)
def test_shares_stay_shares(zipf, memory_bytes, popular_first):
    workload = replace(SALES, zipf_exponent=zipf, popular_first=popular_first)
    state = MODEL.steady_state(workload, MODEL.default_sizes(workload, memory_bytes))
    assert -1e-9 <= state.hit_share <= 1
    assert 0 < state.work_per_row.reads <= 1.01
    assert state.waiting_rows > 0
