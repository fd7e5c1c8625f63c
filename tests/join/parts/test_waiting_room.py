"""Rows that wait by region, held against a dictionary: each comes out once, as it went in, inside fixed bytes."""

from collections import Counter
from collections.abc import Iterable
from itertools import chain

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.join.parts.kernels import Int64s
from tidemill.join.parts.waiting_room import WaitingRoom
from tidemill.master.rows import RowLayout

FIXED = pa.schema([("row", pa.int64()), ("key", pa.int64())])
OPEN = pa.schema([("row", pa.int64()), ("note", pa.string()), ("list", pa.list_(pa.int8()))])
REGIONS = 5


def room_of(schema: pa.Schema, size_bytes: int, row_bytes: int = 40) -> WaitingRoom:
    return WaitingRoom(size_bytes, RowLayout.of(schema), REGIONS, row_bytes)


def rows_of(schema: pa.Schema, numbers: Iterable[int]) -> pa.RecordBatch:
    """Row number n is the same wherever it is made; its length has nothing to do with that of its neighbours."""
    values = {
        "row": lambda n: n,
        "key": lambda n: n * 7,
        "note": lambda n: None if n % 4 == 0 else "ö" * (n * 37 % 50),
        "list": lambda n: None if n % 5 == 0 else [n % 100] * (n % 4),
    }
    listed = list(numbers)
    columns = [pa.array([values[field.name](n) for n in listed], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def push(room: WaitingRoom, schema: pa.Schema, numbers: list[int]) -> bool:
    """Whether the rows fitted; row n waits for region n modulo their number, with code 10 n."""
    rows, at = room.layout.encode(rows_of(schema, numbers))
    if not room.fits(len(numbers), int(at[-1])):
        return False
    column = np.array(numbers, dtype=np.int64)
    room.push(column * 10, column % REGIONS, rows, at)
    return True


def leave(room: WaitingRoom, schema: pa.Schema, slots: Int64s) -> list[int]:
    """Numbers of the rows in slots, which are as they came."""
    rows = room.decode(slots)
    numbers: list[int] = rows.column("row").to_pylist()
    assert rows.equals(rows_of(schema, numbers))
    assert room.codes(slots).tolist() == [10 * n for n in numbers]
    return numbers


WORK = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(0, 12)),
        st.tuples(st.just("pop"), st.sets(st.integers(0, REGIONS - 1), min_size=1)),
        st.tuples(st.just("release"), st.integers(0, 3)),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(schema=st.sampled_from([FIXED, OPEN]), size_bytes=st.integers(64, 3000), work=WORK)
def test_rows_come_out_once_as_they_went_in(schema: pa.Schema, size_bytes: int, work):
    """Any order of arriving, being taken off the lists, and leaving, in part or in whole."""
    room = room_of(schema, size_bytes)
    waiting: dict[int, list[int]] = {region: [] for region in range(REGIONS)}
    taken: list[Int64s] = []
    number = 0
    for what, how in work:
        if what == "push":
            numbers = list(range(number, number + how))
            if push(room, schema, numbers):
                number += how
                for n in numbers:
                    waiting[n % REGIONS].append(n)
        elif what == "pop":
            regions = np.array(sorted(how), dtype=np.int64)
            expected = [n for region in regions.tolist() for n in sorted(waiting[region])]
            slots, codes = room.pop(regions)
            assert codes.tolist() == room.codes(slots).tolist()
            # Region after region; within one the order is free.
            assert sorted(leave(room, schema, slots), key=lambda n: (n % REGIONS, n)) == expected
            waiting.update({region: [] for region in regions.tolist()})
            taken.append(slots)
        elif taken:
            slots = taken.pop(0)
            begun = min(len(slots), how)
            room.release(slots[:begun])
            if begun < len(slots):
                taken.insert(0, slots[begun:])
        assert room.count.tolist() == [len(rows) for rows in waiting.values()]
        assert room.waiting_rows == sum(map(len, waiting.values())) + sum(map(len, taken))
        assert sorted(leave(room, schema, room.waiting_slots())) == sorted(chain(*waiting.values()))
        for slots in taken:
            leave(room, schema, slots)
        assert room.bytes_held <= max(size_bytes, 64)


@pytest.mark.parametrize("schema", [FIXED, OPEN], ids=["fixed", "open"])
@pytest.mark.parametrize("size_bytes", [100, 1000, 100_000])
def test_it_never_allocates_more_than_its_bytes(schema: pa.Schema, size_bytes: int):
    room = room_of(schema, size_bytes)
    slots = room._code.nbytes + room._next.nbytes + room._at.nbytes
    assert room.rows.nbytes + slots <= size_bytes


@pytest.mark.parametrize("schema", [FIXED, OPEN], ids=["fixed", "open"])
def test_slots_and_space_are_used_again(schema: pa.Schema):
    """Many times what it holds passes through; rows that stay keep their bytes while gaps are closed."""
    room = room_of(schema, 4000)
    stays = [5, 10, 15]
    assert push(room, schema, stays)
    number, passed = 21, 0
    for _ in range(300):
        group = [n for n in range(number, number + 10) if n % REGIONS]
        if push(room, schema, group):
            number += 10
            passed += len(group)
        else:
            room.release(room.pop(np.arange(1, REGIONS))[0])
    assert passed > 20 * room.most_rows
    assert sorted(leave(room, schema, room.pop(np.array([0]))[0])) == stays


def test_rows_of_fixed_length_fill_it_to_the_last():
    room = room_of(FIXED, 5000)
    assert push(room, FIXED, list(range(room.most_rows)))
    assert room.free_rows == 0
    assert not room.fits(1, 0)
    slots, _ = room.pop(np.arange(REGIONS))
    assert sorted(slots.tolist()) == list(range(room.most_rows))
    assert room.free_rows == 0, "rows that are being served still take their place"
    room.release(slots)
    assert push(room, FIXED, list(range(room.most_rows)))


def test_rows_longer_than_expected_do_not_fit_although_slots_are_free():
    room = room_of(OPEN, 3000, row_bytes=24)
    _, at = room.layout.encode(rows_of(OPEN, [19]))  # 3 bytes of list and 6 of note
    count = 1
    while room.fits(count + 1, (count + 1) * (int(at[1]) + 100)):
        count += 1
    assert count < room.free_rows
    assert not room.fits(1, len(room.rows))
    assert room.fits(1, len(room.rows) - 8)


def test_the_space_of_rows_gone_counts_as_free_before_gaps_are_closed():
    room = room_of(OPEN, 2000)
    numbers = []
    while push(room, OPEN, [len(numbers)]):
        numbers.append(len(numbers))
    gone, _ = room.pop(np.array([1, 3]))
    left = leave(room, OPEN, gone)
    room.release(gone)
    assert push(room, OPEN, left)
    assert sorted(leave(room, OPEN, room.waiting_slots())) == numbers


def test_a_region_is_as_old_as_its_oldest_row():
    room = room_of(FIXED, 5000)
    for number in (3, 1, 3, 2, 1):
        push(room, FIXED, [number])
    assert room.since[3] < room.since[1] < room.since[2]
    room.release(room.pop(np.array([3]))[0])
    push(room, FIXED, [3])
    assert room.since[1] < room.since[2] < room.since[3], "after it was served it is the youngest"


@settings(max_examples=200, deadline=None)
@given(
    numbers=st.lists(st.integers(0, REGIONS - 1), max_size=30),
    oldest=st.integers(0, REGIONS + 1),
    densest=st.integers(0, REGIONS + 1),
)
def test_the_oldest_regions_are_chosen_then_the_densest_of_the_others(numbers, oldest, densest):
    room = room_of(FIXED, 5000)
    for number in numbers:
        assert push(room, FIXED, [number])
    rows = Counter(numbers)
    by_age = list(dict.fromkeys(numbers))
    chosen = room.choose(oldest, densest).tolist()
    assert chosen[:oldest] == by_age[:oldest]
    others = by_age[oldest:]
    assert len(set(chosen)) == len(chosen)
    assert set(chosen[oldest:]) <= set(others)
    # Regions with as many rows come in any order.
    most_rows_first = sorted((rows[region] for region in others), reverse=True)
    assert [rows[region] for region in chosen[oldest:]] == most_rows_first[:densest]


def test_the_slot_of_the_next_row_is_known_before():
    room = room_of(FIXED, 5000)
    push(room, FIXED, [0, 1, 2])
    room.release(room.pop(np.array([1]))[0])
    expected = room.next_slot
    push(room, FIXED, [4])
    assert room.pop(np.array([4]))[0].tolist() == [expected]


def test_a_row_that_holds_its_code_takes_eight_bytes_less():
    layout, numbers = RowLayout.of(FIXED), list(range(40))
    plain, lean = (WaitingRoom(40 * 32, layout, REGIONS, 40, column) for column in (None, "key"))
    assert (plain.most_rows, lean.most_rows) == (40 * 32 // 40, 40)
    rows, at = layout.encode(rows_of(FIXED, numbers))
    codes = np.array(numbers, dtype=np.int64) * 7
    lean.push(codes, codes % REGIONS, rows, at)
    assert lean.bytes_held == 40 * 32
    slots, popped = lean.pop(np.arange(REGIONS))
    assert sorted(popped.tolist()) == codes.tolist()
    assert lean.decode(slots).column("key").to_pylist() == popped.tolist() == lean.codes(slots).tolist()


@pytest.mark.parametrize("schema", [FIXED, OPEN])
def test_rows_put_back_come_again_before_those_that_came_since(schema: pa.Schema):
    room = room_of(schema, 20_000)
    assert push(room, schema, list(range(10)))
    regions = np.array([1, 3])
    since, rows = room.since[regions], room.count[regions].astype(np.int64)
    slots, codes = room.pop(regions)
    assert push(room, schema, [11, 12])
    room.put_back(slots, regions, rows, since)
    assert room.choose(5, 0).tolist() == [0, 1, 2, 3, 4]
    again, codes_again = room.pop(regions)
    assert codes_again.tolist() == [*codes[:2].tolist(), 110, *codes[2:].tolist()]
    assert sorted(leave(room, schema, again)) == [1, 3, 6, 8, 11]
