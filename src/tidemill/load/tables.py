"""A table as a pipeline declares it: plain columns, and how its rows are loaded."""

import base64
import binascii
from dataclasses import dataclass
from typing import Any, Literal, get_args

import pyarrow as pa

from tidemill.core.errors import LoadError
from tidemill.load.names import check_column_name, check_name

Mode = Literal["append", "add"]

_PLAIN_TYPES: tuple[pa.DataType, ...] = (
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.binary()),
    *(pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC")),
)
_VALID_TYPES_TEXT = ", ".join([*map(str, _PLAIN_TYPES), "decimal128(p, s) with 0 <= s <= p"])
_MAX_COLUMNS = 1000


@dataclass(frozen=True)
class TableSpec:
    """Columns of a table and the way rows get in; checks itself.

    `append` inserts rows. `add` keeps one row for each value of `keys`; arriving rows are signed deltas
    and every other column is added to what is there.
    """

    name: str
    schema: pa.Schema
    mode: Mode = "append"
    keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_name("table", self.name)
        _check_columns(self.name, self.schema)
        if self.mode not in get_args(Mode):
            raise _refused(self.name, f"mode {self.mode!r}", f"valid modes: {', '.join(get_args(Mode))}")
        if self.mode == "append" and self.keys:
            raise _refused(self.name, "keys in append mode", 'drop the keys, or set mode "add"')
        if self.mode == "add":
            _check_keys(self)

    @property
    def value_columns(self) -> list[str]:
        return [name for name in self.schema.names if name not in self.keys]

    def accepts(self, schema: pa.Schema) -> bool:
        """True if rows of `schema` have the same column names and types in the same order."""
        return columns_of(schema) == columns_of(self.schema)

    def to_json(self) -> dict[str, Any]:
        encoded = base64.b64encode(self.schema.serialize().to_pybytes()).decode()
        return {"name": self.name, "schema": encoded, "mode": self.mode, "keys": list(self.keys)}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> "TableSpec":
        """The declared table; nullability and metadata of its schema are dropped."""
        try:
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(record["schema"], validate=True)))
            bare = pa.schema([pa.field(field.name, field.type) for field in schema])
            keys = tuple(str(key) for key in record.get("keys", []))
        except (KeyError, TypeError, ValueError, OSError, binascii.Error, pa.ArrowException) as error:
            raise LoadError(
                f"a table of the request cannot be read: {error!r}",
                code="bad_request",
                next_move="send name, schema (an Arrow IPC schema in base64), mode and keys",
                status=422,
            ) from error
        return cls(name=record.get("name", ""), schema=bare, mode=record.get("mode", "append"), keys=keys)


def columns_of(schema: pa.Schema) -> list[tuple[str, str]]:
    """Names and types, for comparison and for messages."""
    return [(field.name, str(field.type)) for field in schema]


def _check_columns(table: str, schema: pa.Schema) -> None:
    if not 0 < len(schema) <= _MAX_COLUMNS:
        raise _refused(table, f"{len(schema)} columns", f"declare 1 to {_MAX_COLUMNS} columns")
    for field in schema:
        check_column_name(field.name)
        if not _is_plain(field.type):
            raise _refused(
                table,
                f"column {field.name!r} of type {field.type}",
                f"cast it to one of: {_VALID_TYPES_TEXT}",
            )
    # Warehouses fold the case of names: "Id" and "id" would be one column.
    if len({name.casefold() for name in schema.names}) < len(schema):
        raise _refused(table, "two columns of one name (case does not count)", "rename one of them")


def _check_keys(table: TableSpec) -> None:
    unknown = [key for key in table.keys if key not in table.schema.names]
    if not table.keys or unknown or len(set(table.keys)) < len(table.keys):
        raise _refused(
            table.name, f"keys {list(table.keys)}", f"name some of {table.schema.names}, each once"
        )
    if not table.value_columns:
        raise _refused(table.name, "no column to add up", "declare a number beside the keys")
    for name in table.value_columns:
        kind = table.schema.field(name).type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
            raise _refused(
                table.name, f"column {name!r} of type {kind} to add up", "add up numbers, or make it a key"
            )


def _is_plain(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.Decimal128Type):
        return bool(0 <= kind.scale <= kind.precision)
    return any(bool(kind == plain) for plain in _PLAIN_TYPES)


def _refused(table: str, what: str, next_move: str) -> LoadError:
    return LoadError(
        f"table {table!r} cannot have {what}", code="bad_table", next_move=next_move, status=422, table=table
    )


__all__ = ["Mode", "TableSpec", "columns_of"]
