"""Memory goes to hot rows where they save much, away where they save nothing, and stays else."""

import pytest

from tidemill.join.parts.split import SHARES, START_SHARE, Split

HOT_BYTES, WAITING_BYTES = 8_000_000, 32_000_000


def looked(
    split: Split, miss_share: float, *, region_rows: int = 300, is_hot_full: bool = True
) -> float | None:
    """What a look says after a million rows, when each region of 192 KiB served so many."""
    period = split.period
    period.rows, period.misses = 1_000_000, int(1_000_000 * miss_share)
    period.served_rows = period.misses
    period.services = period.misses // region_rows
    period.bytes_read = period.services * 196_608
    return split.look(hot_bytes=HOT_BYTES, waiting_bytes=WAITING_BYTES, is_hot_full=is_hot_full)


@pytest.mark.parametrize(
    ("miss_share", "expected"),
    [
        pytest.param(0.995, SHARES[0], id="uniform: all but a little is for waiting rows"),
        pytest.param(0.34, None, id="Zipf 1: stays"),
        pytest.param(0.05, SHARES[SHARES.index(START_SHARE) + 1], id="Zipf 1.25: a step more"),
    ],
)
def test_the_share_follows_the_skew(miss_share: float, expected: float | None):
    split = Split()
    assert looked(split, miss_share) == expected
    assert split.share == (expected or START_SHARE)
    assert split.period.rows == 0, "a new period begins"


def test_hot_rows_that_are_not_full_do_not_grow():
    assert looked(Split(), 0.05, is_hot_full=False) is None


def test_it_looks_less_often_when_there_was_nothing_to_change():
    split = Split()
    split.period.rows = 1_601
    assert split.is_due(100, 1_600)
    assert not split.is_due(101, 1_600)
    looked(split, 0.34)
    split.period.rows = 1_601
    assert not split.is_due(100, 1_600)
    split.period.rows = 3_201
    assert split.is_due(100, 1_600)


def test_without_a_read_nothing_is_said():
    split = Split()
    split.period.rows = 10**6
    assert split.look(hot_bytes=1, waiting_bytes=1, is_hot_full=True) is None


def test_from_the_least_share_there_is_a_way_back():
    split = Split(SHARES[0])
    period = split.period
    period.rows, period.misses, period.served_rows, period.services = 1_000_000, 550_000, 550_000, 1_000
    period.bytes_read = 1_000 * 196_608
    assert split.look(hot_bytes=800_000, waiting_bytes=39_000_000, is_hot_full=True) == SHARES[1]
