"""What tells master rows apart: the key's columns, and the int64 code that stands for them.

Joins work on codes alone. A single integer key is its own code. Every other key, and every composite one,
gets a 64-bit hash, stored beside the row in a column of its own. A build picks the seed of the hash so that
no two keys *of the store* share a code (at 100 million keys the first seed fails once in 4,000 builds); a
stream key that is not in the store may still share one, so a match by code is a candidate until the real
keys were compared (`join/parts/emission.py`).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.core.errors import SpecError, unknown_choice
from tidemill.master import hashing
from tidemill.master.plain import plain, plain_type

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
CodeKind = Literal["identity", "hash64"]

CODE_COLUMN = "_code"
_METADATA_KEY = b"tidemill.key"
_LARGEST = np.uint64(np.iinfo(np.int64).max)
_MOST_DECIMAL_DIGITS = 76

KEY_FAMILIES = ["integers", "strings", "binaries (UUIDs too)", "decimals", "dates", "timestamps"]


@dataclass(frozen=True)
class KeyForm:
    """The key of a store: its columns, their types, and how they become codes."""

    columns: tuple[str, ...]
    types: tuple[pa.DataType, ...]
    kind: CodeKind
    seed: int = 0

    @classmethod
    def choose(cls, schema: pa.Schema, columns: Sequence[str]) -> "KeyForm":
        """The form that a build starts with, for rows of `schema` as they will be stored."""
        for name in columns:
            if name not in schema.names:
                raise unknown_choice("key column", name, schema.names)
        if not columns or len(set(columns)) < len(columns):
            raise SpecError(
                f"the key columns are {list(columns)}",
                code="key_columns",
                next_move="name one or more different columns",
            )
        types = tuple(schema.field(name).type for name in columns)
        for name, kind in zip(columns, types, strict=True):
            _family(kind, name)
        # Not those of 64 bits without a sign: half of them are beyond an int64.
        is_own_code = len(columns) == 1 and pa.types.is_integer(types[0]) and types[0] != pa.uint64()
        return cls(tuple(columns), types, "identity" if is_own_code else "hash64")

    @classmethod
    def of_schema(cls, schema: pa.Schema, key: str) -> "KeyForm":
        """The form that a store's schema tells; without one, `key` is an integer column."""
        told = (schema.metadata or {}).get(_METADATA_KEY)
        if told is None:
            return cls.choose(schema, [key])
        facts = json.loads(told)
        types = tuple(schema.field(name).type for name in facts["columns"])
        return cls(tuple(facts["columns"]), types, facts["kind"], facts["seed"])

    def told_by(self, schema: pa.Schema) -> pa.Schema:
        """The schema with this form in its metadata, and with the column of codes if there is one."""
        facts = {"columns": self.columns, "kind": self.kind, "seed": self.seed}
        if self.is_hashed and CODE_COLUMN not in schema.names:
            schema = schema.append(pa.field(CODE_COLUMN, pa.int64(), nullable=False))
        return schema.with_metadata({_METADATA_KEY: json.dumps(facts).encode()})

    @property
    def is_hashed(self) -> bool:
        return self.kind == "hash64"

    @property
    def code_column(self) -> str:
        """The int64 column of pages that holds the codes."""
        return CODE_COLUMN if self.is_hashed else self.columns[0]

    def refuse_other_types(self, names: Sequence[str], types: Sequence[pa.DataType]) -> None:
        """Stop before the start when columns of these types can never equal the key."""
        if len(names) != len(self.columns):
            raise SpecError(
                f"{len(names)} columns {list(names)} were given for a key of {len(self.columns)}: {list(self.columns)}",
                code="key_columns",
                next_move=f"name {len(self.columns)} columns, in the order of the key",
            )
        for name, found, column, wanted in zip(names, types, self.columns, self.types, strict=True):
            if _family(plain_type(found), name) != _family(wanted, column):
                raise SpecError(
                    f"column {name!r} has type {found}, the master key {column!r} has {wanted}",
                    code="key_type",
                    next_move=f"cast {name!r} to {wanted}: such types are never compared on a guess",
                    key=name,
                    found=str(found),
                    wanted=str(wanted),
                )

    def codes(self, columns: Sequence["pa.Array[Any]"]) -> tuple[Int64s, Bools]:
        """Codes, and where one is present: rows with a NULL, or with a value the key's type cannot hold, have none."""
        if self.kind == "identity" and columns[0].type == pa.int64() and not columns[0].null_count:
            return columns[0].to_numpy(), np.ones(len(columns[0]), dtype=np.bool_)
        aligned = self.aligned(columns)
        present = np.ones(len(aligned[0]), dtype=np.bool_)
        for column in aligned:
            if column.null_count:
                present &= column.is_valid().to_numpy(zero_copy_only=False)
        if self.is_hashed:
            return hashing.hash_columns(aligned, self.seed), present
        only = aligned[0]
        values = (only.fill_null(0) if only.null_count else only).to_numpy()
        return np.ascontiguousarray(values), present

    def aligned(self, columns: Sequence["pa.Array[Any]"]) -> list["pa.Array[Any]"]:
        """The columns in the types in which keys are hashed and compared; NULL where a value has no such form."""
        return [_aligned(column, wanted) for column, wanted in zip(columns, self.types, strict=True)]

    def same(self, some: Sequence["pa.Array[Any]"], others: Sequence["pa.Array[Any]"]) -> Bools:
        """Where the real keys of two sets of rows are equal; NULLs never are."""
        equal = np.ones(len(some[0]), dtype=np.bool_)
        for one, other in zip(self.aligned(some), self.aligned(others), strict=True):
            equal &= pc.equal(one, other).fill_null(False).to_numpy(zero_copy_only=False)
        return equal


def _family(kind: pa.DataType, name: str) -> str:
    """Types of one family can be equal to each other."""
    if pa.types.is_integer(kind):
        return "integer"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "text"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return "bytes"
    if pa.types.is_decimal(kind):
        return "decimal"
    if pa.types.is_date(kind):
        return "date"
    if pa.types.is_timestamp(kind):
        return "instant" if kind.tz else "wall clock"
    raise SpecError(
        f"key column {name!r} has type {kind}",
        code="key_type",
        next_move=f"give a key of one of these: {', '.join(KEY_FAMILIES)}",
        key=name,
        valid=KEY_FAMILIES,
    )


def _aligned(column: "pa.Array[Any]", wanted: pa.DataType) -> "pa.Array[Any]":
    column = plain(column)
    if wanted == pa.uint64():
        return _exact(column, pa.decimal256(_MOST_DECIMAL_DIGITS, 0))
    if pa.types.is_integer(wanted):
        return _as_int64(column)
    if pa.types.is_decimal(wanted):
        return _exact(column, pa.decimal256(_MOST_DECIMAL_DIGITS, cast("Any", wanted).scale))
    if pa.types.is_date(wanted):
        return _exact(column, pa.date32()).cast(pa.int32()).cast(pa.int64())
    if pa.types.is_timestamp(wanted):
        return _exact(column, wanted).cast(pa.int64())
    if pa.types.is_large_string(column.type) or pa.types.is_string(column.type):
        # Casting between string types copies offsets and nothing else.
        return column.cast(pa.large_string())
    return column if pa.types.is_large_binary(column.type) else _as_binary(column)


def _as_int64(column: "pa.Array[Any]") -> "pa.Array[Any]":
    if column.type != pa.uint64():
        return column.cast(pa.int64())
    beyond = pc.greater(column, pa.scalar(int(_LARGEST), pa.uint64()))
    within: pa.Array[Any] = pc.if_else(beyond, None, column)
    return within.cast(pa.int64())


def _as_binary(column: "pa.Array[Any]") -> "pa.Array[Any]":
    if pa.types.is_fixed_size_binary(column.type):
        column = column.cast(pa.binary())
    return column.cast(pa.large_binary())


def _exact(column: "pa.Array[Any]", wanted: pa.DataType) -> "pa.Array[Any]":
    """The values in that scale or unit; NULL where it cannot hold them exactly."""
    if column.type == wanted:
        return column
    there = column.cast(wanted, safe=False)
    back = there.cast(column.type, safe=False)
    exact: pa.Array[Any] = pc.if_else(pc.equal(back, column), there, pa.scalar(None, wanted))
    return exact


__all__ = ["CODE_COLUMN", "CodeKind", "KeyForm"]
