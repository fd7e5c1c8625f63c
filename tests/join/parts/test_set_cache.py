"""Hot rows in sets, held against a dictionary: found or not, never another's row, none replaced that is still wanted."""

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.join.parts import set_cache_kernels as kernels
from tidemill.join.parts.kernels import home_slot
from tidemill.join.parts.set_cache import SET_ENTRY_BYTES, SetCache
from tidemill.master.packing import NOT_PACKED, Narrow, Packing
from tidemill.master.rows import RowLayout

SCHEMA = pa.schema([("code", pa.int64()), ("n", pa.int64())])
LAYOUT = RowLayout.of(SCHEMA, first="code", packing=Packing({"code": Narrow(4)}, has_nulls=False))
SET_BYTES = kernels.WAYS * (LAYOUT.least_row_bytes + SET_ENTRY_BYTES)
CODES = st.integers(-40, 40) | st.integers(-(2**31) + 1, 2**31 - 1)
STRANGE = st.sampled_from([-(2**31), 2**31, 2**32 + 5, -(2**32) + 5, 2**63 - 1, -(2**63)])


def number_of(code: int) -> int:
    return code * 7 + 3


def offer(hot: SetCache, codes: list[int], met: int = 1, *, exist: bool = True, under_way: int = 0) -> None:
    """Offer the rows of some codes, as a read of pages would."""
    wanted = np.array(codes, dtype=np.int64)
    batch = pa.RecordBatch.from_arrays([pa.array(wanted), pa.array(wanted * 7 + 3)], schema=SCHEMA)
    page, at = LAYOUT.encode(batch)
    matches = np.full(len(codes), int(exist), dtype=np.int64)
    often = np.full(len(codes), met, dtype=np.uint32)
    hot.admit(
        page,
        np.ascontiguousarray(at[:-1]),
        np.arange(len(codes)),
        matches,
        wanted,
        often,
        under_way=under_way,
    )


def found(hot: SetCache, codes: list[int]) -> dict[int, int | str | None]:
    """The number in the row of each code, None for one that does not exist, "miss" for one that is not hot."""
    sought = np.array(codes, dtype=np.int64)
    at, rows, sizes = hot.probe(sought, np.ones(len(codes), dtype=np.bool_))
    told: dict[int, int | str | None] = {}
    for code, place, count, size in zip(codes, at.tolist(), rows.tolist(), sizes.tolist(), strict=True):
        assert (place >= 0) == (count > 0) == (size > 0)
        told[code] = {-1: "miss", 0: None}.get(count, 0)
        if count > 0:
            row = LAYOUT.decode(hot.rows, np.array([place]), ("code", "n")).to_pylist()[0]
            assert row["code"] == code, "the row of another code"
            told[code] = row["n"]
    return told


def of_one_set(count: int, sets: int) -> list[int]:
    """Codes that all fall into one set."""
    codes = [code for code in range(5000) if home_slot(code, sets) == home_slot(0, sets)]
    return codes[:count]


@settings(max_examples=150, deadline=None)
@given(
    sets=st.integers(0, 6),
    work=st.lists(
        st.tuples(
            st.sampled_from(["offer", "absent", "look", "resize"]), st.lists(CODES, min_size=1, max_size=30)
        ),
        max_size=12,
    ),
    strange=st.lists(STRANGE, max_size=3),
)
def test_a_code_gives_its_own_row_or_none(sets: int, work: list[Any], strange: list[int]) -> None:
    hot = SetCache(sets * SET_BYTES, LAYOUT)
    exists: dict[int, bool] = {}
    for what, some in work:
        codes = list(dict.fromkeys(some))
        if what == "resize":
            hot.resize(len(some) % 7 * SET_BYTES)
        elif what == "look":
            found(hot, codes)
        else:
            codes = [code for code in codes if exists.setdefault(code, what == "offer") is (what == "offer")]
            offer(hot, codes, met=1 + len(codes) % 5, exist=what == "offer")
        everyone = [*exists, *strange]
        told = found(hot, everyone)
        for code in strange:
            assert told[code] == "miss"
        for code, does_exist in exists.items():
            assert told[code] in ("miss", number_of(code) if does_exist else None)
        assert sum(one != "miss" for one in told.values()) == hot.entries <= hot.bytes_held // SET_BYTES * 8


def test_all_places_of_a_set_are_used_and_the_least_met_makes_room():
    hot = SetCache(16 * SET_BYTES, LAYOUT)
    first, other, late = of_one_set(8, 16), of_one_set(9, 16)[8:], of_one_set(10, 16)[9:]
    offer(hot, first, met=3)
    assert hot.entries == 8
    offer(hot, other, met=3)
    assert found(hot, other)[other[0]] == "miss", "met no more often than they were"
    found(hot, first[1:])
    offer(hot, other, met=4)
    told = found(hot, [*first, *other])
    assert [code for code in told if told[code] == "miss"] == first[:1], "the only one without a hit since"
    assert (hot.entries, hot.changes) == (8, 10)
    offer(hot, late, met=1)
    assert found(hot, late)[late[0]] == "miss", "one meeting is chance"


def test_nobody_comes_in_while_all_of_a_set_are_wanted():
    hot = SetCache(16 * SET_BYTES, LAYOUT)
    *first, other = of_one_set(9, 16)
    offer(hot, first)
    found(hot, first[:4])
    found(hot, first[4:])
    before = hot.rows.copy()
    offer(hot, [other], met=100, under_way=2)
    assert (hot.rows == before).all()
    offer(hot, [other], met=100, under_way=1)
    assert (hot.rows != before).any()
    assert all(one != "miss" for one in found(hot, first[4:]).values()), "found by the look under way"
    assert sum(one == "miss" for one in found(hot, first[:4]).values()) == 1


def test_a_look_long_ago_does_not_hold_a_row_for_ever():
    hot = SetCache(SET_BYTES, LAYOUT)
    *first, other = range(9)
    offer(hot, first)
    found(hot, list(first))
    for _ in range(255 + 7):
        found(hot, [99])
    offer(hot, [other], met=100, under_way=3)
    assert found(hot, [other])[other] == number_of(other)


@pytest.mark.parametrize(
    ("before", "after"), [(40, 57), (40, 200), (57, 40), (300, 11), (7, 7), (9, 0), (0, 9)]
)
def test_resizing_keeps_what_fits_and_prefers_those_with_more_hits(before: int, after: int):
    hot = SetCache(before * SET_BYTES, LAYOUT, most_bytes=max(before, after) * SET_BYTES)
    codes = list(range(0, before * 16, 5))
    offer(hot, codes)
    popular = codes[::7]
    for _ in range(3):
        found(hot, popular)
    there = [code for code, told in found(hot, codes).items() if told != "miss"]
    hot.resize(after * SET_BYTES)
    kept = {code for code, told in found(hot, codes).items() if told != "miss"}
    assert kept <= set(there)
    assert len(kept) == hot.entries
    assert hot.bytes_held == after * SET_BYTES
    sets = Counter(home_slot(code, after) for code in there if after)
    if after >= before:
        assert len(kept) >= 0.98 * len(there)
    wanted = sum(min(8, count) for count in sets.values())
    assert len(kept) == wanted, "each set keeps as many as it can"
    crowded = {s for s, count in sets.items() if count > 8}
    for s in crowded:
        here = [code for code in there if home_slot(code, after) == s]
        lost = [code for code in here if code not in kept]
        if any(code in popular for code in lost):
            assert all(code in popular for code in here if code in kept)


def test_hits_age_so_that_others_find_room():
    hot = SetCache(SET_BYTES, LAYOUT)
    *old, new = range(9)
    offer(hot, old, met=20)
    offer(hot, [new], met=15)
    assert found(hot, [new])[new] == "miss"
    for _ in range(40):
        found(hot, [77] * 8)
    offer(hot, [new], met=15)
    assert found(hot, [new])[new] == number_of(new)


def test_only_short_codes_and_rows_of_equal_length_lie_in_sets():
    texts = pa.schema([("code", pa.int64()), ("name", pa.string())])
    short = Packing({"code": Narrow(4)}, has_nulls=False)
    assert SetCache.may_hold(LAYOUT)
    assert not SetCache.may_hold(RowLayout.of(SCHEMA, first="code", packing=NOT_PACKED))
    assert not SetCache.may_hold(RowLayout.of(texts, first="code", packing=short))
