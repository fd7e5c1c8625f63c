"""X-HYBRIDJOIN: what resident pages are worth."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.model.catalog import model_of
from tidemill.model.cost import hybrid
from tidemill.model.cost.x_hybrid import MODEL
from tidemill.model.popularity import Popularity
from tidemill.model.work import COSTS_OF_2008
from tidemill.model.workload import Workload

# 1,000 pages of 100 rows.
SALES = Workload(
    master_rows=100_000,
    master_row_bytes=160,
    stream_row_bytes=22,
    zipf_exponent=1.0,
    popular_first=True,
    page_bytes=16_000,
)
MEMORY_BYTES = 2_000_000


def test_the_catalog_knows_it():
    assert model_of("x_hybrid") is MODEL


def test_resident_pages_answer_the_first_keys():
    sizes = MODEL.default_sizes(SALES, MEMORY_BYTES)
    share = Popularity(100_000, exponent=1.0).share_of_top(100 * sizes.pages_per_step)
    assert MODEL.steady_state(SALES, sizes).hit_share == pytest.approx(share, rel=0.01)


def test_in_key_order_they_answer_as_much_as_any_pages():
    scattered = replace(SALES, popular_first=False)
    sizes = MODEL.default_sizes(scattered, MEMORY_BYTES)
    assert MODEL.steady_state(scattered, sizes).hit_share == pytest.approx(sizes.pages_per_step / 1000)


def test_every_row_waits_and_is_looked_up():
    work = MODEL.steady_state(SALES, MODEL.default_sizes(SALES, MEMORY_BYTES)).work_per_row
    assert (work.added, work.removed, work.hot_probes) == (1, 1, 1)


def test_the_papers_claim_in_order_of_popularity():
    # Fig. 3: better than HYBRIDJOIN on a master table in order of popularity, though fewer rows can wait.
    ours = MODEL.steady_state(SALES, MODEL.default_sizes(SALES, MEMORY_BYTES))
    theirs = hybrid.MODEL.steady_state(SALES, hybrid.MODEL.default_sizes(SALES, MEMORY_BYTES))
    assert ours.rows_per_s(COSTS_OF_2008) > 1.1 * theirs.rows_per_s(COSTS_OF_2008)


def test_master_data_that_is_all_resident_is_not_read():
    small = replace(SALES, master_rows=1000)
    sizes = MODEL.default_sizes(small, MEMORY_BYTES)
    assert sizes.pages_per_step >= small.master_pages
    assert MODEL.steady_state(small, sizes).work_per_row.reads == 0


@given(st.floats(0, 1.5), st.integers(400_000, 5_000_000), st.booleans())
@settings(max_examples=30, deadline=None)
def test_shares_stay_shares(zipf, memory_bytes, popular_first):
    workload = replace(SALES, zipf_exponent=zipf, popular_first=popular_first)
    for sizes in list(MODEL.size_grid(workload, memory_bytes))[:3]:
        state = MODEL.steady_state(workload, sizes)
        assert 0 <= state.hit_share <= 1
        assert 0 < state.work_per_row.reads <= 1.01
        assert sum(state.memory_bytes.values()) == sizes.total_bytes == memory_bytes
