"""Self-similar arrivals: their counts add up and their Hurst exponent is that of the b-model."""

import numpy as np
import pytest

from tidemill.lab.data.bursts import burst_counts, burst_hurst, hurst_exponent


@pytest.mark.parametrize("bias", [0.7, 0.75, 0.8])
def test_the_estimate_finds_the_exponent_of_the_model(bias: float) -> None:
    counts = burst_counts(10_000_000, 2**14, seed=3, bias=bias)
    assert hurst_exponent(counts) == pytest.approx(burst_hurst(bias), abs=0.06)


def test_independent_arrivals_have_none_of_it() -> None:
    poisson = np.random.default_rng(5).poisson(600, 2**14)
    assert hurst_exponent(poisson) == pytest.approx(0.5, abs=0.05)
    # Put in another order, bursts are no longer self-similar: what is measured is their place in time.
    mixed = np.random.default_rng(5).permutation(burst_counts(10_000_000, 2**14, seed=3))
    assert hurst_exponent(mixed) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(("rows", "intervals"), [(1, 8), (1000, 1), (12_345, 100)])
def test_no_row_is_lost_in_rounding(rows: int, intervals: int) -> None:
    counts = burst_counts(rows, intervals, seed=1)
    assert counts.sum() == rows
    assert counts.min() >= 0
    assert intervals <= len(counts) < 2 * intervals
