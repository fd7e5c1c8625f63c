"""The regulator loses nothing, doubles nothing and keeps the order, whether staging is there or not."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidemill.capture.regulator import SourceRegulator
from tidemill.capture.spool import Spool
from tidemill.core.block import encode_block
from tidemill.core.errors import SourceError, StoreError
from tidemill.staging import LogReader, mark_consumed

from .harness import ROWS, MemorySource, Staging, regulator_for, wait_until


def test_rows_arrive_once_and_in_order(staging: Staging, tmp_path: Path) -> None:
    source = MemorySource()
    source.commit(2500, None)  # committed by an earlier life that never handed them over
    regulator = regulator_for(staging, tmp_path, source)
    for count in (1, 7, 250, 1, 100, 3):
        source.commit(count, regulator)
    assert regulator.flush(20)
    assert staging.ids() == source.ids
    stats = regulator.stats()
    assert (stats.rows_submitted, stats.rows_acked, stats.waiting_rows) == (362, 2862, 0)
    assert stats.submit_seconds > 0
    regulator.close()


class RacingSource(MemorySource):
    """Commits and hands over rows right before and right after each of its first reads."""

    def __init__(self) -> None:
        super().__init__()
        self.regulator: SourceRegulator | None = None
        self.races = 6

    def read_after(self, position: int | None, most_rows: int) -> list[tuple[Any, ...]]:
        self.races -= 1
        if self.races >= 0:
            self.commit(2, self.regulator)
        rows = super().read_after(position, most_rows)
        if self.races >= 0:
            self.commit(3, self.regulator)
        return rows


def test_rows_committed_around_the_last_read_are_neither_lost_nor_doubled(
    staging: Staging, tmp_path: Path
) -> None:
    source = RacingSource()
    source.commit(10, None)
    source.regulator = SourceRegulator("shop", ROWS, staging.address, spool_dir=tmp_path / "spool")
    source.regulator.start(source.read_after, "id")
    for _ in range(3):
        assert source.regulator.flush(20)
        source.regulator.reread()
    assert source.regulator.flush(20)
    assert staging.ids() == source.ids
    assert len(source.ids) == 10 + 6 * 5
    source.regulator.close()


def test_blocks_grow_to_ten_times_the_rows_asked_for_and_no_further(staging: Staging, tmp_path: Path) -> None:
    source = MemorySource()
    regulator = regulator_for(staging, tmp_path, source, block_rows=3)
    assert regulator.flush(20)
    source.commit(95, regulator)
    assert regulator.flush(20)
    with LogReader(staging.log) as reader:
        sizes = [batch.num_rows for _, batch in reader.read(0, reader.head().entries)]
    assert sizes == [30, 30, 30, 5]
    regulator.close()


def test_receiver_killed_in_mid_stream(staging: Staging, tmp_path: Path) -> None:
    source = MemorySource()
    regulator = regulator_for(staging, tmp_path, source, block_rows=5)
    for round_number in range(4):
        assert regulator.flush(20)
        acked = regulator.stats().rows_acked
        for _ in range(400):
            source.commit(3, regulator)
        wait_until(lambda acked=acked: regulator.stats().rows_acked > acked)
        staging.kill()
        for _ in range(20 * round_number):
            source.commit(2, regulator)
        staging.start()
    assert regulator.flush(30)
    assert staging.ids() == source.ids
    assert regulator.stats().reconnects == 4
    regulator.close()


def test_spool_takes_over_while_staging_is_away(staging: Staging, tmp_path: Path) -> None:
    source = MemorySource()
    regulator = regulator_for(staging, tmp_path, source)
    source.commit(5, regulator)
    assert regulator.flush(20)
    staging.kill()
    for _ in range(30):
        source.commit(10, regulator)
    wait_until(lambda: regulator.stats().spooled_bytes > 0 and regulator.stats().waiting_rows == 0)
    reread_before = regulator.stats().rows_reread
    staging.start()
    assert regulator.flush(20)
    assert staging.ids() == source.ids
    stats = regulator.stats()
    assert (stats.rows_reread, stats.spooled_bytes, stats.behind) == (reread_before, 0, False)
    regulator.close()


def test_full_spool_falls_behind_and_catches_up(staging: Staging, tmp_path: Path) -> None:
    source = MemorySource()
    regulator = regulator_for(staging, tmp_path, source, spool_max_bytes=20_000)
    assert regulator.flush(20)
    staging.kill()
    while not regulator.stats().behind:
        source.commit(50, regulator)
    source.commit(1000, regulator)
    stats = regulator.stats()
    assert stats.waiting_rows == 0  # not kept in memory
    assert stats.spooled_bytes <= 20_000
    staging.start()
    assert regulator.flush(20)
    assert staging.ids() == source.ids
    regulator.close()


def test_memory_is_bounded_while_the_receiver_is_slow(staging: Staging, tmp_path: Path) -> None:
    source = MemorySource()
    regulator = regulator_for(staging, tmp_path, source, waiting_max_rows=500)
    for _ in range(300):
        source.commit(20, regulator)
        assert regulator.stats().waiting_rows <= 500
    assert regulator.flush(20)
    assert staging.ids() == source.ids
    regulator.close()


def test_spool_of_an_earlier_life_is_sent_first(staging: Staging, tmp_path: Path) -> None:
    source = MemorySource()
    first_life = regulator_for(staging, tmp_path, source)
    source.commit(5, first_life)
    assert first_life.flush(20)
    staging.kill()
    source.commit(20, first_life)
    wait_until(lambda: first_life.stats().waiting_rows == 0 and first_life.stats().spooled_bytes > 0)
    first_life.close(timeout_s=0)
    source.commit(7, None)
    staging.start()
    second_life = regulator_for(staging, tmp_path, source)
    assert second_life.flush(20)
    assert staging.ids() == source.ids
    assert second_life.stats().rows_reread == 7
    second_life.close()


def test_spool_numbered_for_another_log_is_not_sent(
    staging: Staging, start_staging: Callable[..., Staging], tmp_path: Path
) -> None:
    source = MemorySource()
    regulator = regulator_for(staging, tmp_path, source)
    assert regulator.flush(20)
    staging.kill()
    source.commit(20, regulator)
    wait_until(lambda: regulator.stats().spooled_bytes > 0)
    regulator.close(timeout_s=0)
    other = start_staging(tmp_path / "other")
    source.rows[0] = (1, "as it is in this log's history")
    regulator = regulator_for(other, tmp_path, source)
    assert regulator.flush(20)
    assert [row["item"] for row in other.rows()] == [row[1] for row in source.rows]
    regulator.close()


def test_full_queue_waits_and_goes_on(start_staging: Callable[..., Staging], tmp_path: Path) -> None:
    staging, source = start_staging(tmp_path, max_bytes=30_000), MemorySource()
    regulator = regulator_for(staging, tmp_path, source)
    source.commit(2500, regulator)
    seen: list[int] = []
    at = 0
    with LogReader(staging.log) as reader:
        while len(seen) < 2500:
            end = reader.head().entries
            seen += [i for _, batch in reader.read(at, end) for i in batch["id"].to_pylist()]
            mark_consumed(staging.log, end)
            at = end
    assert regulator.flush(20)
    assert seen == source.ids
    regulator.close()


def test_unfit_rows_are_counted_and_reported_and_the_others_flow(staging: Staging, tmp_path: Path) -> None:
    bad: list[tuple[object, ...]] = []
    source = MemorySource()
    regulator = regulator_for(staging, tmp_path, source, on_bad_row=lambda row, reason: bad.append(row))
    assert regulator.flush(20)
    source.rows += [(1, "a"), (2, 17), (3, "c"), (4, b"\xff"), (5, "\udc80"), (6, "f")]
    regulator.submit(source.rows[:])
    assert regulator.flush(20)
    assert staging.ids() == [1, 3, 6]
    assert [row[0] for row in bad] == [2, 4, 5]
    assert regulator.stats().unfit_rows == 3
    regulator.close()


def test_big_rows_are_cut_into_several_blocks(staging: Staging, tmp_path: Path) -> None:
    source = MemorySource()
    source.rows += [(i, "x" * 3_000_000) for i in range(1, 13)]
    regulator = regulator_for(staging, tmp_path, source)
    assert regulator.flush(60)
    assert staging.ids() == source.ids
    regulator.close()


def test_schema_mismatch_stops_loudly_and_never_the_application(staging: Staging, tmp_path: Path) -> None:
    regulator = SourceRegulator("shop", pa.schema([("id", pa.int32())]), staging.address, spool_dir=tmp_path)
    regulator.start(lambda _position, _rows: [], "id")
    with pytest.raises(SourceError) as error:
        regulator.flush(20)
    assert error.value.code == "schema_mismatch"
    regulator.submit([(1,)])
    assert regulator.stats().waiting_rows == 0
    regulator.close()


def test_one_regulator_a_spool(staging: Staging, tmp_path: Path) -> None:
    regulator = regulator_for(staging, tmp_path, MemorySource())
    with pytest.raises(StoreError) as error:
        regulator_for(staging, tmp_path, MemorySource())
    assert error.value.code == "spool_in_use"
    regulator.close()


@pytest.mark.parametrize("cut_bytes", [1, 300])
def test_torn_spool_keeps_the_whole_blocks(tmp_path: Path, cut_bytes: int) -> None:
    spool = Spool(tmp_path, "shop", ROWS, max_bytes=10**6)
    for number in (4, 5, 6):
        batch = pa.RecordBatch.from_pydict({"id": [number], "item": ["x"]}, schema=ROWS)
        assert spool.append(encode_block(batch, source="shop", number=number, last_position=number), "log-1")
    spool.close()
    os.truncate(spool.path, spool.path.stat().st_size - cut_bytes)
    again = Spool(tmp_path, "shop", ROWS, max_bytes=10**6)
    assert (again.log_id, again.first_number, again.last) == ("log-1", 4, (5, 5))
    block = again.next_unsent()
    assert hashlib.sha256(block.body).digest() == block.digest
    again.close()
