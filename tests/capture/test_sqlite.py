"""Whatever way an application writes to SQLite, each committed row is captured once, in order."""

import contextlib
import gc
import logging
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tidemill.capture.hooks.hand_over import FAIL_AFTER_COMMIT
from tidemill.capture.hooks.sqlite import SqliteCapture
from tidemill.capture.regulator import SourceRegulator
from tidemill.core.errors import SourceError, SpecError

from .harness import TABLE, Staging, capture_of

INSERT = "INSERT INTO sales (item) VALUES (?)"


@pytest.fixture
def staging(start_staging: Callable[..., Staging], tmp_path: Path) -> Staging:
    return start_staging(tmp_path, SqliteCapture.schema_for(TABLE))


@pytest.fixture
def capture(staging: Staging, tmp_path: Path) -> Iterator[SqliteCapture]:
    one = capture_of(staging, tmp_path)
    yield one
    one.close()


class Shop:
    """One captured connection and what staging has of the table."""

    def __init__(self, staging: Staging, capture: SqliteCapture, path: Path, **options: object) -> None:
        self.staging, self.capture, self.path = staging, capture, path
        self.connection = capture.connect(path, **options)
        assert capture._regulator.flush(20)

    def check(self, *, live: bool | None = None) -> None:
        """Staging has the table's rows, all of them handed over (live), all read, or either."""
        assert self.capture._regulator.flush(20)
        plain = sqlite3.connect(self.path)
        table = plain.execute("SELECT id, item, price FROM sales ORDER BY id").fetchall()
        plain.close()
        staged = self.staging.rows()
        assert [(row["id"], row["item"], row["price"]) for row in staged] == table
        assert table
        if live is not None:
            assert {row["_committed_at"] is not None for row in staged} == {live}


@pytest.fixture
def shop(staging: Staging, capture: SqliteCapture, tmp_path: Path) -> Iterator[Shop]:
    one = Shop(staging, capture, tmp_path / "shop.db")
    yield one
    one.connection.close()


@pytest.fixture
def autocommit_shop(staging: Staging, capture: SqliteCapture, tmp_path: Path) -> Iterator[Shop]:
    one = Shop(staging, capture, tmp_path / "shop.db", isolation_level=None)
    yield one
    one.connection.close()


def test_commit_and_defaults(shop: Shop) -> None:
    shop.connection.execute(INSERT, ("a",))
    shop.connection.cursor().execute("INSERT INTO sales (item, price) SELECT 'b' || 'c', 1 + 1")
    shop.connection.commit()
    shop.check(live=True)
    assert [row["price"] for row in shop.staging.rows()] == [9.5, 2.0]


def test_nothing_leaves_before_the_commit(shop: Shop) -> None:
    shop.connection.execute(INSERT, ("a",))
    assert shop.capture._regulator.flush(5)
    assert shop.staging.rows() == []
    shop.connection.execute("COMMIT")
    shop.check(live=True)


def test_rollback_in_each_form(shop: Shop) -> None:
    connection = shop.connection
    connection.execute(INSERT, ("kept 1",))
    connection.commit()
    for undo in (connection.rollback, lambda: connection.execute("/* undo */ rollback")):
        connection.execute(INSERT, ("undone",))
        undo()
    with pytest.raises(ZeroDivisionError), connection:
        connection.execute(INSERT, (1 / 0,))
    with connection:
        connection.execute(INSERT, ("kept 2",))
    shop.check(live=True)


def test_closing_discards(shop: Shop, tmp_path: Path) -> None:
    other = shop.capture.connect(tmp_path / "shop.db")
    other.execute(INSERT, ("undone",))
    other.close()
    dropped = shop.capture.connect(tmp_path / "shop.db")
    dropped.execute(INSERT, ("undone",))
    del dropped
    gc.collect()  # a connection and its statement cache hold each other
    with shop.connection:
        shop.connection.execute(INSERT, ("kept",))
    shop.check(live=True)


def test_executemany(shop: Shop) -> None:
    shop.connection.executemany(INSERT, [(f"item {i}",) for i in range(350)])
    shop.connection.commit()
    shop.check(live=True)


def test_savepoints(shop: Shop) -> None:
    connection = shop.connection
    connection.execute(INSERT, ("kept",))
    connection.execute("SAVEPOINT here")
    connection.execute(INSERT, ("undone",))
    connection.execute("ROLLBACK TO here")
    connection.execute(INSERT, ("kept, with the id of the undone",))
    connection.execute("RELEASE here")
    connection.commit()
    shop.check(live=False)


def test_outermost_savepoint_commits(autocommit_shop: Shop) -> None:
    connection = autocommit_shop.connection
    connection.execute("SAVEPOINT outer")
    connection.execute(INSERT, ("kept",))
    connection.execute("RELEASE outer")
    autocommit_shop.check(live=True)


def test_autocommit(autocommit_shop: Shop) -> None:
    connection = autocommit_shop.connection
    connection.execute(INSERT, ("a",))
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(INSERT, ("b",))
    connection.execute("END")
    connection.execute("BEGIN")
    connection.execute(INSERT, ("undone",))
    connection.execute("ROLLBACK")
    autocommit_shop.check(live=True)
    with pytest.raises(sqlite3.IntegrityError):
        connection.executemany(INSERT, [("c",), ("d",), ("bad",), ("never",)])
    autocommit_shop.check()


def test_returning_outside_a_transaction(autocommit_shop: Shop) -> None:
    cursor = autocommit_shop.connection.execute(
        "INSERT INTO sales (item) VALUES ('a'), ('b'), ('c') RETURNING id"
    )
    autocommit_shop.check(live=True)
    assert (cursor.fetchone(), cursor.fetchmany(1), list(cursor), cursor.fetchone()) == (
        (1,),
        [(2,)],
        [(3,)],
        None,
    )


def test_failed_statements(shop: Shop) -> None:
    connection = shop.connection
    for conflict in ("", "OR FAIL", "OR IGNORE", "OR ROLLBACK"):
        with contextlib.suppress(sqlite3.IntegrityError):
            connection.execute(f"INSERT {conflict} INTO sales (item) VALUES ('a'), ('bad'), ('b')")
        connection.execute(INSERT, ("after",))
        connection.commit()
    shop.check()


def test_script(shop: Shop) -> None:
    connection = shop.connection
    connection.execute(INSERT, ("before",))
    connection.executescript(
        "INSERT INTO sales (item) VALUES ('a'); BEGIN; INSERT INTO sales (item) VALUES ('b'); ROLLBACK;"
        "INSERT INTO sales (item) VALUES ('c'); BEGIN; INSERT INTO sales (item) VALUES ('d');"
    )
    assert shop.capture._regulator.flush(20)
    assert len(shop.staging.rows()) == 3
    connection.commit()
    shop.check()


def test_isolation_level_commits_unseen(shop: Shop) -> None:
    shop.connection.execute(INSERT, ("a",))
    shop.connection.isolation_level = None
    shop.connection.execute(INSERT, ("b",))
    shop.check()


def test_replace_update_and_delete_are_counted_and_warned_about_once(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    connection = shop.connection
    connection.execute("INSERT INTO sales (item) VALUES ('a'), ('b'), ('c')")
    connection.commit()
    assert shop.capture._regulator.flush(20)
    with caplog.at_level(logging.WARNING):
        connection.execute("INSERT OR REPLACE INTO sales (id, item) VALUES (2, 'replaced'), (7, 'new')")
        connection.execute("UPDATE sales SET price = 1 WHERE id = 1")
        connection.execute("DELETE FROM sales WHERE id = 3")
        connection.commit()
    assert shop.capture._regulator.flush(20)
    assert shop.staging.ids() == [1, 2, 3, 7]
    assert shop.capture.stats().changes_not_captured == 3
    assert len([record for record in caplog.records if "not captured yet" in record.message]) == 1


def test_row_below_the_highest_position_is_sent_too(shop: Shop) -> None:
    for sql in (
        "INSERT INTO sales (id) VALUES (10)",
        "INSERT INTO sales (id) VALUES (5)",
        "INSERT INTO sales DEFAULT VALUES",
    ):
        shop.connection.execute(sql)
        shop.connection.commit()
    assert shop.capture._regulator.flush(20)
    assert shop.staging.ids() == [10, 5, 11]
    assert shop.capture.stats().late_rows == 1


def test_custom_factories_and_row_factory(staging: Staging, capture: SqliteCapture, tmp_path: Path) -> None:
    class Audited(sqlite3.Connection):
        pass

    shop = Shop(staging, capture, tmp_path / "shop.db", factory=Audited)
    shop.connection.row_factory = sqlite3.Row
    assert isinstance(shop.connection, Audited)

    class Shouting(sqlite3.Cursor):
        pass

    cursor = shop.connection.cursor(Shouting)
    assert isinstance(cursor, Shouting)
    cursor.execute(INSERT, ("a",))
    shop.connection.commit()
    assert shop.connection.execute("SELECT item FROM sales").fetchone()["item"] == "a"
    shop.check(live=True)
    shop.connection.close()


def test_unfit_value_of_a_loosely_typed_column(shop: Shop) -> None:
    shop.connection.execute("INSERT INTO sales (item, price) VALUES ('a', 1), ('b', 'much'), ('c', 3)")
    shop.connection.commit()
    assert shop.capture._regulator.flush(20)
    assert shop.staging.ids() == [1, 3]
    assert shop.capture._regulator.stats().unfit_rows == 1


def test_many_threads_keep_the_order(shop: Shop, tmp_path: Path) -> None:
    def sell(name: int) -> None:
        connection = shop.capture.connect(tmp_path / "shop.db", timeout=60)
        for i in range(25):
            connection.executemany(INSERT, [(f"{name} {i} {j}",) for j in range(3)])
            connection.rollback() if i % 5 == 4 else connection.commit()
        connection.close()

    threads = [threading.Thread(target=sell, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shop.check(live=True)
    assert shop.capture.stats().late_rows == 0


SHOP_PROCESS = """
import sys
from pathlib import Path
from tidemill.capture.hooks.sqlite import SqliteCapture
from tidemill.capture.regulator import SourceRegulator
import pyarrow as pa
folder, address, last = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
table = pa.schema([("id", pa.int64()), ("item", pa.string()), ("price", pa.float64())])
regulator = SourceRegulator("shop", SqliteCapture.schema_for(table), address, spool_dir=folder / "spool")
connection = SqliteCapture(regulator, table="sales", schema=table, position="id").connect(folder / "shop.db")
sold = connection.execute("SELECT count(*) FROM sales").fetchone()[0]
regulator.flush(20)
while sold < last:
    connection.execute("INSERT INTO sales (item) VALUES (?)", (f"item {sold}",))
    connection.commit()
    sold += 1
assert regulator.flush(20)
"""


def test_application_that_dies_between_commit_and_hand_over(
    staging: Staging, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture_of(staging, tmp_path).close()  # makes the table
    command = [sys.executable, "-c", SHOP_PROCESS, str(tmp_path), staging.address, "60"]
    for commits in (1, 17, 9):
        monkeypatch.setenv(FAIL_AFTER_COMMIT, str(commits))
        assert subprocess.run(command, check=False).returncode == 137
    monkeypatch.delenv(FAIL_AFTER_COMMIT)
    assert subprocess.run(command, check=False).returncode == 0
    assert staging.ids() == list(range(1, 61))


def test_second_process_is_refused(shop: Shop, staging: Staging, tmp_path: Path) -> None:
    schema = SqliteCapture.schema_for(TABLE)
    other = SourceRegulator("other", schema, staging.address, spool_dir=tmp_path / "other")
    with pytest.raises(SourceError) as error:
        SqliteCapture(other, table="sales", schema=TABLE, position="id").connect(tmp_path / "shop.db")
    assert error.value.code == "already_captured"
    other.close()


@pytest.mark.parametrize(
    "table",
    [
        "CREATE TABLE sales (id TEXT PRIMARY KEY, item, price)",
        "CREATE TABLE sales (id INT PRIMARY KEY, item, price)",
        "CREATE TABLE sales (id INTEGER PRIMARY KEY DESC, item, price)",
        "CREATE TABLE sales (id INTEGER PRIMARY KEY, item, price) WITHOUT ROWID",
        "CREATE TABLE sales (id INTEGER PRIMARY KEY, item)",
        "CREATE TABLE other (id INTEGER PRIMARY KEY, item, price)",
    ],
)
def test_tables_without_a_usable_position_are_refused(
    capture: SqliteCapture, tmp_path: Path, table: str
) -> None:
    with sqlite3.connect(tmp_path / "odd.db") as plain:
        plain.execute(table)
    plain.close()
    with pytest.raises(SourceError) as error:
        capture.connect(tmp_path / "odd.db")
    assert error.value.code == "not_capturable"


def test_memory_database_and_wrong_schema_are_refused(capture: SqliteCapture) -> None:
    with pytest.raises(SourceError):
        capture.connect(":memory:")
    with pytest.raises(SpecError):
        SqliteCapture(
            capture._regulator, table="sales", schema=pa.schema([("id", pa.int32())]), position="id"
        )


def test_database_file_and_schema_stay_as_they_are(shop: Shop, tmp_path: Path) -> None:
    with shop.connection:
        shop.connection.execute(INSERT, ("a",))
    plain = sqlite3.connect(tmp_path / "shop.db")
    assert plain.execute("SELECT count(*) FROM sqlite_master WHERE type = 'trigger'").fetchone() == (0,)
    plain.execute("INSERT INTO sales (item) VALUES ('by a program without the hook')")
    plain.commit()
    plain.close()
    shop.capture.reconcile()
    shop.check()
