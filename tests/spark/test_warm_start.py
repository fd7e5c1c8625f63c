"""What was hot on one host is hot on another after one look at the codes; a hint that cannot be read is a cold start."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tidemill.join.parts import shared_cache, shared_file
from tidemill.join.parts.shared_cache import SharedRowCache
from tidemill.master import MasterData
from tidemill.spark import warm_start
from tidemill.spark.warm_start import HotCodes, warm_up

READS_BYTES = 2**21
TITLE = warm_start._TITLE % 8


@pytest.fixture
def master(tmp_path: Path) -> MasterData:
    keys = np.repeat(np.arange(0, 8000, 2), 2)
    table = pa.table({"key": keys, "name": [f"row {i}" for i in range(len(keys))]})
    return MasterData.build(table, key="key", path=tmp_path / "master", page_bytes=4096)


def cache_on(master: MasterData, folder: Path, size_bytes: int = 400_000) -> SharedRowCache:
    return SharedRowCache(folder / "rows.hot", size_bytes, master.row_bytes, master.layout, "")


def names(cache: SharedRowCache, master: MasterData, codes: list[int]) -> list[list[str]]:
    at, rows, sizes = cache.probe(np.array(codes), np.ones(len(codes), dtype=np.bool_))
    assert (rows == 2).all()
    found = [[int(place), int(place + size // 2)] for place, size in zip(at, sizes, strict=True)]
    return [
        master.layout.decode(cache.rows, np.array(places), ["name"]).column(0).to_pylist() for places in found
    ]


def test_hot_codes_of_one_host_are_hot_on_another(
    master: MasterData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_start, "_FIRST_SECONDS", 0.0)
    codes = np.array([40, 2, 7998, 1000], dtype=np.int64)
    first, told = cache_on(master, tmp_path / "one"), HotCodes(master.path, "query")
    with first.used_for(1, 1, lambda *_: None):
        assert told.read() is None
        assert warm_up(first, master, np.sort(codes), READS_BYTES) == 4
        told.tell(first)
    other = cache_on(master, tmp_path / "other")
    with other.used_for(1, 1, lambda *_: None):
        wanted = HotCodes(master.path, "query").read()
        assert wanted is not None
        assert wanted.tolist() == [2, 40, 1000, 7998]
        warm_up(other, master, wanted, READS_BYTES)
        assert names(other, master, [40, 7998]) == [["row 40", "row 41"], ["row 7998", "row 7999"]]


def test_a_code_that_is_gone_is_known_to_be_gone(master: MasterData, tmp_path: Path) -> None:
    cache = cache_on(master, tmp_path / "hot")
    with cache.used_for(1, 1, lambda *_: None):
        warm_up(cache, master, np.array([41, 42], dtype=np.int64), READS_BYTES)
        _, rows, _ = cache.probe(np.array([41, 42]), np.ones(2, dtype=np.bool_))
        assert rows.tolist() == [0, 2]


def test_a_full_cache_takes_no_more(master: MasterData, tmp_path: Path) -> None:
    cache = cache_on(master, tmp_path / "hot", 40_000)
    with cache.used_for(1, 1, lambda *_: None):
        entries = warm_up(cache, master, np.arange(0, 8000, 2), READS_BYTES)
        assert cache.is_full
        assert 0 < entries < 4000


@pytest.mark.parametrize("content", [b"", b"other", b"tidemill hot codes 1\n12345678", TITLE + b"123"])
def test_a_damaged_hint_is_a_cold_start(master: MasterData, content: bytes) -> None:
    (master.path / "hot").mkdir()
    (master.path / "hot" / "query.codes").write_bytes(content)
    assert HotCodes(master.path, "query").read() is None


def test_a_join_that_told_nothing_begins_with_what_another_told_last(master: MasterData) -> None:
    folder = master.path / "hot"
    folder.mkdir()
    for number, owner in enumerate(("older", "newer")):
        file = folder / f"{owner}.codes"
        file.write_bytes(TITLE + np.array([number], dtype=np.int64).tobytes())
        os.utime(file, (number, number))
    told = HotCodes(master.path, "new").read()
    assert told is not None
    assert told.tolist() == [1]
    own = HotCodes(master.path, "older").read()
    assert own is not None
    assert own.tolist() == [0]


def test_what_was_told_last_is_kept(
    master: MasterData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_start, "_FIRST_SECONDS", 0.0)
    monkeypatch.setattr(warm_start, "_FILES_KEPT", 2)
    cache = cache_on(master, tmp_path / "cache")
    with cache.used_for(1, 1, lambda *_: None):
        warm_up(cache, master, np.array([2], dtype=np.int64), READS_BYTES)
        for number, owner in enumerate(("zero", "one", "two", "three")):
            HotCodes(master.path, owner).tell(cache)
            os.utime(master.path / "hot" / f"{owner}.codes", (number, number))
    kept = {file.stem for file in (master.path / "hot").iterdir()}
    assert kept == {"two", "three"}


def test_the_first_telling_is_soon_and_the_next_ones_later(
    master: MasterData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    cache, told_at = cache_on(master, tmp_path / "cache"), []
    with cache.used_for(1, 1, lambda *_: None):
        warm_up(cache, master, np.array([2], dtype=np.int64), READS_BYTES)
        file = master.path / "hot" / "query.codes"
        for now in range(200):
            file.unlink(missing_ok=True)
            HotCodes(master.path, "query").tell(cache)  # a join is opened anew for each version
            told_at += [now] * file.exists()
    assert told_at == [1, 3, 7, 15, 31, 63, 123, 183]


def test_one_process_of_a_host_tells_for_all(
    master: MasterData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    cache, told = cache_on(master, tmp_path / "cache"), HotCodes(master.path, "query")
    file = master.path / "hot" / "query.codes"
    with cache.used_for(1, 1, lambda *_: None):
        warm_up(cache, master, np.array([2], dtype=np.int64), READS_BYTES)
        now = 60.0
        with cache.alone_in("telling"):  # as another process that is at it
            told.tell(cache)
        assert not file.exists()
        file.parent.mkdir()
        file.write_bytes(b"told by another a moment ago")
        now = 120.0
        told.tell(cache)
        assert told.read() is None
        os.utime(file, (0, 0))
        now = 180.0
        told.tell(cache)
    assert told.read().tolist() == [2]  # type: ignore[union-attr]


@pytest.mark.parametrize("reads_bytes", [0, 200_000])
def test_rows_of_many_reads_come_in(master: MasterData, tmp_path: Path, reads_bytes: int) -> None:
    cache = cache_on(master, tmp_path / "hot", 4_000_000)
    codes = np.arange(0, 8000, 2)
    with cache.used_for(1, 1, lambda *_: None):
        before = master.pages_read
        entries = warm_up(cache, master, codes, reads_bytes)
        assert master.pages_read - before > warm_start._READS_AHEAD
        _, rows, _ = cache.probe(codes, np.ones(len(codes), dtype=np.bool_))
        assert np.count_nonzero(rows == 2) == entries
        assert entries == np.count_nonzero(master.locate(codes)[1] == 1)


def test_a_slow_disk_does_not_hold_a_task_up(
    master: MasterData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_start, "_MOST_SECONDS", 0.0)
    cache = cache_on(master, tmp_path / "hot")
    with cache.used_for(1, 1, lambda *_: None):
        assert warm_up(cache, master, np.arange(0, 8000, 2), READS_BYTES) == 0


def test_those_with_most_hits_are_told_where_all_are_too_many(
    master: MasterData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = cache_on(master, tmp_path / "cache")
    monkeypatch.setattr(shared_cache, "_BYTES_PER_TOLD_CODE", cache._size_bytes // 200)
    with cache.used_for(1, 1, lambda *_: None):
        warm_up(cache, master, np.arange(0, 400, 2), READS_BYTES)
        codes = cache.popular_codes()  # a key over two pages is not among them
        popular = codes[::5].copy()
        for _ in range(7):
            cache.probe(popular, np.ones(len(popular), dtype=np.bool_))
        assert len(codes) == cache.entries
        monkeypatch.setattr(shared_cache, "_BYTES_PER_TOLD_CODE", cache._size_bytes // 60)
        monkeypatch.setattr(shared_cache, "_SLOTS_AT_A_TIME", 7)
        told = cache.popular_codes()
        assert set(popular.tolist()) < set(told.tolist())
        assert len(told) == cache._most_told_codes


def test_some_are_told_where_too_many_were_met_equally_often(
    master: MasterData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_file, "_MOST_TOLD_CODES", 20)
    cache = cache_on(master, tmp_path / "cache")
    with cache.used_for(1, 1, lambda *_: None):
        warm_up(cache, master, np.arange(0, 400, 2), READS_BYTES)
        told = cache.popular_codes()
    assert len(told) == 20
    assert (np.diff(told) > 0).all()
