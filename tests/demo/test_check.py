"""The demo's judge finds a single lost, doubled or altered row, and is silent when all is right."""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from tidemill.demo.check import check, read_batches
from tidemill.demo.places import Places
from tidemill.demo.products import product_table
from tidemill.demo.shop import SALES, Till, sell

LOADED = """
CREATE TABLE sales AS
SELECT s.id, s.product_id, s.store_id::INTEGER AS store_id, s.quantity::INTEGER AS quantity,
       make_timestamp(s.sold_at) AT TIME ZONE 'UTC' AS sold_at, p.name, p.supplier_id, p.supplier, p.category,
       p.unit_price, (s.quantity * p.unit_price)::DECIMAL(18, 2) AS total,
       make_timestamp(s.sold_at) AT TIME ZONE 'UTC' AS committed_at, s.id - 1 AS log_entry
FROM shop s JOIN products p USING (product_id) WHERE s.quantity > 0;
CREATE TABLE sales_rejects AS
SELECT s.id, s.product_id, s.store_id::INTEGER AS store_id, s.quantity::INTEGER AS quantity,
       make_timestamp(s.sold_at) AT TIME ZONE 'UTC' AS sold_at,
       CASE WHEN s.product_id IS NULL THEN 'product_id is NULL' WHEN s.quantity = 0 THEN 'quantity is not positive'
            ELSE 'unmatched: no such product' END AS reason,
       make_timestamp(s.sold_at) AT TIME ZONE 'UTC' AS committed_at, s.id - 1 AS log_entry
FROM shop s WHERE id NOT IN (SELECT id FROM sales);
CREATE TABLE supplier_totals AS
SELECT supplier_id, count(*) AS sales, sum(quantity)::BIGINT AS pieces, sum(total)::DECIMAL(18, 2) AS total
FROM sales GROUP BY supplier_id;
"""
Tamper = Callable[[str], None]


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """A shop and a warehouse that agree, made without the pipeline."""
    places = Places(tmp_path)
    shop = sqlite3.connect(places.database)
    shop.execute(SALES)
    till = Till(1_000_000, seed=4)
    for _ in range(200):
        sell(shop, till.next(3))
    rows = shop.execute("SELECT * FROM sales").fetchall()
    shop.close()
    with duckdb.connect(str(places.warehouse)) as warehouse:
        warehouse.register("products", product_table())
        warehouse.execute(
            "CREATE TEMP TABLE shop (id BIGINT, product_id BIGINT, store_id BIGINT, quantity BIGINT, sold_at BIGINT)"
        )
        warehouse.executemany("INSERT INTO shop VALUES (?, ?, ?, ?, ?)", rows)
        warehouse.execute(LOADED)
    visible_at_ns = (rows[-1][4] + 250_000) * 1000
    places.batches.write_text(
        json.dumps({"batch_id": 0, "end_entry": 600, "visible_at_ns": visible_at_ns}) + "\n{torn"
    )
    return places


def tamper(places: Places, statement: str) -> None:
    with duckdb.connect(str(places.warehouse)) as warehouse:
        warehouse.execute(statement)


def test_a_right_warehouse_holds_and_every_row_has_one_fate(places: Places) -> None:
    verdict = check(places, warm_up_rows=0)
    assert verdict.holds
    assert verdict.rows_in == 600 == verdict.rows_out + verdict.rejected + verdict.unmatched
    assert verdict.rejected > 0
    assert sum(verdict.rejected_by_reason.values()) == verdict.rejected
    assert verdict.freshness_p50_ms is not None
    assert verdict.freshness_p99_ms is not None
    assert 250 <= verdict.freshness_p50_ms <= verdict.freshness_p99_ms


@pytest.mark.parametrize(
    ("statement", "lost", "doubled", "altered"),
    [
        ("DELETE FROM sales WHERE id = (SELECT max(id) FROM sales)", 1, 0, 0),
        ("INSERT INTO sales FROM sales WHERE id = (SELECT max(id) FROM sales)", 0, 1, 0),
        ("UPDATE sales SET unit_price = unit_price + 0.01 WHERE id = (SELECT max(id) FROM sales)", 0, 0, 1),
        ("UPDATE sales SET name = NULL WHERE id = (SELECT max(id) FROM sales)", 0, 0, 1),
        ("UPDATE sales_rejects SET reason = 'other' WHERE id = (SELECT max(id) FROM sales_rejects)", 0, 0, 1),
        ("UPDATE supplier_totals SET total = total + 1 WHERE supplier_id = (SELECT min(supplier_id) FROM sales)", 0, 0, 2),
    ],
)  # fmt: skip
def test_one_wrong_row_is_found(
    places: Places, statement: str, lost: int, doubled: int, altered: int
) -> None:
    tamper(places, statement)
    verdict = check(places, warm_up_rows=0)
    assert (verdict.lost, verdict.doubled, verdict.altered) == (lost, doubled, altered)
    assert not verdict.holds


def test_a_repeated_report_does_not_make_rows_look_fresher_or_staler(tmp_path: Path) -> None:
    lines = [{"end_entry": 5, "visible_at_ns": 1}, {"end_entry": 5, "visible_at_ns": 9}]
    (tmp_path / "b").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [b["visible_at_ns"] for b in read_batches(tmp_path / "b")] == [1]
