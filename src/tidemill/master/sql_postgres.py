"""A table in PostgreSQL, read as Arrow over COPY (ADBC), in one REPEATABLE READ transaction."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

import pyarrow as pa

from tidemill.master.sql_engine import (
    Column,
    Engine,
    SqlType,
    no_driver,
    quoted,
    quoted_table,
    refused,
    unavailable,
)

_LENGTH = "octet_length({})"
_TEXT_LENGTH = "octet_length({}::text)"
# The driver lets infinity and years that int64 microseconds cannot hold wrap around in silence.
_INFINITE = "NOT isfinite({0}) OR {0} > '200000-01-01'"


def _same(arrow: pa.DataType, **facts: Any) -> SqlType:
    return SqlType(arrow, arrow, **facts)


TYPES: dict[str, SqlType] = {
    "int2": _same(pa.int16()),
    "int4": _same(pa.int32()),
    "int8": _same(pa.int64()),
    "float4": _same(pa.float32(), is_key=False),
    "float8": _same(pa.float64(), is_key=False),
    "bool": _same(pa.bool_(), is_key=False),
    "text": _same(pa.string(), open_bytes=_LENGTH),
    "varchar": _same(pa.string(), open_bytes=_LENGTH),
    "bpchar": _same(pa.string(), open_bytes=_LENGTH, bound_as="CAST({} AS bpchar)"),
    "json": _same(pa.string(), open_bytes=_TEXT_LENGTH, is_key=False),
    "jsonb": _same(pa.string(), open_bytes=_TEXT_LENGTH, is_key=False),
    "bytea": _same(pa.binary(), open_bytes=_LENGTH),
    "uuid": _same(pa.binary(16), bound_as="CAST(encode({}, 'hex') AS uuid)"),
    "date": _same(pa.date32(), refused_where=_INFINITE),
    "timestamp": _same(pa.timestamp("us"), refused_where=_INFINITE),
    "timestamptz": _same(pa.timestamp("us", tz="UTC"), refused_where=_INFINITE),
    "time": _same(pa.time64("us"), refused_where="{} = '24:00'", is_key=False),
}
_MOST_DIGITS = 76
_PASSING_REFUSALS = ("starting up", "shutting down", "recovery mode", "too many clients", "connection slots")
# Class 08: connection; 57P: shutdown and termination; 40: serialization; 53: resources; 55P03: lock.
_PASSING_STATES = ("08", "57P", "40", "53", "55P03", "25P03")

_COLUMNS = """
SELECT a.attname::text AS name, y.typname::text AS kind, a.atttypmod::bigint AS modifier,
       NOT a.attnotnull AS nullable, coalesce(c.collisdeterministic, true) AS tells_apart
FROM pg_attribute a JOIN pg_type y ON y.oid = a.atttypid LEFT JOIN pg_collation c ON c.oid = a.attcollation
WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""
_INDEXES = """
SELECT array(SELECT a.attname::text FROM unnest(i.indkey) WITH ORDINALITY AS k(number, place)
             JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number ORDER BY k.place) AS columns
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam
WHERE i.indrelid = to_regclass($1) AND m.amname = 'btree' AND i.indisvalid
  AND i.indpred IS NULL AND i.indexprs IS NULL"""
_TABLES = """
SELECT CASE WHEN n.nspname = 'public' THEN '' ELSE n.nspname || '.' END || c.relname AS name
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND n.nspname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1"""


class PostgresEngine(Engine):
    name: ClassVar[str] = "PostgreSQL"

    def __init__(self, uri: str) -> None:
        try:
            from adbc_driver_postgresql import dbapi  # type: ignore[import-untyped]
        except ImportError as error:
            raise no_driver(self.name, "postgres", error) from error
        with _errors():
            self._connection: Any = dbapi.connect(uri)
            # The driver begins a transaction with its first statement; dates and bytes as texts go into the digest.
            self._execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            for setting in ("timezone TO 'UTC'", "datestyle TO 'ISO'", "bytea_output TO 'hex'"):
                self._execute(f"SET LOCAL {setting}")

    def tables(self) -> list[str]:
        return [row["name"] for row in self._query(_TABLES).to_pylist()]

    def columns(self, table: str) -> list[Column]:
        found = self._query(_COLUMNS, _parameter(quoted_table(table))).to_pylist()
        return [_column(**row) for row in found]

    def indexes(self, table: str) -> list[list[str]]:
        return [row["columns"] for row in self._query(_INDEXES, _parameter(quoted_table(table))).to_pylist()]

    def digest_of(self, columns: Sequence[Column]) -> tuple[str, pa.DataType]:
        values = ", ".join(column.sql("{}") for column in columns)
        return f"hashtextextended(CAST(ROW({values}) AS text), 0)", pa.int64()

    def stream(self, sql: str, wire: pa.Schema) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        with _errors(), self._connection.cursor() as cursor:
            cursor.execute(sql)
            yield from cursor.fetch_record_batch()

    def ranges(self, sql: str, bounds: pa.RecordBatch, wire: pa.Schema) -> pa.Table:  # noqa: ARG002
        return self._query(sql, bounds)

    def among(self, sql: str, asked: pa.RecordBatch, wire: pa.Schema) -> pa.Table:  # noqa: ARG002
        lists = [
            pa.ListArray.from_arrays(pa.array([0, len(column)], pa.int32()), column)
            for column in asked.columns
        ]
        names = ", ".join(quoted(name) for name in asked.schema.names)
        parameters = ", ".join(f"${number}" for number in range(1, len(lists) + 1))
        relation = f"unnest({parameters}) AS asked({names})"
        return self._query(
            sql.replace("{asked}", relation), pa.RecordBatch.from_arrays(lists, asked.schema.names)
        )

    def close(self) -> None:
        with suppress(Exception):  # a lost connection cannot be closed in order, and need not be
            self._connection.close()

    def _query(self, sql: str, parameters: pa.RecordBatch | None = None) -> pa.Table:
        with _errors(), self._connection.cursor() as cursor:
            cursor.execute(sql, parameters)
            table: pa.Table = cursor.fetch_arrow_table()
            return table

    def _execute(self, sql: str) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(sql)


def _parameter(value: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([value])], ["value"])


def _column(name: str, kind: str, modifier: int, nullable: bool, tells_apart: bool) -> Column:
    form = _decimal(modifier) if kind == "numeric" else TYPES.get(kind)
    if form is not None and not tells_apart:  # different texts may be equal under such a collation
        form = SqlType(form.arrow, form.wire, open_bytes=form.open_bytes, is_key=False)
    return Column(name, kind, nullable, form)


def _decimal(modifier: int) -> SqlType | None:
    """None for numbers without a declared precision, which no Arrow decimal holds."""
    precision, scale = (modifier - 4) >> 16, (modifier - 4) & 0x7FF
    if modifier < 0 or not 0 <= scale <= precision <= _MOST_DIGITS:
        return None
    kind = pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)
    return SqlType(kind, pa.string(), refused_where="{} = 'NaN'")


@contextmanager
def _errors() -> Iterator[None]:
    from adbc_driver_manager import AdbcStatusCode, Error

    try:
        yield
    except Error as error:
        if _may_pass(error, AdbcStatusCode.IO):
            raise unavailable("PostgreSQL", error) from error
        raise refused(
            "PostgreSQL", error, "check the connection string and the rights of its user"
        ) from error
    except OSError as error:  # streams report a lost connection so
        raise unavailable("PostgreSQL", error) from error


def _may_pass(error: Any, io_status: Any) -> bool:
    if error.sqlstate:
        return bool(error.sqlstate.startswith(_PASSING_STATES))
    text = str(error)
    # A server that answers the start of a connection with FATAL has judged it: no such user, no such database.
    judged = "FATAL" in text and "Failed to connect" in text
    return error.status_code == io_status and (not judged or any(why in text for why in _PASSING_REFUSALS))


__all__ = ["TYPES", "PostgresEngine"]
