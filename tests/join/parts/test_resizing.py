"""Rooms and hot rows that grow and shrink where they are keep what they hold."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.join.parts.test_row_cache import OPEN, Page, cache, found
from tests.join.parts.test_waiting_room import FIXED as STREAM
from tests.join.parts.test_waiting_room import REGIONS, leave, push

from tidemill.join.parts.waiting_room import WaitingRoom
from tidemill.master.rows import RowLayout

ROW_BYTES = 24 + 8 + 9


def all_rows(room: WaitingRoom) -> list[int]:
    slots, _ = room.pop(np.flatnonzero(room.count))
    numbers = leave(room, STREAM, slots)
    room.release(slots)
    return numbers


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=1, max_size=6),
    st.lists(st.integers(0, REGIONS - 1), max_size=3),
    st.integers(0, 200),
)
def test_rows_of_a_room_survive_each_change_of_its_size(
    sizes: list[tuple[int, bool]], left: list[int], extra: int
):
    room = WaitingRoom(40 * ROW_BYTES, RowLayout.of(STREAM), REGIONS, 16)
    assert push(room, STREAM, list(range(40)))
    gone = room.pop(np.unique(left).astype(np.int64))[0]
    kept = set(range(40)) - set(leave(room, STREAM, gone))
    room.release(gone)
    for rows, is_used in sizes:
        most = max(rows, room.waiting_rows)
        room.resize(most * ROW_BYTES + extra % ROW_BYTES)
        assert (room.most_rows, room.free_rows) == (max(1, most), max(1, most) - len(kept))
        if not is_used:
            continue
        new = list(range(1000, 1000 + room.free_rows))
        assert push(room, STREAM, new), "every free slot may be used"
        assert not push(room, STREAM, [1])
        assert sorted(all_rows(room)) == sorted([*kept, *new])
        assert push(room, STREAM, sorted(kept))
    assert sorted(all_rows(room)) == sorted(kept)


def test_slots_that_were_left_long_ago_do_no_harm():
    """Links of free slots may still lead to slots that a smaller room no longer has."""
    room = WaitingRoom(40 * ROW_BYTES, RowLayout.of(STREAM), REGIONS, 16)
    for _ in range(2):  # the second time slots are handed out from the other end
        assert push(room, STREAM, list(range(40)))
        gone, _ = room.pop(np.array([0, 1, 2]))
        room.release(gone)
        kept = all_rows(room)
    assert push(room, STREAM, sorted(kept))
    for rows in (30, 20, 17, 16):
        room.resize(rows * ROW_BYTES)
    assert sorted(all_rows(room)) == sorted(kept)


def test_rows_that_are_being_served_are_told_where_they_are_now():
    room = WaitingRoom(40 * ROW_BYTES, RowLayout.of(STREAM), REGIONS, 16)
    assert push(room, STREAM, list(range(40)))
    served, _ = room.pop(np.array([3]))
    others, _ = room.pop(np.array([0, 1]))
    numbers = leave(room, STREAM, served)
    room.release(others)
    moved = room.resize(25 * ROW_BYTES)
    assert leave(room, STREAM, moved.of(served)) == numbers
    assert room.waiting_rows == 24


def test_rows_of_open_length_stay_where_they_are():
    assert not WaitingRoom(4000, RowLayout.of(OPEN), REGIONS, 40).can_resize


def test_hot_rows_that_shrink_lose_those_with_the_fewest_hits():
    page, hot = Page({code: 1 + code % 3 for code in range(60)}), cache(16_000)
    page.admit(hot, met=[2 + code for code in range(60)])
    assert hot.entries == 60
    hot.resize(4_000)
    assert hot.bytes_held <= 4_000
    there = [code for code, texts in found(hot, list(range(60))).items() if texts is not None]
    assert there == list(range(60 - len(there), 60)), "the ones that were met most are left"
    assert len(there) >= 10
    assert {code: page.texts[code] for code in there} == found(hot, there)


def test_hot_rows_that_grow_keep_all_and_have_room_for_more():
    few, hot = Page(dict.fromkeys(range(10), 2)), cache(2_000)
    few.admit(hot)
    first = {code for code, texts in found(hot, list(range(10))).items() if texts is not None}
    hot.resize(40_000)
    many = Page(dict.fromkeys(range(100, 300), 1))
    many.admit(hot)
    assert not hot.is_full
    assert found(hot, sorted(first)) == {code: few.texts[code] for code in sorted(first)}
    assert found(hot, list(range(100, 300))) == many.texts
    assert hot.bytes_held <= 40_000
