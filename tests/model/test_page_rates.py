"""How often pages are asked for, against keys thrown on pages."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.model.page_rates import PageRates, popularity_of
from tidemill.model.workload import Workload

# 500 pages of 40 rows.
SHOP = Workload(
    master_rows=20_000, master_row_bytes=100, stream_row_bytes=20, zipf_exponent=1.0, page_bytes=4000
)


def thrown(zipf: float) -> np.ndarray:
    """Shares of the pages of SHOP where keys lie at random."""
    shares = np.arange(1, 20_001) ** -zipf
    shuffled = np.random.default_rng(7).permutation(shares / shares.sum())
    return np.sort(shuffled.reshape(500, 40).sum(axis=1))[::-1]


def test_uniform_pages_are_all_alike():
    rates = PageRates.of(replace(SHOP, zipf_exponent=0.0, popular_first=True))
    assert rates.shares == pytest.approx(1 / 500)


def test_the_first_page_in_order_has_the_first_keys():
    rates = PageRates.of(replace(SHOP, popular_first=True))
    harmonic = np.cumsum(1 / np.arange(1, 20_001))
    assert rates.shares[0] == pytest.approx(harmonic[39] / harmonic[-1], rel=0.01)


@pytest.mark.parametrize("zipf", [0.0, 0.5, 1.0, 1.25])
@pytest.mark.parametrize("rows", [100, 1000, 10_000])
def test_scattered_keys_ask_for_as_many_pages_as_thrown_ones(zipf, rows):
    rates = PageRates.of(replace(SHOP, zipf_exponent=zipf))
    predicted = np.dot(rates.pages, 1 - np.exp(-rates.shares * rows))
    assert predicted == pytest.approx((1 - np.exp(-thrown(zipf) * rows)).sum(), rel=0.03)


def test_pages_of_a_cache_are_the_most_popular():
    rates = PageRates.of(SHOP)
    hits = rates.asked_share - rates.without_top(25).asked_share
    assert hits == pytest.approx(thrown(1.0)[:25].sum(), rel=0.1)


def test_first_pages_of_scattered_keys_are_as_any_other():
    rates = PageRates.of(SHOP)
    assert rates.without_first(50).asked_share == pytest.approx(0.9 * rates.asked_share)


@given(st.floats(0, 1.5), st.floats(0, 1), st.booleans(), st.integers(1, 8))
@settings(max_examples=50, deadline=None)
def test_no_share_is_lost_or_counted_twice(zipf, cold_share, popular_first, unit_pages):
    workload = replace(SHOP, zipf_exponent=zipf, popular_first=popular_first)
    keys = popularity_of(workload)
    cold = np.linspace(cold_share, 1, len(keys.counts))
    rates = PageRates.of(workload, cold, unit_pages=unit_pages)
    assert rates.asked_share == pytest.approx(float(np.dot(keys.counts * cold, keys.shares)), rel=1e-6)
    assert rates.total_pages == pytest.approx(-(-500 // unit_pages))
