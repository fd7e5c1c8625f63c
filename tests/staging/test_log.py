"""The staging log keeps what it acknowledged, cuts what it did not, and finds damage."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.core.errors import InternalError, SpecError, StoreError
from tidemill.staging import LogReader, StagingLog, mark_consumed
from tidemill.staging.records import INDEX_BYTES, entry_length
from tidemill.staging.segment import index_path, list_segments, segment_path

from .harness import SCHEMA, make_block, names_in


def code_of(error: pytest.ExceptionInfo[StoreError]) -> str:
    return error.value.code


@settings(max_examples=40, deadline=None)
@given(
    groups=st.lists(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 5)), max_size=4), max_size=8),
    reopen_after=st.sets(st.integers(0, 7)),
    segment_bytes=st.sampled_from([1, 2000, 10_000]),
)
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, groups, reopen_after, segment_bytes) -> None:
    path = tmp_path_factory.mktemp("log")
    log = StagingLog.create(path, SCHEMA, segment_bytes=segment_bytes)
    numbers, expected = dict.fromkeys("abc", 0), []
    for at, group in enumerate(groups):
        blocks = []
        for source, rows in group:
            numbers[source] += 1
            blocks.append(make_block(numbers[source], source=source, rows=rows))
        log.append(blocks)
        expected += blocks
        if at in reopen_after:
            log.close()
            log = StagingLog.open(path)
        for source, number in numbers.items():
            assert (log.last_block(source) or (0,))[0] == number
    with LogReader(path) as reader:
        head = reader.head()
        assert (head.entries, head.rows) == (len(expected), sum(block.rows for block in expected))
        names = [batch["name"][0].as_py().split("-")[0] for _, batch in reader.read(0, head.entries)]
        assert names == [block.source for block in expected]
        for start in range(head.entries + 1):
            rows = [block.rows for block in expected[start:]]
            assert reader.rows_between(start, head.entries) == sum(rows)
            end = reader.limit(start, 4)
            assert sum(rows[: end - start]) <= 4 or end == start + 1
            assert end == head.entries or sum(rows[: end + 1 - start]) > 4
    log.close()


@pytest.mark.parametrize("cut_bytes", [1, 60, 89, 300])
def test_torn_tail_is_cut(log_path: Path, cut_bytes: int) -> None:
    with StagingLog.open(log_path) as log:
        log.append([make_block(1)])
        head = (log_path / "head").read_bytes()
        log.append([make_block(2)])
    (log_path / "head").write_bytes(head)  # as if the power went before the head
    path = segment_path(log_path, 0)
    os.truncate(path, path.stat().st_size - cut_bytes)
    with StagingLog.open(log_path) as log:
        assert log.last_block("shop") == (1, 2)
        log.append([make_block(2)])
    assert len(names_in(log_path)) == 6


def test_whole_entries_behind_a_stale_head_are_kept(log_path: Path) -> None:
    with StagingLog.open(log_path) as log:
        head = (log_path / "head").read_bytes()
        log.append([make_block(1), make_block(2)])
    (log_path / "head").write_bytes(head)
    with StagingLog.open(log_path) as log:
        assert log.last_block("shop") == (2, 5)
    assert len(names_in(log_path)) == 6


def test_reader_never_sees_beyond_the_head(log_path: Path) -> None:
    with StagingLog.open(log_path) as log:
        log.append([make_block(1)])
        head = (log_path / "head").read_bytes()
        log.append([make_block(2)])
        (log_path / "head").write_bytes(head)
        with LogReader(log_path) as reader:
            assert reader.head().entries == reader.limit(0, 10**9) == 1
            with pytest.raises(StoreError) as error:
                list(reader.read(0, 2))
            assert code_of(error) == "beyond_head"


@settings(max_examples=60, deadline=None)
@given(at=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_flipped_bit_is_found(tmp_path_factory: pytest.TempPathFactory, at: int, bit: int) -> None:
    path = tmp_path_factory.mktemp("log")
    with StagingLog.create(path, SCHEMA) as log:
        log.append([make_block(n) for n in (1, 2, 3)])
    segment = segment_path(path, 0)
    content = bytearray(segment.read_bytes())
    content[at % len(content)] ^= 1 << bit
    segment.write_bytes(content)
    with pytest.raises(StoreError, match=str(segment)):
        StagingLog.open(path)
    if at % len(content) > 200:  # in an entry, not in the beginning that only recovery reads
        with LogReader(path) as reader, pytest.raises(StoreError) as error:
            list(reader.read(0, 3))
        assert error.value.entry in (0, 1, 2)
        assert error.value.path == str(segment)


@pytest.mark.parametrize("damage", ["lost", "garbled"])
def test_index_is_rebuilt(log_path: Path, damage: str) -> None:
    with StagingLog.open(log_path) as log:
        log.append([make_block(n) for n in (1, 2, 3)])
    index = index_path(log_path, 0)
    index.write_bytes(b"" if damage == "lost" else b"x" * 3 * INDEX_BYTES)
    with LogReader(log_path) as reader, pytest.raises(StoreError):
        list(reader.read(0, 3))
    StagingLog.open(log_path).close()
    assert len(names_in(log_path)) == 9


def test_missing_durable_entries_are_loud(log_path: Path) -> None:
    with StagingLog.open(log_path) as log:
        log.append([make_block(1), make_block(2)])
    os.truncate(segment_path(log_path, 0), segment_path(log_path, 0).stat().st_size - 8)
    with pytest.raises(StoreError) as error:
        StagingLog.open(log_path)
    assert (code_of(error), error.value.entry) == ("entry_damaged", 1)


def test_second_writer_is_refused(log_path: Path) -> None:
    attempt = f"from tidemill.staging import StagingLog; StagingLog.open({str(log_path)!r})"
    with StagingLog.open(log_path):
        done = subprocess.run([sys.executable, "-c", attempt], capture_output=True, text=True, check=False)
        assert f"already open by pid {os.getpid()}" in done.stderr
    assert subprocess.run([sys.executable, "-c", attempt], check=False).returncode == 0


def test_gap_in_numbers_is_refused_and_changes_nothing(log_path: Path) -> None:
    with StagingLog.open(log_path) as log:
        for wrong in (2, 0):
            with pytest.raises(InternalError):
                log.append([make_block(wrong, start=0)])
        with pytest.raises(InternalError):
            log.append([make_block(1), make_block(1)])
        assert log.head.entries == 0


def test_full_queue_trims_what_is_consumed_and_goes_on(tmp_path: Path) -> None:
    log = StagingLog.create(tmp_path, SCHEMA, max_bytes=8000)
    number = 0
    while log.room_bytes >= entry_length(make_block(number + 1)):
        log.append([make_block(number + 1)])
        number += 1
    with pytest.raises(StoreError) as error:
        log.append([make_block(number + 1)])
    assert (code_of(error), error.value.retryable) == ("queue_full", True)
    assert log.trim() == 0
    mark_consumed(tmp_path, number - 1)
    assert log.trim() > 0
    log.append([make_block(number + 1)])
    with LogReader(tmp_path) as reader:
        assert 0 < reader.first_entry <= number - 1
        with pytest.raises(StoreError) as error:
            list(reader.read(0, 1))
        assert code_of(error) == "trimmed"
        assert reader.rows_between(reader.first_entry, reader.head().entries) == 3 * (
            number + 1 - reader.first_entry
        )
    mark_consumed(tmp_path, number + 1)
    log.trim()
    log.close()
    with StagingLog.open(tmp_path) as log:  # all entries are gone, the source's last block is not
        assert log.last_block("shop") == (number + 1, 3 * (number + 1) - 1)
        log.append([make_block(number + 2)])
    assert list_segments(tmp_path) == [number + 1]


def test_mark_beyond_the_head_is_refused(log_path: Path) -> None:
    with pytest.raises(StoreError) as error:
        mark_consumed(log_path, 1)
    assert code_of(error) == "consumed_beyond_head"


@pytest.mark.parametrize("fails", ["data", "index"])
def test_full_disk_leaves_the_log_valid(log_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    log = StagingLog.open(log_path)
    log.append([make_block(1)])
    real, calls = os.pwrite, 0

    def full(handle: int, content: bytes, offset: int) -> int:
        nonlocal calls
        calls += 1
        if calls == 1 and fails == "data":
            return real(handle, content[:50], offset)
        if calls == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(handle, content, offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StoreError) as error:
        log.append([make_block(2)])
    assert (code_of(error), error.value.retryable) == ("disk_full", True)
    monkeypatch.undo()
    assert len(names_in(log_path)) == 3
    log.append([make_block(2)])
    log.close()
    StagingLog.open(log_path).close()
    assert len(names_in(log_path)) == 6


def test_log_is_not_created_twice_nor_for_nested_types(log_path: Path) -> None:
    with pytest.raises(StoreError):
        StagingLog.create(log_path, SCHEMA)
    with pytest.raises(SpecError):
        StagingLog.create(log_path / "other", pa.schema([("a", pa.list_(pa.int64()))]))
    with pytest.raises(StoreError) as error:
        StagingLog.open(log_path / "nowhere")
    assert code_of(error) == "no_log"
