"""A table in a DuckDB file, read as Arrow in one transaction."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from tidemill.master.sql_engine import Column, Engine, SqlType, no_driver, refused, unavailable

if TYPE_CHECKING:
    import duckdb

# Pages of the file that the database itself keeps, beside what a join holds; its own default is most of the machine.
_MOST_MEMORY = "256MB"
_BYTES = "strlen({})"
_INFINITE = "NOT isfinite({})"


def _same(arrow: pa.DataType, **facts: Any) -> SqlType:
    return SqlType(arrow, arrow, **facts)


TYPES: dict[str, SqlType] = {
    "TINYINT": _same(pa.int8()),
    "SMALLINT": _same(pa.int16()),
    "INTEGER": _same(pa.int32()),
    "BIGINT": _same(pa.int64()),
    "UTINYINT": _same(pa.uint8()),
    "USMALLINT": _same(pa.uint16()),
    "UINTEGER": _same(pa.uint32()),
    "UBIGINT": _same(pa.uint64(), is_key=False),  # a key is an int64
    "FLOAT": _same(pa.float32(), is_key=False),
    "DOUBLE": _same(pa.float64(), is_key=False),
    "BOOLEAN": _same(pa.bool_(), is_key=False),
    "VARCHAR": _same(pa.string(), open_bytes=_BYTES),
    "JSON": _same(pa.string(), open_bytes=_BYTES, is_key=False),
    "ENUM": _same(
        pa.string(), read_as="CAST({} AS VARCHAR)", open_bytes="strlen(CAST({} AS VARCHAR))", is_key=False
    ),
    "BLOB": _same(pa.binary(), open_bytes="octet_length({})"),
    "UUID": SqlType(
        pa.binary(16),
        pa.binary(),
        read_as="from_hex(replace(CAST({} AS VARCHAR), '-', ''))",
        bound_as="CAST(hex({}) AS UUID)",
    ),
    "DATE": _same(pa.date32(), refused_where=_INFINITE),
    "TIMESTAMP": _same(pa.timestamp("us"), refused_where=_INFINITE),
    "TIMESTAMP WITH TIME ZONE": _same(pa.timestamp("us", tz="UTC"), refused_where=_INFINITE),
    "TIME": _same(pa.time64("us"), refused_where="{} = TIME '24:00:00'", is_key=False),
}
_COLUMNS = """
SELECT c.column_name, c.data_type, c.is_nullable, contains(upper(t.sql), ' COLLATE ')
FROM duckdb_columns() c JOIN duckdb_tables() t USING (database_name, schema_name, table_name)
WHERE c.database_name = current_database() AND c.schema_name = $1 AND c.table_name = $2 ORDER BY c.column_index"""
_INDEXES = """
SELECT expressions, NULL FROM duckdb_indexes()
WHERE database_name = current_database() AND schema_name = $1 AND table_name = $2
UNION ALL SELECT NULL, constraint_column_names FROM duckdb_constraints()
WHERE database_name = current_database() AND schema_name = $1 AND table_name = $2
  AND constraint_type IN ('PRIMARY KEY', 'UNIQUE')"""


class DuckdbEngine(Engine):
    name: ClassVar[str] = "DuckDB"
    # It makes BETWEEN of both comparisons, which it has not for rows (2.0).
    has_row_values: ClassVar[bool] = False
    # Where rows do not lie in key order a query passes over the table: 30 ms for 3 million rows, however few it wants.
    query_bytes: ClassVar[int] = 8 * 2**20

    def __init__(self, file: Path) -> None:
        try:
            with _errors():
                self._connection = _connected(file)
                self._connection.execute("BEGIN TRANSACTION")
                self._connection.execute("SELECT count(*) FROM duckdb_tables()").fetchall()
        except ImportError as error:
            raise no_driver(self.name, "load", error) from error

    def tables(self) -> list[str]:
        found = self._rows(
            "SELECT table_name FROM duckdb_tables() WHERE database_name = current_database() ORDER BY 1"
        )
        return [name for (name,) in found]

    def columns(self, table: str) -> list[Column]:
        return [
            Column(name, kind, nullable, _form(kind, has_collation=has_collation))
            for name, kind, nullable, has_collation in self._rows(_COLUMNS, _parts(table))
        ]

    def indexes(self, table: str) -> list[list[str]]:
        found = self._rows(_INDEXES, _parts(table))
        return [columns or _names(expressions) for expressions, columns in found]

    def digest_of(self, columns: Sequence[Column]) -> tuple[str, pa.DataType]:
        return f"hash({', '.join(column.sql('{}') for column in columns)})", pa.uint64()

    def stream(self, sql: str, wire: pa.Schema) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        with _errors():
            found: Any = self._connection.sql(sql)
            yield from found.to_arrow_reader()

    def ranges(self, sql: str, bounds: pa.RecordBatch, wire: pa.Schema) -> pa.Table:  # noqa: ARG002
        columns = (column.to_pylist() for column in bounds.columns)
        return pa.concat_tables(self._table(sql, bound) for bound in zip(*columns, strict=True))

    def among(self, sql: str, asked: pa.RecordBatch, wire: pa.Schema) -> pa.Table:  # noqa: ARG002
        with _errors():
            self._connection.register("_tidemill_asked", pa.Table.from_batches([asked]))
            try:
                return self._table(sql.replace("{asked}", "_tidemill_asked AS asked"))
            finally:
                self._connection.unregister("_tidemill_asked")

    def close(self) -> None:
        self._connection.close()

    def _table(self, sql: str, parameters: Sequence[Any] | None = None) -> pa.Table:
        with _errors():
            found: Any = self._connection.sql(sql, params=list(parameters) if parameters else None)
            table: pa.Table = found.to_arrow_table()
            return table

    def _rows(self, sql: str, parameters: Sequence[Any] | None = None) -> list[Any]:
        with _errors():
            return self._connection.execute(sql, parameters).fetchall()


def _connected(file: Path) -> "duckdb.DuckDBPyConnection":
    """A connection of our own, else one to the instance that this process has open already, as it was opened."""
    import duckdb

    own: dict[str, Any] = {"read_only": True, "config": {"memory_limit": _MOST_MEMORY}}
    for options in (own, {"read_only": True}):
        with suppress(duckdb.ConnectionException):  # open with other options
            return duckdb.connect(file, **options)
    return duckdb.connect(file)


def _parts(table: str) -> list[str]:
    return table.split(".", 1) if "." in table else ["main", table]


def _names(expressions: str) -> list[str]:
    """Columns of an index as DuckDB prints them; expressions stay texts that no column is called.

    >>> _names("[id, '(lower(city))']")
    ['id', '(lower(city))']
    """
    found = re.findall(r"'((?:[^']|'')*)'|([^\[\],\s]+)", expressions)
    names = [inside.replace("''", "'") or plain for inside, plain in found]
    return [name[1:-1].replace('""', '"') if name.startswith('"') else name for name in names]


def _form(kind: str, *, has_collation: bool) -> SqlType | None:
    if match := re.fullmatch(r"DECIMAL\((\d+),(\d+)\)", kind):
        return _same(pa.decimal128(int(match[1]), int(match[2])))
    form = TYPES.get("ENUM" if kind.startswith("ENUM(") else kind)
    if form is not None and has_collation and kind == "VARCHAR":  # different texts may be equal under it
        return _same(form.arrow, open_bytes=form.open_bytes, is_key=False)
    return form


@contextmanager
def _errors() -> Iterator[None]:
    import duckdb

    try:
        yield
    except duckdb.IOException as error:  # most often: another process holds the file
        raise unavailable("DuckDB", error) from error
    except duckdb.Error as error:
        raise refused("DuckDB", error, "check the file, or restore it from a copy") from error


__all__ = ["TYPES", "DuckdbEngine"]
