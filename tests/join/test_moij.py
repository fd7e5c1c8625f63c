"""MOIJ beyond the laws: the cache inequality, memory that moves, eviction, the order of rounds."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.join.streams import ROWS, STREAM, batch, build, join_on, skewed, totals

from tidemill.core.errors import BudgetError
from tidemill.core.memory import MemoryBudget
from tidemill.join.catalog import make_join
from tidemill.join.drive import drive
from tidemill.join.moij import MoijJoin
from tidemill.join.output import How, OutputPlan
from tidemill.join.protocol import StepReport
from tidemill.master import MasterData
from tidemill.master.keys import KeyForm


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> MasterData:
    return build(tmp_path_factory.mktemp("m"))


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> MasterData:
    """The same rows, with codes of four bytes and without bits, wide enough not to be hot all at once."""
    master = build(tmp_path_factory.mktemp("s"), range(-ROWS, ROWS), wider_by=300, pack=True)
    assert (master.layout.code_bytes, master.packing.has_nulls) == (4, False)
    return master


def moij(master: MasterData, memory_bytes: int = 1_000_000) -> MoijJoin:
    join = join_on("moij", master, memory_bytes, how="left")
    assert isinstance(join, MoijJoin)
    return join


def hot_keys(join: MoijJoin) -> set[int]:
    return set(join._rows.hot_codes.tolist())


def watched(join: MoijJoin, batches: Iterable[pa.RecordBatch]) -> Iterator[StepReport]:
    """Reports of a run in which every part stays where its reservation says, in bytes really taken."""
    for report in drive(join, batches):
        reserved, rows = join.budget.holdings(), join._rows
        over = {part: held for part, held in report.held_bytes.items() if held > reserved[part]}
        assert not over
        assert rows.hot_bytes_held <= rows.border == reserved["hot_rows"]
        assert rows.cells * rows.stream.cell_bytes <= reserved["pending"]
        assert rows.memory.nbytes <= reserved["pending"] + reserved["hot_rows"] == join.sizes.shared_bytes
        assert sum(reserved.values()) <= join.budget.total_bytes
        yield report


def test_a_skewed_stream_moves_from_disk_to_hot_rows(master: MasterData):
    join = moij(master)
    cold = totals(drive(join, skewed(2)))
    list(drive(join, skewed(20)))
    warm = totals(drive(join, skewed(4)))
    assert cold["hot_hits"] / cold["rows_in"] < 0.4
    assert warm["hot_hits"] / warm["rows_in"] > 0.55
    assert warm["emitted_rows"] == 8000


def test_memory_moves_from_waiting_to_hot_rows_and_back(tmp_path_factory: pytest.TempPathFactory):
    """With master rows of 208 bytes ten rows must wait for a key before it may turn hot."""
    join = moij(build(tmp_path_factory.mktemp("wide"), wider_by=170), 600_000)
    chance = np.random.default_rng(1)

    def stream(keys: Iterable[int], batches: int) -> Iterable[pa.RecordBatch]:
        return (batch(chance.choice(list(keys), 2000)) for _ in range(batches))

    at_start = join.budget.holdings()["pending"]
    list(watched(join, stream(range(300), 15)))
    few_keys = join.budget.holdings()
    assert few_keys["pending"] < at_start
    assert len(hot_keys(join) & set(range(300))) > 200
    list(watched(join, stream(range(ROWS), 60)))
    many_keys = join.budget.holdings()
    assert many_keys["pending"] > few_keys["pending"]
    assert len(hot_keys(join)) < 100
    for held in (few_keys, many_keys):
        assert held["pending"] + held["hot_rows"] == join.sizes.shared_bytes


def test_hot_rows_of_short_codes_close_up_without_harm(short: MasterData):
    join, chance = moij(short, 600_000), np.random.default_rng(2)
    liked = [-300] * 20 + [5_000] * 30 + [-600] * 20
    stream = [batch(first + chance.choice(500, 2000)) for first in liked]
    reports = list(watched(join, stream))
    assert totals(reports)["hot_hits"] > 0.3 * totals(reports)["rows_in"]
    assert join._rows._evicted > 0, "nothing had to go"
    found = pa.concat_tables([pa.Table.from_batches(r.outputs) for r in reports if r.outputs])
    keys = found.column("key").to_pylist()
    assert sorted(keys) == sorted(key for part in stream for key in part.column("key").to_pylist())
    assert [name.strip() for name in found.column("name").to_pylist()] == [f"name of {key}" for key in keys]
    assert found.column("half").to_pylist() == [key / 2 for key in keys]


def test_hot_rows_follow_a_stream_whose_taste_changes(master: MasterData):
    join = moij(master, 600_000)
    chance = np.random.default_rng(2)
    list(drive(join, (batch(chance.choice(500, 2000)) for _ in range(20))))
    before = totals(drive(join, [batch(chance.choice(500, 2000))]))
    list(drive(join, (batch(10_000 + chance.choice(500, 2000)) for _ in range(30))))
    after = totals(drive(join, [batch(10_000 + chance.choice(500, 2000))]))
    assert before["hot_hits"] > 1000
    assert after["hot_hits"] > 1000


def test_a_key_with_more_master_rows_than_waiting_ones_stays_on_disk(
    tmp_path_factory: pytest.TempPathFactory,
):
    """The paper's example (§II-B): three rows wait for each of two keys, one of them has many master rows."""
    parts = build(tmp_path_factory.mktemp("parts"), [10] * 30 + [30] * 2 + list(range(100, 5000)))
    join = moij(parts, 300_000)
    filler = np.arange(100, 5000)
    for turn in range(40):
        rows = [10] * 3 + [30] * 12 + filler[turn * 100 : turn * 100 + 100].tolist()
        counts = totals(drive(join, [batch(rows)]))
        assert counts["output_rows"] == 3 * 30 + 12 * 2 + 100
    assert 30 in hot_keys(join)
    assert 10 not in hot_keys(join)


def test_all_rows_of_a_key_leave_for_every_waiting_row(tmp_path_factory: pytest.TempPathFactory):
    twice = build(tmp_path_factory.mktemp("twice"), sorted([*range(3000), *range(3000)]))
    join = moij(twice, 300_000)
    keys = np.random.default_rng(3).choice(200, 5000)
    assert totals(drive(join, [batch(keys)] * 3))["output_rows"] == 3 * 2 * 5000


@pytest.mark.parametrize("total_bytes", [130_000, 1_000_000, 400_000_000])
def test_sizes_use_the_budget_and_never_more(total_bytes: int, master: MasterData):
    plan = OutputPlan.of(STREAM, master.schema, stream_key="key", master_key=master.key)
    sizes = MoijJoin.sizes_for(master, plan, total_bytes)
    assert sizes.total_bytes == total_bytes
    assert sizes.eviction_rounds == 10
    assert sizes.segment_pages * master.longest_page_bytes <= 100_000


def test_a_budget_too_small_names_the_least_that_works(master: MasterData):
    with pytest.raises(BudgetError) as refusal:
        moij(master, 5000)
    least = refusal.value.least_bytes
    assert totals(drive(moij(master, least), [batch(range(50))]))["disk_matches"] == 50


def test_the_oldest_waiting_row_chooses(master: MasterData):
    """Segments are served in the order in which their first rows came, whatever came later."""
    plan = OutputPlan.of(STREAM, master.schema, stream_key="key", master_key=master.key)
    sizes = replace(
        MoijJoin.sizes_for(master, plan, 1_000_000), segment_pages=1, read_pages=3, pages_per_step=6
    )
    join = MoijJoin(master, plan, MemoryBudget(1_100_000), sizes=sizes)
    chance = np.random.default_rng(6)
    keys = chance.integers(0, ROWS, 3000)
    page_of = join._master.locate(keys)[0]
    left = [
        key
        for report in drive(join, [batch(keys)])
        for out in report.outputs
        for key in out["key"].to_pylist()
    ]
    pages = join._master.locate(np.array(left))[0]
    _, first_seen = np.unique(page_of, return_index=True)
    served = pages[np.flatnonzero(np.append(True, np.diff(pages) != 0))]
    assert served.tolist() == page_of[np.sort(first_seen)].tolist()


def wide_stream(batches: int, seed: int) -> list[pa.RecordBatch]:
    """Rows of 0 to 300 bytes: they take one cell, or up to eight."""
    chance = np.random.default_rng(seed)
    found = []
    for _ in range(batches):
        keys = (chance.zipf(1.3, 800) * 37) % ROWS
        notes = ["x" * int(size) for size in chance.integers(0, 300, 800)]
        found.append(pa.record_batch({"key": keys, "note": notes}))
    return found


def test_long_rows_survive_every_move_of_the_border(tmp_path_factory: pytest.TempPathFactory):
    """Hot rows come and go, so cells are moved; each row must leave as it came, with its own master row."""
    join_master = build(tmp_path_factory.mktemp("wide"), wider_by=100)
    batches = wide_stream(60, seed=7)
    budget = MemoryBudget(500_000)
    join = make_join("moij", join_master, batches[0].schema, stream_key="key", budget=budget, how="left")
    assert isinstance(join, MoijJoin)
    borders: set[int] = set()
    left: Counter[tuple[Any, ...]] = Counter()
    for report in watched(join, batches):
        borders.add(join._rows.border)
        for out in report.outputs:
            left.update(zip(out["key"].to_pylist(), out["note"].to_pylist(), strict=True))
            assert pc.all(pc.equal(pc.divide(out["key"].cast(pa.float64()), 2.0), out["half"])).as_py()
    came = Counter(
        row for part in batches for row in zip(*(c.to_pylist() for c in part.columns), strict=True)
    )
    assert left == came
    assert len(borders) > 5
    assert min(borders) < max(borders) / 2


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> MasterData:
    """Keys of text, one of them over many pages."""
    names = [*(f"key {n}" for n in range(0, 2000, 2)), *["key 7000"] * 4000]
    table = pa.table({"id": names, "n": range(len(names)), "filler": ["y" * 60] * len(names)})
    return MasterData.build(table, key="id", path=tmp_path_factory.mktemp("named"), page_bytes=4096)


def neighbours(named: MasterData, chance: np.random.Generator) -> list[str]:
    """Keys, and others with their codes, in the page in which the key over many pages begins."""
    numbers = np.array([*range(0, 2000, 2), 7000])
    codes, _ = named.key_form.codes([pa.array([f"key {n}" for n in numbers])])
    first, pages = named.locate(codes)
    assert pages[-1] > 50
    found = [f"{word} {n}" for n in numbers[(first == first[-1]) & (pages == 1)] for word in ("key", "other")]
    assert len(found) > 4
    return chance.permutation(found).tolist()


@pytest.mark.parametrize("how", get_args(How))
@pytest.mark.parametrize("memory_bytes", [100_000, 600_000])
def test_equal_hashes_of_other_keys_are_no_match(
    named: MasterData, how: How, memory_bytes: int, monkeypatch: pytest.MonkeyPatch
):
    """ "other 12" gets the code of "key 12": from hot rows, from disk and in a key over many pages it matches nothing."""
    real_codes = KeyForm.codes

    def collide(form: KeyForm, columns: Any) -> Any:
        return real_codes(form, [pc.replace_substring(columns[0], "other", "key")])

    monkeypatch.setattr(KeyForm, "codes", collide)
    chance = np.random.default_rng(9)
    keys = [f"{chance.choice(['key', 'other'])} {n}" for n in chance.zipf(1.4, 3000) % 2000]
    keys[100:100] = ["other 7000", "key 7000", "other 7000", *neighbours(named, chance)]
    rows = pa.record_batch({"row": range(len(keys)), "id": keys})
    budget = MemoryBudget(memory_bytes)
    options: Any = {"columns": ["n"]} if how in ("inner", "left") else {}
    join = make_join("moij", named, rows.schema, stream_key="id", budget=budget, how=how, **options)
    pieces = [rows.slice(at, 300) for at in range(0, len(keys), 300)]
    reports = list(drive(join, pieces, drain_each_batch=memory_bytes == 600_000))
    there = {f"key {n}" for n in range(0, 2000, 2)} | {"key 7000"}
    left = Counter(row for r in reports for out in r.outputs for row in out["row"].to_pylist())
    per_row = {
        "inner": lambda key: 4000 if key == "key 7000" else int(key in there),
        "left": lambda key: 4000 if key == "key 7000" else 1,
        "semi": lambda key: int(key in there),
        "anti": lambda key: int(key not in there),
    }[how]
    assert left == Counter({row: per_row(key) for row, key in enumerate(keys) if per_row(key)})
    assert sum(r.unmatched for r in reports) == sum(key not in there for key in keys)
    if memory_bytes == 600_000:
        assert sum(r.hot_hits for r in reports) > 200
