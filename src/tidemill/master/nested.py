"""Lists, structs and maps as bytes, one value a row."""

from typing import Any

import pyarrow as pa


def pack_nested(column: "pa.Array[Any]") -> "pa.Array[Any]":
    """Each value as bytes, NULL where it is NULL."""
    raise NotImplementedError


def unpack_nested(packed: "pa.Array[Any]", kind: pa.DataType) -> "pa.Array[Any]":
    """The values that `pack_nested` packed."""
    raise NotImplementedError


__all__ = ["pack_nested", "unpack_nested"]
