"""TIDE beyond the laws: what turns hot, where it reads, which rows and columns go through it whole."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
from tests.join.streams import ROWS, batch, build, skewed, totals
from tests.join.tides import MOST_STEPS, finished, least_bytes, repeated, tide
from tests.laws.late_putter import LatePutter

from tidemill.core.errors import StoreError
from tidemill.core.memory import MemoryBudget
from tidemill.join.catalog import make_join
from tidemill.join.drive import drive
from tidemill.join.output import How
from tidemill.join.parts.putter import Putter
from tidemill.join.parts.split import Split
from tidemill.join.protocol import StepReport
from tidemill.join.tide import TideJoin
from tidemill.join.tide_sizes import TideSizes
from tidemill.master import MasterData


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> MasterData:
    return build(tmp_path_factory.mktemp("m"))


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> MasterData:
    """The same rows, with codes of four bytes and without bits, wide enough not to be hot all at once."""
    master = build(tmp_path_factory.mktemp("s"), range(-ROWS, ROWS), wider_by=300, pack=True)
    assert (master.layout.code_bytes, master.packing.has_nulls) == (4, False)
    return master


def rows_of(reports: Iterable[StepReport]) -> list[dict[str, Any]]:
    return [row for report in reports for output in report.outputs for row in output.to_pylist()]


# What turns hot.


@pytest.fixture
def fixed_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hot rows keep their share of the memory: a change of the split forgets them."""
    monkeypatch.setattr(Split, "is_due", lambda *_: False)


def test_hot_rows_of_short_codes_close_up_without_harm(short: MasterData):
    taste = [batch(chosen) for part in (0, ROWS // 2, ROWS) for chosen in [tastes(part)] * 12]
    join = tide(short, 600_000)
    reports = list(drive(join, taste))
    assert totals(reports)["hot_hits"] > 0.2 * totals(reports)["rows_in"]
    assert join._hot._evicted > 0, "nothing had to go"
    names = Counter((row["key"], row["name"].strip(), row["half"]) for row in rows_of(reports))
    keys = Counter(int(key) for part in taste for key in part.column("key").to_numpy())
    assert names == {(key, f"name of {key}", key / 2): count for key, count in keys.items()}


def tastes(first: int) -> "np.typing.NDArray[np.int64]":
    """Keys of both signs, of which some come often."""
    return np.random.default_rng(first).zipf(1.3, 2000) % ROWS - first


@pytest.mark.usefixtures("fixed_split")
def test_a_skewed_stream_moves_from_disk_to_hot_rows(master: MasterData):
    join = tide(master)
    cold = totals(drive(join, skewed(2)))
    list(drive(join, skewed(20)))
    warm = totals(drive(join, skewed(4)))
    assert warm["hot_hits"] / warm["rows_in"] > 0.7 > cold["hot_hits"] / cold["rows_in"]
    assert warm["emitted_rows"] == 8000


def test_hot_rows_follow_a_stream_whose_taste_changes(master: MasterData):
    join = tide(master, 400_000)
    chance = np.random.default_rng(2)
    for first in (0, 10_000):
        list(drive(join, (batch(first + chance.choice(500, 2000)) for _ in range(20))))
        hits = totals(drive(join, [batch(first + chance.choice(500, 2000))]))["hot_hits"]
        assert hits > 1500, f"keys from {first}"


def test_rows_put_together_on_another_core_are_the_same(master: MasterData, monkeypatch: pytest.MonkeyPatch):
    """Hot rows are read there while this thread probes the next rows, serves reads and admits others."""
    monkeypatch.setattr("tidemill.join.parts.aside._WORTH_ROWS", 1)
    monkeypatch.setattr("tidemill.join.parts.region_join._ENOUGH_ROWS", 1)
    monkeypatch.setattr("tidemill.join.parts.probe_join._PIECE_ROWS", 90)
    chance, found = np.random.default_rng(5), []
    # Taste changes: hot rows go and others take their places.
    popular = (np.arange(30_000) // 20 + chance.integers(0, 300, 30_000)) % 20_000
    any_key = chance.integers(0, 20_000, 30_000)
    keys = np.where(chance.random(30_000) < 0.7, popular, any_key)
    for cores, putter in (({0}, Putter), ({0, 1}, Putter), ({0, 1}, LatePutter)):
        monkeypatch.setattr("os.sched_getaffinity", lambda _, cores=cores: cores)
        monkeypatch.setattr("tidemill.join.parts.region_join.Putter", putter)
        join = tide(master, 600_000)
        reports = list(drive(join, [batch(keys)]))
        if putter is Putter:
            assert (join._putter._asked > 100) is (len(cores) > 1)
        assert any(report.hot_hits and report.disk_matches for report in reports), "no step did both"
        found.append(Counter(map(str, rows_of(reports))))
    assert found[0] == found[1] == found[2]


def test_hot_rows_stay_where_they_are_until_rows_beside_them_have_left(
    master: MasterData, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tidemill.join.parts.aside._WORTH_ROWS", 1)
    monkeypatch.setattr("tidemill.join.parts.region_join.Putter", LatePutter)
    join, keys = tide(master, 2_000_000), np.arange(300)
    list(drive(join, [batch(np.repeat(keys[::7], 5)), batch(keys), batch(keys)]))
    reports = []
    for _ in range(2):
        join.offer(batch(keys[::7]))
        reports.append(join.step())
        assert join._departures.hits_rows, "nobody is on the way out"
        join._hot._state[3] = 1  # full: those met least go, and others close up
    reports += drive(join, [])
    assert all(row["name"] == f"name of {row['key']}" for row in rows_of(reports)), "rows of others"
    assert len(rows_of(reports)) == 2 * len(keys[::7])


@pytest.mark.parametrize("how", get_args(How))
def test_keys_that_do_not_exist_turn_hot_too(how: How, tmp_path: Path):
    odd = build(tmp_path, range(1, 2 * ROWS, 2))
    join = tide(odd, how=how)
    absent = batch(np.random.default_rng(3).choice(100, 2000) * 2)
    list(drive(join, [absent] * 3))
    again = totals(drive(join, [absent]))
    assert (again["unmatched"], again["pages_read"]) == (2000, 0)
    assert again["output_rows"] == (2000 if how in ("left", "anti") else 0)


def test_keys_beyond_the_first_and_rows_for_empty_master_data_cost_no_read(
    master: MasterData, tmp_path: Path
):
    assert totals(drive(tide(master), [batch([-1, -2, -(2**63)])]))["pages_read"] == 0
    empty = pa.table({"id": pa.array([], pa.int64()), "name": pa.array([], pa.string())})
    nothing = tide(MasterData.build(empty, key="id", path=tmp_path), how="anti")
    assert totals(drive(nothing, [batch(range(100))]))["output_rows"] == 100


# Where it reads.


def regions_served(join: TideJoin, keys: Iterable[int]) -> list[list[int]]:
    """Keys in the order in which steps let them leave, when all of them wait before the first read."""
    join.offer(batch(keys))
    left = [sorted({row["key"] for row in rows_of([report])}) for report in finished(join.drain())]
    return [keys for keys in left if keys]


def single_pages(master: MasterData, **sizes: int) -> TideSizes:
    """Sizes with regions of one page, and the index that these need."""
    usual = tide(master).sizes
    return replace(usual, region_pages=1, index_bytes=usual.index_bytes + 64 * master.pages, **sizes)


def test_reads_go_in_turn_where_rows_wait_longest_and_where_most_wait(master: MasterData):
    join = tide(master, 1_100_000, sizes=single_pages(master, regions_per_read=1, reads_per_step=1))
    first_key = master.read_page(0).num_rows
    few, many = [5, first_key * 3 + 5], [first_key * 6 + 5] * 30 + [first_key * 9 + 5] * 20
    served = regions_served(join, [*few, *many])
    assert sorted(key for step in served for key in step) == sorted({*few, *many})
    # One turn for age, one for numbers: neither the popular nor the early rows wait for all others.
    assert {served[0][0], served[1][0]} == {few[0], many[0]}


def test_one_read_serves_every_row_that_waits_for_it(master: MasterData):
    join = tide(master, 1_100_000, sizes=single_pages(master))
    counts = totals(drive(join, [batch(np.random.default_rng(4).permutation(2000))]))
    assert counts["disk_matches"] == 2000
    assert counts["pages_read"] <= -(-2000 // master.read_page(0).num_rows) + 1


def test_rows_that_wait_are_served_while_hot_ones_go_on_arriving(master: MasterData):
    join = tide(master, 400_000)
    popular = [n % 50 for n in range(2000)]
    list(drive(join, [batch(popular)] * 3))
    join.offer(batch([ROWS - 7]))
    join.step()
    for _ in range(500):
        join.offer(batch(popular[: join.room()]))
        if any(row["key"] == ROWS - 7 for row in rows_of([join.step()])):
            return
    pytest.fail("the row waits although only hot rows came after it")


def test_a_damaged_page_is_an_error_whoever_reads_it(tmp_path: Path):
    build(tmp_path)
    for file in tmp_path.rglob("*"):
        if file.is_file() and file.stat().st_size > 100_000:
            content = bytearray(file.read_bytes())
            content[len(content) // 2] ^= 1
            file.write_bytes(content)
    store = MasterData.open(tmp_path, reads_in_flight=4)
    with pytest.raises(StoreError, match="fails its checksum"):
        list(drive(tide(store), [batch(range(ROWS))]))


# Keys with many rows.


@pytest.mark.parametrize("how", get_args(How))
@pytest.mark.parametrize("restores_every", [0, 1, 3])
def test_a_key_over_many_pages_gives_each_pair_once(how: How, restores_every: int, tmp_path: Path):
    """Several hundred rows of a key in many pages, of which a step reads one or two."""
    matches = {1: 1, 2: 700, 3: 2, 4: 40, 9: 1}
    store = repeated(tmp_path, matches)
    least = least_bytes(store)
    sizes = replace(tide(store, least + 3000, how=how).sizes, reads_per_step=1)
    join = tide(store, least + 3000, how=how, sizes=sizes)
    assert store.pages > 10 * join.sizes.pages_per_step
    keys, offered = [2, 5, 4, 2, 1, 0, 3, 2, 9, 8], 0
    reports: list[StepReport] = []
    while offered < len(keys) or join.pending_rows:
        rows = batch(keys).slice(offered, join.room())
        join.offer(rows)
        offered += rows.num_rows
        if restores_every and len(reports) % restores_every == 0:
            snapshot = join.snapshot()
            join = tide(store, least + 3000, how=how, sizes=sizes)
            join.restore(snapshot)
        reports.append(join.step())
        assert len(reports) < MOST_STEPS
    found = Counter(row["row"] for row in rows_of(reports))
    leaves = {
        "inner": lambda m: m,
        "left": lambda m: max(1, m),
        "semi": lambda m: min(1, m),
        "anti": lambda m: int(m == 0),
    }[how]
    assert found == +Counter({row: leaves(matches.get(key, 0)) for row, key in enumerate(keys)})
    if how in ("inner", "left"):
        pairs = [(row["row"], row["n"]) for row in rows_of(reports)]
        assert len(pairs) == len(set(pairs))


def test_a_hot_row_cut_in_its_middle_goes_on_there_after_a_restore(tmp_path: Path):
    """Into the join that has the hot rows, and into one that must read them again."""
    store = repeated(tmp_path, dict.fromkeys(range(9), 50), page_bytes=65_536)
    sizes = replace(tide(store, 2_000_000).sizes, output_bytes=20_000)
    join, other = (tide(store, 2_000_000, sizes=sizes) for _ in range(2))
    list(drive(join, [batch(range(9))] * 3))
    join.offer(batch(np.arange(200) % 9))
    reports = []
    while join.pending_rows and len(reports) < MOST_STEPS:
        reports.append(join.step())
        if len(reports) == 60:
            join, other = other, join
        join.restore((other if len(reports) == 60 else join).snapshot())
    pairs = Counter((row["row"], row["n"]) for row in rows_of(reports))
    assert set(pairs.values()) == {1}
    assert len(pairs) == 200 * 50
    assert totals(reports)["hot_hits"] > 20


@pytest.mark.usefixtures("fixed_split")
@pytest.mark.parametrize("memory_bytes", [400_000, 1_000_000])
def test_keys_of_several_rows_turn_hot_where_a_step_reads_one_region(memory_bytes: int, tmp_path: Path):
    store = repeated(tmp_path, dict.fromkeys(range(1000), 3))
    sizes = replace(tide(store, memory_bytes).sizes, regions_per_read=1, reads_per_step=1)
    join = tide(store, memory_bytes, sizes=sizes)
    assert np.diff(join._regions.first_page).max() > sizes.pages_per_step, "no region is longer than a step"
    rows = batch(np.random.default_rng(3).choice(100, 4000))
    list(drive(join, [rows] * 2))
    assert totals(drive(join, [rows]))["hot_hits"] > 3500


# Rows and columns of every kind.

WIDE = pa.schema(
    [
        ("row", pa.int64()),
        ("key", pa.int64()),
        ("note", pa.string()),
        ("tags", pa.list_(pa.struct([("name", pa.string()), ("weight", pa.float32())]))),
        ("map", pa.map_(pa.string(), pa.int16())),
        ("small", pa.bool_()),
        ("word", pa.dictionary(pa.int8(), pa.string())),
    ]
)  # fmt: skip


def wide_row(row: int, key: int | None) -> dict[str, Any]:
    """Values of all lengths, with NULLs at every depth."""
    return {
        "row": row,
        "key": key,
        "note": None if row % 5 == 0 else "né" * (row * 13 % 200),
        "tags": None if row % 7 == 0 else [{"name": None if n else f"t{row}", "weight": row / 2} for n in range(row % 4)],
        "map": None if row % 3 == 0 else [(f"k{n}", None if n == 1 else n) for n in range(row % 5)],
        "small": None if row % 11 == 0 else row % 2 == 0,
        "word": None if row % 13 == 0 else f"word {row % 9}",
    }  # fmt: skip


@pytest.mark.parametrize("memory_bytes", [90_000, 600_000])
@pytest.mark.parametrize("how", get_args(How))
def test_stream_rows_of_any_columns_go_through_unchanged(how: How, memory_bytes: int, tmp_path: Path):
    """Some leave at once, some wait, some wait again after a restore: all as they came."""
    store = repeated(tmp_path, {key: 2 if key % 3 == 0 else 1 for key in range(1, 600, 2)})
    chance = np.random.default_rng(5)
    rows = [
        wide_row(n, None if n % 50 == 0 else int(chance.integers(0, 80 if n % 2 else 620)))
        for n in range(800)
    ]
    whole = pa.RecordBatch.from_pylist(rows, schema=WIDE)
    options: Any = {
        "stream_key": "key",
        "how": how,
        **({"columns": ["n"]} if how in ("inner", "left") else {}),
    }
    join = make_join("tide", store, WIDE, budget=MemoryBudget(memory_bytes), **options)
    reports = []
    for at in range(0, 800, 200):
        reports += finished(drive(join, [whole.slice(at, 200)]))
        join.restore(join.snapshot())
    expected: Counter[str] = Counter()
    for row in rows:
        matches = (
            0
            if row["key"] is None or row["key"] % 2 == 0 or row["key"] >= 600
            else 2
            if row["key"] % 3 == 0
            else 1
        )
        leaves = {
            "inner": matches,
            "left": max(1, matches),
            "semi": min(1, matches),
            "anti": int(not matches),
        }[how]
        expected[repr(row)] += leaves
    assert Counter(repr({name: row[name] for name in WIDE.names}) for row in rows_of(reports)) == +expected


def test_columns_are_chosen_and_renamed_and_matches_marked(tmp_path: Path):
    store = repeated(tmp_path, {1: 2, 3: 1})
    join = tide(store, columns={"name": "title", "id": "found"}, matched_as="is_known")
    for turn in range(2):  # from disk, then from hot rows
        rows = sorted(
            rows_of(drive(join, [batch([3, 2, 1])])), key=lambda row: (row["row"], str(row["title"]))
        )
        assert [list(row) for row in rows] == [["row", "key", "title", "found", "is_known"]] * 4
        assert [(row["found"], row["is_known"]) for row in rows] == [
            (3, True),
            (None, False),
            (1, True),
            (1, True),
        ]
        assert [row["title"] and row["title"][:5] for row in rows] == ["row 2", None, "row 0", "row 1"], turn


@pytest.mark.parametrize("how", ["inner", "left"])
def test_without_master_columns_rows_still_leave_once_a_match(how: How, tmp_path: Path):
    store = repeated(tmp_path, dict.fromkeys(range(50), 3))
    join = tide(store, 300_000, how=how, columns=[], **({"matched_as": "known"} if how == "left" else {}))
    keys = [n % 50 for n in range(1000)] + [60] * 167
    for _ in range(3):
        reports = finished(drive(join, [batch(keys)]))
        assert totals(reports)["output_rows"] == 3000 + (167 if how == "left" else 0)
        if how == "left":
            assert sum(row["known"] for row in rows_of(reports)) == 3000


# Memory.
