"""Reads cannot write, cannot leave the file, cannot run for ever."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import pytest

from tidemill.core.errors import LoadError
from tidemill.load.app import HttpLimits
from tidemill.load.warehouses.duckdb import DuckdbWarehouse

from .harness import SALES, InThread, ids_in, loader_in_thread


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO sales VALUES (99, 'x')",
        "INSERT INTO sales VALUES (99, 'x') RETURNING id",
        "WITH w AS (INSERT INTO sales VALUES (99, 'x') RETURNING id) SELECT * FROM w",
        "EXPLAIN ANALYZE INSERT INTO sales VALUES (99, 'x')",
        "EXPLAIN ANALYZE DELETE FROM sales",
        "SELECT 1; DELETE FROM sales",
        "DELETE FROM sales",
        "DROP TABLE sales",
        "CREATE TABLE x (a INT)",
        "CREATE TEMP TABLE x (a INT)",
        "UPDATE tidemill.pipelines SET fence = 0",
        "BEGIN",
        "COMMIT",
        "ATTACH '/tmp/other.duckdb'",
        "COPY sales TO '/tmp/stolen.csv'",
        "COPY sales FROM '/etc/passwd'",
        "EXPORT DATABASE '/tmp/stolen'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SET lock_configuration = false",
        "PRAGMA database_list",
        "CALL force_checkpoint()",
        "CHECKPOINT",
        "PREPARE p AS DELETE FROM sales",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM glob('/*')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM query('DELETE FROM sales')",
        "SELECT * FROM cursor",
        "SELECT * FROM batches",
        "",
        "SELEC 1",
        "SELECT * FROM nowhere",
    ],
)
def test_whatever_is_not_a_plain_read_is_refused_in_one_line(reading_loader: InThread, sql: str) -> None:
    with pytest.raises(LoadError) as caught:
        reading_loader.client.sql(sql)
    assert (caught.value.code, caught.value.status) == ("bad_sql", 400)
    assert "\n" not in caught.value.what
    assert ids_in(reading_loader.client) == list(range(20))
    assert reading_loader.client.status("shop")["fence"] == 1


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT * FROM sales", 20),
        ("FROM sales", 20),
        ("WITH w AS (SELECT 1) SELECT * FROM w;", 1),
        ("VALUES (1), (2)", 2),
        ("SHOW TABLES", 1),
        ("DESCRIBE sales", 2),
        ("EXPLAIN SELECT * FROM sales", 1),
        ("SELECT * FROM sales WHERE false", 0),
    ],
)
def test_reads_that_are_taken(reading_loader: InThread, sql: str, rows: int) -> None:
    assert reading_loader.client.sql(sql).num_rows == rows


def test_rows_are_capped(reading_loader: InThread) -> None:
    table = reading_loader.client.sql("SELECT * FROM range(1000000000)", max_rows=12_345)
    assert table.num_rows == 12_345


def test_a_long_read_is_interrupted_and_the_next_one_runs(tmp_path: Path) -> None:
    with loader_in_thread(tmp_path, HttpLimits(read_seconds=0.2)) as loader:
        with pytest.raises(LoadError, match=r"stopped after 0\.2 s"):
            loader.client.sql("SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b")
        assert loader.client.sql("SELECT 1 AS one").to_pylist() == [{"one": 1}]


def test_too_many_readers_are_told_to_wait(tmp_path: Path) -> None:
    with loader_in_thread(tmp_path, HttpLimits(readers=0)) as loader:
        loader.client.deadline_seconds = 0.1
        with pytest.raises(LoadError) as caught:
            loader.client.sql("SELECT 1")
    assert (caught.value.code, caught.value.status, caught.value.retryable) == ("busy", 429, True)


def test_closing_interrupts_a_reader_and_tells_it_to_come_again(tmp_path: Path) -> None:
    warehouse = DuckdbWarehouse(tmp_path / "w.duckdb")
    endless = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b"
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(warehouse.read, endless, max_rows=1, timeout_seconds=60)
        while not warehouse._readers:
            time.sleep(0.01)
        warehouse.close()
        with pytest.raises(LoadError) as caught:
            reading.result()
    assert (caught.value.code, caught.value.retryable) == ("warehouse_down", True)


def test_reopening_gives_a_live_handle_and_closing_frees_the_file(tmp_path: Path) -> None:
    warehouse = DuckdbWarehouse(tmp_path / "w.duckdb")
    with warehouse.transaction() as transaction:
        transaction.check_or_create(SALES)
    warehouse.reopen()
    assert warehouse.read("SHOW TABLES", max_rows=5, timeout_seconds=5).num_rows == 1
    warehouse.close()
    with pytest.raises(LoadError) as caught:
        warehouse.read("SELECT 1", max_rows=5, timeout_seconds=5)
    assert caught.value.code == "warehouse_down"
    with duckdb.connect(str(tmp_path / "w.duckdb")) as other:
        assert other.execute("SHOW TABLES").fetchall() == [("sales",)]
