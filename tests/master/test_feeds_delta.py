"""A store that follows a Delta table has its rows after every version of it, each change once."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tidemill.core.errors import SourceError
from tidemill.master import MasterData, feeds, feeds_delta
from tidemill.master.feeds_delta import follow_delta

WITH_FEED = {"delta.enableChangeDataFeed": "true"}


def rows(ids: Sequence[int], text: str) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "n": [f"{text} {i}" for i in ids]})


def contents(path: Path) -> list[dict[str, Any]]:
    master = MasterData.open(path)
    return sorted(master.read_batch(range(master.pages)).to_pylist(), key=lambda row: (row["id"], row["n"]))


def of_table(table: Path) -> list[dict[str, Any]]:
    return sorted(DeltaTable(table).to_pyarrow_table().to_pylist(), key=lambda row: (row["id"], row["n"]))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    MasterData.build(rows([1, 2], "old"), key="id", path=path)
    return path


@pytest.fixture
def table(tmp_path: Path) -> Path:
    write_deltalake(tmp_path / "table", rows(range(1, 40), "a"), configuration=WITH_FEED)
    return tmp_path / "table"


def refuse_re_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        pytest.fail("the table was read again")

    monkeypatch.setattr(feeds_delta, "re_read", refused)


def test_every_kind_of_commit_by_the_feed(store: Path, table: Path, monkeypatch: pytest.MonkeyPatch):
    assert follow_delta(store, table).how == "applied"
    assert contents(store) == of_table(table)
    refuse_re_reads(monkeypatch)
    delta = DeltaTable(table)
    delta.update(predicate="id < 5", updates={"n": "'updated'"})
    delta.delete("id = 7")
    write_deltalake(table, rows([7, 100], "b"), mode="append")
    DeltaTable(table).update(predicate="id = 9", updates={"id": "900"})
    done = follow_delta(store, table)
    assert (done.how, done.changes) == ("applied", 8)
    assert contents(store) == of_table(table)
    write_deltalake(table, rows(range(30, 50), "c"), mode="overwrite")
    follow_delta(store, table)
    assert contents(store) == of_table(table)


def test_repeated_it_does_nothing(store: Path, table: Path):
    first = follow_delta(store, table)
    again = follow_delta(store, table)
    assert (again.how, again.version) == ("already", first.version)
    identity = DeltaTable(table).metadata().id
    assert MasterData.open(store).manifest.positions == {f"delta:{identity}": 0}


def test_a_commit_without_changes_moves_the_position(store: Path, table: Path):
    follow_delta(store, table)
    write_deltalake(table, rows([200], "b"), mode="append")
    follow_delta(store, table)
    DeltaTable(table).optimize.compact()
    assert follow_delta(store, table).how == "nothing"
    assert follow_delta(store, table).how == "already"
    assert contents(store) == of_table(table)


def test_without_a_feed_the_table_is_compared(store: Path, tmp_path: Path):
    table = tmp_path / "plain"
    write_deltalake(table, rows(range(5), "a"))
    follow_delta(store, table)
    DeltaTable(table).delete("id = 2")
    write_deltalake(table, rows([8], "b"), mode="append")
    done = follow_delta(store, table)
    assert (done.how, done.changes) == ("applied", 2)
    assert contents(store) == of_table(table)
    DeltaTable(table).delete()
    follow_delta(store, table)
    assert contents(store) == []


def test_a_feed_that_was_switched_on_later(store: Path, tmp_path: Path):
    table = tmp_path / "later"
    write_deltalake(table, rows(range(5), "a"))
    follow_delta(store, table)
    DeltaTable(table).update(predicate="id = 1", updates={"n": "'before the feed'"})
    DeltaTable(table).alter.set_table_properties(WITH_FEED)
    DeltaTable(table).update(predicate="id = 2", updates={"n": "'by the feed'"})
    follow_delta(store, table)
    assert contents(store) == of_table(table)


def test_keys_with_several_rows_are_compared(tmp_path: Path, table: Path):
    store = tmp_path / "several"
    MasterData.build(rows([1, 1, 2], "old"), key="id", path=store)
    follow_delta(store, table)
    write_deltalake(table, rows([5], "second row of"), mode="append")
    follow_delta(store, table)
    assert contents(store) == of_table(table)
    assert MasterData.open(store).rows == 40


def test_another_table_under_the_same_name_is_read_whole(store: Path, table: Path):
    write_deltalake(table, rows([60], "b"), mode="append")
    follow_delta(store, table)
    import shutil

    shutil.rmtree(table)
    write_deltalake(table, rows([1, 2], "anew"), configuration=WITH_FEED)
    follow_delta(store, table)
    assert contents(store) == of_table(table)


def test_killed_after_the_version_it_goes_on_there(store: Path, table: Path, monkeypatch: pytest.MonkeyPatch):
    """Position and rows are one version: there is no moment between them."""
    follow_delta(store, table)
    write_deltalake(table, rows([300], "b"), mode="append")
    real = MasterData.apply

    def killed(self: MasterData, *arguments: Any, **options: Any) -> MasterData:
        real(self, *arguments, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(feeds.MasterData, "apply", killed)
        with pytest.raises(KeyboardInterrupt):
            follow_delta(store, table)
    assert follow_delta(store, table).how == "already"
    assert contents(store) == of_table(table)


def test_a_table_that_is_not_there(store: Path, tmp_path: Path):
    with pytest.raises(SourceError, match="cannot read the Delta table") as refusal:
        follow_delta(store, tmp_path / "nowhere")
    assert refusal.value.retryable
