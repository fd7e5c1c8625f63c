"""SSIJ: what cached pages answer."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.model.catalog import model_of
from tidemill.model.cost.ssij import MODEL
from tidemill.model.popularity import Popularity
from tidemill.model.workload import Workload

# 1,000 pages of 100 rows; a cached page takes 100 * 160 bytes and 40 of its table.
SALES = Workload(
    master_rows=100_000, master_row_bytes=160, stream_row_bytes=22, zipf_exponent=1.0, page_bytes=16_000
)
SIZES = replace(MODEL.default_sizes(SALES, 4_000_000), hot_rows_bytes=50 * 16_040 * 5 // 2)


def test_the_catalog_knows_it():
    assert model_of("ssij") is MODEL


def test_in_order_of_popularity_cached_pages_hold_the_first_keys():
    state = MODEL.steady_state(replace(SALES, popular_first=True), SIZES)
    assert state.hit_share == pytest.approx(Popularity(100_000, exponent=1.0).share_of_top(5000), rel=0.01)
    assert state.hot_bytes == pytest.approx(50 * 16_040)


def test_scattered_ones_hold_one_popular_key_each():
    # The fifty most popular keys, and of the others a twentieth.
    first = Popularity(100_000, exponent=1.0).share_of_top(50)
    state = MODEL.steady_state(SALES, SIZES)
    assert state.hit_share == pytest.approx(first + (1 - first) / 20, rel=0.03)


def test_without_skew_a_page_is_as_good_as_another():
    state = MODEL.steady_state(replace(SALES, zipf_exponent=0.0), SIZES)
    assert state.hit_share == pytest.approx(0.05, rel=0.03)


def test_a_page_that_does_not_fit_is_not_cached():
    state = MODEL.steady_state(SALES, replace(SIZES, hot_rows_bytes=20_000))
    assert (state.hit_share, state.hot_bytes) == (pytest.approx(0), 0)


@given(st.floats(0, 1.5), st.integers(500_000, 8_000_000), st.booleans())
@settings(max_examples=30, deadline=None)
def test_shares_stay_shares(zipf, memory_bytes, popular_first):
    workload = replace(SALES, zipf_exponent=zipf, popular_first=popular_first)
    grid = list(MODEL.size_grid(workload, memory_bytes))
    assert {sizes.total_bytes for sizes in grid} == {memory_bytes}
    for sizes in grid[:3]:
        state = MODEL.steady_state(workload, sizes)
        assert -1e-9 <= state.hit_share <= 1
        assert 0 <= state.work_per_row.reads <= 1.01
