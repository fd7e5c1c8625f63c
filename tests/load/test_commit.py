"""Exactly once: repeats, zombies, foreign checkpoints, gaps."""

import pyarrow as pa
import pytest

from tidemill.core.errors import LoadError
from tidemill.load.client import BlockRef, TableSpec, Ticket

from .harness import REJECTS, SALES, InThread, ids_in, load_sales, put_sales, sales


def test_all_tables_of_a_batch_appear_together_with_ledger_and_position(loader: InThread) -> None:
    client = loader.client
    opened = client.open("shop", "q1", [SALES, REJECTS])
    assert (opened.ticket.fence, opened.position, opened.last_batch_id) == (1, None, None)
    refs = [
        client.put_block(opened.ticket, 0, "sales", sales(0, 3), partition=0, attempt=0, number=0),
        client.put_block(opened.ticket, 0, "sales", sales(3, 2), partition=1, attempt=1, number=0),
        client.put_block(
            opened.ticket, 0, "rejects", pa.table({"why": ["late"]}), partition=0, attempt=0, number=0
        ),
    ]
    assert client.sql("SELECT * FROM sales").num_rows == 0
    done = client.commit(opened.ticket, 0, start=100, end=106, blocks=refs, counts={"in": 6})
    assert (done.status, done.rows) == ("committed", {"sales": 5, "rejects": 1})
    assert ids_in(client) == [0, 1, 2, 3, 4]
    assert client.sql("SELECT why FROM rejects").to_pylist() == [{"why": "late"}]
    ledger = client.sql(
        "SELECT query_id, batch_id, fence, start_position, end_position, counts FROM tidemill.batches"
    )
    assert [tuple(row.values()) for row in ledger.to_pylist()] == [("q1", 0, 1, 100, 106, '{"in": 6}')]
    status = client.status("shop")
    assert (status["position"], status["last_batch_id"], status["staged_blocks"]) == (106, 0, 0)


def test_a_batch_without_rows_moves_the_position(loader: InThread) -> None:
    opened = loader.client.open("shop", "q1", [SALES])
    loader.client.commit(opened.ticket, 0, start=0, end=9, blocks=[])
    assert loader.client.status("shop")["position"] == 9


def test_a_repeated_commit_writes_nothing(loader: InThread) -> None:
    opened = loader.client.open("shop", "q1", [SALES])
    ref = put_sales(loader.client, opened.ticket, 0, sales(0, 4))
    first = loader.client.commit(opened.ticket, 0, start=0, end=4, blocks=[ref], counts={"in": 4})
    again = loader.client.commit(opened.ticket, 0, start=0, end=4, blocks=[ref], counts={"in": 4})
    assert (again.status, again.rows, again.counts) == ("already", first.rows, {"in": 4})
    assert ids_in(loader.client) == [0, 1, 2, 3]


def test_a_new_driver_repeats_the_last_batch_and_goes_on(loader: InThread) -> None:
    load_sales(loader.client, loader.client.open("shop", "q1", [SALES]), [0, 1])
    opened = loader.client.open("shop", "q1", [SALES])
    assert (opened.last_batch_id, opened.position, opened.ticket.fence) == (1, 20, 2)
    load_sales(loader.client, opened, [1, 2])
    assert ids_in(loader.client) == list(range(30))
    assert loader.client.status("shop")["staged_blocks"] == 0


def test_a_zombie_can_neither_stage_nor_commit(loader: InThread) -> None:
    zombie = loader.client.open("shop", "q1", [SALES]).ticket
    ref = put_sales(loader.client, zombie, 0, sales(0, 1))
    loader.client.open("shop", "q1", [SALES])
    for call in (
        lambda: put_sales(loader.client, zombie, 0, sales(0, 1)),
        lambda: loader.client.commit(zombie, 0, start=0, end=1, blocks=[ref]),
    ):
        with pytest.raises(LoadError) as caught:
            call()
        assert (caught.value.code, caught.value.given_fence, caught.value.current_fence) == ("fenced", 1, 2)
    assert ids_in(loader.client) == []


def test_a_new_driver_may_reuse_attempt_numbers_of_a_dead_one(loader: InThread) -> None:
    put_sales(loader.client, loader.client.open("shop", "q1", [SALES]).ticket, 0, sales(0, 5))
    opened = loader.client.open("shop", "q1", [SALES])
    ref = put_sales(loader.client, opened.ticket, 0, sales(0, 7))
    loader.client.commit(opened.ticket, 0, start=0, end=7, blocks=[ref])
    assert ids_in(loader.client) == list(range(7))


def test_a_foreign_checkpoint_is_refused_with_both_ids_and_the_position(loader: InThread) -> None:
    load_sales(loader.client, loader.client.open("shop", "q1", [SALES]), [0])
    for resume_from in (None, 9):
        with pytest.raises(LoadError, match=r"q1.*10.*q2") as caught:
            loader.client.open("shop", "q2", [SALES], resume_from=resume_from)
        assert (caught.value.code, caught.value.position) == ("foreign_checkpoint", 10)
    assert loader.client.status("shop")["fence"] == 1


def test_a_checkpoint_that_resumes_from_the_warehouse_is_adopted(loader: InThread) -> None:
    load_sales(loader.client, loader.client.open("shop", "q1", [SALES]), [0, 1])
    opened = loader.client.open("shop", "q2", [SALES], resume_from=20)
    assert (opened.last_batch_id, opened.position) == (None, 20)
    ref = put_sales(loader.client, opened.ticket, 0, sales(20, 5))
    loader.client.commit(opened.ticket, 0, start=20, end=25, blocks=[ref])
    assert ids_in(loader.client) == list(range(25))


def test_reset_lets_a_new_checkpoint_start_anywhere(loader: InThread) -> None:
    load_sales(loader.client, loader.client.open("shop", "q1", [SALES]), [0])
    opened = loader.client.open("shop", "q2", [SALES], reset=True)
    assert opened.position is None
    loader.client.commit(opened.ticket, 0, start=500, end=501, blocks=[])
    assert loader.client.status("shop")["position"] == 501


@pytest.mark.parametrize(
    ("batch_id", "start", "end", "code"),
    [
        (1, 11, 20, "position_gap"),
        (1, 9, 20, "position_gap"),
        (2, 10, 20, "batch_gap"),
        (0, 0, 11, "batch_changed"),
    ],
)
def test_whatever_does_not_continue_is_refused(
    loader: InThread, batch_id: int, start: int, end: int, code: str
) -> None:
    opened = loader.client.open("shop", "q1", [SALES])
    load_sales(loader.client, opened, [0])
    with pytest.raises(LoadError) as caught:
        loader.client.commit(opened.ticket, batch_id, start=start, end=end, blocks=[])
    assert (caught.value.code, caught.value.status) == (code, 409)
    assert loader.client.status("shop")["position"] == 10


def test_resume_from_of_a_new_pipeline_binds_its_first_batch(loader: InThread) -> None:
    opened = loader.client.open("shop", "q1", [SALES], resume_from=50)
    with pytest.raises(LoadError, match=r"40.*50"):
        loader.client.commit(opened.ticket, 0, start=40, end=60, blocks=[])
    assert loader.client.commit(opened.ticket, 3, start=50, end=60, blocks=[]).status == "committed"


def test_blocks_of_losing_attempts_are_ignored_and_dropped(loader: InThread) -> None:
    opened = loader.client.open("shop", "q1", [SALES])
    put_sales(loader.client, opened.ticket, 0, sales(0, 2), attempt=0)
    winner = put_sales(loader.client, opened.ticket, 0, sales(0, 3), attempt=1)
    loader.client.commit(opened.ticket, 0, start=0, end=3, blocks=[winner])
    assert ids_in(loader.client) == [0, 1, 2]
    assert loader.client.status("shop")["staged_blocks"] == 0
    assert list(loader.folder.glob("state/**/*.arrow")) == []


def test_a_missing_block_fails_the_whole_batch_and_may_be_tried_again(loader: InThread) -> None:
    opened = loader.client.open("shop", "q1", [SALES])
    here = put_sales(loader.client, opened.ticket, 0, sales(0, 2))
    elsewhere = BlockRef("sales", 1, 0, 0, here.digest, 2)
    other_content = BlockRef("sales", 0, 0, 0, "0" * 64, 2)
    for blocks in ([here, elsewhere], [other_content]):
        with pytest.raises(LoadError) as caught:
            loader.client.commit(opened.ticket, 0, start=0, end=2, blocks=blocks)
        assert (caught.value.code, caught.value.retryable) == ("missing_block", True)
    assert ids_in(loader.client) == []
    assert loader.client.commit(opened.ticket, 0, start=0, end=2, blocks=[here]).status == "committed"


def test_the_same_block_twice_is_a_duplicate_and_another_content_a_conflict(loader: InThread) -> None:
    opened = loader.client.open("shop", "q1", [SALES])
    assert put_sales(loader.client, opened.ticket, 0, sales(0, 2)) == put_sales(
        loader.client, opened.ticket, 0, sales(0, 2)
    )
    with pytest.raises(LoadError) as caught:
        put_sales(loader.client, opened.ticket, 0, sales(5, 2))
    assert (caught.value.code, caught.value.status) == ("digest_conflict", 409)
    assert loader.client.status("shop")["staged_blocks"] == 1


def test_late_blocks_of_done_batches_unknown_tables_pipelines_and_fences(loader: InThread) -> None:
    opened = loader.client.open("shop", "q1", [SALES])
    load_sales(loader.client, opened, [0, 1])
    cases = [
        (opened.ticket, 0, "sales", "batch_done"),
        (opened.ticket, 2, "other", "unknown_table"),
        (Ticket("mall", "q1", 1), 2, "sales", "unknown_pipeline"),
        (Ticket("shop", "q1", 9), 2, "sales", "unknown_fence"),
        (Ticket("shop", "q9", 1), 2, "sales", "foreign_checkpoint"),
    ]
    for ticket, batch_id, table, code in cases:
        with pytest.raises(LoadError) as caught:
            loader.client.put_block(ticket, batch_id, table, sales(0, 1), partition=0, attempt=0, number=0)
        assert caught.value.code == code


def test_a_table_that_is_there_must_equal_the_declared_one(loader: InThread) -> None:
    loader.client.open("shop", "q1", [SALES])
    wider = TableSpec("sales", SALES.schema.append(pa.field("price", pa.float64())))
    keyed = TableSpec("SALES", pa.schema([("id", pa.int64()), ("n", pa.int64())]), "add", ("id",))
    for other in (wider, keyed):
        with pytest.raises(LoadError) as caught:
            loader.client.open("mall", "q2", [REJECTS, other])
        assert caught.value.code == "table_differs"
        assert caught.value.present == [["id", "BIGINT"], ["city", "VARCHAR"]]
    with pytest.raises(LoadError, match="rejects does not exist"):
        loader.client.sql("SELECT * FROM rejects")


def test_every_plain_type_comes_back_as_it_went(loader: InThread) -> None:
    rows = loader.client.sql(
        "SELECT 1::TINYINT a, 2::UBIGINT b, 1.5::FLOAT c, 2.5 d, true e, 'x' f, 1.25::DECIMAL(20,4) g, "
        "DATE '2026-01-02' h, TIMESTAMP '2026-01-02 03:04:05.678901' i, "
        "TIMESTAMPTZ '2026-01-02 03:04:05+00' j, 'ab'::BLOB k UNION ALL "
        "SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL"
    )
    rows = rows.set_column(3, "d", rows["d"].cast(pa.float64()))
    opened = loader.client.open("types", "q1", [TableSpec("plain", rows.schema)])
    ref = loader.client.put_block(opened.ticket, 0, "plain", rows, partition=0, attempt=0, number=0)
    loader.client.commit(opened.ticket, 0, start=0, end=1, blocks=[ref])
    assert loader.client.sql("SELECT * FROM plain").equals(rows)
