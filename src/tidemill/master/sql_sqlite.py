"""A table in a SQLite file, read in one read transaction; the file must be in WAL mode, else writers would wait."""

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from tidemill.core.errors import SpecError
from tidemill.master.sql_engine import Column, Engine, SqlType, quoted, quoted_table, refused, unavailable

_BYTES = "length(CAST({} AS BLOB))"
_MOST_DIGITS = 15  # SQLite keeps decimals as floats of 64 bits, which hold 15 digits
_MOST_PARAMETERS = 32_000  # of a statement: 32,766
_ROWS_AT_A_TIME = 10_000
_PASSING = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL")


def _checked(arrow: pa.DataType, wire: pa.DataType, stored: str, **facts: Any) -> SqlType:
    """A column may hold values of any type: those of another one are refused, never converted on a guess."""
    also = f" OR {facts.pop('or_where')}" if "or_where" in facts else ""
    return SqlType(arrow, wire, refused_where=f"typeof({{0}}) NOT IN ({stored}, 'null'){also}", **facts)


_INTEGER = _checked(pa.int64(), pa.int64(), "'integer'")
_REAL = _checked(pa.float64(), pa.float64(), "'real'", is_key=False)
_TEXT = _checked(pa.string(), pa.string(), "'text'", open_bytes=_BYTES, compared_as="{} COLLATE BINARY")
_BLOB = _checked(pa.binary(), pa.binary(), "'blob'", open_bytes=_BYTES)
_BOOLEAN = _checked(pa.bool_(), pa.int64(), "'integer'", or_where="{0} NOT IN (0, 1)", is_key=False)
# With a modifier a date is computed anew: without, the 29th of February 2023 passes.
_NO_DATE = "date({0}, '+0 days') IS NOT "
_DATE = _checked(pa.date32(), pa.string(), "'text'", or_where=f"{_NO_DATE} {{0}}", is_key=False)
_TIMESTAMP = _checked(
    pa.timestamp("us"),
    pa.string(),
    "'text'",
    # After the seconds a fraction of six digits, and no zone.
    or_where=f"{_NO_DATE} substr({{0}}, 1, 10) OR length({{0}}) > 26 OR substr({{0}}, 20) GLOB '*[^.0-9]*'",
    is_key=False,
)
TYPES: dict[str, SqlType] = {
    **dict.fromkeys(("INTEGER", "INT", "BIGINT", "SMALLINT", "TINYINT", "MEDIUMINT"), _INTEGER),
    **dict.fromkeys(("REAL", "DOUBLE", "DOUBLE PRECISION", "FLOAT"), _REAL),
    **dict.fromkeys(("TEXT", "VARCHAR", "NVARCHAR", "CHAR", "CHARACTER", "NCHAR", "CLOB"), _TEXT),
    "BLOB": _BLOB,
    **dict.fromkeys(("BOOLEAN", "BOOL"), _BOOLEAN),
    "DATE": _DATE,
    **dict.fromkeys(("TIMESTAMP", "DATETIME"), _TIMESTAMP),
}


class SqliteEngine(Engine):
    name: ClassVar[str] = "SQLite"
    placeholder: ClassVar[str] = "?{}"

    def __init__(self, file: Path) -> None:
        with _errors():
            # A join may be driven by another thread than the one that opened the table, never by two at a time.
            self._connection = sqlite3.connect(
                f"{file.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None, check_same_thread=False
            )
            self._connection.execute("BEGIN")
            self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # the snapshot is now
            (mode,) = self._connection.execute("PRAGMA journal_mode").fetchone()
        if mode != "wal":
            self.close()
            raise SpecError(
                f"{file} is in journal mode {mode!r}, in which an open snapshot keeps every writer waiting",
                code="no_wal",
                next_move="run PRAGMA journal_mode = WAL on it once",
                file=str(file),
            )

    def tables(self) -> list[str]:
        return [
            row[0] for row in self._rows("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1")
        ]

    def columns(self, table: str) -> list[Column]:
        found = self._rows(f"PRAGMA table_info({quoted_table(table)})")
        return [Column(name, kind, not required, _form(kind)) for _, name, kind, required, _, _ in found]

    def indexes(self, table: str) -> list[list[str]]:
        facts = self._rows(f"PRAGMA table_info({quoted_table(table)})")
        row_number = [
            [name] for _, name, kind, _, _, place in facts if place == 1 and kind.upper() == "INTEGER"
        ]
        is_single = sum(1 for fact in facts if fact[5]) == 1
        return (row_number if is_single else []) + [
            columns
            for _, index, _, _, is_partial in self._rows(f"PRAGMA index_list({quoted_table(table)})")
            if not is_partial and (columns := self._index_columns(index))
        ]

    def _index_columns(self, index: str) -> list[str]:
        """The leading columns that are in the order of their bytes."""
        columns = []
        for _, _, name, _, collation, is_key in self._rows(f"PRAGMA index_xinfo({quoted(index)})"):
            if not is_key or name is None or collation != "BINARY":
                break
            columns.append(name)
        return columns

    def digest_of(self, columns: Sequence[Column]) -> tuple[str, pa.DataType]:
        return " || ',' || ".join(column.sql("quote({})") for column in columns), pa.string()

    def stream(self, sql: str, wire: pa.Schema) -> Iterator[pa.RecordBatch]:
        with _errors():
            cursor = self._connection.execute(sql)
            rows = cursor.fetchmany(_ROWS_AT_A_TIME)
            yield _batch(rows, wire)
            while rows := cursor.fetchmany(_ROWS_AT_A_TIME):
                yield _batch(rows, wire)

    def ranges(self, sql: str, bounds: pa.RecordBatch, wire: pa.Schema) -> pa.Table:
        columns = (column.to_pylist() for column in bounds.columns)
        found = [_batch(self._rows(sql, bound), wire) for bound in zip(*columns, strict=True)]
        return pa.Table.from_batches(found, wire)

    def among(self, sql: str, asked: pa.RecordBatch, wire: pa.Schema) -> pa.Table:
        most_rows = _MOST_PARAMETERS // asked.num_columns
        names = ", ".join(quoted(name) for name in asked.schema.names)
        one_row = "(" + ", ".join("?" * asked.num_columns) + ")"
        found = []
        for begin in range(0, asked.num_rows, most_rows):
            part = asked.slice(begin, most_rows)
            values: list[Any] = [None] * (part.num_rows * part.num_columns)
            for number, column in enumerate(part.columns):
                values[number :: part.num_columns] = column.to_pylist()
            relation = f"(WITH a({names}) AS (VALUES {', '.join([one_row] * part.num_rows)}) SELECT * FROM a) AS asked"  # noqa: S608 (quoted)
            found.append(_batch(self._rows(sql.replace("{asked}", relation), values), wire))
        return pa.Table.from_batches(found, wire)

    def close(self) -> None:
        self._connection.close()

    def _rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with _errors():
            return self._connection.execute(sql, parameters).fetchall()


def _form(declared: str) -> SqlType | None:
    match = re.fullmatch(r"([A-Z ]+?)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?", declared.upper())
    if match is None:
        return None
    if match[1] in ("DECIMAL", "NUMERIC") and match[2]:
        return _decimal(int(match[2]), int(match[3] or 0))
    return TYPES.get(match[1])


def _decimal(precision: int, scale: int) -> SqlType | None:
    if not scale <= precision <= _MOST_DIGITS or precision == 0:
        return None
    inexact = f"{{0}} <> round({{0}}, {scale}) OR abs({{0}}) >= 1e{precision - scale}"
    kind = pa.decimal128(precision, scale)
    return _checked(kind, pa.float64(), "'integer', 'real'", or_where=inexact, is_key=False)


def _batch(rows: list[tuple[Any, ...]], wire: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else ([] for _ in wire)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, wire, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=wire)


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorname", "").startswith(_PASSING):
            raise unavailable("SQLite", error) from error
        raise refused(
            "SQLite", error, "check the file and the rights on it, or restore it from a copy"
        ) from error


__all__ = ["TYPES", "SqliteEngine"]
