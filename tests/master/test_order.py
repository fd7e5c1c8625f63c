"""Pages in a given order: the order holds, each key lies in one page, and the index on disk finds it."""

import datetime as dt
import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidemill.core.errors import SpecError, StoreError
from tidemill.master import MasterData
from tidemill.master.key_pages import BLOCK_ENTRIES

QUIET = settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])


def popular(rows: int, *, text: bool = False) -> pa.Table:
    keys = np.random.default_rng(4).permutation(rows)
    names = [f"key {key}" for key in keys]
    return pa.table(
        {"id": names if text else keys, "hits": keys % 1000, "name": [f"n {key}" * 5 for key in keys]}
    )


def pages_of(master: MasterData) -> list[list[dict[str, Any]]]:
    return [page.to_pylist() for page in master.read_pages(range(master.pages))]


@pytest.mark.parametrize("memory", ["200 kB", "100 MB"])
@pytest.mark.parametrize("text", [False, True])
def test_popular_rows_come_first_and_every_key_is_found(tmp_path: Path, text: bool, memory: str):
    table = popular(20_000, text=text)
    master = MasterData.build(table, key="id", path=tmp_path, order_by="hits", memory=memory)
    assert (master.page_order, master.manifest.page_order) == ("given", "given")
    hits = [[row["hits"] for row in page] for page in pages_of(master)]
    assert all(min(one) >= max(two) for one, two in pairwise(hits))
    codes, _ = master.key_form.codes([table.column("id").combine_chunks()])
    page, count = master.locate(codes)
    assert (count == 1).all()
    position, rows = master.lookup(table.column("id").combine_chunks())
    assert (position == np.arange(len(table))).all()
    assert rows.column("name").to_pylist() == table.column("name").to_pylist()
    for number in (0, master.pages // 2, master.pages - 1):
        stored = master.read_page(number).column(master.key).to_numpy()
        assert (np.diff(stored) >= 0).all()
        assert set(stored.tolist()) == set(codes[page == number].tolist())
    absent = np.setdiff1d(codes + 1, codes)
    assert not master.locate(absent)[1].any()


@QUIET
@given(
    keys=st.lists(st.integers(0, 12), min_size=1, max_size=120),
    values=st.lists(
        st.one_of(st.none(), st.floats(allow_nan=True), st.integers(-3, 3)), min_size=120, max_size=120
    ),
    memory=st.sampled_from([2000, 10**6]),
)
def test_rows_of_a_key_stay_together_at_their_best_place(
    tmp_path_factory: pytest.TempPathFactory, keys: list[int], values: list[float | None], memory: int
):
    weights = pa.array([v if v is None else float(v) for v in values[: len(keys)]], pa.float64())
    table = pa.table({"id": keys, "w": weights, "pad": ["x" * 300] * len(keys), "n": range(len(keys))})
    path = tmp_path_factory.mktemp("m")
    master = MasterData.build(table, key="id", path=path, page_bytes=4096, order_by="w", memory=memory)
    pages = pages_of(master)
    where = {
        key: [n for n, page in enumerate(pages) if any(row["id"] == key for row in page)] for key in keys
    }
    assert all(len(places) == 1 for places in where.values())
    first, count = master.locate(np.arange(-1, 14))
    assert count.tolist() == [int(key in where) for key in range(-1, 14)]
    assert all(first[key + 1] == places[0] for key, places in where.items())
    best: dict[int, float] = {}
    for key, weight in zip(keys, weights.to_pylist(), strict=True):
        value = -np.inf if weight is None or np.isnan(weight) else weight
        best[key] = max(best.get(key, -np.inf), value)
    order = [max(best[row["id"]] for row in page) for page in pages]
    assert order == sorted(order, reverse=True)
    assert sorted(row["n"] for page in pages for row in page) == list(range(len(keys)))
    assert master.manifest.distinct_keys == len(set(keys))


def test_an_explicit_permutation_is_followed(tmp_path: Path):
    table = popular(3000)
    wanted = np.random.default_rng(9).permutation(3000)
    master = MasterData.build(table, key="id", path=tmp_path, order_by=wanted, page_bytes=4096)
    pages = [{row["id"] for row in page} for page in pages_of(master)]
    keys = table.column("id").to_numpy()[wanted].tolist()
    for page in pages:
        assert page == set(keys[: len(page)])
        keys = keys[len(page) :]


@pytest.mark.parametrize("wanted", [[0, 1], [0, 1, 1], [0, 1, 3], [0, 1, 2, 3], [-1, 0, 1]])
def test_what_is_no_permutation_of_the_rows_is_refused(tmp_path: Path, wanted: list[int]):
    with pytest.raises(SpecError) as refusal:
        MasterData.build(pa.table({"id": [1, 2, 3]}), key="id", path=tmp_path, order_by=np.array(wanted))
    assert refusal.value.code == "order_permutation"


def test_dates_order_too_and_text_does_not(tmp_path: Path):
    days = [dt.date(2024, 1, 1), dt.date(2025, 1, 1), None]
    table = pa.table({"id": [1, 2, 3], "seen": days, "name": ["a", "b", "c"], "pad": ["x" * 3000] * 3})
    master = MasterData.build(table, key="id", path=tmp_path, order_by="seen", page_bytes=4096)
    assert [page[0]["id"] for page in pages_of(master)] == [2, 1, 3]
    for column, code in (("name", "order_type"), ("sen", "unknown_order_column")):
        with pytest.raises(SpecError) as refusal:
            MasterData.build(table, key="id", path=tmp_path, order_by=column)
        assert refusal.value.code == code


def test_an_empty_store_in_given_order(tmp_path: Path):
    master = MasterData.build(popular(0), key="id", path=tmp_path, order_by="hits")
    assert [a.tolist() for a in master.locate(np.array([1, 2]))] == [[0, 0], [0, 0]]


def test_the_index_on_disk_is_mapped_and_only_its_blocks_are_held(tmp_path: Path):
    master = MasterData.build(popular(20_000), key="id", path=tmp_path, order_by="hits")
    assert master.mapped_key_bytes == 20_000 * 12
    assert master._key_pages.bytes_held == 5 * 17
    assert pickle.loads(pickle.dumps(master)).locate(np.array([7]))[1].tolist() == [1]


@QUIET
@given(at=st.integers(0, 12_000 * 12 - 1), bit=st.integers(0, 7))
def test_a_changed_bit_of_the_index_is_found_before_its_entry_is_used(ordered: Path, at: int, bit: int):
    file = ordered / "versions" / "000001" / "keys.bin"
    good = file.read_bytes()
    bad = bytearray(good)
    bad[at] ^= 1 << bit
    file.write_bytes(bad)
    try:
        entry = at // 8 if at < 12_000 * 8 else (at - 12_000 * 8) // 4
        master = MasterData.open(ordered)
        with pytest.raises(StoreError, match=rf"block {entry // BLOCK_ENTRIES} of .*keys\.bin"):
            master.locate(np.array([entry]))
        # Others are still right, or refused: never wrong.
        assert {answer(ordered, key) for key in range(0, 12_000, 511)} <= {"found", "keys_corrupt"}
    finally:
        file.write_bytes(good)


def test_a_search_led_astray_by_another_block_is_found(ordered: Path):
    """The first probe of the search is the middle entry; made negative, it sends every key to the right."""
    file = ordered / "versions" / "000001" / "keys.bin"
    good = file.read_bytes()
    bad = bytearray(good)
    bad[6000 * 8 + 7] ^= 0x80
    file.write_bytes(bad)
    try:
        with pytest.raises(StoreError, match=r"block 1 of"):
            MasterData.open(ordered).locate(np.array([100]))
    finally:
        file.write_bytes(good)


def answer(path: Path, key: int) -> str:
    try:
        return "found" if MasterData.open(path).locate(np.array([key]))[1][0] else "not found"
    except StoreError as error:
        return error.code


@pytest.fixture(scope="module")
def ordered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ordered")
    MasterData.build(popular(12_000), key="id", path=path, order_by="hits")
    return path


@pytest.mark.parametrize(("name", "code"), [("keys.bin", "keys_cut"), ("blocks.arrow", "index_corrupt")])
def test_a_cut_or_missing_index_is_named(tmp_path: Path, name: str, code: str):
    MasterData.build(popular(100), key="id", path=tmp_path, order_by="hits")
    file = tmp_path / "versions" / "000001" / name
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(StoreError, match=name) as refusal:
        MasterData.open(tmp_path)
    assert refusal.value.code == code
    file.unlink()
    with pytest.raises(StoreError, match=name):
        MasterData.open(tmp_path)
