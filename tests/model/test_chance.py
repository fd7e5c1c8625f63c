"""Chances of counts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.model.chance import at_least


def test_small_counts_by_hand():
    # P(N >= 3) for a mean of 2: 1 - e^-2 * (1 + 2 + 2)
    assert at_least(3, np.array([2.0]))[0] == pytest.approx(1 - 5 * np.exp(-2))
    assert at_least(0, np.array([0.0, 7.0])).tolist() == [1.0, 1.0]


def test_many_events_are_nearly_normal():
    drawn = np.random.default_rng(7).poisson(400.0, 200_000)
    for count in (350, 390, 420):
        assert at_least(count, np.array([400.0]))[0] == pytest.approx((drawn >= count).mean(), abs=0.02)


@given(st.floats(0, 400), st.floats(0, 50), st.floats(0, 1000))
def test_more_events_are_less_likely(count, more, mean):
    means = np.array([mean])
    assert at_least(count + more, means)[0] <= at_least(count, means)[0] + 0.02
    assert 0 <= at_least(count, means)[0] <= 1
