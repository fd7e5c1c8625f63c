"""Phases of reads for the oldest rows: limits by hand, and against phases played through row by row."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.model.cost.moij import MODEL as MOIJ
from tidemill.model.oldest_first import OldestFirst
from tidemill.model.page_rates import PageRates
from tidemill.model.workload import Workload

PAGES = 400


def predicted(shares: np.ndarray, room: int, segment_pages: int, *, in_order: bool = False) -> OldestFirst:
    pages = np.ones(len(shares))
    rates = PageRates(pages=pages, shares=np.sort(shares)[::-1], in_order=in_order)
    return OldestFirst.half_of(rates, room, segment_pages=segment_pages)


def played(shares: np.ndarray, room: int, segment_pages: int, phases: int = 80) -> float:
    """Reads a row of a waiting room that is filled, then read for until half is left; the first third is not counted."""
    drawn = np.random.default_rng(7).choice(len(shares), room * (phases + 1), p=shares)
    waiting = np.empty(0, dtype=np.int64)
    reads = rows = done = 0
    for phase in range(phases):
        came = room - len(waiting)
        waiting = np.concatenate([waiting, drawn[done : done + came]])
        done += came
        if phase >= phases // 3:
            rows += came
        while len(waiting) > room // 2:
            first = waiting[0]
            waiting = waiting[(waiting < first) | (waiting >= first + segment_pages)]
            reads += phase >= phases // 3
    return reads / rows


def zipf_shares(exponent: float, *, shuffled: bool) -> np.ndarray:
    keys = np.arange(1, 50 * PAGES + 1) ** -exponent
    if shuffled:
        keys = np.random.default_rng(3).permutation(keys)
    shares = keys.reshape(PAGES, 50).sum(axis=1)
    return shares / shares.sum()


def test_few_rows_have_a_read_each():
    uniform = np.full(PAGES, 1 / PAGES)
    assert predicted(uniform, 4, 1).reads_per_row == pytest.approx(1, rel=0.01)


def test_with_many_rows_a_page_has_its_turn_every_third_phase():
    # Pages have rows of one, two and three phases when reads begin. Those with three go: half of all rows.
    many = predicted(np.full(PAGES, 1 / PAGES), 400 * PAGES, 1)
    assert many.reads_per_phase == pytest.approx(PAGES / 3, rel=0.01)
    assert many.age_rows == pytest.approx(2 * many.rows_per_phase, rel=0.02)


def test_rows_of_one_page_have_one_read_a_phase():
    assert predicted(np.array([1.0]), 100, 1).reads_per_phase == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize("segment_pages", [1, 4, 16])
@pytest.mark.parametrize("room", [60, 600, 6000])
@pytest.mark.parametrize("zipf", [0.0, 1.0])
def test_scattered_pages_are_read_as_often_as_played(zipf, room, segment_pages):
    shares = zipf_shares(zipf, shuffled=True)
    reads = predicted(shares, room, segment_pages).reads_per_row
    assert reads == pytest.approx(played(shares, room, segment_pages), rel=0.15)


@pytest.mark.parametrize("segment_pages", [1, 8])
def test_pages_in_order_of_popularity_are_read_as_often_as_played(segment_pages):
    shares = zipf_shares(1.0, shuffled=False)
    reads = predicted(shares, 600, segment_pages, in_order=True).reads_per_row
    assert reads == pytest.approx(played(shares, 600, segment_pages), rel=0.15)


@given(st.floats(0, 1.5), st.integers(4, 3000), st.integers(1, 40), st.booleans())
@settings(max_examples=40, deadline=None)
def test_more_room_needs_no_more_reads(zipf, room, segment_pages, in_order):
    shares = zipf_shares(zipf, shuffled=not in_order)
    less, more = (predicted(shares, n, segment_pages, in_order=in_order) for n in (room, 2 * room))
    assert 0 < more.reads_per_row <= less.reads_per_row * 1.02
    assert less.reads_per_row <= 1.001


def test_nobody_asks_and_nothing_is_read():
    assert predicted(np.zeros(3), 100, 2).reads_per_row == 0


def test_pages_that_nobody_asks_for_are_no_overflow() -> None:
    """With master data of one page nearly all classes are asked for, and one never is."""
    tiny = Workload(master_rows=100, master_row_bytes=120, stream_row_bytes=20, zipf_exponent=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        state = MOIJ.steady_state(tiny, MOIJ.default_sizes(tiny, 100_000_000))
    assert 0 <= state.hit_share <= 1
