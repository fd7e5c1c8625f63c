"""The single writer: groups, failures alone, full queues, a dead thread."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tidemill.core.errors import LoadError
from tidemill.load.warehouses import Transaction
from tidemill.load.warehouses.duckdb import DuckdbWarehouse
from tidemill.load.writer import Outcome, Work, Writer


@pytest.fixture
def warehouse(tmp_path: Path) -> Iterator[DuckdbWarehouse]:
    opened = DuckdbWarehouse(tmp_path / "w.duckdb")
    with opened.transaction() as transaction:
        transaction.execute("CREATE TABLE t (i BIGINT, tx BIGINT)")
    yield opened
    opened.close()


def insert(number: int) -> Work:
    def work(transaction: Transaction) -> Outcome:
        transaction.execute("INSERT INTO t VALUES ($1, txid_current())", [number])
        return Outcome({"number": number})

    return work


def fail(transaction: Transaction) -> Outcome:
    transaction.execute("INSERT INTO t VALUES (-1, 0)")
    raise LoadError("no", code="planned", status=422)


def submit_while_busy(writer: Writer, works: list[Work]) -> list["Future[dict[str, Any]]"]:
    """Hold the writer inside a job until all `works` wait behind it."""
    entered, leave = threading.Event(), threading.Event()

    def hold(transaction: Transaction) -> Outcome:
        entered.set()
        leave.wait()
        return Outcome({})

    held = writer.submit(hold)
    entered.wait()
    try:
        return [writer.submit(work) for work in works]
    finally:
        leave.set()
        held.result()


def rows(warehouse: DuckdbWarehouse, sql: str) -> list[tuple[Any, ...]]:
    table = warehouse.read(sql, max_rows=100, timeout_seconds=10)
    return [tuple(row.values()) for row in table.to_pylist()]


def test_waiting_jobs_share_one_transaction(warehouse: DuckdbWarehouse) -> None:
    writer = Writer(warehouse)
    answers = [done.result() for done in submit_while_busy(writer, [insert(n) for n in range(5)])]
    writer.close()
    assert [answer["number"] for answer in answers] == [0, 1, 2, 3, 4]
    assert len({answer["visible_at_ns"] for answer in answers}) == 1
    assert rows(warehouse, "SELECT count(*), count(DISTINCT tx) FROM t") == [(5, 1)]


def test_one_that_fails_does_not_take_the_others_along(warehouse: DuckdbWarehouse) -> None:
    writer = Writer(warehouse)
    good, bad, also_good = submit_while_busy(writer, [insert(1), fail, insert(2)])
    assert (good.result()["number"], also_good.result()["number"]) == (1, 2)
    with pytest.raises(LoadError, match="no"):
        bad.result()
    writer.close()
    assert rows(warehouse, "SELECT i FROM t ORDER BY i") == [(1,), (2,)]


def test_a_fault_in_a_job_is_its_own(warehouse: DuckdbWarehouse) -> None:
    writer = Writer(warehouse)
    with pytest.raises(ZeroDivisionError):
        writer.submit(lambda _: Outcome({"never": 1 // 0})).result()
    assert writer.submit(insert(1)).result()["number"] == 1
    writer.close()


def test_a_full_queue_refuses_at_once(warehouse: DuckdbWarehouse) -> None:
    writer = Writer(warehouse, queue_length=2)
    with pytest.raises(LoadError) as caught:
        submit_while_busy(writer, [insert(n) for n in range(3)])
    assert (caught.value.code, caught.value.status, caught.value.retryable) == ("queue_full", 429, True)
    writer.close()
    assert rows(warehouse, "SELECT i FROM t ORDER BY i") == [(0,), (1,)]


def test_closing_finishes_what_waits_and_refuses_what_comes(warehouse: DuckdbWarehouse) -> None:
    writer = Writer(warehouse)
    waiting = submit_while_busy(writer, [insert(1), insert(2)])
    writer.close()
    assert all(done.done() for done in waiting)
    with pytest.raises(LoadError, match="stopping"):
        writer.submit(insert(3))


def test_a_dead_thread_ends_the_process(warehouse: DuckdbWarehouse) -> None:
    died = threading.Event()

    def die(transaction: Transaction) -> Outcome:
        raise SystemExit

    writer = Writer(warehouse, on_death=died.set)
    writer.submit(die)
    assert died.wait(10)


def test_a_lost_handle_is_reopened_and_the_ledger_read_again(warehouse: DuckdbWarehouse) -> None:
    reopened = threading.Event()

    def lose(transaction: Transaction) -> Outcome:
        raise LoadError("gone", code="warehouse_down", retryable=True, status=503)

    writer = Writer(warehouse, on_reopened=reopened.set)
    lost, waiting = submit_while_busy(writer, [lose, insert(1)])
    for done in (lost, waiting):
        with pytest.raises(LoadError, match="gone"):
            done.result()
    assert reopened.wait(10)
    writer.close()
    assert rows(warehouse, "SELECT i FROM t") == []
