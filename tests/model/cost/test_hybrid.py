"""HYBRIDJOIN's work for a row: by hand where limits are known, and what must hold for any sizes."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.core.errors import BudgetError
from tidemill.join.hybrid import HybridSizes
from tidemill.model.catalog import model_of
from tidemill.model.cost.hybrid import MODEL, waiting_capacity
from tidemill.model.work import COSTS_OF_2008
from tidemill.model.workload import Workload

# 1,000 pages of 100 rows.
SALES = Workload(
    master_rows=100_000, master_row_bytes=160, stream_row_bytes=22, zipf_exponent=0.0, page_bytes=16_000
)
SIZES = HybridSizes(
    arrivals_bytes=10_000,
    disk_buffer_bytes=32_000,
    index_bytes=17_000,
    output_bytes=100_000,
    pages_per_step=1,
    pending_bytes=100 * 400_000,
)


def test_the_catalog_knows_it():
    assert model_of("hybrid") is MODEL


def test_rows_that_fit():
    # A row counts twice, and 56 bytes beside: 2 * 22 + 56 = 100.
    assert waiting_capacity(SALES, SIZES) == 400_000


def test_work_where_each_page_has_many_rows():
    # A third of the 1,000 pages for half of 400,000 rows; each read brings 100 master rows.
    work = MODEL.steady_state(SALES, SIZES).work_per_row
    assert work.reads == pytest.approx(1000 / 3 / 200_000, rel=0.02)
    assert work.read_bytes == pytest.approx(16_000 * work.reads)
    assert work.master_rows == pytest.approx(100 * work.reads)
    assert (work.stream_rows, work.added, work.removed, work.output_rows, work.hot_probes) == (1, 1, 1, 1, 0)


def test_work_where_each_row_is_alone():
    few = replace(SIZES, pending_bytes=2000, arrivals_bytes=1000)
    assert MODEL.steady_state(SALES, few).work_per_row.reads == pytest.approx(1, rel=0.03)


def test_a_partition_of_all_pages_is_half_as_long_on_average():
    # It begins at the page of the oldest row and ends with the master data.
    work = MODEL.steady_state(SALES, replace(SIZES, pages_per_step=1000)).work_per_row
    assert work.read_bytes / work.reads == pytest.approx(16_000 * 500.5)


def test_rows_without_a_match_do_not_wait():
    half = MODEL.steady_state(replace(SALES, matched_share=0.5), SIZES).work_per_row
    assert (half.added, half.output_rows) == (0.5, 0.5)
    assert half.reads == pytest.approx(MODEL.steady_state(SALES, SIZES).work_per_row.reads / 2, rel=0.01)


def test_too_little_memory_names_the_least_that_works():
    with pytest.raises(BudgetError) as refusal:
        MODEL.default_sizes(SALES, 10_000)
    assert refusal.value.code == "budget_too_small"


def test_the_grid_stays_within_the_budget():
    grid = list(MODEL.size_grid(SALES, 2_000_000))
    assert grid[0] == MODEL.default_sizes(SALES, 2_000_000)
    assert {sizes.total_bytes for sizes in grid} == {2_000_000}
    assert len({sizes.pages_per_step for sizes in grid}) > 5


@given(st.floats(0, 1.5), st.integers(300_000, 5_000_000), st.booleans())
@settings(max_examples=30, deadline=None)
def test_more_memory_is_no_slower(zipf, memory_bytes, popular_first):
    workload = replace(SALES, zipf_exponent=zipf, popular_first=popular_first)
    less, more = (
        MODEL.steady_state(workload, MODEL.default_sizes(workload, n)).rows_per_s(COSTS_OF_2008)
        for n in (memory_bytes, 2 * memory_bytes)
    )
    assert more >= 0.98 * less
