"""Hot rows in shared sets: what one process adds all find, no death gives a wrong row, and no row changes while others look."""

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.join.parts.test_set_cache import LAYOUT, SCHEMA, SET_BYTES, found, number_of, of_one_set
from tests.join.test_tide_sets import batch, changing_tastes, expected, rows_of, table
from tests.join.tides import tide

from tidemill.join.drive import drive
from tidemill.join.parts import shared_sets as module
from tidemill.join.parts.kernels import Int64s
from tidemill.join.parts.set_cache_kernels import WAYS, _part
from tidemill.join.parts.shared_file import HEADER_BYTES
from tidemill.join.parts.shared_sets import SharedSetCache
from tidemill.master import MasterData

SETS = 40


def cache_at(path: Path, sets: int = SETS, setting: str = "") -> SharedSetCache:
    return SharedSetCache(path / "rows.hot", HEADER_BYTES + sets * SET_BYTES, LAYOUT, setting)


def add(cache: SharedSetCache, codes: Any, version: int = 0, met: int = 5) -> None:
    """Codes below zero do not exist."""
    wanted = np.array(codes, dtype=np.int64)
    rows, at = LAYOUT.encode(
        pa.RecordBatch.from_arrays([pa.array(wanted), pa.array(wanted * 7 + 3 + version)], schema=SCHEMA)
    )
    often = np.full(len(wanted), met, dtype=np.uint32)
    matches = (wanted >= 0).astype(np.int64)
    cache.admit(rows, np.ascontiguousarray(at[:-1]), np.arange(len(wanted)), matches, wanted, often)


def hot_codes(cache: SharedSetCache, codes: list[int]) -> set[int]:
    """Those that are hot; each with its own number, or known not to exist."""
    told: dict[int, Any] = {code: n for code, n in found(cache, codes).items() if n != "miss"}  # type: ignore[arg-type]
    assert told == {code: number_of(code) if code >= 0 else None for code in told}
    return set(told)


def nothing_known(_: int, __: int) -> Int64s | None:
    return None


def test_rows_that_one_adds_are_found_by_all_who_share_the_file(tmp_path: Path) -> None:
    one, other = cache_at(tmp_path), cache_at(tmp_path)
    with one.used_for(1, 7, nothing_known), other.used_for(1, 7, nothing_known):
        add(one, [3, -4, 5])
        add(other, [6, 3])
        for cache in (one, other):
            assert hot_codes(cache, [3, -4, 5, 6, 8]) == {3, -4, 5, 6}
            assert cache.entries == 4


def test_another_version_keeps_all_but_what_changed(tmp_path: Path) -> None:
    cache = cache_at(tmp_path)
    with cache.used_for(1, 7, nothing_known):
        add(cache, [1, 2, 3, -4])
    with cache.used_for(2, 8, lambda *_: np.array([2, -4, 9, 2**40], dtype=np.int64)):
        assert hot_codes(cache, [1, 2, 3, -4, 9]) == {1, 3}
        assert cache.entries == 2
        add(cache, [2], version=2)
        assert found(cache, [2]) == {2: number_of(2) + 2}  # type: ignore[arg-type]
    with cache.used_for(3, 9, nothing_known):
        assert hot_codes(cache, [1, 2, 3]) == set()
        assert cache.entries == 0


def test_a_full_set_takes_nobody_until_its_weakest_has_gone(tmp_path: Path) -> None:
    one, other = cache_at(tmp_path), cache_at(tmp_path)
    codes = of_one_set(WAYS + 60, SETS)
    resident, late = codes[:WAYS], codes[WAYS:]
    with other.used_for(1, 7, nothing_known):
        with one.used_for(1, 7, nothing_known):
            add(one, resident[1:], met=9)
            add(one, resident[:1], met=3)
            add(one, late, met=50)
            assert hot_codes(one, codes) == set(resident)
        assert hot_codes(other, codes) == set(resident), "rows went while somebody looked"
    assert hot_codes(one, codes) == set(resident[1:]), "the one with fewest hits goes when nobody looks"
    assert one.entries == WAYS - 1
    with one.used_for(1, 7, nothing_known):
        add(one, late[:2], met=1)
        assert hot_codes(one, codes) == set(resident[1:]), "one that was met once is chance"
        add(one, late[:2], met=2)
        assert hot_codes(one, codes) == {*resident[1:], late[0]}


def test_who_is_met_often_stays(tmp_path: Path) -> None:
    cache, popular = cache_at(tmp_path), list(range(60))
    for turn in range(40):
        with cache.used_for(1, 7, nothing_known):
            hot_codes(cache, popular * 3)
            add(cache, popular, met=6)
            add(cache, np.random.default_rng(turn).integers(100, 20_000, 400), met=2)
            hot = hot_codes(cache, list(range(20_000)))
            assert len(hot) == cache.entries
    assert cache.has_been_full
    assert len(hot_codes(cache, popular)) == len(popular)
    told = cache.popular_codes()
    assert set(told.tolist()) <= hot_codes(cache, list(range(20_000)))
    assert (np.diff(told) > 0).all()


def _die_while(path: Path, what: str) -> None:
    cache = cache_at(path)

    def die(*_: object) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    with cache.used_for(1, 7, nothing_known):
        add(cache, list(range(900)))  # more than fit: room is made at the end
        if what == "using":
            die()
        if what == "making room":
            module.kernels.let_weakest_go = die  # type: ignore[assignment]
    module.kernels.forget = die  # type: ignore[assignment]
    with cache.used_for(2, 8, lambda *_: np.array([3], dtype=np.int64)):
        add(cache, [1])


@pytest.mark.parametrize("what", ["using", "making room", "following"])
def test_a_death_in_the_middle_leaves_right_rows_or_none(tmp_path: Path, what: str) -> None:
    child = multiprocessing.get_context("spawn").Process(target=_die_while, args=(tmp_path, what))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    cache = cache_at(tmp_path)
    with cache.used_for(1, 7, nothing_known) as is_mine:
        assert is_mine, "the dead hold no lock"
        assert (what == "using") == bool(hot_codes(cache, list(range(1800))))
        add(cache, [5])
        assert hot_codes(cache, [5]) == {5}


def _add_for_ever(path: Path, ready: Any) -> None:
    cache = cache_at(path, 64)
    with cache.used_for(1, 7, nothing_known):
        ready.set()
        for turn in range(400):
            add(cache, np.array([-1 - turn, turn]))


def _look_for(cache: SharedSetCache, codes: Int64s) -> int:
    """How many miss, by the loop that counts hits without a branch."""
    known, at = np.empty((2, len(codes)), dtype=np.int64)
    missing, result = np.empty(len(codes) + 1, dtype=np.int32), np.zeros(7, dtype=np.int64)
    present = np.ones(len(codes), dtype=np.bool_)
    sets = (cache._codes, cache._facts, cache._row_bytes, 0)
    return int(_part(*sets, codes, present, 0, len(codes), known, at, missing, result))


def test_codes_that_do_not_exist_stay_so_while_others_look_for_their_neighbours(tmp_path: Path) -> None:
    """One that misses must write nothing, be it what it read: another may have filled that place meanwhile."""
    context = multiprocessing.get_context("spawn")
    for turn in range(3):
        cache, ready = cache_at(tmp_path / str(turn), 64), context.Event()
        child = context.Process(target=_add_for_ever, args=(tmp_path / str(turn), ready))
        with cache.used_for(1, 7, nothing_known):
            child.start()
            ready.wait()
            strangers = np.random.default_rng(turn).integers(10**6, 10**9, 40_000)
            while child.is_alive():
                assert _look_for(cache, strangers) == len(strangers), "nobody knows these"
            child.join()
            assert child.exitcode == 0
            assert len(hot_codes(cache, [*range(-400, 0), *range(400)])) > 300


def test_a_join_with_shared_sets_gives_right_rows_while_codes_come_and_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_REFUSED_SHARE", 0.0)
    master = MasterData.build(
        table(np.arange(20_000)), key="id", path=tmp_path / "m", page_bytes=4096, pack=True
    )
    hot = SharedSetCache(tmp_path / "rows.hot", 60_000, master.layout, "")
    join, keys = tide(master, 300_000, hot=hot), changing_tastes(40_000)
    entries, reports = [], []
    for begin in range(0, len(keys), 2_000):
        with hot.used_for(1, 7, nothing_known):
            reports += drive(join, [batch(keys[begin : begin + 2_000])])
            entries.append(hot.entries)
    assert rows_of(reports) == expected(keys)
    assert max(entries) > 0.8 * len(hot._codes)
    assert sum(report.hot_hits for report in reports) > 0.3 * len(keys)
