"""A batch has one master version, whatever becomes current or expires around it."""

import errno
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from tidemill.core.errors import SpecError, StoreError
from tidemill.master import MasterData, expire
from tidemill.master import store as store_module
from tidemill.master.layout import version_folder, versions_on_disk
from tidemill.spark import version_pin
from tidemill.spark.refresh import Claim, Refresh
from tidemill.spark.version_pin import claim_version, read_claim

NOW = timedelta(0)
BATCH, NEVER = Refresh.parse("batch"), Refresh.parse("never")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(store_module, "is_worth_it", lambda _: False)
    MasterData.build(pa.table({"id": [1, 2, 3], "n": [0, 0, 0]}), key="id", path=tmp_path)
    return tmp_path


def change(store: Path, value: int = 1) -> int:
    """The number of the new version."""
    return MasterData.open(store).apply(pa.table({"id": [1], "n": [value], "_op": ["u"]})).version


def shrink(store: Path) -> list[int]:
    return MasterData.open(store).expire(keep_last=1, older_than=NOW).versions


def test_a_batch_keeps_what_its_first_task_claimed(store: Path):
    assert claim_version(store, "q", 0, BATCH) == 1
    change(store)
    assert claim_version(store, "q", 0, BATCH) == 1
    assert claim_version(store, "q", 1, BATCH) == 2
    assert claim_version(store, "another", 0, BATCH) == 2
    assert not list((store / "claims").glob(".*")), "no intent is left"


def test_never_keeps_the_version_of_the_first_batch(store: Path):
    assert claim_version(store, "q", 0, NEVER) == 1
    change(store)
    assert claim_version(store, "q", 1, NEVER) == 1
    assert claim_version(store, "q", 7, NEVER) == 1, "batches without rows made no claim"
    assert claim_version(store, "another", 0, NEVER) == 2


def test_a_version_stays_for_the_span_after_its_first_claim(store: Path, monkeypatch: pytest.MonkeyPatch):
    seconds = 1_000_000.0
    monkeypatch.setattr(version_pin.time, "time_ns", lambda: int(seconds * 1e9))
    used = []
    for batch in range(8):
        change(store, batch)
        used.append(claim_version(store, "q", batch, Refresh.parse("30 s")))
        seconds += 12
    # Seconds 0 12 24 36 48 60 72 84 after the start; a change before each batch.
    assert used == [2, 2, 2, 5, 5, 5, 8, 8]


@pytest.mark.parametrize(
    ("text", "seconds"), [("30 s", 30), ("5min", 300), ("250 ms", 0.25), ("1 hour", 3600), ("2 Minutes", 120)]
)
def test_spans_as_people_write_them(text: str, seconds: float):
    assert Refresh.parse(text).every_seconds == seconds


@pytest.mark.parametrize("text", ["", "often", "30", "s", "-3 s", "5 m", "30 parsecs"])
def test_anything_else_is_refused(text: str):
    with pytest.raises(SpecError, match="refresh") as refusal:
        Refresh.parse(text)
    assert refusal.value.code == "bad_refresh"


def test_a_claim_of_the_old_format_is_read_and_is_as_old_as_its_file(store: Path):
    (store / "claims").mkdir()
    file = store / "claims" / "q.0"
    file.write_text(json.dumps({"format": 1, "version": 1}))
    change(store)
    assert claim_version(store, "q", 0, BATCH) == 1
    assert claim_version(store, "q", 1, Refresh.parse("1 min")) == 1
    os.utime(file, (time.time() - 61, time.time() - 61))
    assert claim_version(store, "x", 0, Refresh.parse("1 min")) == 2
    (store / "claims" / "q.1").unlink()
    assert claim_version(store, "q", 1, Refresh.parse("1 min")) == 2
    assert read_claim(file) == Claim(1, *[int(file.stat().st_mtime * 1000)] * 2)


def test_an_expire_between_choice_and_claim_gives_a_newer_version(
    store: Path, monkeypatch: pytest.MonkeyPatch
):
    real = version_pin.current_version
    calls: list[int] = []

    def slow(path: Path) -> int:
        calls.append(real(path))
        if len(calls) == 1:
            change(store)
            assert shrink(store) == [1]
        return calls[-1]

    monkeypatch.setattr(version_pin, "current_version", slow)
    assert claim_version(store, "q", 0, BATCH) == 2
    assert calls == [1, 2]
    assert read_claim(store / "claims" / "q.0").version == 2


@pytest.mark.parametrize(
    ("number", "passes", "next_move"),
    [
        (errno.ESTALE, True, "run it again"),
        (errno.ENOSPC, True, "run it again"),
        (errno.EROFS, False, "hard links"),
    ],
)
@pytest.mark.parametrize("call", ["link", "mkdir"])
def test_a_claim_that_fails_may_be_tried_again_unless_none_can_be_made(
    store: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, next_move: str, *, passes: bool
):
    def refusing(*_, **__):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refusing)
        with pytest.raises(StoreError, match=r"batch 0 of query q could not be claimed") as refusal:
            claim_version(store, "q", 0, BATCH)
    assert (refusal.value.code, refusal.value.retryable) == ("claim_failed", passes)
    assert next_move in refusal.value.next_move
    assert claim_version(store, "q", 0, BATCH) == 1


def test_a_kept_version_that_is_gone_gives_way_to_the_current_one(store: Path):
    claim_version(store, "q", 0, NEVER)
    change(store)
    (store / "claims" / "q.0").write_text(json.dumps({"format": 1, "version": 77}))
    assert claim_version(store, "q", 1, NEVER) == 2


def test_a_claim_in_the_moment_before_the_mark_keeps_its_version(
    store: Path, monkeypatch: pytest.MonkeyPatch
):
    """The expire has read the claims, and marks version 1 only when a batch has looked for the mark."""
    real_mark = expire._mark
    current = (store / "CURRENT").read_bytes()
    change(store)
    newer = (store / "CURRENT").read_bytes()
    marked: list[set[int]] = []

    def late(path: Path, versions: list[int], going: set[int]) -> None:
        if not marked:
            (store / "CURRENT").write_bytes(current)  # the batch has read it before the change
            assert claim_version(store, "q", 0, BATCH) == 1
            (store / "CURRENT").write_bytes(newer)
        marked.append(going)
        real_mark(path, versions, going)

    monkeypatch.setattr(expire, "_mark", late)
    assert shrink(store) == []
    assert marked == [{1}, set()]
    assert MasterData.open(store, 1).rows == 3
    assert not expire.is_going(store, 1), "the mark is taken away"


def test_a_version_that_is_marked_is_not_claimed(store: Path):
    claim_version(store, "q", 0, NEVER)
    change(store)
    (version_folder(store, 1) / "going").touch()  # as an expire that was killed leaves it
    assert claim_version(store, "q", 1, NEVER) == 2
    assert claim_version(store, "q", 0, NEVER) == 1, "a re-run needs its own, marked or not"
    (store / "claims" / "q.0").unlink()
    assert shrink(store) == [1]


def test_a_re_run_whose_version_is_gone_is_an_error_and_no_other_version(store: Path):
    claim_version(store, "q", 0, BATCH)
    change(store)
    (version_folder(store, 1) / "manifest.json").unlink()
    with pytest.raises(StoreError, match="which is gone") as refusal:
        claim_version(store, "q", 0, BATCH)
    assert (refusal.value.code, refusal.value.versions) == ("claimed_version_gone", [2])
    assert not refusal.value.retryable


def test_intents_of_dead_tasks_hold_nothing_for_ever(store: Path):
    claims = store / "claims"
    claims.mkdir()
    intent = claims / ".q.0.1.2.tmp"
    intent.write_text(json.dumps({"format": 2, "version": 1}))
    change(store)
    assert shrink(store) == []
    os.utime(intent, (0, 0))
    assert shrink(store) == [1]
    assert not intent.exists()


def test_only_the_last_batches_of_a_query_hold_their_versions(store: Path):
    claim_version(store, "ended long ago", 3, BATCH)
    for batch in range(expire.HELD_BATCHES + 3):
        change(store, batch)
        claim_version(store, "q", batch, BATCH)
    assert shrink(store) == [2, 3, 4]
    assert MasterData.open(store, 1).rows == 3, "the last batch of another query, however old"
    with pytest.raises(StoreError, match="which is gone"):
        claim_version(store, "q", 2, BATCH)
    assert claim_version(store, "q", 3, BATCH) == 5


def test_claims_and_expiry_side_by_side(store: Path):
    """Tasks of many batches claim while versions come and go: what is claimed can be opened, and is one a batch."""
    stop = threading.Event()
    change(store)  # compiled code is loaded before the clock counts

    def churn() -> None:
        value = 0
        while not stop.is_set():
            value += 1
            change(store, value)
            shrink(store)

    def task(number: int) -> tuple[int, int]:
        time.sleep(0.01)
        batch = number // 4
        version = claim_version(store, "q", batch, BATCH)
        assert MasterData.open(store, version).version == version
        return batch, version

    churner = threading.Thread(target=churn)
    churner.start()
    try:
        with ThreadPoolExecutor(4) as pool:
            found = set(pool.map(task, range(400)))
    finally:
        stop.set()
        churner.join()
    assert len(found) == 100, "one version a batch"
    versions = [version for _, version in sorted(found)]
    assert len(set(versions)) > 3
    assert set(versions[-expire.HELD_BATCHES :]) <= set(versions_on_disk(store))
