"""Regions of pages: where a code lies, and which pages must be read for those that wait."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.join.parts.regions import Regions
from tidemill.join.parts.service import Service
from tidemill.master import MasterData


def store(folder: Path, rows_of_key: dict[int, int], **options: object) -> MasterData:
    """About 330 bytes a row: eleven to a page."""
    keys = np.repeat(np.array(list(rows_of_key), dtype=np.int64), list(rows_of_key.values()))
    table = pa.table({"id": keys, "n": np.arange(len(keys)), "name": ["x" * 300] * len(keys)})
    return MasterData.build(table, key="id", path=folder, page_bytes=4096, **options)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, MasterData]:
    folder = tmp_path_factory.mktemp("stores")
    chance = np.random.default_rng(1)
    shapes: dict[str, dict[int, int]] = {
        "unique": dict.fromkeys(range(0, 1200, 2), 1),
        "three rows each": dict.fromkeys(range(0, 400, 2), 3),
        "some long": {key: int(chance.choice([1, 1, 2, 30])) for key in range(0, 300, 2)},
        "one key": {8: 120},
        "long at the ends": {0: 50, 2: 1, 4: 60},
        "one row": {6: 1},
    }
    built = {shape: store(folder / shape, rows) for shape, rows in shapes.items()}
    given_order = {"order_by": chance.permutation(600 + 100)}
    built["given"] = store(
        folder / "given", {key: 1 + (key % 12 == 0) for key in range(0, 1200, 2)}, **given_order
    )
    numbers = pa.table({"id": np.arange(0, 1200, 2), "n": np.arange(600)})
    built["equally long"] = MasterData.build(numbers, key="id", path=folder / "equal", page_bytes=4096)
    return built


def keys_by_page(master: MasterData) -> list[set[int]]:
    return [set(page.column("id").to_pylist()) for page in master.read_pages(np.arange(master.pages))]


SHAPES = ["unique", "three rows each", "some long", "one key", "long at the ends", "one row", "given"]


@pytest.mark.parametrize("pages", [1, 2, 3, 16, 1000])
@pytest.mark.parametrize("shape", SHAPES)
def test_no_code_spans_two_regions_and_each_is_found_in_its_own(shape: str, pages: int, stores):
    master = stores[shape]
    regions = Regions(master, pages)
    first = regions.first_page
    assert (first[0], first[-1]) == (0, master.pages)
    assert (np.diff(first) > 0).all()
    assert len(regions) == len(first) - 1
    region_of: dict[int, int] = {}
    for page, keys in enumerate(keys_by_page(master)):
        region = int(np.searchsorted(first, page, side="right")) - 1
        assert all(region_of.setdefault(key, region) == region for key in keys), f"page {page}"
    known = np.array(sorted(region_of))
    assert regions.of(known).tolist() == [region_of[key] for key in known.tolist()]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_code_that_does_not_exist_has_a_region_or_none(shape: str, stores):
    """Before the first code there is none; in a given order the index knows every code."""
    master = stores[shape]
    regions = Regions(master, 2)
    between = np.array([-(2**63), -1, 1, 201, 2**63 - 1])
    found = regions.of(between)
    assert ((found >= -1) & (found < len(regions))).all()
    assert found[0] == found[1] == -1
    if shape == "given":
        assert found.tolist() == [-1] * 5


@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_the_pages_read_hold_every_row_that_is_waited_for(shape: str, stores, data: st.DataObject):
    """And lie in the regions asked for, once each, in the order of the disk."""
    master = stores[shape]
    regions = Regions(master, data.draw(st.sampled_from([1, 2, 8, 16])))
    keys = sorted(set().union(*keys_by_page(master)))
    asked = data.draw(st.lists(st.sampled_from(keys) | st.integers(0, 1300), min_size=1, max_size=30))
    codes = np.array(asked, dtype=np.int64)
    codes = codes[regions.of(codes) >= 0]
    codes = codes[np.argsort(regions.of(codes), kind="stable")]
    chosen, rows = np.unique(regions.of(codes), return_counts=True)
    pages = regions.pages_for(chosen, rows, codes)
    assert (np.diff(pages) > 0).all()
    assert np.isin(np.searchsorted(regions.first_page, pages, side="right") - 1, chosen).all()
    holding = keys_by_page(master)
    for code in set(codes.tolist()):
        assert {page for page, held in enumerate(holding) if code in held} <= set(pages.tolist())


def test_few_rows_of_a_long_region_read_only_their_pages(stores):
    master = stores["unique"]
    regions = Regions(master, 16)
    codes = master.first_codes[[0, 12]] + 2
    assert regions.pages_for(np.array([0]), np.array([2]), codes).tolist() == [0, 12]
    near = master.first_codes[[3, 5]] + 2
    assert regions.pages_for(np.array([0]), np.array([2]), near).tolist() == [3, 4, 5], (
        "a small gap is read along"
    )
    farther = master.first_codes[[3, 6]] + 2
    assert regions.pages_for(np.array([0]), np.array([2]), farther).tolist() == [3, 6]
    many = np.repeat(codes, 8)
    assert regions.pages_for(np.array([0]), np.array([16]), many).tolist() == list(range(16))


def test_small_gaps_between_regions_are_not_read_along(stores):
    master = stores["unique"]
    regions = Regions(master, 8)
    codes = master.first_codes[[7, 9]] + 2
    assert regions.pages_for(np.array([0, 1]), np.array([1, 1]), codes).tolist() == [7, 9]
    within = master.first_codes[[4, 6]] + 2
    assert Regions(master, 16).pages_for(np.array([0]), np.array([2]), within).tolist() == [4, 5, 6]


# A region longer than a step: its pages come in pieces.

PER_MATCH = {"inner": (1, 0, 0), "left": (1, 0, 1), "semi": (0, 1, 0), "anti": (0, 0, 1)}


@pytest.mark.parametrize("how", PER_MATCH)
@settings(max_examples=25, deadline=None)
@given(
    keys=st.lists(st.integers(0, 5), min_size=1, max_size=6),
    most_pages=st.integers(1, 5),
    staged_rows=st.integers(1, 20),
    limit_bytes=st.sampled_from([1, 2000, 1_000_000]),
    wide=st.booleans(),
)
def test_a_long_key_gives_all_its_pairs_over_pieces_and_full_staging_areas(
    how, stores, keys, most_pages, staged_rows, limit_bytes, wide
):
    master = stores["long at the ends"]
    codes = np.array(keys, dtype=np.int64)
    service = Service(
        np.arange(len(keys)), codes, np.arange(master.pages), np.zeros(len(keys), np.int64), most_pages
    )
    behind = np.zeros(staged_rows * 50 + 50, dtype=np.uint64).view(np.uint8)
    staging, behind = behind[:-400], behind[-400:]
    stream_sizes = np.arange(len(keys)) * 100 + 16 if wide else np.array([16])
    pairs: list[tuple[int, int | None]] = []
    service.begin(master)
    for _ in range(3000):
        if service.page is None:
            service.meet(*service.arrive(master))
        filled = np.zeros(2, dtype=np.int64)
        rows, at = service.stage(PER_MATCH[how], master.layout, staging, limit_bytes, filled, stream_sizes)
        assert filled[0] <= limit_bytes or len(rows) == 1, "more than one pair although that is too much"
        assert filled[1] <= len(staging)
        decoded = master.layout.decode(staging, at[at >= 0], ("id", "n")).to_pylist()
        numbers = iter(decoded)
        for row, place in zip(rows.tolist(), at.tolist(), strict=True):
            found = next(numbers) if place >= 0 else None
            assert found is None or found["id"] == keys[row]
            pairs.append((row, found and found["n"]))
        assert not behind.any(), "written beyond the staging area"
        if service.is_piece_over and service.is_last_piece:
            break
        if service.is_piece_over:
            service.begin(master)
    else:
        pytest.fail("it never ends")
    first, matches = {0: 0, 2: 50, 4: 51}, {0: 50, 2: 1, 4: 60}
    expected = []
    for row, key in enumerate(keys):
        numbers_of_key = [first[key] + k for k in range(matches[key])] if key in matches else []
        per_match, if_matched, if_not = PER_MATCH[how]
        expected += [(row, n) for n in numbers_of_key] * per_match
        expected += [(row, None)] * (if_matched if numbers_of_key else if_not)
    assert sorted(pairs, key=str) == sorted(expected, key=str)


def test_a_row_larger_than_the_staging_area_is_not_staged(stores):
    master = stores["one row"]
    service = Service(np.arange(1), np.array([6]), np.arange(1), np.zeros(1, np.int64), 1)
    service.begin(master)
    service.meet(*service.arrive(master))
    whole = np.zeros(100, dtype=np.uint64).view(np.uint8)
    filled = np.zeros(2, dtype=np.int64)
    rows, _ = service.stage((1, 0, 0), master.layout, whole[:80], 1_000_000, filled, np.array([16]))
    assert len(rows) == 0
    assert not whole.any()
    assert not filled.any()
    assert not service.is_piece_over


@settings(max_examples=50, deadline=None)
@given(
    codes=st.lists(st.integers(-3, 60), min_size=1, max_size=40),
    limit_bytes=st.integers(1, 3000),
    filled_bytes=st.sampled_from([0, 1, 500]),
)
def test_rows_with_one_match_at_most_leave_as_a_look_at_each_says(stores, codes, limit_bytes, filled_bytes):
    master = stores["equally long"]
    told = []
    for is_known in (True, False):
        sought = np.array(sorted(codes), dtype=np.int64)
        service = Service(np.arange(len(codes)), sought, np.arange(1), np.zeros_like(sought), 4)
        service.begin(master)
        service.meet(*service.arrive(master))
        assert service.is_one_each
        service.is_one_each = is_known
        left, filled = [], np.array([filled_bytes, 0])
        while not service.is_piece_over:
            none = np.empty(0, dtype=np.uint8)
            rows, at = service.stage((1, 0, 1), master.layout, none, limit_bytes, filled, np.array([16]))
            assert filled[0] <= limit_bytes or len(at) <= 1
            left.append((np.arange(len(codes))[rows].tolist(), at.tolist(), int(filled[0])))
            filled = np.zeros(2, dtype=np.int64)
        told.append(left)
    (rows, places), others = ([[one for part in left for one in part[k]] for k in (0, 1)] for left in told)
    assert [rows, places] == others
    assert rows == list(range(len(codes)))
    assert [at >= 0 for at in places] == [code >= 0 and code % 2 == 0 for code in sorted(codes)]
