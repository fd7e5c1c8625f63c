"""Branches take the right rows to the right table, and sums do not depend on how a batch was cut."""

from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.flow.branches import Rows, Sums, count_fates

MONEY = pa.decimal128(18, 2)
SCHEMA = pa.schema([("store", pa.int32()), ("amount", pa.decimal128(12, 2)), ("_reject", pa.string())])
TOTALS = pa.schema([("store", pa.int32()), ("sales", pa.int64()), ("amount", MONEY)])
PER_STORE = Sums("per_store", TOTALS, keys=("store",), sums={"sales": None, "amount": "amount"})

rows = st.lists(
    st.tuples(
        st.integers(1, 4),
        st.decimals(min_value=-999, max_value=999, places=2),
        st.sampled_from([None, None, "bad", "worse"]),
    ),
    max_size=30,
)


def batch_of(found: list[tuple[int, Decimal, str | None]]) -> pa.RecordBatch:
    columns = list(zip(*found, strict=True)) or [(), (), ()]
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def test_rows_go_to_the_table_of_their_fate_under_its_names() -> None:
    batch = batch_of([(1, Decimal("1.50"), None), (2, Decimal("2.00"), "bad")])
    accepted = Rows("sales", pa.schema([("store", pa.int32())]))
    rejects = Rows(
        "rejects",
        pa.schema([("reason", pa.string()), ("store", pa.int64())]),
        which="rejected",
        rename={"reason": "_reject"},
    )
    assert accepted.of(batch).to_pydict() == {"store": [1]}
    assert rejects.of(batch).to_pydict() == {"reason": ["bad"], "store": [2]}


@given(rows)
def test_every_row_has_exactly_one_fate(found: list[tuple[int, Decimal, str | None]]) -> None:
    batch = batch_of(found)
    fates = count_fates(batch)
    assert sum(fates.values()) == batch.num_rows
    kept = [
        Rows("t", pa.schema([("store", pa.int32())]), which=w).of(batch).num_rows
        for w in ("accepted", "rejected")
    ]
    assert kept[0] == fates.get("accepted", 0)
    assert sum(kept) == batch.num_rows


@given(rows, st.integers(0, 30))
def test_sums_are_the_same_however_the_batch_is_cut(
    found: list[tuple[int, Decimal, str | None]], cut: int
) -> None:
    parts = [found[:cut], found[cut:]]
    pieces = pa.Table.from_batches([PER_STORE.of(batch_of(p)) for p in parts])
    together = pieces.group_by("store").aggregate([("sales", "sum"), ("amount", "sum")])
    expected: dict[int, tuple[int, Decimal]] = {}
    for store, amount, reason in found:
        if reason is None:
            count, total = expected.get(store, (0, Decimal("0.00")))
            expected[store] = (count + 1, total + amount)
    assert {r["store"]: (r["sales_sum"], r["amount_sum"]) for r in together.to_pylist()} == expected


def test_a_value_that_does_not_fit_the_table_is_an_error() -> None:
    narrow = Rows("t", pa.schema([("store", pa.int8())]), which="all")
    with pytest.raises(pa.ArrowInvalid, match="not in range"):
        narrow.of(batch_of([(3, Decimal(1), None), (300, Decimal(1), None)]))
