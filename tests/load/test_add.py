"""Cumulative tables: signed deltas add up, however batches cut them."""

from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.core.errors import LoadError
from tidemill.load.client import LoaderClient, OpenedPipeline, TableSpec
from tidemill.load.messages import OpenRequest
from tidemill.load.warehouses.duckdb import DuckdbWarehouse

from .harness import InThread

MONEY = pa.decimal128(18, 2)
TOTALS = TableSpec(
    "totals", pa.schema([("revenue", MONEY), ("city", pa.string()), ("n", pa.int32())]), "add", ("city",)
)


def deltas(*rows: tuple[str | None, str | None, int | None]) -> pa.Table:
    cities, amounts, counts = zip(*rows, strict=True)
    revenue = pa.array([None if a is None else Decimal(a) for a in amounts], MONEY)
    return pa.table([revenue, pa.array(cities), pa.array(counts, pa.int32())], schema=TOTALS.schema)


def commit(client: LoaderClient, opened: OpenedPipeline, batch_id: int, rows: pa.Table) -> None:
    ref = client.put_block(opened.ticket, batch_id, "totals", rows, partition=0, attempt=0, number=0)
    client.commit(opened.ticket, batch_id, start=batch_id, end=batch_id + 1, blocks=[ref])


def test_deltas_add_up_within_and_across_batches(loader: InThread) -> None:
    opened = loader.client.open("shop", "q1", [TOTALS])
    commit(loader.client, opened, 0, deltas(("Rome", "10.10", 1), ("Oslo", "5.00", 1), ("Rome", "0.05", 1)))
    commit(loader.client, opened, 1, deltas(("Rome", "-10.10", -1), ("Bern", None, 2), ("Oslo", None, None)))
    commit(loader.client, opened, 2, deltas(("Bern", "-3.33", 1)))
    found = loader.client.sql("SELECT city, revenue, n FROM totals ORDER BY city").to_pylist()
    assert [tuple(row.values()) for row in found] == [
        ("Bern", Decimal("-3.33"), 3),
        ("Oslo", Decimal("5.00"), 1),
        ("Rome", Decimal("0.05"), 1),
    ]


def test_a_null_key_is_refused_before_it_is_staged(loader: InThread) -> None:
    opened = loader.client.open("shop", "q1", [TOTALS])
    with pytest.raises(LoadError) as caught:
        commit(loader.client, opened, 0, deltas((None, "1.00", 1)))
    assert (caught.value.code, caught.value.status, caught.value.column) == ("null_key", 422, "city")
    assert loader.client.status("shop")["staged_blocks"] == 0


def test_a_sum_that_does_not_fit_refuses_the_batch_and_changes_nothing(loader: InThread) -> None:
    opened = loader.client.open("shop", "q1", [TOTALS])
    commit(loader.client, opened, 0, deltas(("Rome", "1.00", 2**31 - 1)))
    with pytest.raises(LoadError) as caught:
        commit(loader.client, opened, 1, deltas(("Oslo", "1.00", 1), ("Rome", "1.00", 1)))
    assert (caught.value.code, caught.value.retryable) == ("rows_refused", False)
    assert loader.client.sql("SELECT city FROM totals").to_pylist() == [{"city": "Rome"}]
    assert loader.client.status("shop")["position"] == 1


@pytest.mark.parametrize(
    ("schema", "mode", "keys", "part"),
    [
        ([("k", pa.int64()), ("v", pa.string())], "add", ("k",), "'v' of type string"),
        ([("k", pa.int64()), ("v", pa.int64())], "add", (), "keys"),
        ([("k", pa.int64()), ("v", pa.int64())], "add", ("x",), "keys"),
        ([("k", pa.int64())], "add", ("k",), "no column to add up"),
        ([("k", pa.int64())], "append", ("k",), "append mode"),
        ([("k", pa.int64())], "merge", (), "append, add"),
        ([("k", pa.int64()), ("K", pa.int64())], "append", (), "two columns"),
        ([("k", pa.list_(pa.int64()))], "append", (), "'k' of type list"),
        ([("k", pa.timestamp("ns"))], "append", (), "timestamp[us, tz=UTC]"),
    ],
)
def test_impossible_tables_are_refused_by_name(
    schema: list[tuple[str, pa.DataType]], mode: str, keys: tuple[str, ...], part: str
) -> None:
    with pytest.raises(LoadError) as caught:
        TableSpec("t", pa.schema(schema), mode, keys)  # type: ignore[arg-type]
    assert part in str(caught.value)
    assert caught.value.status == 422


@settings(max_examples=15, deadline=None)
@given(
    batches=st.lists(
        st.lists(st.tuples(st.sampled_from("abc"), st.integers(-(10**6), 10**6)), min_size=1, max_size=8),
        min_size=1,
        max_size=4,
    )
)
def test_any_cut_into_batches_gives_the_same_sums(
    batches: list[list[tuple[str, int]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    table = TableSpec("t", pa.schema([("k", pa.string()), ("v", pa.int64())]), "add", ("k",))
    warehouse = DuckdbWarehouse(tmp_path_factory.mktemp("add") / "w.duckdb")
    expected: dict[str, int] = {}
    with warehouse.transaction() as transaction:
        transaction.check_or_create(OpenRequest("p", "q", (table,)).tables[0])
        for rows in batches:
            for key, value in rows:
                expected[key] = expected.get(key, 0) + value
            transaction.add(table, pa.table([list(c) for c in zip(*rows, strict=True)], schema=table.schema))
    found = warehouse.read("SELECT k, v FROM t", max_rows=100, timeout_seconds=10).to_pylist()
    warehouse.close()
    assert {row["k"]: row["v"] for row in found} == expected
