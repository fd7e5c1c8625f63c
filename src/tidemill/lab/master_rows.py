"""Master rows of the join benchmark, made by arithmetic: the same on every machine, no file needed."""

from collections.abc import Iterator

import duckdb
import pyarrow as pa

ROWS_AT_A_TIME = 500_000
MASTER_VERSION = 2
"""In the names of files made from these rows: data that an older generator left is not taken for ours."""

# Eight columns, two of them strings, 119 bytes a row. Products with primes scatter the values.
_MASTER_SQL = """
SELECT i AS key,
       'article number ' || lpad(((i * 48271) % 2147483647)::VARCHAR, 10, '0') || ' of the season' AS name,
       'supplier ' || lpad((i * 7919 % 20000)::VARCHAR, 5, '0') || ' and sons, limited' AS supplier,
       i * 104729 % 1000003 AS supplier_id,
       (i * 15485863 % 100000)::DOUBLE / 100 AS price,
       i * 32452843 % 5000000 AS stock,
       (i * 49979687 % 3000)::INTEGER AS shelf,
       DATE '2015-01-01' + (i * 67867967 % 4000)::INTEGER AS listed_on
FROM range($first, $last) r(i)
"""


def master_batches(rows: int) -> Iterator[pa.RecordBatch]:
    """Rows 0 … `rows` - 1 in key order, half a million at a time."""
    with duckdb.connect() as generator:
        for first in range(0, rows, ROWS_AT_A_TIME):
            span = {"first": first, "last": min(first + ROWS_AT_A_TIME, rows)}
            table: pa.Table = generator.sql(_MASTER_SQL, params=span).to_arrow_table()
            yield from table.combine_chunks().to_batches()


def master_reader(rows: int) -> pa.RecordBatchReader:
    """The same as one reader, for builders that want the schema first."""
    schema = next(master_batches(1)).schema
    return pa.RecordBatchReader.from_batches(schema, master_batches(rows))


__all__ = ["MASTER_VERSION", "master_batches", "master_reader"]
