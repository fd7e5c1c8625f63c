"""A million products of two thousand suppliers: the master data of the shop."""

from pathlib import Path

import duckdb
import pyarrow as pa

from tidemill.master import MasterData

PRODUCTS = 1_000_000

# Arithmetic with primes instead of random numbers: the same products everywhere, about 95 bytes each.
_PRODUCTS_SQL = """
WITH words AS (SELECT ['amber', 'birch', 'copper', 'dune', 'ember', 'fjord', 'granite', 'harbour'] AS w),
     categories AS (SELECT ['Bakery', 'Beverages', 'Books', 'Dairy', 'Garden', 'Household', 'Toys'] AS c)
SELECT i AS product_id,
       w[1 + i * 31 % 8] || ' ' || w[1 + i * 53 // 8 % 8] || ' ' || i AS name,
       (1 + i * 7919 % 2000)::INTEGER AS supplier_id,
       'Supplier no. ' || (1 + i * 7919 % 2000) AS supplier,
       c[1 + i * 17 % 7] AS category,
       ((49 + i * 48611 % 49950)::DECIMAL(12, 0) * 0.01::DECIMAL(3, 2))::DECIMAL(10, 2) AS unit_price,
       (5 + i * 104729 % 20000)::INTEGER AS weight_g,
       DATE '2020-01-01' + (i * 7877 % 2000)::INTEGER AS listed_on
FROM range($count) r(i), words, categories
"""


def product_table(count: int = PRODUCTS) -> pa.Table:
    """Products with a key of their own, a name, a supplier, a category and a price."""
    with duckdb.connect(config={"threads": 2}) as generator:
        table: pa.Table = generator.sql(_PRODUCTS_SQL, params={"count": count}).to_arrow_table()
        return table


def build_products(path: Path) -> MasterData:
    """The master store, built unless it is there already."""
    if (path / "CURRENT").exists():
        return MasterData.open(path)
    return MasterData.build(product_table(), key="product_id", path=path)


__all__ = ["PRODUCTS", "build_products", "product_table"]
