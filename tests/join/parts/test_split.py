"""Memory goes to hot rows where they save much, away where they save nothing, and stays else."""

import pytest

from tidemill.join.parts.split import SHARES, START_SHARE, MissCosts, Split
from tidemill.model.popularity import Popularity

BOTH_BYTES, KEYS, HOT_ROW_BYTES = 40_000_000, 10_000_000, 146
REGION_BYTES = 16 * 16_384


def split_at(share: float, **options: MissCosts) -> Split:
    return Split(share, keys=KEYS, hot_row_bytes=HOT_ROW_BYTES, **options)


def look(
    split: Split, zipf: float, *, region_rows: int = 300, rows: int = 100_000_000, is_hot_full: bool = True
) -> float | None:
    """What a look says after so many rows of a Zipf stream, when each region served so many."""
    hot_rows = int(BOTH_BYTES * split.share / HOT_ROW_BYTES)
    hits = Popularity(KEYS, exponent=zipf).share_of_top(hot_rows)
    period = split.period
    period.rows, period.misses = rows, int(rows * (1 - hits))
    period.served_rows, period.services = period.misses, period.misses // region_rows
    period.bytes_read = period.services * REGION_BYTES
    return split.look(
        both_bytes=BOTH_BYTES,
        hot_rows=hot_rows,
        most_waiting=1_000_000,
        counted_rows=0,
        is_hot_full=is_hot_full,
    )


def settled(zipf: float, share: float = START_SHARE, **options: MissCosts) -> float:
    split = split_at(share, **options)
    for _ in range(10):
        better = look(split, zipf)
        if better is None:
            return split.share
        split.share = better
    pytest.fail("memory goes to and fro")


def test_a_uniform_stream_leaves_all_but_a_little_to_waiting_rows():
    assert settled(0) == SHARES[0]


def test_it_ends_near_the_same_share_wherever_it_begins():
    ends = [settled(1.0, share) for share in (SHARES[0], START_SHARE, SHARES[-1])]
    assert max(ends) - min(ends) <= 0.15


def test_more_skew_gives_hot_rows_more():
    assert settled(0) < settled(1.0) < settled(1.25)


def test_one_look_is_enough_after_the_skew_has_come():
    split = split_at(SHARES[0])
    better = look(split, 1.0, rows=5_000)
    assert better is not None
    assert abs(better - settled(1.0)) <= 0.1


def test_where_reads_are_dear_waiting_rows_get_more():
    disk = MissCosts(read_seconds=12.5e-3, bytes_per_s=72e6)
    assert settled(1.25, costs=disk) < settled(1.25)


def test_hot_rows_that_are_not_full_do_not_grow():
    assert look(split_at(SHARES[0]), 1.25, is_hot_full=False) is None


def test_hot_rows_do_not_shrink_before_they_have_settled():
    split = split_at(SHARES[-1])
    assert look(split, 0, rows=1_000_000) is None
    assert look(split, 0) == SHARES[0]


def turned_around(rows: int) -> Split:
    """Hot rows got more, then less, after so many rows each."""
    split = split_at(SHARES[0])
    for zipf in (1.25, 0):
        better = look(split, zipf, rows=rows)
        assert better is not None
        split.share = better
    return split


def test_it_waits_longer_each_time_that_it_went_too_far():
    split = turned_around(3_000_000)
    assert look(split, 1.25, rows=500_000) is None, "a second time it waits until hot rows have settled"
    assert look(split, 1.25, rows=3_000_000) is not None


def test_after_a_long_rest_it_is_the_stream_that_has_changed():
    split = turned_around(100_000_000)
    look(split, 0, rows=100_000_000)
    assert look(split, 1.25, rows=500_000) is not None


def test_codes_met_again_tell_skew_before_any_is_hot():
    """Of 100,000 rows counted, a third are of codes met five times and more: keys with 4 / 100,000 of the stream or more."""
    split = split_at(SHARES[0])
    period = split.period
    period.rows = period.misses = period.served_rows = 100_000
    period.met_again, period.services, period.bytes_read = 33_000, 300, 300 * REGION_BYTES
    facts = {"both_bytes": BOTH_BYTES, "hot_rows": 5_000, "most_waiting": 1_000_000, "is_hot_full": True}
    better = split.look(counted_rows=100_000, **facts)
    assert better is not None
    assert better >= 0.1


def test_codes_met_again_tell_nothing_where_every_key_comes_often():
    """When ten rows a key were counted, a uniform stream meets nearly all again."""
    split = split_at(SHARES[0])
    period = split.period
    period.rows = period.misses = period.served_rows = period.met_again = 100_000
    period.services, period.bytes_read = 300, 300 * REGION_BYTES
    facts = {"both_bytes": BOTH_BYTES, "hot_rows": 5_000, "most_waiting": 1_000_000, "is_hot_full": True}
    assert split.look(counted_rows=10 * KEYS, **facts) is None


def test_it_looks_when_a_quarter_of_the_room_has_passed():
    split = split_at(START_SHARE)
    split.period.rows = 25_001
    assert not split.is_due(100_000), "nothing was read"
    split.period.services = 1
    assert split.is_due(100_000)
    assert not split.is_due(100_005)


def test_without_a_read_nothing_is_said():
    split = split_at(START_SHARE)
    split.period.rows = 10**6
    assert split.look(both_bytes=1, hot_rows=1, most_waiting=1, counted_rows=1, is_hot_full=True) is None
