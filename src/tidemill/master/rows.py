"""Rows as they lie in pages and in memory: one after the other, each in one piece.

A join touches a row as a whole. Side by side its values lie in two cache lines; in columns, in as many as there are
columns. So rows stay rows until they leave, and only then become Arrow columns again.

```
row   first column │ slots of 32, 16, 8, 4, 2, 1 bytes, other sizes │ a bit a column: not NULL │ open-length values
slot  a value, or (4 bytes) where a value of open length ends, counted from the start of the row
```
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.core.errors import SpecError
from tidemill.master import row_kernels as kernels
from tidemill.master.nested import pack_nested, unpack_nested
from tidemill.master.plain import has_no_plain_form, plain, plain_type

UInt8s = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]

_ALIGNMENT = 64  # of columns in the memory that a decode fills, as Arrow likes it


@dataclass(frozen=True)
class Slot:
    """Where a column lies in every row."""

    name: str
    kind: Literal["fixed", "bits", "open", "nothing"]
    width: int
    offset: int
    validity_place: int
    validity_bit: int
    stored_type: pa.DataType
    """Plain; binary where the column is nested."""
    given_type: pa.DataType
    open_before: int = 0
    """Of open length: where its value begins, if positive; else minus the slot in which the one before it ends."""


@dataclass(frozen=True)
class RowLayout:
    """How rows of one schema are laid out.

    >>> people = pa.RecordBatch.from_pydict({"id": [7, 8], "name": ["Ada", None]})
    >>> layout = RowLayout.of(people.schema)
    >>> rows, at = layout.encode(people)
    >>> at.tolist(), layout.decode(rows, at[[1, 0]]).to_pylist()
    ([0, 16, 32], [{'id': 8, 'name': None}, {'id': 7, 'name': 'Ada'}])
    """

    schema: pa.Schema
    slots: tuple[Slot, ...]
    """In the order of the schema."""
    fixed_bytes: int
    """Of every row, with its bits, before values of open length."""
    validity_place: int
    last_open_offset: int
    """Slot that says where a row ends, or -1 when all rows are equally long."""

    @classmethod
    def of(cls, schema: pa.Schema, *, first: str | None = None) -> "RowLayout":
        """The layout for a schema.

        Args:
            schema: Columns of any type that has a plain form (`master/plain.py`).
            first: A column of eight bytes to lie at the very start of each row.
        """
        stored = {field.name: _stored_type(field) for field in schema}
        widths = {name: _width(kind) for name, kind in stored.items()}
        order = sorted(schema.names, key=lambda name: (name != first, _place_of(widths[name])))
        offsets: dict[str, int] = {}
        end = 0
        for name in order:
            offsets[name] = end
            end += widths[name]
        validity_place, fixed_bytes = end, end + -(-len(schema) // 8)
        slots, open_before = [], fixed_bytes
        for number, field in enumerate(schema):
            kind = stored[field.name]
            place = (validity_place + number // 8, number % 8)
            slot = Slot(
                field.name, _kind(kind), widths[field.name], offsets[field.name], *place, kind, field.type, open_before
            )  # fmt: skip
            slots.append(slot)
            if slot.kind == "open":
                open_before = -slot.offset
        last = next((slot.offset for slot in reversed(slots) if slot.kind == "open"), -1)
        if last == 0:  # minus the slot must be negative: an eight-byte column is missing before it
            raise AssertionError
        return cls(schema, tuple(slots), fixed_bytes, validity_place, last)

    @cached_property
    def _by_name(self) -> dict[str, Slot]:
        return {slot.name: slot for slot in self.slots}

    @property
    def least_row_bytes(self) -> int:
        """Bytes of a row whose values of open length are all empty."""
        return -(-self.fixed_bytes // 8) * 8

    def encode(self, batch: pa.RecordBatch) -> tuple[UInt8s, Int64s]:
        """The rows in one buffer, and where each starts, with the end of the last one."""
        columns = [_stored(batch.column(number), slot) for number, slot in enumerate(self.slots)]
        opened = {
            slot.name: _open_parts(column)
            for column, slot in zip(columns, self.slots, strict=True)
            if slot.kind == "open"
        }
        sizes = np.full(batch.num_rows, self.fixed_bytes, dtype=np.int64)
        for offsets, _ in opened.values():
            sizes += np.diff(offsets)
        at = np.zeros(batch.num_rows + 1, dtype=np.int64)
        np.cumsum((sizes + 7) & ~np.int64(7), out=at[1:])
        rows = np.zeros(int(at[-1]) // 8, dtype=np.uint64).view(np.uint8)
        cursor = np.full(batch.num_rows, self.fixed_bytes, dtype=np.int64)
        for column, slot in zip(columns, self.slots, strict=True):
            if slot.kind == "open":
                kernels.put_open(rows, at, cursor, slot.offset, *opened[slot.name])
            elif slot.kind != "nothing":
                kernels.put_fixed(rows, at, slot.offset, slot.width, _fixed_bytes(column, slot.width))
            kernels.put_validity(rows, at, slot.validity_place, slot.validity_bit, _is_valid(column))
        return rows, at

    def decode(self, rows: UInt8s, at: Int64s, names: Sequence[str] | None = None) -> pa.RecordBatch:
        """Rows as columns; a negative place gives a row of NULLs.

        Args:
            rows: Buffer that begins at a multiple of eight bytes; may be read-only.
            at: Where the wanted rows begin in it, in any order and as often as wanted.
            names: Columns wanted; all in the order of the schema if None.
        """
        slots = self.slots if names is None else [self._by_name[name] for name in names]
        everywhere = np.full(self.fixed_bytes - self.validity_place, 255, dtype=np.uint8)
        absent = kernels.all_valid(rows, at, self.validity_place, everywhere)
        columns = self._fixed_columns(rows, at, [slot for slot in slots if slot.kind == "fixed"])
        arrays = []
        for slot in slots:
            has_nulls = (
                absent or not everywhere[slot.validity_place - self.validity_place] >> slot.validity_bit & 1
            )
            nulls, bitmap = _bitmap(rows, at, slot) if has_nulls else (0, None)
            if slot.kind == "fixed":
                buffers = [bitmap, columns[slot.name]]
            elif slot.kind == "open":
                buffers = [bitmap, *_open_column(rows, at, slot)]
            elif slot.kind == "bits":
                bits = pa.allocate_buffer(-(-len(at) // 8))
                kernels.get_bits(rows, at, slot.offset, np.frombuffer(bits, np.uint8))
                buffers = [bitmap, bits]
            else:
                buffers, nulls = [None], len(at)
            arrays.append(_given(slot, pa.Array.from_buffers(slot.stored_type, len(at), buffers, nulls)))
        schema = self.schema if names is None else pa.schema([self.schema.field(slot.name) for slot in slots])
        if absent:
            schema = pa.schema([field.with_nullable(True) for field in schema])
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def sizes(self, rows: UInt8s, at: Int64s) -> Int64s:
        """Bytes that each row takes; 0 for absent ones."""
        sizes = np.empty(len(at), dtype=np.int64)
        kernels.row_sizes(rows, at, self.last_open_offset, self.fixed_bytes, sizes)
        return sizes

    def _fixed_columns(self, rows: UInt8s, at: Int64s, slots: list[Slot]) -> dict[str, pa.Buffer]:
        """The values of all columns of fixed width, gathered together: their rows are then in the cache."""
        places: list[int] = []
        end = 0
        for slot in slots:
            places.append(end)
            end += -(-len(at) * slot.width // _ALIGNMENT) * _ALIGNMENT
        memory = pa.allocate_buffer(end)
        offsets, widths = ([getattr(slot, name) for slot in slots] for name in ("offset", "width"))
        facts = (np.array(numbers, dtype=np.int64) for numbers in (offsets, widths, places))
        if slots:
            kernels.get_fixed(rows, at, *facts, np.frombuffer(memory, np.uint8))
        return {
            slot.name: memory.slice(place, len(at) * slot.width)
            for slot, place in zip(slots, places, strict=True)
        }


def _stored_type(field: "pa.Field[Any]") -> pa.DataType:
    kind = plain_type(field.type)
    if has_no_plain_form(kind):
        raise SpecError(
            f"column {field.name!r} has type {field.type}, which a row cannot hold",
            code="column_type",
            next_move="cast it to a plain Arrow type, or leave it out",
            column=field.name,
        )
    if pa.types.is_nested(kind):
        return pa.binary()
    if pa.types.is_large_string(kind):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(kind) else kind


def _kind(kind: pa.DataType) -> Literal["fixed", "bits", "open", "nothing"]:
    if pa.types.is_null(kind):
        return "nothing"
    if pa.types.is_boolean(kind):
        return "bits"
    return "open" if pa.types.is_string(kind) or kind == pa.binary() else "fixed"


def _width(kind: pa.DataType) -> int:
    what = _kind(kind)
    return {"nothing": 0, "bits": 1, "open": 4}.get(what) or (kind.bit_width // 8 if what == "fixed" else 0)


def _place_of(width: int) -> int:
    """Wide slots first, odd ones last: so each lies at a multiple of its width."""
    return -width if width in (32, 16, 8, 4, 2, 1) else 1


def _stored(column: Any, slot: Slot) -> "pa.Array[Any]":
    column = plain(column)
    if pa.types.is_nested(column.type):
        return pack_nested(column)
    found: pa.Array[Any] = column if column.type == slot.stored_type else column.cast(slot.stored_type)
    return found


def _given(slot: Slot, column: "pa.Array[Any]") -> "pa.Array[Any]":
    if slot.given_type == slot.stored_type:
        return column
    if pa.types.is_nested(slot.given_type) and slot.stored_type == pa.binary():
        column = unpack_nested(column, plain_type(slot.given_type))
    if isinstance(slot.given_type, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(slot.given_type, column)
    if pa.types.is_run_end_encoded(slot.given_type):
        return pa.compute.run_end_encode(column, run_end_type=slot.given_type.run_end_type)
    found: pa.Array[Any] = column if column.type == slot.given_type else column.cast(slot.given_type)
    return found


def _fixed_bytes(column: "pa.Array[Any]", width: int) -> UInt8s:
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    values = column.buffers()[1]
    if values is None or not len(column):
        return np.zeros(len(column) * width, dtype=np.uint8)
    return np.frombuffer(values, np.uint8, len(column) * width, column.offset * width)


def _open_parts(column: "pa.Array[Any]") -> tuple[Int64s, UInt8s]:
    """Where values begin and end, and their bytes; NULLs have none."""
    _, offsets, values = column.buffers()
    if offsets is None or not len(column):
        return np.zeros(len(column) + 1, dtype=np.int64), np.zeros(0, dtype=np.uint8)
    places = np.frombuffer(offsets, np.int32, len(column) + 1, column.offset * 4).astype(np.int64)
    content = np.frombuffer(values, np.uint8) if values is not None and values.size else np.zeros(0, np.uint8)
    if column.null_count and np.diff(places)[column.is_null().to_numpy(zero_copy_only=False)].any():
        return _open_parts(column.fill_null("" if pa.types.is_string(column.type) else b""))
    return places, content


def _is_valid(column: "pa.Array[Any]") -> UInt8s:
    if not column.null_count:
        return np.ones(len(column), dtype=np.uint8)
    return column.is_valid().to_numpy(zero_copy_only=False).view(np.uint8)


def _bitmap(rows: UInt8s, at: Int64s, slot: Slot) -> tuple[int, pa.Buffer]:
    bitmap = pa.allocate_buffer(-(-len(at) // 8))
    place = (slot.validity_place, slot.validity_bit)
    return kernels.get_validity(rows, at, *place, np.frombuffer(bitmap, np.uint8)), bitmap


def _open_column(rows: UInt8s, at: Int64s, slot: Slot) -> tuple[pa.Buffer, pa.Buffer]:
    offsets = pa.allocate_buffer((len(at) + 1) * 4)
    ends = np.frombuffer(offsets, np.int32)
    total = kernels.get_ends(rows, at, slot.open_before, slot.offset, ends)
    if total < 0:
        raise SpecError(
            f"column {slot.name!r} of {len(at)} rows is longer than 2 GiB",
            code="column_too_long",
            next_move="take fewer rows at a time",
        )
    values = pa.allocate_buffer(total)
    kernels.get_open(rows, at, slot.open_before, ends, np.frombuffer(values, np.uint8))
    return offsets, values


__all__ = ["RowLayout", "Slot"]
