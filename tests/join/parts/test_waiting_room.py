"""Rows that wait by region, held against a dictionary: each comes out once, as it went in, inside fixed bytes."""

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.core.errors import InternalError
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
        st.tuples(st.just("push"), st.integers(0, 90)),
        st.tuples(st.just("pop"), st.sets(st.integers(0, REGIONS - 1), min_size=1)),
        st.tuples(st.just("put back"), st.sets(st.integers(0, REGIONS - 1), min_size=1)),
        st.tuples(st.just("release"), st.integers(0, 30)),
        st.tuples(st.just("resize"), st.integers(64, 20_000)),
    ),
    max_size=40,
)
SIZES = st.one_of(st.integers(64, 3000), st.integers(3000, 20_000))


class Book:
    """What should be in a room."""

    def __init__(self, schema: pa.Schema, size_bytes: int) -> None:
        self.schema, self.size_bytes = schema, size_bytes
        self.room = room_of(schema, size_bytes)
        self.waiting: dict[int, list[int]] = {region: [] for region in range(REGIONS)}
        self.taken: list[Int64s] = []
        self.number = 0

    def push(self, rows: int) -> None:
        numbers = list(range(self.number, self.number + rows))
        if push(self.room, self.schema, numbers):
            self.number += rows
            for n in numbers:
                self.waiting[n % REGIONS].append(n)

    def pop(self, some: set[int]) -> None:
        regions = np.array(sorted(some), dtype=np.int64)
        expected = [n for region in regions.tolist() for n in sorted(self.waiting[region])]
        slots, codes = self.room.pop(regions)
        assert codes.tolist() == self.room.codes(slots).tolist()
        # Region after region; within one the order is free.
        assert sorted(leave(self.room, self.schema, slots), key=lambda n: (n % REGIONS, n)) == expected
        self.waiting.update({region: [] for region in regions.tolist()})
        self.taken.append(slots)

    def put_back(self, some: set[int]) -> None:
        """Take rows, let others come, and put them back."""
        regions = np.array([region for region in sorted(some) if self.waiting[region]], dtype=np.int64)
        if not len(regions):
            return
        since, rows = self.room.since[regions], self.room.count[regions].astype(np.int64)
        slots, _ = self.room.pop(regions)
        before = {region: self.waiting[region] for region in regions.tolist()}
        self.waiting.update({region: [] for region in before})
        self.push(7)
        self.room.put_back(slots, regions, rows, since)
        for region, numbers in before.items():
            self.waiting[region] += numbers

    def release(self, count: int) -> None:
        if self.taken:
            slots = self.taken.pop(0)
            self.room.release(slots[:count])
            if count < len(slots):
                self.taken.insert(0, slots[count:])

    def resize(self, size_bytes: int) -> None:
        if self.room.can_resize and self.room.may_resize(size_bytes):
            moved = self.room.resize(size_bytes)
            self.taken = [moved.of(slots) for slots in self.taken]
            self.size_bytes = size_bytes


@settings(max_examples=300, deadline=None)
@given(schema=st.sampled_from([FIXED, OPEN]), size_bytes=SIZES, work=WORK)
def test_rows_come_out_once_as_they_went_in(schema: pa.Schema, size_bytes: int, work):
    """Any order of arriving, being taken off the lists, put back, and leaving, in part or in whole, in rooms that change."""
    book = Book(schema, size_bytes)
    for what, how in work:
        getattr(book, what.replace(" ", "_"))(how)
        room, waiting, taken = book.room, book.waiting, book.taken
        assert room.count.tolist() == [len(rows) for rows in waiting.values()]
        assert room.waiting_rows == sum(map(len, waiting.values())) + sum(map(len, taken))
        assert sorted(leave(room, schema, room.waiting_slots())) == sorted(chain(*waiting.values()))
        for slots in taken:
            leave(room, schema, slots)
        assert room.bytes_held <= max(book.size_bytes, 400)
        assert room.waiting_rows + room.free_rows <= room.most_rows


@pytest.mark.parametrize("schema", [FIXED, OPEN], ids=["fixed", "open"])
@pytest.mark.parametrize("size_bytes", [100, 1000, 100_000])
def test_it_never_allocates_more_than_its_bytes(schema: pa.Schema, size_bytes: int):
    room = room_of(schema, size_bytes)
    slots = room._code.nbytes + room._next.nbytes + room._free.nbytes + room._filled.nbytes + room._at.nbytes
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
    room = room_of(FIXED, 1000)
    assert push(room, FIXED, list(range(room.most_rows)))
    assert room.free_rows == 0
    assert not room.fits(1, 0)
    slots, _ = room.pop(np.arange(REGIONS))
    assert sorted(slots.tolist()) == list(range(room.most_rows))
    assert room.free_rows == 0, "rows that are being served still take their place"
    room.release(slots)
    assert push(room, FIXED, list(range(room.most_rows)))


def test_rows_of_a_region_lie_side_by_side_where_there_is_room_for_it():
    room = room_of(FIXED, 20_000)
    assert push(room, FIXED, list(range(8 * REGIONS)))
    for region in range(REGIONS):
        slots, _ = room.pop(np.array([region]))
        assert (np.diff(slots) == 1).all()
        assert len(slots) == 8


@pytest.mark.parametrize("regions", [1, REGIONS])
def test_what_is_promised_to_fit_fits_whatever_the_regions(regions: int):
    """Up to a strip of each region is not full."""
    room = room_of(FIXED, 20_000)
    promised = room.free_rows
    assert room.most_rows - 8 * REGIONS < promised < room.most_rows
    assert push(room, FIXED, [REGIONS * n + n % regions for n in range(promised)])
    assert max(leave(room, FIXED, room.waiting_slots())) > promised


def test_those_that_waited_before_fit_anew_however_full_it_was():
    """Rows of one region after the other: more of them than rows of any regions would be promised."""
    room, again = room_of(FIXED, 20_000), room_of(FIXED, 20_000)
    rows, at = room.layout.encode(rows_of(FIXED, range(room.most_rows)))
    numbers = np.arange(room.most_rows)
    regions = numbers // 8 % REGIONS
    assert not room.fits(room.most_rows, 0)
    for one in (room, again):
        assert one.fits_anew(regions, int(at[-1]))
        one.push(numbers * 10, regions, rows, at)
    assert not room.fits_anew(regions[:1], 24)
    assert again.waiting_rows == room.most_rows


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


def test_rows_are_told_their_slots():
    room = room_of(FIXED, 5000)
    push(room, FIXED, [0, 1, 2])
    room.release(room.pop(np.array([1]))[0])
    rows, at = room.layout.encode(rows_of(FIXED, [4, 9, 5]))
    slots = room.push(np.array([40, 90, 50]), np.array([4, 4, 0]), rows, at)
    assert leave(room, FIXED, slots) == [4, 9, 5]
    assert room.pop(np.array([4]))[0].tolist() == slots[:2].tolist()


def test_a_row_that_holds_its_code_takes_eight_bytes_less():
    layout, numbers = RowLayout.of(FIXED), list(range(40))
    plain, lean = (WaitingRoom(40 * 33, layout, REGIONS, 40, column) for column in (None, "key"))
    assert (plain.most_rows, lean.most_rows) == (40 * 33 // 41, 40)
    rows, at = layout.encode(rows_of(FIXED, numbers))
    codes = np.array(numbers, dtype=np.int64) * 7
    lean.push(codes, codes % REGIONS, rows, at)
    assert lean.bytes_held == 40 * 33
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


@pytest.mark.parametrize("schema", [FIXED, OPEN])
@pytest.mark.parametrize("ask", [lambda room: room.pop(np.arange(REGIONS)), WaitingRoom.waiting_slots])
def test_a_count_above_the_rows_that_wait_is_an_error_and_no_endless_loop(
    schema: pa.Schema, ask: Callable[[WaitingRoom], object]
) -> None:
    room = room_of(schema, 10_000)
    assert push(room, schema, list(range(20)))
    room.count[3] += 2
    with pytest.raises(InternalError) as told:
        ask(room)
    assert (told.value.counted, told.value.found) == (22, 20)
