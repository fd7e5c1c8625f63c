"""The worker's side of a join by itself: where it reads, what it shares a folder with, and what it refuses."""

import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

import tidemill as tm
from tidemill.core.errors import SpecError, StoreError
from tidemill.master.page_files import PageFiles
from tidemill.spark import host, hot_folder
from tidemill.spark.auto import Wish
from tidemill.spark.enrich import plan_lookups
from tidemill.spark.host import HostedJoins
from tidemill.spark.lookup import Lookup
from tidemill.spark.refresh import Refresh

KEYS = 5_000
STREAM = pa.record_batch({"id": np.arange(3 * KEYS), "key": np.arange(3 * KEYS) % KEYS})
TOKEN = "0123456789abcdef"


@pytest.fixture
def store(tmp_path: Path) -> tm.MasterData:
    keys = np.arange(KEYS)
    return tm.MasterData.build(pa.table({"key": keys, "value": keys * 3}), key="key", path=tmp_path / "store")


@pytest.fixture(autouse=True)
def new_worker() -> Iterator[None]:
    """Nothing is open before or after."""
    host._open_joins.clear()
    host._open_seats.clear()
    yield
    host._open_joins.clear()
    host._open_seats.clear()


def hosted(store: tm.MasterData, folder: Path | None) -> HostedJoins:
    wish = Wish.of(memory="16 MB", algorithm="tide", rate=None, zipf=None)
    schema = from_arrow_schema(STREAM.schema)
    told = plan_lookups([Lookup(master=store, on="key")], schema, Refresh.parse("batch"), wish, 2)
    return HostedJoins(token=TOKEN, lookups=told, workers=2, folder=folder, tells=False)


def values(joins: HostedJoins) -> dict[int, int]:
    rows = pa.Table.from_batches(joins.run_task(iter([STREAM])), schema=joins.output_schema)
    return dict(zip(rows["id"].to_pylist(), rows["value"].to_pylist(), strict=True))


EXPECTED = {number: number % KEYS * 3 for number in range(3 * KEYS)}


@pytest.fixture
def no_direct_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that refuses O_DIRECT."""
    real = os.open

    def refusing(file: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(file, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refusing)


def test_where_direct_reads_are_refused_pages_come_through_the_cache_and_it_is_told_once(
    store: tm.MasterData, tmp_path: Path, no_direct_reads: None, caplog: pytest.LogCaptureFixture
) -> None:
    joins = hosted(store, tmp_path / "hot")
    with caplog.at_level(logging.WARNING, "tidemill.spark"):
        assert values(joins) == EXPECTED
        host._open_joins.clear()
        assert values(joins) == EXPECTED
    assert [record.getMessage() for record in caplog.records if "no direct I/O" in record.getMessage()] == [
        f"the file system of {store.path} has no direct I/O: pages go through the page cache, whose memory is in no budget"
    ]


def test_pages_are_read_past_the_cache_where_they_can_be(store: tm.MasterData, tmp_path: Path) -> None:
    joins = hosted(store, tmp_path / "hot")
    assert values(joins) == EXPECTED
    ((join,),) = host._open_joins.values()
    assert join.master._reader.direct


@pytest.mark.parametrize(("number", "passes"), [(errno.EIO, True), (errno.EINVAL, False)])
@pytest.mark.parametrize("is_direct", [True, False])
def test_a_read_that_fails_is_an_error_however_it_was_read(
    store: tm.MasterData,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    *,
    passes: bool,
    is_direct: bool,
) -> None:
    if not is_direct:
        request.getfixturevalue("no_direct_reads")

    def failing(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    # A compiled read only says that it failed; what is asked for the reason fails here.
    monkeypatch.setattr(os, "preadv", failing)
    monkeypatch.setattr(PageFiles, "handles", property(lambda files: np.full(len(files.paths), -1)))
    with pytest.raises(StoreError, match=os.strerror(number)) as refusal:
        values(hosted(store, tmp_path / "hot"))
    assert (refusal.value.code, refusal.value.retryable) == ("page_unreadable", passes)


@pytest.fixture
def shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the worker finds the shared memory of its host."""
    place = tmp_path / "shm"
    place.mkdir()
    monkeypatch.setattr(hot_folder, "_SHARED_MEMORY", place)
    return place / f"tidemill-{os.getuid()}"


def test_without_a_folder_named_a_worker_makes_one_of_its_own(
    store: tm.MasterData, shared_memory: Path
) -> None:
    assert values(hosted(store, None)) == EXPECTED
    assert shared_memory.stat().st_mode & 0o777 == 0o700
    assert list(shared_memory.glob("*.hot"))


def link_away(folder: Path) -> None:
    (folder.parent / "elsewhere").mkdir()
    folder.symlink_to(folder.parent / "elsewhere")


def link_to_nowhere(folder: Path) -> None:
    folder.symlink_to(folder.parent / "nowhere")


def open_to_all(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


@pytest.mark.parametrize("lay", [link_away, link_to_nowhere, open_to_all, Path.touch])
def test_a_worker_refuses_a_folder_that_others_could_have_filled(
    store: tm.MasterData, shared_memory: Path, lay: Any
) -> None:
    lay(shared_memory)
    with pytest.raises(SpecError, match="hot_rows=") as refusal:
        values(hosted(store, None))
    assert (refusal.value.code, refusal.value.folder) == ("foreign_folder", str(shared_memory))
    assert not [file for file in shared_memory.parent.rglob("*") if file.is_file() and file != shared_memory]


def test_a_worker_that_waits_for_a_seat_holds_no_join(store: tm.MasterData, tmp_path: Path) -> None:
    joins = hosted(store, tmp_path / "hot")
    assert values(joins) == EXPECTED
    assert host._open_joins, "it is kept for the next task"
    others = [host.HostSeats(tmp_path / "hot", TOKEN, 2) for _ in range(2)]
    seen: list[bool] = []

    def noted() -> None:
        seen.append(bool(host._open_joins))

    with others[0].taken(noted), others[1].taken(noted):
        ours = host._open_seats[TOKEN]
        with pytest.raises(StoreError, match="one more has waited"), ours.taken(host._open_joins.clear, 0):
            pass
        assert not host._open_joins
    assert seen == []
    assert values(joins) == EXPECTED
    assert not host._open_joins, "there were too many a moment ago: nothing is kept"
