"""Parked rows come back once: when their master row is there, or when their time is over."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tidemill as tm
from tidemill.core.errors import StoreError
from tidemill.spark import parking_lot, parking_releases
from tidemill.spark.parking_lookup import KeyLookup
from tidemill.spark.parking_lot import FIRST_LOOKUP_US, Lot
from tidemill.spark.parking_parts import SEGMENTS, read_content, seal_segment, write_part
from tidemill.spark.parking_place import count_rows
from tidemill.spark.parking_releases import RELEASES, read_release, release_file

SCHEMA = pa.schema(
    [("id", pa.int64()), ("product_id", pa.int64()), ("_parked_at", pa.timestamp("us", tz="UTC"))]
)
HOUR_MS = 3_600_000


class Yard:
    """A parking on disk with a clock of its own, and a reader that can be killed and started again."""

    def __init__(self, folder: Path, keys: list[int], master_rows: int = 2000) -> None:
        self.folder, self.now_us = folder / "parking", 10**15
        for name in (SEGMENTS, RELEASES):
            (self.folder / name).mkdir(parents=True)
        even = np.arange(0, 2 * master_rows, 2)
        table = pa.table({"product_id": even, "name": [f"product {key}" for key in even]})
        self.master = tm.MasterData.build(table, key="product_id", path=folder / "master", page_bytes=4096)
        self.batches = 0
        self.next_id = 0
        self.park(keys)
        self.restart()

    def restart(self) -> None:
        self.lookup = KeyLookup(self.master.path)
        self.lot = Lot(
            self.folder,
            SCHEMA,
            self.lookup,
            on=("product_id",),
            deadline_ms=HOUR_MS,
            now_us=lambda: self.now_us,
        )

    def park(self, keys: list[int], looked_in: str | None = None) -> None:
        ids = range(self.next_id, self.next_id + len(keys))
        self.next_id += len(keys)
        rows = {"id": ids, "product_id": keys, "_parked_at": [self.now_us] * len(keys)}
        batch = pa.RecordBatch.from_pydict(
            {n: pa.array(v, pa.int64()).cast(SCHEMA.field(n).type) for n, v in rows.items()}, schema=SCHEMA
        )
        part = write_part(self.folder / SEGMENTS, batch)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("time.time_ns", lambda: self.now_us * 1000)
            assert seal_segment(self.folder / SEGMENTS, "q", self.batches, (part,), looked_in=looked_in)
        self.batches += 1
        self.now_us += 2 * FIRST_LOOKUP_US

    def add_to_master(self, *keys: int) -> None:
        changes = {"product_id": keys, "name": ["new"] * len(keys), "_op": ["insert"] * len(keys)}
        self.master = self.master.apply(pa.table(changes))

    def ids(self, release: int) -> list[int]:
        content = read_release(self.folder / RELEASES, release).content
        batches = read_content(self.folder / RELEASES, content)
        return [i for batch in batches for i in batch.column("id").to_numpy().tolist()]

    def next(self, max_rows: int = 1000) -> list[int]:
        """Ids of the next release; none when nothing is due."""
        before = self.lot.last_release
        after = self.lot.next_release(before, max_rows)
        return self.ids(after) if after > before else []


def test_rows_come_back_when_their_key_is_there_and_only_once(tmp_path: Path) -> None:
    yard = Yard(tmp_path, [1, 3, 5, 3])
    assert yard.next() == []
    yard.add_to_master(3)
    assert yard.next() == [1, 3]
    assert yard.next() == []
    yard.add_to_master(1)
    assert yard.next() == [0]
    assert count_rows(yard.folder).__dict__ == {"parked": 4, "waiting": 1, "released": 3, "expired": 0}


def test_a_new_part_is_looked_up_a_second_after_its_batch_has(tmp_path: Path) -> None:
    yard = Yard(tmp_path, [1])
    yard.add_to_master(3)
    yard.park([3])
    yard.now_us -= 2 * FIRST_LOOKUP_US
    assert yard.next() == []
    yard.now_us += 2 * FIRST_LOOKUP_US
    assert yard.next() == [1]


def test_rows_come_back_when_their_time_is_over_and_not_before(tmp_path: Path) -> None:
    yard = Yard(tmp_path, [1, 3])
    parked_us = yard.now_us - 2 * FIRST_LOOKUP_US
    yard.park([5])
    yard.now_us = parked_us + HOUR_MS * 1000 - 1
    assert yard.next() == []
    yard.now_us += 1
    assert yard.next() == [0, 1]
    assert yard.next() == []
    yard.now_us += 2 * FIRST_LOOKUP_US
    assert yard.next() == [2]
    assert count_rows(yard.folder).__dict__ == {"parked": 3, "waiting": 0, "released": 3, "expired": 3}


def test_a_reader_that_died_goes_on_where_it_was(tmp_path: Path) -> None:
    yard = Yard(tmp_path, [1, 3, 5, 7])
    yard.add_to_master(3, 5)
    assert yard.next(max_rows=1) == [1]
    yard.restart()
    assert yard.lot.next_release(0, 1000) == 1  # its offset was never logged: the same release again
    assert yard.ids(1) == [1]
    assert yard.next() == [2]
    yard.add_to_master(1, 7)
    yard.restart()
    assert yard.next() == [0, 3]


def test_two_readers_never_seal_two_different_releases(tmp_path: Path) -> None:
    yard = Yard(tmp_path, [1, 3, 5])
    other = yard.lot
    yard.restart()
    yard.add_to_master(1, 3)
    assert yard.next(max_rows=1) == [0]
    assert other.next_release(0, 1000) == 1
    assert other.next_release(1, 1000) == 2
    assert yard.lot.next_release(1, 1000) == 2
    assert yard.ids(2) == [1]


def test_the_reader_that_seals_second_takes_the_first_ones_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    yard = Yard(tmp_path, [1, 3])
    other = yard.lot
    yard.restart()
    yard.add_to_master(1, 3)
    write = parking_releases.write_release

    def overtaken(*given: Any, **more: Any) -> bool:
        monkeypatch.setattr(parking_lot, "write_release", write)
        assert yard.next(max_rows=1) == [0]
        return write(*given, **more)

    monkeypatch.setattr(parking_lot, "write_release", overtaken)
    assert other.next_release(0, 1000) == 1
    assert other.next_release(1, 1000) == 2
    assert yard.ids(2) == [1]
    in_use = parking_releases.files_in_use(yard.folder / RELEASES)
    assert {file.name for file in (yard.folder / RELEASES).glob("*.arrow")} == in_use


def test_a_segment_is_written_once_for_a_query_and_its_batch(tmp_path: Path) -> None:
    yard = Yard(tmp_path, [1])
    assert not seal_segment(yard.folder / SEGMENTS, "q", 0, ())
    assert seal_segment(yard.folder / SEGMENTS, "other", 0, ())
    assert count_rows(yard.folder).waiting == 1


def test_only_changed_pages_are_read_for_rows_looked_up_before(tmp_path: Path) -> None:
    yard = Yard(tmp_path, list(range(1, 4000, 2)))
    yard.add_to_master(4001)
    yard.next()
    yard.add_to_master(7, 9)
    found = yard.next()
    assert [2 * i + 1 for i in found] == [7, 9]
    assert yard.lookup.master.pages > 15
    assert yard.lookup.master.pages_read <= 2


def test_rows_that_the_join_has_looked_up_are_looked_up_in_later_versions_alone(tmp_path: Path) -> None:
    yard = Yard(tmp_path, [1])
    assert yard.next() == []
    joined_with = yard.master.identity
    yard.park(list(range(3, 4000, 2)), looked_in=joined_with)
    yard.restart()
    yard.lot.next_release(0, 1000)
    read_for_one_row = yard.lookup.master.pages_read
    for key in (7, 3999):
        yard.add_to_master(key)
    yard.restart()  # knows the version of the join from disk alone
    assert yard.next() == [3, 1999]
    assert yard.lookup.master.pages_read <= 5 + read_for_one_row


def test_a_join_with_a_version_that_is_gone_is_no_obstacle(tmp_path: Path) -> None:
    yard = Yard(tmp_path, [1])
    yard.park([3], looked_in="000077-0-0")
    other = yard.master.identity.replace("-", "-f")  # a store that was here before
    yard.park([3], looked_in=other)
    yard.add_to_master(3)
    assert yard.next() == [1, 2]


def test_rows_of_text_keys_come_back_by_their_real_key(tmp_path: Path) -> None:
    towns = tm.MasterData.build(
        pa.table({"town": ["Ulm"], "shelf": [1], "goods": ["tea"]}),
        key=("town", "shelf"),
        path=tmp_path / "towns",
    )
    lookup = KeyLookup(towns.path)
    keys: list[Any] = [pa.array(["Bonn", "Ulm", None, "Bonn"]), pa.array([1, 2, 1, 2])]
    version = lookup.use_current()
    assert lookup.found(lambda: keys, lookup.codes(keys), None).tolist() == [False] * 4
    towns.apply(pa.table({"town": ["Bonn"], "shelf": [2], "goods": ["milk"], "_op": ["insert"]}))
    lookup.use_current()
    assert lookup.found(lambda: keys, lookup.codes(keys), version).tolist() == [False, False, False, True]


def test_a_rebuilt_master_is_looked_up_in_full(tmp_path: Path) -> None:
    yard = Yard(tmp_path, [1, 3])
    assert yard.next() == []
    yard.master = tm.MasterData.build(
        pa.table({"product_id": [3], "name": ["only"]}), key="product_id", path=yard.master.path
    )
    assert yard.next() == [1]


def test_what_is_done_with_is_removed_and_stays_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parking_lot, "FOLD_EVERY", 2)
    yard = Yard(tmp_path, [1, 3])
    yard.park([5, 7, 9])
    yard.park([1])
    yard.add_to_master(1, 3, 5)
    assert yard.next(max_rows=2) == [0, 1]
    assert yard.next(max_rows=1) == [2]
    assert yard.next(max_rows=1) == [5]
    yard.lot.commit(2)
    assert len(list((yard.folder / SEGMENTS).glob("*.arrow"))) == 3
    yard.lot.commit(3)
    # The first segment has gone; the last one, though empty, stays: its batch may be re-run.
    assert sorted(file.name for file in (yard.folder / SEGMENTS).glob("*.json")) == ["q.1.json", "q.2.json"]
    assert len(list((yard.folder / SEGMENTS).glob("*.arrow"))) == 2
    assert list((yard.folder / RELEASES).glob("[0-9]*.json")) == []
    assert len(list((yard.folder / RELEASES).glob("*.arrow"))) == 1
    counts = {"parked": 6, "waiting": 2, "released": 4, "expired": 0}
    assert count_rows(yard.folder).__dict__ == counts
    yard.restart()
    assert yard.next() == []
    yard.add_to_master(7)
    assert yard.next() == [3]
    assert yard.lot.last_release == 4


def test_what_spark_may_read_again_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parking_lot, "FOLD_EVERY", 2)
    yard = Yard(tmp_path, [1, 3, 5, 7])
    yard.add_to_master(1, 3, 5, 7)
    assert [yard.next(max_rows=1) for _ in range(4)] == [[0], [1], [2], [3]]
    yard.lot.commit(3)
    yard.restart()
    assert yard.lot.next_release(3, 1000) == 4
    assert yard.ids(4) == [3]
    assert not release_file(yard.folder / RELEASES, 3).exists()
    yard.lot.commit(4)
    assert yard.next() == []


def test_leftovers_of_the_dead_are_removed_after_a_day(tmp_path: Path) -> None:
    yard = Yard(tmp_path, [1])
    young, old = (yard.folder / SEGMENTS / name for name in ("young.arrow", "old.arrow"))
    for file in (young, old):
        file.touch()
    os.utime(old, (1, 1))
    parts = next(iter(yard.folder.glob("segments/[0-9a-f]*.arrow")))
    os.utime(parts, (1, 1))
    yard.restart()
    assert (young.exists(), old.exists(), parts.exists()) == (True, False, True)


@pytest.mark.parametrize("step", ["sync_folder", "fold", "remove_release"])
def test_a_kill_while_cleaning_up_brings_nothing_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    yard = Yard(tmp_path, [1, 3])
    yard.park([5, 7])
    yard.park([11])
    yard.add_to_master(1, 3, 5)
    assert yard.next() == [0, 1, 2]

    def killed(*given: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(parking_lot, "FOLD_EVERY", 0)
        patch.setattr(parking_lot, step, killed)
        with pytest.raises(KeyboardInterrupt):
            yard.lot.commit(1)
    yard.restart()
    assert yard.next() == []
    assert count_rows(yard.folder).released == 3
    assert count_rows(yard.folder).waiting == 2
    yard.add_to_master(7)
    assert yard.next() == [3]
    monkeypatch.setattr(parking_lot, "FOLD_EVERY", 0)
    yard.lot.commit(2)
    assert count_rows(yard.folder).__dict__ == {"parked": 5, "waiting": 1, "released": 4, "expired": 0}


def test_damaged_rows_are_an_error(tmp_path: Path) -> None:
    yard = Yard(tmp_path, [1, 3])
    part = next((yard.folder / SEGMENTS).glob("*.arrow"))
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    with pytest.raises(StoreError, match="differs from what was written"):
        yard.next()


def test_a_run_over_what_there_is_ends(tmp_path: Path) -> None:
    yard = Yard(tmp_path, [1, 3, 5])
    yard.add_to_master(1)
    yard.lot.freeze()
    yard.add_to_master(3)
    yard.park([1])
    assert yard.next() == [0]
    assert yard.next() == []


def test_random_days_release_every_row_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parks, applies, restarts, commits and hours in random order, against a plain list."""
    monkeypatch.setattr(parking_lot, "FOLD_EVERY", 3)
    monkeypatch.setattr(parking_lot, "LOOKUP_SECONDS", 60)
    dice = np.random.default_rng(11)
    yard = Yard(tmp_path, [1, 3])
    parked = {0: (1, yard.now_us), 1: (3, yard.now_us)}
    known: set[int] = set()
    given: list[int] = []
    for _ in range(120):
        match int(dice.integers(6)):
            case 0:
                keys = [int(key) for key in dice.integers(0, 40, 5) * 2 + 1]
                parked |= {yard.next_id + n: (key, yard.now_us) for n, key in enumerate(keys)}
                yard.park(keys)
            case 1:
                new = sorted({int(key) * 2 + 1 for key in dice.integers(0, 40, 2)} - known)
                known |= set(new)
                if new:
                    yard.add_to_master(*new)
            case 2:
                yard.restart()
            case 3:
                yard.lot.commit(yard.lot.last_release)
            case 4:
                yard.now_us += int(dice.integers(10**9))
            case _:
                while ids := yard.next(max_rows=int(dice.integers(1, 6))):
                    given += ids
                late = {
                    i
                    for i, (_, at) in parked.items()
                    if at + HOUR_MS * 1000 <= yard.now_us - 10 * FIRST_LOOKUP_US
                }
                found = {i for i, (key, _) in parked.items() if key in known}
                assert found | late <= set(given)
    assert len(given) == len(set(given)) > 50
    assert count_rows(yard.folder).released == len(given)
    assert count_rows(yard.folder).parked == yard.next_id


def test_a_trigger_that_has_no_time_goes_on_at_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parking_lot, "LOOKUP_SECONDS", 0)
    yard = Yard(tmp_path, [1])
    for key in (3, 5, 7):
        yard.park([key])
    yard.add_to_master(7)
    assert [yard.next() for _ in range(3)] == [[], [], []]
    yard.add_to_master(1)  # the part that has waited longest is looked up first, in the newest version
    assert yard.next() == [3]
    assert yard.next() == [0]
