"""Estimates and their bounds, checked by hand and over all samples that can be."""

from itertools import combinations

import numpy as np
import pytest

from tidemill.core.errors import SpecError
from tidemill.join.shedding.estimates import (
    Estimate,
    mean_of_clusters,
    mean_of_sample,
    sum_of_clusters,
    sum_of_sample,
)


def test_sample_by_hand() -> None:
    """Kept 2, 4, 6 of 12 rows: mean 4, s² = 4, variance of the mean (1 - 1/4) · 4 / 3 = 1, of the sum 144."""
    kept = np.array([2.0, 4.0, 6.0])
    mean, total = mean_of_sample(kept, arrived_rows=12), sum_of_sample(kept, arrived_rows=12)
    assert (mean.value, mean.variance, mean.freedom) == (4.0, 1.0, 2)
    assert (total.value, total.variance) == (48.0, 144.0)
    assert mean.scaled(2).bounds(0.9) == pytest.approx((8 - 2 * 2.92, 8 + 2 * 2.92), rel=0.01)


def test_clusters_by_hand() -> None:
    """Values 3 and 8 kept with chances 1/2 and 1: sum 14; variance 9 · (1/2) / (1/4) = 18."""
    found = sum_of_clusters(np.array([3.0, 8.0]), np.array([0.5, 1.0]))
    assert (found.value, found.variance) == (14.0, 18.0)
    mean = mean_of_clusters(np.array([3.0, 8.0]), np.array([1.0, 2.0]), np.array([0.5, 1.0]))
    assert mean.value == 14 / 4
    assert mean.variance == pytest.approx((3 - 3.5) ** 2 * 2 / 16)


def test_over_all_samples_the_estimate_and_its_variance_are_right_on_average() -> None:
    population = np.array([1.0, 5.0, 2.0, 9.0, 4.0, 4.0])
    found = [sum_of_sample(population[list(s)], arrived_rows=6) for s in combinations(range(6), 3)]
    values = np.array([one.value for one in found])
    assert values.mean() == pytest.approx(population.sum())
    assert np.mean([one.variance for one in found]) == pytest.approx(values.var())


def test_nothing_shed_means_no_error() -> None:
    assert sum_of_sample(np.array([1.0, 2.0]), arrived_rows=2).bounds() == (3.0, 3.0)
    assert sum_of_clusters(np.array([1.0, 2.0]), np.ones(2)).bounds() == (3.0, 3.0)
    assert sum_of_sample(np.array([]), arrived_rows=0).bounds() == (0.0, 0.0)


def test_too_few_rows_bound_nothing() -> None:
    assert sum_of_sample(np.array([7.0]), arrived_rows=2).error() == np.inf
    assert sum_of_clusters(np.array([7.0]), np.array([0.5])).error() == np.inf
    assert sum_of_sample(np.array([]), arrived_rows=2).error() == np.inf
    assert np.isinf((sum_of_sample(np.array([7.0]), arrived_rows=2) + _exact(3.0)).error())


def test_rounds_add_up() -> None:
    one = Estimate(value=10.0, variance=4.0, freedom=9)
    both = one + Estimate(value=20.0, variance=4.0, freedom=9)
    assert (both.value, both.variance, both.freedom) == (30.0, 8.0, 18)
    assert one + _exact(5.0) == Estimate(value=15.0, variance=4.0, freedom=9)


@pytest.mark.parametrize(
    ("confidence", "freedom", "table"), [(0.99, 4, 4.604), (0.99, 10, 3.169), (0.95, 5, 2.571), (0.95, 1e9, 1.960)]
)  # fmt: skip
def test_bounds_are_those_of_student(confidence: float, freedom: float, table: float) -> None:
    found = Estimate(value=0.0, variance=1.0, freedom=freedom).error(confidence)
    assert found == pytest.approx(table, rel=0.01)


def test_lengths_must_agree() -> None:
    with pytest.raises(SpecError, match="2 values with 1 shares"):
        sum_of_clusters(np.ones(2), np.ones(1))


def _exact(value: float) -> Estimate:
    return Estimate(value=value, variance=0.0, freedom=np.inf)
