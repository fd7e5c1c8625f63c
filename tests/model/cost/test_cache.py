"""CACHEJOIN: who is hot, and what the others cost."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.model.catalog import model_of
from tidemill.model.cost.cache import MODEL
from tidemill.model.popularity import Popularity
from tidemill.model.work import COSTS_OF_2008
from tidemill.model.workload import Workload

# 10,000 pages of 100 rows; a hot row takes 160 - 8 bytes and 40 of its table: 192.
SALES = Workload(
    master_rows=1_000_000, master_row_bytes=160, stream_row_bytes=22, zipf_exponent=1.0, page_bytes=16_000
)
SIZES = replace(MODEL.default_sizes(SALES, 16_000_000), hot_rows_bytes=192 * 10_000 * 5 // 2)


def test_the_catalog_knows_it():
    assert model_of("cache") is MODEL


def test_hot_rows_are_nearly_the_most_popular():
    state = MODEL.steady_state(SALES, SIZES)
    best = Popularity(1_000_000, exponent=1.0).share_of_top(10_000)
    assert 0.9 * best < state.hit_share < best
    assert state.hot_bytes == pytest.approx(192 * 10_000)


def test_without_skew_chance_decides_who_is_hot():
    # One key in a hundred is hot. Half a percent of hits is not worth a switch.
    state = MODEL.steady_state(replace(SALES, zipf_exponent=0.0), SIZES)
    assert state.hit_share == pytest.approx(0.01 - 0.005, abs=0.001)


def test_with_a_small_sketch_fewer_of_the_popular_are_hot():
    little_skew = replace(SALES, zipf_exponent=0.5)
    exact = MODEL.steady_state(little_skew, replace(SIZES, frequency_bytes=100_000_000)).hit_share
    vague = MODEL.steady_state(little_skew, replace(SIZES, frequency_bytes=20_000)).hit_share
    assert vague < 0.8 * exact < 0.8 * Popularity(1_000_000, exponent=0.5).share_of_top(10_000)


def test_each_row_is_looked_up_and_those_that_miss_wait():
    state = MODEL.steady_state(SALES, SIZES)
    work = state.work_per_row
    assert (work.hot_probes, work.added) == (1, pytest.approx(1 - state.hit_share))
    assert work.steps == pytest.approx(work.read_bytes / 16_000 / SIZES.pages_per_step)


def test_neighbours_come_with_one_read():
    work = MODEL.steady_state(SALES, SIZES).work_per_row
    pages = work.read_bytes / 16_000
    assert work.reads == pytest.approx(pages * (1 - (SIZES.pages_per_step - 1) / 10_000), rel=1e-3)


def test_all_rows_hot_leaves_nothing_to_read_but_what_no_switch_is_worth():
    small = replace(SALES, master_rows=1000)
    assert MODEL.steady_state(small, SIZES).hit_share == pytest.approx(1 - 0.005)


def test_the_grid_moves_the_border_within_the_budget():
    grid = list(MODEL.size_grid(SALES, 16_000_000))
    assert grid[0] == MODEL.default_sizes(SALES, 16_000_000)
    assert {sizes.total_bytes for sizes in grid} == {grid[0].total_bytes}
    assert len(grid) > 5


@given(st.floats(0, 1.5), st.integers(1_000_000, 50_000_000))
@settings(max_examples=30, deadline=None)
def test_more_memory_is_no_slower(zipf, memory_bytes):
    workload = replace(SALES, zipf_exponent=zipf)
    less, more = (
        MODEL.steady_state(workload, MODEL.default_sizes(workload, n)).rows_per_s(COSTS_OF_2008)
        for n in (memory_bytes, 2 * memory_bytes)
    )
    assert more >= 0.97 * less
