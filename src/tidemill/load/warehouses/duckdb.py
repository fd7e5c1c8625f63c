"""DuckDB as the warehouse: one file, one process, shut off from everything outside."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from tidemill.core.errors import LoadError
from tidemill.core.units import format_bytes
from tidemill.load.names import quote_ident
from tidemill.load.tables import TableSpec
from tidemill.load.warehouses.duckdb_errors import (
    DEAD_HANDLE_ERRORS,
    bad_sql,
    cannot_open,
    translated_errors,
    warehouse_down,
)

_SQL_TYPES = {
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.uint8(): "UTINYINT",
    pa.uint16(): "USMALLINT",
    pa.uint32(): "UINTEGER",
    pa.uint64(): "UBIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
    pa.string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.date32(): "DATE",
    pa.timestamp("us"): "TIMESTAMP",
    pa.timestamp("us", tz="UTC"): "TIMESTAMP WITH TIME ZONE",
}
_MAX_RESULT_BYTES = 256 * 10**6


class DuckdbWarehouse:
    """The warehouse file, held by this process alone."""

    def __init__(self, path: Path, *, memory_limit_bytes: int = 10**9, threads: int = 2) -> None:
        self._path = path
        self._config: dict[str, Any] = {
            "memory_limit": f"{memory_limit_bytes}B",
            "threads": threads,
            # The commit that meets a checkpoint waits for it: 120-180 ms at 16 MB, 370-830 ms at 64 MB
            # (500 commits of 5,000 rows each). Rows should be visible within a second, so the small one.
            "wal_autocheckpoint": "16MB",
            "autoload_known_extensions": False,
            "autoinstall_known_extensions": False,
            "allow_persistent_secrets": False,
            "python_enable_replacements": False,
        }
        self._readers: set[duckdb.DuckDBPyConnection] = set()
        self._readers_changed = threading.Condition()
        self._connection: duckdb.DuckDBPyConnection | None = self._connect()

    @contextmanager
    def transaction(self) -> Iterator["DuckdbTransaction"]:
        connection = self._alive()
        with translated_errors():
            connection.execute("BEGIN TRANSACTION")
            try:
                yield DuckdbTransaction(connection)
                _commit(connection)
            except BaseException:
                with suppress(duckdb.Error):
                    connection.execute("ROLLBACK")
                raise

    def read(self, sql: str, *, max_rows: int, timeout_seconds: float) -> pa.Table:
        """Rows of one SELECT, EXPLAIN, DESCRIBE or SHOW.

        Three locks keep it from writing: the parsed statement's kind, a READ ONLY transaction (EXPLAIN ANALYZE
        and WITH can hide an INSERT), and the database's own settings for everything outside the file.
        """
        with self._reader() as cursor:
            watchdog = threading.Timer(timeout_seconds, cursor.interrupt)
            watchdog.start()
            try:
                return _read_rows(cursor, sql, max_rows)
            except duckdb.InterruptException as error:
                self._alive()  # interrupted by `close`, not by the watchdog, if this refuses
                raise bad_sql(f"stopped after {timeout_seconds:g} s", "ask for less") from error
            except DEAD_HANDLE_ERRORS as error:
                raise warehouse_down(error) from error
            except duckdb.Error as error:
                raise bad_sql(error, "correct the query") from error
            finally:
                watchdog.cancel()

    def reopen(self) -> None:
        self.close()
        self._connection = self._connect()

    def close(self) -> None:
        """Interrupt readers, wait for them and close: a cursor left open would keep a dead database alive."""
        with self._readers_changed:
            connection, self._connection = self._connection, None
            while self._readers:
                for cursor in self._readers:
                    cursor.interrupt()
                # Again and again, since an interrupt between two statements is lost.
                self._readers_changed.wait(0.1)
        if connection is not None:
            with suppress(duckdb.Error):
                connection.close()

    def _connect(self) -> duckdb.DuckDBPyConnection:
        try:
            connection = duckdb.connect(str(self._path), config=self._config)
            connection.execute("SET GLOBAL TimeZone = 'UTC'")
            connection.execute("SET enable_external_access = false")
            connection.execute("SET lock_configuration = true")
        except duckdb.Error as error:
            raise cannot_open(self._path, error) from error
        return connection

    @contextmanager
    def _reader(self) -> Iterator[duckdb.DuckDBPyConnection]:
        with self._readers_changed, translated_errors():
            cursor = self._alive().cursor()
            self._readers.add(cursor)
        try:
            yield cursor
        finally:
            with self._readers_changed:
                with suppress(duckdb.Error):
                    cursor.close()
                self._readers.discard(cursor)
                self._readers_changed.notify_all()

    def _alive(self) -> duckdb.DuckDBPyConnection:
        if self._connection is None:
            raise warehouse_down("it is being reopened")
        return self._connection


class DuckdbTransaction:
    """Statements of the one running transaction."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection

    def execute(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, list(values)).fetchall()

    def check_or_create(self, table: TableSpec) -> None:
        declared = [(field.name, sql_type(field.type)) for field in table.schema]
        present = self.execute(
            "SELECT column_name, data_type FROM information_schema.columns "
            "WHERE table_schema = 'main' AND lower(table_name) = lower($1) ORDER BY ordinal_position",
            [table.name],
        )
        if not present:
            columns = [f"{quote_ident(name)} {kind}" for name, kind in declared]
            if table.keys:
                columns.append(f"PRIMARY KEY ({_idents(table.keys)})")
            self.execute(f"CREATE TABLE {quote_ident(table.name)} ({', '.join(columns)})")
            return
        keys = self._keys_of(table.name)
        if present != declared or keys != sorted(table.keys):
            raise LoadError(
                f"table {table.name!r} has columns {present} and keys {keys}; declared are {declared} and "
                f"{sorted(table.keys)}",
                code="table_differs",
                next_move="declare what is there, or load into another table",
                status=409,
                table=table.name,
                present=present,
                declared=declared,
            )

    def append(self, table: TableSpec, rows: pa.Table) -> None:
        with self._registered(rows) as incoming:
            self.execute(f"INSERT INTO {quote_ident(table.name)} SELECT * FROM {incoming}")  # noqa: S608 (quoted)

    def add(self, table: TableSpec, rows: pa.Table) -> None:
        """One upsert for each group; NULL deltas count as nothing, as in SQL's sum."""
        name, keys = quote_ident(table.name), _idents(table.keys)
        sums = ", ".join(
            f"CAST(sum({quote_ident(column)}) AS {sql_type(table.schema.field(column).type)})"
            for column in table.value_columns
        )
        updates = ", ".join(
            f"{c} = coalesce({name}.{c} + excluded.{c}, {name}.{c}, excluded.{c})"
            for c in map(quote_ident, table.value_columns)
        )
        with self._registered(rows) as incoming:
            self.execute(
                f"INSERT INTO {name} ({keys}, {_idents(table.value_columns)}) "  # noqa: S608 (quoted)
                f"SELECT {keys}, {sums} FROM {incoming} GROUP BY {keys} "
                f"ON CONFLICT ({keys}) DO UPDATE SET {updates}"
            )

    def _keys_of(self, table: str) -> list[str]:
        found = self.execute(
            "SELECT constraint_column_names FROM duckdb_constraints() WHERE schema_name = 'main' "
            "AND lower(table_name) = lower($1) AND constraint_type = 'PRIMARY KEY'",
            [table],
        )
        return sorted(found[0][0]) if found else []

    @contextmanager
    def _registered(self, rows: pa.Table) -> Iterator[str]:
        name = "tidemill_incoming_rows"
        self._connection.register(name, rows)
        try:
            yield name
        finally:
            # A transaction that failed refuses even this; the next registration takes the name over.
            with suppress(duckdb.Error):
                self._connection.unregister(name)


def sql_type(kind: pa.DataType) -> str:
    """The column type that holds an Arrow type without change."""
    if isinstance(kind, pa.Decimal128Type):
        return f"DECIMAL({kind.precision},{kind.scale})"
    return _SQL_TYPES[kind]


def _idents(names: Sequence[str]) -> str:
    return ", ".join(map(quote_ident, names))


def _commit(connection: duckdb.DuckDBPyConnection) -> None:
    try:
        connection.execute("COMMIT")
    except (duckdb.DataError, duckdb.IntegrityError):
        raise
    except duckdb.Error as error:
        # A full disk shows as a plain TransactionException here, and what reached the log is unknown:
        # only a reopened database can tell.
        raise warehouse_down(error) from error


def _read_rows(cursor: duckdb.DuckDBPyConnection, sql: str, max_rows: int) -> pa.Table:
    statements = cursor.extract_statements(sql)
    readable = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)
    if len(statements) != 1 or statements[0].type not in readable:
        raise bad_sql("only one SELECT, EXPLAIN, DESCRIBE or SHOW is taken", "send one reading statement")
    cursor.execute("BEGIN TRANSACTION READ ONLY")
    reader = cursor.sql(sql).to_arrow_reader(10_000)
    batches: list[pa.RecordBatch] = []
    left_rows, size_bytes = max_rows, 0
    for batch in reader:
        batches.append(batch.slice(0, left_rows))
        left_rows -= batches[-1].num_rows
        size_bytes += batches[-1].nbytes
        if size_bytes > _MAX_RESULT_BYTES:
            raise bad_sql(f"the result is bigger than {format_bytes(_MAX_RESULT_BYTES)}", "ask for less")
        if left_rows <= 0:
            break
    return pa.Table.from_batches(batches, reader.schema)


__all__ = ["DuckdbTransaction", "DuckdbWarehouse", "sql_type"]
