"""Hot rows in a shared file: what one process adds all find, and no death in the middle of anything gives a wrong row."""

import multiprocessing
import os
import signal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tidemill.join.parts import shared_cache as module
from tidemill.join.parts.kernels import Int64s
from tidemill.join.parts.shared_cache import SharedRowCache
from tidemill.master.rows import RowLayout

SCHEMA = pa.schema([("key", pa.int64()), ("name", pa.string()), ("n", pa.int64())])
LAYOUT = RowLayout.of(SCHEMA)


def rows_for(codes: Int64s, version: int = 1) -> tuple[np.ndarray, Int64s]:
    batch = pa.record_batch(
        [codes, [f"v{version} of {c}" for c in codes.tolist()], codes * 10 + version], schema=SCHEMA
    )
    rows, at = LAYOUT.encode(batch)
    return rows, at[:-1]


def cache_at(path: Path, size_bytes: int = 60_000, setting: str = "") -> SharedRowCache:
    return SharedRowCache(path / "rows.hot", size_bytes, 48, LAYOUT, setting)


def add(cache: SharedRowCache, codes: list[int], version: int = 1, met: int = 5) -> None:
    """Codes below zero do not exist."""
    wanted = np.array(codes, dtype=np.int64)
    rows, at = rows_for(wanted, version)
    matches = (wanted >= 0).astype(np.int64)
    often = np.full(len(wanted), met, dtype=np.uint32)
    cache.admit(rows, at, np.arange(len(wanted)), matches, wanted, often)


def found(cache: SharedRowCache, codes: list[int]) -> dict[int, str | None]:
    """Names of the codes that are hot; None for those known not to exist."""
    wanted = np.array(codes, dtype=np.int64)
    at, rows, _ = cache.probe(wanted, np.ones(len(wanted), dtype=np.bool_))
    known = np.flatnonzero(rows >= 0)
    names = LAYOUT.decode(cache.rows, at[known], ["name"]).column("name").to_pylist()
    return dict(zip(wanted[known].tolist(), names, strict=True))


def nothing_known(_: int, __: int) -> Int64s | None:
    return None


def test_rows_that_one_adds_are_found_by_all_who_share_the_file(tmp_path: Path) -> None:
    one, other = cache_at(tmp_path), cache_at(tmp_path)
    with one.used_for(1, 7, nothing_known), other.used_for(1, 7, nothing_known):
        add(one, [3, -4, 5])
        add(other, [6, 3])
        for cache in (one, other):
            assert found(cache, [3, -4, 5, 6, 8]) == {3: "v1 of 3", -4: None, 5: "v1 of 5", 6: "v1 of 6"}
            assert cache.entries == 4


def test_another_version_keeps_all_but_what_changed(tmp_path: Path) -> None:
    cache = cache_at(tmp_path)
    with cache.used_for(1, 7, nothing_known):
        add(cache, [1, 2, 3, -4])
    asked = []

    def changed(version: int, identity: int) -> Int64s:
        asked.append((version, identity))
        return np.array([2, -4], dtype=np.int64)

    with cache.used_for(2, 8, changed):
        assert found(cache, [1, 2, 3, -4]) == {1: "v1 of 1", 3: "v1 of 3"}
        add(cache, [2], version=2)
        assert found(cache, [2]) == {2: "v2 of 2"}
    assert asked == [(1, 7)]
    with cache.used_for(3, 9, nothing_known):
        assert found(cache, [1, 2, 3]) == {}


@pytest.mark.parametrize(("version", "identity"), [(2, 7), (1, 8)])
def test_a_version_in_use_is_not_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, identity: int
) -> None:
    monkeypatch.setattr("tidemill.join.parts.shared_file._WAIT_SECONDS", 0.05)
    one, other = cache_at(tmp_path), cache_at(tmp_path)
    with one.used_for(1, 7, nothing_known):
        add(one, [1])
        with other.used_for(version, identity, nothing_known) as is_mine:
            assert not is_mine
        assert found(one, [1]) == {1: "v1 of 1"}
    with other.used_for(version, identity, nothing_known) as is_mine:
        assert is_mine
        assert found(other, [1]) == {}


def test_a_full_file_makes_room_for_what_is_met_more_often(tmp_path: Path) -> None:
    cache = cache_at(tmp_path)
    for _ in range(40):
        with cache.used_for(1, 7, nothing_known):
            found(cache, list(range(50)) * 3)
            add(cache, list(range(50)), met=6)
            add(cache, np.random.default_rng(cache.entries).integers(100, 10_000, 200).tolist(), met=6)
            for code, name in found(cache, list(range(10_000))).items():
                assert name == f"v1 of {code}"
    assert cache.has_been_full
    assert len(found(cache, list(range(50)))) == 50
    hot = found(cache, list(range(10_000)))
    assert len(hot) == cache.entries
    assert set(cache.popular_codes().tolist()) <= set(hot)


def test_another_setting_finds_nothing(tmp_path: Path) -> None:
    cache = cache_at(tmp_path)
    with cache.used_for(1, 7, nothing_known):
        add(cache, [1])
    with cache_at(tmp_path, setting="other").used_for(
        1, 7, lambda *_: np.empty(0, dtype=np.int64)
    ) as is_mine:
        assert is_mine
        assert found(cache, [1]) == {}


def _die_while(path: Path, what: str) -> None:
    cache = cache_at(path)

    def die(*_: object) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    with cache.used_for(1, 7, nothing_known):
        add(cache, list(range(900)))  # more than fit: room is made at the end
        if what == "using":
            die()
    setattr(module.kernels, "close_gaps" if what == "making room" else "forget", die)
    with cache.used_for(2, 8, lambda *_: np.array([3], dtype=np.int64)):
        add(cache, list(range(900, 1800)))


@pytest.mark.parametrize("what", ["using", "making room", "following"])
def test_a_death_in_the_middle_leaves_right_rows_or_none(tmp_path: Path, what: str) -> None:
    child = multiprocessing.get_context("spawn").Process(target=_die_while, args=(tmp_path, what))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    cache = cache_at(tmp_path)
    version = 1 if what == "using" else 2
    with cache.used_for(version, 6 + version, nothing_known) as is_mine:
        assert is_mine, "the dead hold no lock"
        rows = found(cache, list(range(1800)))
        assert all(name == f"v1 of {code}" for code, name in rows.items())
        assert (what == "using") == bool(rows)
        add(cache, [5])
        assert found(cache, [5]) == {5: "v1 of 5"}


def test_an_entry_seen_before_its_code_is_a_miss(tmp_path: Path) -> None:
    cache = cache_at(tmp_path)
    with cache.used_for(1, 7, nothing_known):
        add(cache, [1, -2])
        for code in (1, -2):
            slot = int(np.flatnonzero(cache._table[:, 0] == code)[0])
            cache._table[slot, 0] = 77
        home = [c for c in range(100_000) if module.kernels.home_slot(c, cache._capacity) == slot]
        cache._table[slot, 0] = home[0]
        assert found(cache, [1, -2, home[0]]) == {}
