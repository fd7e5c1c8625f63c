"""What a database must offer to hold master data, and what its columns are: the same few calls for each engine."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from tidemill.core.errors import SpecError, StoreError


@dataclass(frozen=True)
class SqlType:
    """How values of a database type become Arrow values, exactly. In SQL texts `{}` is the column."""

    arrow: pa.DataType
    wire: pa.DataType
    """What the engine's driver gives; cast to `arrow` without loss."""
    read_as: str = "{}"
    open_bytes: str | None = None
    """Bytes of a value of open length; None where all values are equally long."""
    refused_where: str | None = None
    """Values that have no exact Arrow form."""
    is_key: bool = True
    compared_as: str = "{}"
    """The column where keys are compared and put in order."""
    bound_as: str = "{}"
    """A parameter that is compared with it; `{}` is the placeholder."""


@dataclass(frozen=True)
class Column:
    name: str
    sql_type: str
    """As the database calls it."""
    nullable: bool
    form: SqlType | None
    """None for types without a form here."""

    def sql(self, template: str) -> str:
        return template.format(f"t.{quoted(self.name)}")


class Engine(ABC):
    """One connection in one read-only transaction that sees the state of its first read until it is closed.

    Errors of the database leave as `StoreError`; `retryable` says whether opening the table again may help.
    """

    name: ClassVar[str]
    placeholder: ClassVar[str] = "${}"
    has_row_values: ClassVar[bool] = True
    """Whether `(a, b) >= (1, 2) AND (a, b) <= (3, 4)` is understood, and answered by the index."""

    query_bytes: ClassVar[int] = 2**20
    """What a query asks for at most: a driver holds its rows in a form of its own beside ours, SQLite's as Python
    objects of four times the size."""

    @abstractmethod
    def tables(self) -> list[str]:
        """Names that a user may have meant."""

    @abstractmethod
    def columns(self, table: str) -> list[Column]:
        """Of the table, in its order; none when there is no such table."""

    @abstractmethod
    def indexes(self, table: str) -> list[list[str]]:
        """Columns of each index that keeps the table's rows in order."""

    @abstractmethod
    def digest_of(self, columns: Sequence[Column]) -> tuple[str, pa.DataType]:
        """An expression over all values of a row: a 64-bit hash, or a text that is hashed here."""

    @abstractmethod
    def stream(self, sql: str, wire: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Rows of a query of any size, some at a time."""

    @abstractmethod
    def ranges(self, sql: str, bounds: pa.RecordBatch, wire: pa.Schema) -> pa.Table:
        """Rows of the query for each row of parameters, one after the other."""

    @abstractmethod
    def among(self, sql: str, asked: pa.RecordBatch, wire: pa.Schema) -> pa.Table:
        """Rows of a query in which `{asked}` is a relation with these rows."""

    @abstractmethod
    def close(self) -> None:
        """End the transaction and the connection; idempotent."""

    def one_row(self, sql: str, names: Sequence[str]) -> dict[str, int]:
        """The numbers of a query with one row of them."""
        wire = pa.schema([(name, pa.int64()) for name in names])
        (found,) = pa.Table.from_batches(self.stream(sql, wire)).to_pylist()
        return {name: int(found[name] or 0) for name in names}


def quoted(name: str) -> str:
    """The name as an SQL identifier.

    >>> quoted('id'), quoted('5" disk')
    ('"id"', '"5"" disk"')
    """
    return '"' + name.replace('"', '""') + '"'


def quoted_table(table: str) -> str:
    """The same for a table, whose schema may stand before a dot.

    >>> quoted_table("shop.products")
    '"shop"."products"'
    """
    return ".".join(quoted(part) for part in table.split("."))


def unavailable(engine: str, error: BaseException) -> StoreError:
    """The database or its connection is away; the snapshot is lost with it."""
    return StoreError(
        f"the {engine} database does not answer: {_one_line(error)}",
        code="database_away",
        next_move="open the table again once the database is back",
        retryable=True,
        engine=engine,
    )


def refused(engine: str, error: BaseException, next_move: str) -> StoreError:
    """The database refused what it was asked for; asking again would not help."""
    return StoreError(
        f"the {engine} database refused: {_one_line(error)}",
        code="database_refused",
        next_move=next_move,
        engine=engine,
    )


def no_driver(engine: str, extra: str, error: ImportError) -> SpecError:
    return SpecError(
        f"the driver for {engine} is not installed: {error}",
        code="no_driver",
        next_move=f"pip install 'tidemill[{extra}]'",
        engine=engine,
    )


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".")


def only_batch(table: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    """The table, cast to `schema`, in one chunk a column."""
    arrays: list[pa.Array[Any]] = []
    for field in schema:
        column = table.column(field.name)
        merged: Any = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        if isinstance(merged, pa.ExtensionArray):
            merged = merged.storage
        arrays.append(merged if merged.type == field.type else merged.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


__all__ = [
    "Column",
    "Engine",
    "SqlType",
    "no_driver",
    "only_batch",
    "quoted",
    "quoted_table",
    "refused",
    "unavailable",
]
