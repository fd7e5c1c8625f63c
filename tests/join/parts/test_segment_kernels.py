"""Codes of a segment are found whether they rise or not, evenly or not."""

import numpy as np
import pytest

from tidemill.join.parts.kernels import Int64s
from tidemill.join.parts.segment_kernels import (
    are_rising,
    first_row,
    index_codes,
    next_met,
    rows_of_code,
    rows_per_code,
)

_LEAST, _MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


def _rising(kind: str) -> Int64s:
    chance = np.random.default_rng(7)
    if kind == "dense":
        return np.arange(-50, 450)
    if kind == "spread":
        return np.sort(chance.integers(_LEAST, _MOST, 500))
    if kind == "bent":  # nearly all at one end
        return np.append(np.arange(499) ** 3, _MOST)
    if kind == "repeated":
        return np.sort(chance.integers(0, 60, 500))
    return np.full(500, 3) if kind == "equal" else np.array([_MOST])


@pytest.mark.parametrize("kind", ["dense", "spread", "bent", "repeated", "equal", "one"])
@pytest.mark.parametrize("begin", [0, 3])
def test_the_first_row_of_each_code_is_found_and_of_no_other(kind: str, begin: int) -> None:
    rising = _rising(kind)
    codes = np.append(np.full(begin, rising[0]), rising)  # of a segment before
    end, slope, slots = len(codes), rows_per_code(codes, begin, len(codes)), np.zeros(1024, dtype=np.int32)
    index_codes(codes, begin, end, slots)
    assert are_rising(codes, begin, end)
    near = np.concatenate([rising, rising[rising < _MOST] + 1, rising[rising > _LEAST] - 1, [_LEAST, _MOST]])
    for code in near.tolist():
        found = np.flatnonzero(rising == code)
        wanted = int(found[0]) if len(found) else -1
        assert first_row(codes, begin, end, True, slope, slots, code) == wanted
        assert first_row(codes, begin, end, False, slope, slots, code) == wanted
        if len(found):
            assert rows_of_code(codes, begin + wanted, end) == len(found)


def test_codes_that_fall_once_are_not_rising() -> None:
    codes = np.array([5, 1, 2, 2, 9, 8])
    assert are_rising(codes, 1, 5)
    assert are_rising(codes, 2, 2)
    assert not are_rising(codes, 0, 5)
    assert not are_rising(codes, 1, 6)


def test_nothing_is_found_where_no_row_is() -> None:
    codes, slots = np.array([5, 6]), np.zeros(4, dtype=np.int32)
    assert first_row(codes, 1, 1, True, rows_per_code(codes, 1, 1), slots, 6) == -1


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 100])
def test_rows_met_often_come_in_their_order(rows: int) -> None:
    met = np.random.default_rng(rows).integers(0, 4, 128).astype(np.int32)
    seen, row = [], next_met(met, 0, rows, 3)
    while row < rows:
        seen.append(row)
        row = next_met(met, row + 1, rows, 3)
    assert seen == np.flatnonzero(met[:rows] >= 3).tolist()
