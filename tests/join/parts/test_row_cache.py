"""Hot rows side by side in a buffer, held against a dictionary: found or not, never half, never beyond their bytes."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.join.parts.kernels import Int64s, home_slot
from tidemill.join.parts.row_cache import ENTRY_BYTES, RowCache
from tidemill.join.parts.row_cache_kernels import MOST_BYTES_OF_A_KEY, MOST_ROWS_OF_A_KEY
from tidemill.master.packing import NOT_PACKED, Narrow, Packing
from tidemill.master.rows import RowLayout

OPEN = pa.schema([("code", pa.int64()), ("name", pa.string())])
FIXED = pa.schema([("code", pa.int64()), ("n", pa.int32())])
SHORT = Packing({"code": Narrow(4)}, has_nulls=False)
CODES = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 30)


class Page:
    """Master rows as a page holds them: so many of each code, each row with a text of its own length."""

    def __init__(
        self, rows_of_code: dict[int, int], schema: pa.Schema = OPEN, packing: Packing = NOT_PACKED
    ) -> None:
        self.layout = RowLayout.of(schema, first="code", packing=packing)
        self.codes = np.array(list(rows_of_code), dtype=np.int64)
        self.matches = np.array(list(rows_of_code.values()), dtype=np.int64)
        self.start: Int64s = np.cumsum(self.matches) - self.matches
        self.texts = {code: [text_of(code, k) for k in range(rows)] for code, rows in rows_of_code.items()}
        rows = [(code, text) for code, texts in self.texts.items() for text in texts]
        columns = [
            [code for code, _ in rows],
            [text for _, text in rows] if schema is OPEN else range(len(rows)),
        ]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        self.buffer, at = self.layout.encode(pa.RecordBatch.from_arrays(arrays, schema=schema))
        self.at = np.ascontiguousarray(at[:-1])

    def admit(self, hot: RowCache, codes: list[int] | None = None, met: int | list[int] = 1) -> None:
        """Offer some of its codes, by default all, each met so often."""
        number = {code: at for at, code in enumerate(self.codes.tolist())}
        chosen = np.array([number[code] for code in (self.texts if codes is None else codes)], dtype=np.int64)
        often = np.broadcast_to(np.array(met, dtype=np.uint32), len(chosen)).copy()
        where = (self.start[chosen], self.matches[chosen], self.codes[chosen], often)
        hot.admit(self.buffer, self.at, *where)


def text_of(code: int, k: int) -> str:
    return f"{code}/{k} " + "x" * (code % 23 + 5 * k % 60)


def cache(
    size_bytes: int,
    schema: pa.Schema = OPEN,
    *,
    row_bytes: int = 40,
    keeps_rows: bool = True,
    packing: Packing = NOT_PACKED,
) -> RowCache:
    layout = RowLayout.of(schema, first="code", packing=packing)
    return RowCache(size_bytes, row_bytes, layout, keeps_rows=keeps_rows)


def found(hot: RowCache, codes: list[int], packing: Packing = NOT_PACKED) -> dict[int, list[str] | None]:
    """Texts of the rows of each code: none if it does not exist, None if it is not hot."""
    layout = RowLayout.of(OPEN, first="code", packing=packing)
    at, rows, sizes = hot.probe(np.array(codes, dtype=np.int64), np.ones(len(codes), dtype=np.bool_))
    texts: dict[int, list[str] | None] = {}
    for code, begin, count, size in zip(codes, at.tolist(), rows.tolist(), sizes.tolist(), strict=True):
        places = [begin]
        while len(places) < count:
            places.append(places[-1] + int(layout.sizes(hot.rows, np.array(places[-1:]))[0]))
        kept = layout.decode(hot.rows, np.array(places if count > 0 else [], dtype=np.int64)).to_pylist()
        assert all(row["code"] == code for row in kept)
        assert size == (layout.sizes(hot.rows, np.array(places)).sum() if count > 0 else 0)
        texts[code] = None if count < 0 else [row["name"] for row in kept]
    return texts


def hit(hot: RowCache, codes: list[int], times: int) -> None:
    asked = np.array(codes * times, dtype=np.int64)
    hot.probe(asked, np.ones(len(asked), dtype=np.bool_))


@settings(max_examples=300, deadline=None)
@given(
    rows_of_code=st.dictionaries(CODES, st.integers(0, 4), min_size=1, max_size=60),
    is_short=st.booleans(),
    size_bytes=st.integers(64, 6000),
    work=st.lists(
        st.tuples(st.sampled_from(["admit", "renew", "hit"]), st.randoms(use_true_random=False)), max_size=12
    ),
)
def test_whatever_is_done_a_code_has_all_its_rows_or_none(rows_of_code, is_short, size_bytes, work):
    packing = SHORT if is_short else NOT_PACKED
    if is_short:
        rows_of_code = {int(np.int64(code).astype(np.int32)): rows for code, rows in rows_of_code.items()}
    page, hot = Page(rows_of_code, packing=packing), cache(size_bytes, packing=packing)
    known: set[int] = set()
    for what, chance in work:
        some = chance.sample(list(rows_of_code), chance.randint(1, len(rows_of_code)))
        if what == "admit":
            page.admit(hot, some, met=9)
            known.update(some)
        elif what == "hit":
            hit(hot, some, chance.randint(1, 5))
        else:
            hot.renew()
            assert not hot.is_full
        texts = found(hot, list(rows_of_code), packing)
        hot_codes = {code for code, rows in texts.items() if rows is not None}
        assert hot_codes <= known
        assert all(texts[code] == page.texts[code] for code in hot_codes)
        assert hot.entries == len(hot_codes)
        assert hot.bytes_held <= size_bytes or size_bytes < 2 * ENTRY_BYTES
        assert len(hot_codes) == len(known) or hot.is_full or ("renew" in {did for did, _ in work})


@pytest.mark.parametrize("size_bytes", [64, 100, 1000, 10_000, 1_000_000])
@pytest.mark.parametrize("keeps_rows", [True, False])
def test_it_never_allocates_more_than_its_bytes(size_bytes: int, keeps_rows: bool):
    hot = cache(size_bytes, keeps_rows=keeps_rows)
    assert hot._table.nbytes + hot.rows.nbytes <= size_bytes


def test_rows_shorter_than_expected_fill_the_table_and_longer_ones_the_buffer():
    page = Page(dict.fromkeys(range(1000), 1))
    for row_bytes in (16, 400):
        hot = cache(8000, row_bytes=row_bytes)
        page.admit(hot)
        assert hot.is_full
        assert 0 < hot.entries < 1000
        assert hot.bytes_held <= 8000


def test_a_code_that_does_not_exist_is_known_and_an_absent_key_matches_nothing():
    page, hot = Page({7: 0, 8: 1}), cache(2000)
    page.admit(hot)
    assert found(hot, [7, 8, 9]) == {7: [], 8: page.texts[8], 9: None}
    at, rows, sizes = hot.probe(np.array([8, 9]), np.array([False, False]))
    assert (at.tolist(), rows.tolist(), sizes.tolist()) == ([-1, -1], [0, 0], [0, 0])


def test_codes_met_too_rarely_stay_out():
    page, hot = Page({1: 1, 2: 1, 3: 1}), cache(2000)
    hot.least_met = 3
    page.admit(hot, [1, 2, 3], met=[2, 3, 4])
    assert {code for code, rows in found(hot, [1, 2, 3]).items() if rows} == {2, 3}


def test_a_code_admitted_twice_is_kept_once():
    page, hot = Page({1: 3}), cache(2000)
    page.admit(hot, [1, 1])
    held = hot.bytes_held
    page.admit(hot)
    assert (hot.entries, hot.bytes_held) == (1, held)
    assert found(hot, [1]) == page.texts


def test_a_group_that_does_not_fit_is_left_out_and_shorter_ones_still_come():
    page, hot = Page({1: 40, 2: 1}), cache(500)
    page.admit(hot)
    assert found(hot, [1, 2]) == {1: None, 2: page.texts[2]}
    assert hot.is_full


def test_a_code_with_more_rows_than_an_entry_can_count_stays_out():
    page = Page({1: MOST_ROWS_OF_A_KEY + 1, 2: MOST_ROWS_OF_A_KEY, 3: 1}, FIXED)
    hot = cache(8_000_000, FIXED, row_bytes=16, keeps_rows=False)
    page.admit(hot)
    _, rows, _ = hot.probe(np.array([1, 2, 3]), np.ones(3, dtype=np.bool_))
    assert rows.tolist() == [-1, MOST_ROWS_OF_A_KEY, 1]


def test_a_code_whose_rows_take_more_bytes_than_an_entry_can_count_stays_out():
    each = int(Page({1: 1}, FIXED).layout.least_row_bytes)
    most = MOST_BYTES_OF_A_KEY // each
    assert most < MOST_ROWS_OF_A_KEY
    page = Page({1: most + 1, 2: most, 3: 1}, FIXED)
    hot = cache(8_000_000, FIXED, row_bytes=16)
    page.admit(hot)
    _, rows, sizes = hot.probe(np.array([1, 2, 3]), np.ones(3, dtype=np.bool_))
    assert (rows.tolist(), sizes.tolist()) == ([-1, most, 1], [0, most * each, each])
    assert not hot.is_full, "what can never be kept asks for no renewal"


def test_what_is_hit_most_stays_and_a_quarter_goes():
    page, hot = Page({code: 1 + code % 3 for code in range(200)}), cache(40_000)
    page.admit(hot, met=2)
    assert hot.entries == 200
    liked = list(range(0, 200, 4))
    hit(hot, liked, 5)
    before = hot.bytes_held
    hot.renew()
    assert hot.entries == 150
    assert hot.bytes_held < before
    texts = found(hot, list(range(200)))
    assert all(texts[code] == page.texts[code] for code in liked)


def test_old_fame_fades():
    """Hits are halved in time: what was liked long ago goes before what is liked a little now."""
    page, hot = Page(dict.fromkeys(range(100), 1)), cache(40_000)
    page.admit(hot)
    hit(hot, list(range(50)), 300)
    for _ in range(5):
        hit(hot, list(range(50, 100)), 150)
        hot.renew()
        page.admit(hot, list(range(50, 100)), met=40)
    texts = found(hot, list(range(100)))
    assert all(texts[code] is not None for code in range(50, 100))
    assert sum(texts[code] is None for code in range(50)) > 40


def test_hits_end_at_the_most_that_can_be_counted():
    """A counter that began anew would make the hottest row the first to go."""
    page, hot = Page({1: 1, 2: 1, 3: 1, 4: 1}), cache(2000)
    page.admit(hot, [1, 2, 3, 4], met=[70_000, 2, 2, 2])
    hit(hot, [1], 2)
    hot.renew()
    assert found(hot, [1]) == {1: page.texts[1]}


def test_rows_never_hit_again_go_first_up_to_half():
    page, hot = Page(dict.fromkeys(range(200), 1)), cache(40_000)
    page.admit(hot, met=1)
    hit(hot, list(range(80)), 1)
    hot.renew()
    assert hot.entries == 100
    assert all(found(hot, list(range(80))).values())


def test_who_comes_next_must_have_been_met_more_often_the_sooner_room_is_needed():
    page, hot = Page(dict.fromkeys(range(8), 1)), cache(40_000)
    page.admit(hot, list(range(4)), met=20)
    for asked_before in (1, 1, 40, 100, 100, 100):
        hit(hot, [0, 1], asked_before * hot.entries // 2)
        hot.renew()
        page.admit(hot, list(range(4)), met=20)
    assert hot.least_met == 2
    for _ in range(3):
        hot.renew()
        page.admit(hot, list(range(4)), met=20)
    page.admit(hot, [4, 5], met=[4, 5])
    assert [code for code, rows in found(hot, [4, 5]).items() if rows] == [5]


@pytest.mark.parametrize("seed", range(5))
def test_entries_are_found_again_around_the_end_of_the_table(seed: int):
    """Codes whose home is the end of the table go on at its start; evictions move them back up."""
    hot = cache(1500)
    capacity = len(hot._table)
    chance = np.random.default_rng(seed)
    at_end = [code for code in range(20_000) if home_slot(code, capacity) >= capacity - 3][:9]
    others = [code for code in range(20_000, 21_000) if home_slot(code, capacity) < 4][:3]
    page = Page(dict.fromkeys(at_end + others, 1))
    page.admit(hot, chance.permutation(at_end + others).tolist(), met=2)
    kept = hot.entries
    assert kept == 12
    while hot.entries:
        hit(hot, chance.permutation(at_end + others)[:4].tolist(), 2)
        hot.renew()
        texts = found(hot, at_end + others)
        alive = [code for code, rows in texts.items() if rows is not None]
        assert kept // 2 <= len(alive) == hot.entries <= kept - max(1, kept // 4)
        assert all(texts[code] == page.texts[code] for code in alive)
        kept = hot.entries


def test_without_rows_only_counts_are_kept():
    page, hot = Page({1: 3, 2: 0}), cache(200, keeps_rows=False)
    page.admit(hot)
    _, rows, sizes = hot.probe(np.array([1, 2, 3]), np.ones(3, dtype=np.bool_))
    assert (rows.tolist(), sizes.tolist()) == ([3, 0, -1], [0, 0, 0])
    assert len(hot.rows) == 0
    hot.renew()
    assert hot.entries == 1


def test_a_long_random_life_agrees_with_a_dictionary():
    """Thousands of codes through a cache for some hundred of them."""
    chance = np.random.default_rng(1)
    page, hot = Page({int(code): 1 + int(code) % 4 for code in chance.permutation(3000)}), cache(30_000)
    evicted: Counter[int] = Counter()
    for _ in range(60):
        some = np.unique(chance.zipf(1.3, 400) % 3000).tolist()
        if hot.is_full:
            hot.renew()
        page.admit(hot, some, met=50)
        texts = found(hot, some)
        assert all(rows is None or rows == page.texts[code] for code, rows in texts.items())
        evicted[hot.entries] += 1
    assert len(evicted) > 5, "it was never renewed"
