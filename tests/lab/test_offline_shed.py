"""The yardstick of shedding equals brute force."""

import numpy as np
import pytest

from tidemill.lab.offline_shed import Floats, least_loss, least_loss_by_figure


def brute_force(matches: Floats, buffer_rows: int, step_rows: int) -> float:
    """The least loss of all sets of rows that can be kept; all sets are played through side by side."""
    rows = len(matches)
    kept = (np.arange(2**rows)[:, None] >> np.arange(rows)) & 1 == 1
    held = np.zeros(2**rows, np.int64)
    asked_at = np.zeros(2**rows, np.int64)
    can_be = np.ones(2**rows, np.bool_)
    for i in range(rows):
        handed_over = (held == buffer_rows) & (i >= asked_at)
        held[handed_over] = 0
        asked_at[handed_over] = i + step_rows
        can_be &= ~(kept[:, i] & (held == buffer_rows))
        held += kept[:, i] & (held < buffer_rows)
    return float((~kept[can_be] @ matches).min())


def test_equals_brute_force_in_600_random_cases() -> None:
    random = np.random.default_rng(7)
    for case in range(600):
        matches = random.integers(0, 10, random.integers(1, 11)).astype(np.float64)
        sizes = {"buffer_rows": int(random.integers(1, 5)), "step_rows": int(random.integers(1, 9))}
        expected = brute_force(matches, **sizes)
        assert least_loss(matches, **sizes) == expected, (case, matches, sizes)
        assert least_loss_by_figure(matches, **sizes) == expected, (case, matches, sizes)


def test_the_two_forms_agree_on_longer_streams() -> None:
    random = np.random.default_rng(11)
    for _ in range(5):
        matches = random.pareto(1.0, 200) * 10
        sizes = {"buffer_rows": 7, "step_rows": int(random.integers(8, 20))}
        assert least_loss(matches, **sizes) == pytest.approx(least_loss_by_figure(matches, **sizes))


def test_a_stall_can_lose_less_than_serving_at_once() -> None:
    """The join asks at 0: given the first two rows, it is busy while rows worth nine pass by."""
    matches = np.array([1.0, 1, 9, 9, 9, 9])
    served_at_once = 18.0  # the first two are taken, then two of the four
    assert least_loss(matches, buffer_rows=2, step_rows=4) == 2.0 < served_at_once
