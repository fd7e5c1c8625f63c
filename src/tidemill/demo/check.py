"""Source against warehouse: every row once, every column right. The demo's judge shares no code with its flow."""

import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from tidemill.demo.places import Places
from tidemill.demo.products import product_table

UNMATCHED_PREFIX = "unmatched"

EXPECTED = """
CREATE TEMP TABLE expected AS
SELECT s.id, s.product_id, s.store_id, s.quantity, s.sold_at,
       p.name, p.supplier_id, p.supplier, p.category, p.unit_price,
       (s.quantity * p.unit_price)::DECIMAL(18, 2) AS total,
       CASE WHEN s.product_id IS NULL THEN 'product_id is NULL'
            WHEN s.quantity <= 0 THEN 'quantity is not positive'
            WHEN p.product_id IS NULL THEN 'unmatched: no such product' END AS reason
FROM source s LEFT JOIN products p ON s.product_id = p.product_id
"""
EXPECTED_ROWS = """
CREATE TEMP TABLE expected_rows AS
SELECT id, product_id, store_id, quantity, sold_at,
       CASE WHEN reason IS NULL THEN name END AS name,
       CASE WHEN reason IS NULL THEN supplier_id END AS supplier_id,
       CASE WHEN reason IS NULL THEN supplier END AS supplier,
       CASE WHEN reason IS NULL THEN category END AS category,
       CASE WHEN reason IS NULL THEN unit_price END AS unit_price,
       CASE WHEN reason IS NULL THEN total END AS total, reason
FROM expected
"""
LOADED_ROWS = """
CREATE TEMP TABLE loaded_rows AS
SELECT id, product_id, store_id, quantity, sold_at, name, supplier_id, supplier, category, unit_price, total,
       NULL::VARCHAR AS reason
FROM warehouse.sales
UNION ALL BY NAME
SELECT id, product_id, store_id, quantity, sold_at, reason FROM warehouse.sales_rejects
"""
EXPECTED_TOTALS = """
SELECT supplier_id, count(*) AS sales, sum(quantity)::BIGINT AS pieces, sum(total)::DECIMAL(18, 2) AS total
FROM expected WHERE reason IS NULL GROUP BY supplier_id
"""
FRESHNESS = """
WITH seen AS (
  SELECT (b.visible_at_us - epoch_us(s.committed_at)) / 1000.0 AS ms
  FROM (SELECT committed_at, log_entry FROM warehouse.sales WHERE id > $after
        UNION ALL SELECT committed_at, log_entry FROM warehouse.sales_rejects WHERE id > $after) s
  ASOF JOIN batches b ON s.log_entry < b.end_entry
  WHERE s.committed_at IS NOT NULL
)
SELECT quantile_cont(ms, 0.5), quantile_cont(ms, 0.99), count(*) FROM seen
"""


@dataclass(frozen=True)
class Verdict:
    """Three numbers that must be zero, and what else the comparison saw."""

    rows_in: int
    rows_out: int
    rejected: int
    rejected_by_reason: dict[str, int]
    unmatched: int
    lost: int
    doubled: int
    altered: int
    checksum_source: str
    checksum_warehouse: str
    freshness_p50_ms: float | None
    freshness_p99_ms: float | None

    @property
    def holds(self) -> bool:
        return (
            self.lost == self.doubled == self.altered == 0 and self.checksum_source == self.checksum_warehouse
        )


def check(places: Places, warm_up_rows: int) -> Verdict:
    """Compare by event id and by an order-free checksum over all columns.

    The expected rows come from the shop's database and the product list by DuckDB's own join.
    `warm_up_rows` first sales do not count for freshness.
    """
    judge = duckdb.connect()
    judge.execute(f"ATTACH '{_quoted(places.warehouse)}' AS warehouse (READ_ONLY)")
    judge.register("source", _shop_sales(places.database))
    judge.register("products", product_table())
    judge.register("batches", _batches(places.batches))
    for statement in (EXPECTED, EXPECTED_ROWS, LOADED_ROWS):
        judge.execute(statement)
    reasons = dict(
        _all(judge, "SELECT reason, count(*) FROM loaded_rows WHERE reason NOT NULL GROUP BY 1 ORDER BY 1")
    )
    unmatched = sum(n for reason, n in reasons.items() if reason.startswith(UNMATCHED_PREFIX))
    p50, p99, _ = _all(judge, FRESHNESS, {"after": warm_up_rows})[0]
    return Verdict(
        rows_in=_one(judge, "SELECT count(*) FROM source"),
        rows_out=_one(judge, "SELECT count(*) FROM warehouse.sales"),
        rejected=sum(reasons.values()) - unmatched,
        rejected_by_reason={r: n for r, n in reasons.items() if not r.startswith(UNMATCHED_PREFIX)},
        unmatched=unmatched,
        lost=_one(judge, "SELECT count(*) FROM source WHERE id NOT IN (SELECT id FROM loaded_rows)"),
        doubled=_one(judge, "SELECT count(*) - count(DISTINCT id) FROM loaded_rows"),
        altered=_altered(judge),
        checksum_source=_checksum(judge, "expected_rows"),
        checksum_warehouse=_checksum(judge, "loaded_rows"),
        freshness_p50_ms=p50,
        freshness_p99_ms=p99,
    )


def _altered(judge: duckdb.DuckDBPyConnection) -> int:
    """Rows that are in the warehouse otherwise than the source says, and supplier sums that are off."""
    rows = _one(
        judge, "SELECT count(DISTINCT id) FROM (SELECT * FROM loaded_rows EXCEPT SELECT * FROM expected_rows)"
    )
    sums = _one(
        judge,
        f"SELECT count(*) FROM (({EXPECTED_TOTALS} EXCEPT FROM warehouse.supplier_totals) "  # noqa: S608 - ours
        f"UNION ALL (FROM warehouse.supplier_totals EXCEPT {EXPECTED_TOTALS}))",
    )
    return rows + sums


def _checksum(judge: duckdb.DuckDBPyConnection, table: str) -> str:
    """Sum of row hashes: equal for equal multisets of rows in any order."""
    total = _one(judge, f"SELECT coalesce(sum(hash({table})::HUGEINT), 0) FROM {table}")  # noqa: S608 - our names
    return f"{total % 2**64:016x}"


def _shop_sales(database: Path) -> pa.Table:
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as shop:
        rows = shop.execute("SELECT id, product_id, store_id, quantity, sold_at FROM sales").fetchall()
    columns = list(zip(*rows, strict=True)) or [()] * 5
    types = [pa.int64(), pa.int64(), pa.int32(), pa.int32(), pa.timestamp("us", tz="UTC")]
    names = ["id", "product_id", "store_id", "quantity", "sold_at"]
    return pa.Table.from_arrays([pa.array(c, t) for c, t in zip(columns, types, strict=True)], names=names)


def _batches(path: Path) -> pa.Table:
    reports = read_batches(path)
    return pa.table(
        {
            "end_entry": pa.array([r["end_entry"] for r in reports], pa.int64()),
            "visible_at_us": pa.array([r["visible_at_ns"] // 1000 for r in reports], pa.int64()),
        }
    )


def read_batches(path: Path) -> list[dict[str, Any]]:
    """Reports of all delivered batches; the last line may be torn by a kill and is then no report yet."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    reports: dict[int, dict[str, Any]] = {}
    for report in (json.loads(line) for line in lines if line.endswith(b"}")):
        if "end_entry" in report:  # the others tell what the join did
            # A repeat after a restart comes later than the rows did.
            reports.setdefault(report["end_entry"], report)
    return list(reports.values())


def _all(judge: duckdb.DuckDBPyConnection, query: str, values: dict[str, Any] | None = None) -> list[Any]:
    return judge.execute(query, values).fetchall() if values else judge.execute(query).fetchall()


def _one(judge: duckdb.DuckDBPyConnection, query: str) -> int:
    return int(_all(judge, query)[0][0])


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")


__all__ = ["Verdict", "check", "read_batches"]
