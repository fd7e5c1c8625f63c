"""Types in which a page stands alone: no dictionaries, no views into shared buffers, no run ends."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Int64s = npt.NDArray[np.int64]


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type in which such values are stored, inside lists and structs too."""
    if isinstance(kind, pa.UuidType):
        return pa.binary(16)
    if pa.types.is_string_view(kind):
        return pa.string()
    return pa.binary() if pa.types.is_binary_view(kind) else _plain_nested(kind)


def _plain_nested(kind: Any) -> pa.DataType:
    plain_kind: pa.DataType = kind
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        plain_kind = plain_type(kind.value_type)
    elif pa.types.is_struct(kind):
        plain_kind = pa.struct([_plain_field(field) for field in kind])
    elif pa.types.is_map(kind):
        plain_kind = pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    elif pa.types.is_fixed_size_list(kind):
        plain_kind = pa.list_(_plain_field(kind.value_field), kind.list_size)
    elif pa.types.is_list(kind) or pa.types.is_list_view(kind):
        plain_kind = pa.list_(_plain_field(kind.value_field))
    elif pa.types.is_large_list(kind) or pa.types.is_large_list_view(kind):
        plain_kind = pa.large_list(_plain_field(kind.value_field))
    return plain_kind


def plain(column: Any) -> "pa.Array[Any]":
    """The column in its plain type."""
    if isinstance(column.type, pa.UuidType):
        column = column.storage
    elif isinstance(column, pa.RunEndEncodedArray):
        column = column.values.take(_run_of_each_row(column))
    elif isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    wanted = plain_type(column.type)
    found: pa.Array[Any] = column if wanted == column.type else column.cast(wanted)
    return found


def _run_of_each_row(column: "pa.RunEndEncodedArray[Any, Any]") -> Int64s:
    rows = np.arange(column.offset, column.offset + len(column))
    return np.searchsorted(column.run_ends.to_numpy(), rows, side="right")


def has_no_plain_form(kind: pa.DataType) -> bool:
    """Whether a page cannot hold such values: unknown extension types and unions, at any depth."""
    if isinstance(kind, pa.BaseExtensionType) or pa.types.is_union(kind):
        return True
    return any(has_no_plain_form(kind.field(n).type) for n in range(kind.num_fields))


def _plain_field(field: "pa.Field[Any]") -> "pa.Field[Any]":
    return field.with_type(plain_type(field.type))


__all__ = ["has_no_plain_form", "plain", "plain_type"]
