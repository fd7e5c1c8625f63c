"""TIDE with hot rows in sets, which are replaced where they lie: the same rows, whoever puts them together and however late."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.join.tides import tide
from tests.laws.late_putter import LatePutter

from tidemill.join.drive import drive
from tidemill.join.parts.putter import Putter
from tidemill.join.parts.row_cache import RowCache
from tidemill.join.parts.set_cache import SetCache
from tidemill.join.protocol import StepReport
from tidemill.join.tide import TideJoin
from tidemill.master import MasterData

ROWS = 20_000


def table(keys: "np.typing.NDArray[np.int64]") -> pa.Table:
    names = [f"article {key:07} of the season" for key in keys.tolist()]
    return pa.table({"id": keys, "name": names, "half": keys / 2})


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> MasterData:
    return MasterData.build(
        table(np.arange(ROWS)), key="id", path=tmp_path_factory.mktemp("m"), page_bytes=4096, pack=True
    )


def batch(keys: Any) -> pa.RecordBatch:
    keys = np.asarray(keys, dtype=np.int64)
    return pa.record_batch({"row": np.arange(len(keys)), "key": keys})


def rows_of(reports: list[StepReport]) -> Counter[tuple[int, str | None, float | None]]:
    return Counter(
        (row["key"], row["name"], row["half"])
        for report in reports
        for output in report.outputs
        for row in output.to_pylist()
    )


def expected(keys: "np.typing.NDArray[np.int64]") -> Counter[tuple[int, str | None, float | None]]:
    return Counter(
        (key, f"article {key:07} of the season", key / 2) if 0 <= key < ROWS else (key, None, None)
        for key in keys.tolist()
    )


def changing_tastes(rows: int) -> "np.typing.NDArray[np.int64]":
    """Some keys come often, others after them; a few do not exist."""
    chance = np.random.default_rng(5)
    popular = (np.arange(rows) // 20 + chance.integers(0, 300, rows)) % (ROWS + 100)
    return np.where(chance.random(rows) < 0.7, popular, chance.integers(-50, ROWS + 100, rows))


CORES = {"one core": ({0}, Putter), "two cores": ({0, 1}, Putter), "a slow one": ({0, 1}, LatePutter)}


@pytest.mark.parametrize("cores", CORES)
@pytest.mark.parametrize("memory_bytes", [150_000, 300_000])
def test_rows_are_right_while_others_take_the_places_of_hot_ones(
    memory_bytes: int, cores: str, master: MasterData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.join.parts.aside._WORTH_ROWS", 1)
    monkeypatch.setattr("tidemill.join.parts.region_join._ENOUGH_ROWS", 1)
    monkeypatch.setattr("tidemill.join.parts.probe_join._PIECE_ROWS", 90)
    affinity, putter = CORES[cores]
    monkeypatch.setattr("os.sched_getaffinity", lambda _: affinity)
    monkeypatch.setattr("tidemill.join.parts.region_join.Putter", putter)
    join, keys = tide(master, memory_bytes), changing_tastes(40_000)
    reports = list(drive(join, [batch(keys)]))
    assert isinstance(join._hot, SetCache)
    assert join.hot_changes > join._hot.entries + 500, "nobody had to go"
    assert rows_of(reports) == expected(keys)


def test_hot_rows_stay_where_they_are_until_rows_beside_them_have_left(
    master: MasterData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.join.parts.aside._WORTH_ROWS", 1)
    monkeypatch.setattr("tidemill.join.parts.region_join.Putter", LatePutter)
    join, keys = tide(master, 2_000_000), np.arange(0, 7 * 40, 7)
    list(drive(join, [batch(np.repeat(keys, 5)), batch(keys), batch(keys)]))
    hot = join._hot
    assert isinstance(hot, SetCache)
    page, at = master.layout.encode(table(np.arange(ROWS)).to_batches()[0])
    everyone = np.arange(ROWS)
    reports = []
    for some in (keys[::2], keys[1::2]):  # found by two looks
        join.offer(batch(some))
        reports.append(join.step())
        assert join._departures.hits_rows, "nobody is on the way out"
    assert join._departures.hits_rows == len(keys)
    often, ones = np.full(ROWS, 120, dtype=np.uint32), np.ones(ROWS, dtype=np.int64)
    hot.admit(page, np.ascontiguousarray(at[:-1]), everyone, ones, everyone, often, join._looks_under_way)
    assert hot.has_been_full
    reports += drive(join, [])
    assert rows_of(reports) == expected(keys)


def test_a_restored_join_goes_on_with_the_hot_rows_that_are_there(master: MasterData) -> None:
    keys = changing_tastes(8_000)
    join = tide(master, 400_000)
    list(drive(join, [batch(keys)]))
    join.offer(batch(keys[:300]))
    given = [join.step()]
    join.restore(join.snapshot())
    assert rows_of(given + list(join.drain())) == expected(keys[:300])


def test_hot_rows_serve_and_are_shared_out_anew_as_the_stream_goes(master: MasterData) -> None:
    join = tide(master, 2_000_000)
    chance = np.random.default_rng(2)
    for first in (0, 10_000):
        keys = first + chance.choice(500, 40_000)
        list(drive(join, [batch(keys)]))
        again = list(drive(join, [batch(keys[:2000])]))
        assert sum(report.hot_hits for report in again) > 1500, f"keys from {first}"
    for share in (0.7, 0.05, 0.4):
        join._resize(share)
        assert join._hot.bytes_held <= join.sizes.hot_rows_bytes
        assert rows_of(list(drive(join, [batch(keys[:2000])]))) == expected(keys[:2000])


def test_rows_of_codes_that_have_several_or_are_not_packed_are_kept_otherwise(tmp_path: Path) -> None:
    unique, twice = np.arange(3000), np.repeat(np.arange(1500), 2)
    for number, (keys, pack, kind) in enumerate(
        [(unique, True, SetCache), (twice, True, RowCache), (unique, False, RowCache)]
    ):
        store = MasterData.build(table(keys), key="id", path=tmp_path / str(number), pack=pack)
        join = tide(store, 1_000_000)
        assert isinstance(join, TideJoin)
        assert isinstance(join._hot, kind)
        for hits in (0, 99):
            assert sum(report.hot_hits for report in drive(join, [batch(unique[:99])])) == hits
