"""Lists, structs and maps as bytes: rows within a row.

A struct is the row of its fields, a list the rows of its items one after the other, a map those of its keys and values.
So a column is packed by encoding its children: their buffer of rows is that of the packed values already.
"""

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.master import row_kernels as kernels

if TYPE_CHECKING:
    from tidemill.master.rows import RowLayout

UInt8s = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]


def children_schema(kind: pa.DataType) -> pa.Schema:
    """The columns of the rows that make up values of a nested type, named by number."""
    if isinstance(kind, pa.MapType):
        types = [kind.key_type, kind.item_type]
    else:
        types = [kind.field(number).type for number in range(kind.num_fields)]
    return pa.schema([(str(number), child) for number, child in enumerate(types)])


def pack_nested(column: "pa.Array[Any]", children: "RowLayout") -> "pa.Array[Any]":
    """Each value as bytes, NULL where it is NULL.

    Args:
        column: Of a nested type.
        children: The layout for the type's `children_schema`.
    """
    if len(column) == 0:
        return pa.array([], pa.large_binary())
    starts, arrays = _children(column)
    parts = pa.Array.from_buffers(
        pa.struct(list(children.schema)),
        len(arrays[0]) if arrays else len(column),
        [None],
        0,
        children=arrays,
    )
    rows, at = children.encode(pa.RecordBatch.from_struct_array(cast("pa.StructArray", parts)))
    rows, ends = _in_order(rows, at, starts, column) if _is_view(column.type) else (rows, at[starts])
    buffers = [_bitmap(column), _buffer(ends), _buffer(rows)]
    return pa.Array.from_buffers(pa.large_binary(), len(column), buffers)


def unpack_nested(packed: "pa.Array[Any]", kind: pa.DataType, children: "RowLayout") -> "pa.Array[Any]":
    """The values that `pack_nested` packed, from a binary column."""
    _, places, content = packed.buffers()
    starts = np.zeros(1, dtype=np.int64)
    if len(packed):
        stored = np.frombuffer(memoryview(cast("pa.Buffer", places)), np.int32)
        starts = stored[packed.offset :][: len(packed) + 1].astype(np.int64)
    rows = np.frombuffer(memoryview(content or b""), np.uint8)
    is_valid = packed.is_valid().to_numpy(zero_copy_only=False)
    buffers = [_bitmap(packed)]
    if pa.types.is_struct(kind):
        at = np.where(is_valid, starts[:-1], -1)
    else:
        at, ends = _items(rows, starts, children)
        if isinstance(kind, pa.FixedSizeListType):
            every = np.full(len(packed) * kind.list_size, -1, dtype=np.int64)
            every[np.repeat(is_valid, kind.list_size)] = at[np.repeat(is_valid, np.diff(ends))]
            at = every
        else:
            buffers += _list_buffers(kind, ends)
    arrays = children.decode(rows, at).columns
    if isinstance(kind, pa.MapType):
        entries = pa.struct([kind.key_field, kind.item_field])
        arrays = [pa.Array.from_buffers(entries, len(at), [None], 0, children=arrays)]
    return pa.Array.from_buffers(kind, len(packed), buffers, packed.null_count, children=arrays)


def _children(column: Any) -> tuple[Int64s, list["pa.Array[Any]"]]:
    """Which child rows are the first of each value (and the end of the last one), and the columns of these rows."""
    kind = column.type
    if pa.types.is_struct(kind):
        return np.arange(len(column) + 1), [column.field(number) for number in range(kind.num_fields)]
    if _is_view(kind):
        return column.offsets.to_numpy().astype(np.int64), [column.values]
    if pa.types.is_fixed_size_list(kind):
        starts = np.arange(column.offset, column.offset + len(column) + 1) * kind.list_size
    else:
        starts = column.offsets.to_numpy().astype(np.int64)
    arrays = [column.keys, column.items] if pa.types.is_map(kind) else [column.values]
    first, last = int(starts[0]), int(starts[-1])
    return starts - first, [array.slice(first, last - first) for array in arrays]


def _in_order(rows: UInt8s, at: Int64s, starts: Int64s, column: Any) -> tuple[UInt8s, Int64s]:
    """The rows of a view's lists, which lie anywhere and may overlap, one after the other; and where lists end."""
    items = column.sizes.to_numpy() * column.is_valid().to_numpy(zero_copy_only=False)
    sizes = at[starts + items] - at[starts]
    ends = np.concatenate([[0], np.cumsum(sizes)])
    ordered = np.empty(ends[-1], dtype=np.uint8)
    kernels.copy_rows(rows, at[starts], sizes, ordered, ends[:-1])
    return ordered, ends


def _items(rows: UInt8s, starts: Int64s, children: "RowLayout") -> tuple[Int64s, Int64s]:
    """Where the rows of all items lie, and how many precede the items of each value."""
    at = np.empty(len(rows) // children.least_row_bytes, dtype=np.int64)
    ends = np.zeros(len(starts), dtype=np.int64)
    kernels.find_rows(rows, starts, children.last_open_offset, children.fixed_bytes, ends, at)
    return at[: ends[-1]], ends


def _bitmap(column: "pa.Array[Any]") -> pa.Buffer | None:
    if not column.null_count:
        return None
    is_valid = column.is_valid().to_numpy(zero_copy_only=False)
    return _buffer(np.packbits(is_valid, bitorder="little"))


def _list_buffers(kind: pa.DataType, ends: Int64s) -> list[pa.Buffer | None]:
    is_large = pa.types.is_large_list(kind) or pa.types.is_large_list_view(kind)
    places = ends if is_large else ends.astype(np.int32)
    parts = [places[:-1], np.diff(places)] if _is_view(kind) else [places]
    return [_buffer(part) for part in parts]


def _buffer(numbers: npt.NDArray[Any]) -> pa.Buffer:
    return pa.py_buffer(numbers.data)


def _is_view(kind: pa.DataType) -> bool:
    return pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind)


__all__ = ["children_schema", "pack_nested", "unpack_nested"]
