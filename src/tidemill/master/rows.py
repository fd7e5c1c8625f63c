"""Rows as they lie in pages and in memory: one after the other, each in one piece.

A join touches a row as a whole. Side by side its values lie in two cache lines; in columns, in as many as there are
columns. So rows stay rows until they leave, and only then become Arrow columns again.

```
row   first column │ slots of 32, 16, 8, 4, 2, 1 bytes, other sizes │ a bit a column: not NULL │ open-length values
      (8 or 4 bytes)                                             (none where no column has a NULL)
slot  a value, packed or not (`packing.py`), or (4 bytes) where a value of open length ends, counted from the start of the row
```
Lists, structs and maps are values of open length (`nested.py`). A row is filled up with zeros to a multiple of eight
bytes; what lies in the slot of a NULL is zeros too, so equal rows have equal bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.core.errors import SpecError
from tidemill.core.recycled import Recycled
from tidemill.master import column_kernels, value_kernels
from tidemill.master import row_kernels as kernels
from tidemill.master.nested import children_schema
from tidemill.master.packing import NOT_PACKED, Packing
from tidemill.master.plain import plain_type
from tidemill.master.short_numbers import DoesNotFitError
from tidemill.master.slots import CODE_BYTES, NEVER_NULL, Slot, is_nested, kind_of, stored_type, width_of

UInt8s = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]

_MARGIN_BYTES = 64  # behind the last row, which an encode may spill over


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
    code_bytes: int = CODE_BYTES
    """Of the first column, if it is a code: 8, or 4 where it is packed."""

    @classmethod
    def of(cls, schema: pa.Schema, *, first: str | None = None, packing: Packing = NOT_PACKED) -> "RowLayout":
        """The layout for a schema.

        Args:
            schema: Columns of any type that has a plain form (`master/plain.py`).
            first: A column of eight bytes to lie at the very start of each row.
            packing: How columns are packed; then there is a `first` one, of four bytes if it is packed.
        """
        stored = [stored_type(field) for field in schema]
        packed = [packing.columns.get(name) for name in schema.names]
        widths = [width_of(*how) for how in zip(stored, packed, strict=True)]
        order = sorted(range(len(schema)), key=lambda n: (schema.names[n] != first, _place_of(widths[n])))
        offsets = dict.fromkeys(order, 0)
        validity_place = 0
        for number in order:
            offsets[number] = validity_place
            validity_place += widths[number]
        fixed_bytes = validity_place + (-(-len(schema) // 8) if packing.has_nulls else 0)
        slots, open_before, last = [], fixed_bytes, -1
        for number, field in enumerate(schema):
            slot = Slot(
                field.name,
                kind_of(stored[number], packed[number]),
                widths[number],
                offsets[number],
                validity_place + number // 8 if packing.has_nulls else NEVER_NULL,
                number % 8,
                stored[number],
                field.type,
                open_before,
                _children_of(field.type),
                packed[number],
            )
            slots.append(slot)
            if slot.kind == "open":
                open_before, last = -slot.offset, slot.offset
        code_bytes = CODE_BYTES if first is None else widths[schema.names.index(first)]
        return cls(schema, tuple(slots), fixed_bytes, validity_place, last, code_bytes)

    @property
    def least_row_bytes(self) -> int:
        """Bytes of a row whose values of open length are all empty."""
        return -(-self.fixed_bytes // 8) * 8

    @cached_property
    def grows_bytes(self) -> int:
        """Bytes that a row takes as columns beyond those that it takes as a row, at most."""
        # Columns have bits where rows have none, as soon as one row of a batch is absent.
        bits_bytes = 0 if self.has_bits else -(-len(self.slots) // 8)
        return bits_bytes + sum(slot.grows_bytes for slot in self.slots)

    @property
    def has_bits(self) -> bool:
        """Whether rows tell which of their values are NULL."""
        return self.fixed_bytes > self.validity_place

    def encode(self, batch: pa.RecordBatch) -> tuple[UInt8s, Int64s]:
        """The rows in one buffer, and where each starts, with the end of the last one.

        A `DoesNotFitError` when a value does not fit its packing.
        """
        columns = [slot.stored(batch.column(number)) for number, slot in enumerate(self.slots)]
        facts: list[list[int]] = []
        opened: list[list[int]] = []
        present = [0] * (self.fixed_bytes - self.validity_place)
        for column, slot in zip(columns, self.slots, strict=True):
            if slot.kind != "nothing":
                (opened if slot.kind == "open" else facts).append(slot.facts_to_put(column))
            if not self.has_bits:
                if column.null_count:
                    raise DoesNotFitError
            elif not column.null_count:
                present[slot.validity_place - self.validity_place] |= 1 << slot.validity_bit
        at = np.empty(batch.num_rows + 1, dtype=np.int64)
        longest = kernels.measure_rows(_table(opened), self.fixed_bytes, at)
        if longest >= 2**32:
            raise SpecError(
                f"a row of {longest} bytes is longer than 4 GiB",
                code="row_too_long",
                next_move="leave its longest columns out",
                row_bytes=longest,
            )
        rows = np.empty((int(at[-1]) + _MARGIN_BYTES) // 8, dtype=np.uint64).view(np.uint8)
        bits = np.array(present, dtype=np.uint8)
        kernels.put_rows(_table(facts), _table(opened), bits, self.fixed_bytes, at, rows)
        return rows[: at[-1]], at

    def decode(
        self,
        rows: UInt8s,
        at: Int64s,
        names: Sequence[str] | None = None,
        memory_from: Recycled | None = None,
    ) -> pa.RecordBatch:
        """Rows as columns; a negative place gives a row of NULLs.

        Args:
            rows: Buffer of rows; may be read-only.
            at: Where the wanted rows begin in it, in any order and as often as wanted.
            names: Columns wanted; all in the order of the schema if None.
            memory_from: Where their memory comes from; from Arrow if None.
        """
        columns = self.columns(None if names is None else tuple(names))
        room, memory = _allocated(columns.most_bytes(len(at)), memory_from)
        found = np.empty((len(columns.slots) + 1, 5), dtype=np.int64)
        facts = (rows, at, columns.facts)
        absent = column_kernels.get_columns(*facts, room, found)
        *places, (*_, values_bytes, _) = found.tolist()
        columns.check_sizes(places, len(at))
        values_room, values = _allocated(values_bytes, memory_from)
        if values_bytes:
            value_kernels.get_values(*facts, found, room, values_room)
        arrays: list[pa.Array[Any]] = []
        # Of columns without NULLs of their own: seven bitmaps of the same bits took 10 ns a row.
        without_absent = (absent, _presence(at)) if absent else (0, None)
        for slot, (place, size, is_full, values_place, values_size) in zip(
            columns.slots, places, strict=True
        ):
            nulls, bitmap = without_absent if is_full else _bitmap(rows, at, slot)
            buffers = [bitmap, memory.slice(place, size)]
            if slot.has_values:
                buffers.append(values.slice(values_place, values_size))
            elif slot.kind == "nothing":
                buffers = [None]
            arrays.append(slot.given(pa.Array.from_buffers(slot.stored_type, len(at), buffers, nulls)))
        return columns.batch(arrays, len(at), has_absent=absent > 0)

    def sizes(self, rows: UInt8s, at: Int64s) -> Int64s:
        """Bytes that each row takes; 0 for absent ones."""
        sizes = np.empty(len(at), dtype=np.int64)
        kernels.row_sizes(rows, at, self.last_open_offset, self.fixed_bytes, sizes)
        return sizes

    def columns(self, names: tuple[str, ...] | None = None) -> "Columns":
        """What a decode of these columns needs; of all in the order of the schema if None."""
        if names not in self._wanted:
            numbers = (
                range(len(self.slots)) if names is None else [self.schema.names.index(name) for name in names]
            )
            fields = [self.schema.field(number) for number in numbers]
            self._wanted[names] = Columns(
                fields, [self.slots[number] for number in numbers], self.schema.metadata
            )
        return self._wanted[names]

    @cached_property
    def _wanted(self) -> "dict[tuple[str, ...] | None, Columns]":
        return {}


class Columns:
    """What every decode of the same columns needs."""

    def __init__(self, fields: "list[pa.Field[Any]]", slots: list[Slot], metadata: Any) -> None:
        self.slots = slots
        self.facts = _table([slot.facts_to_get() for slot in slots])
        self._row_bytes = sum(slot.column_width for slot in slots)
        self._metadata = metadata
        self._kind = pa.struct(fields)
        self._nullable_kind = pa.struct([field.with_nullable(True) for field in fields])

    def most_bytes(self, rows: int) -> int:
        """Memory for all columns but their values of open length."""
        return self._row_bytes * rows + 2 * kernels.CACHE_LINE_BYTES * len(self.slots)

    def check_sizes(self, places: list[list[int]], rows: int) -> None:
        for slot, place in zip(self.slots, places, strict=True):
            if place[-1] >= 2**31:
                raise SpecError(
                    f"column {slot.name!r} of {rows} rows is longer than 2 GiB",
                    code="column_too_long",
                    next_move="take fewer rows at a time",
                    column=slot.name,
                )

    def batch(self, arrays: "list[pa.Array[Any]]", rows: int, *, has_absent: bool) -> pa.RecordBatch:
        """The columns as a batch, which counts its rows even without any column."""
        kind = self._nullable_kind if has_absent else self._kind
        whole = pa.Array.from_buffers(kind, rows, [None], 0, children=arrays)
        batch = pa.RecordBatch.from_struct_array(cast("pa.StructArray", whole))
        return batch if self._metadata is None else batch.replace_schema_metadata(self._metadata)


def _children_of(kind: Any) -> RowLayout | None:
    """The layout of the rows within values of a type, if it is nested, behind a dictionary or run ends as well."""
    kind = kind if is_nested(kind) else plain_type(kind)
    return RowLayout.of(children_schema(kind)) if is_nested(kind) else None


def _place_of(width: int) -> int:
    """Wide slots first, odd ones last: so each lies at a multiple of its width, or of four behind a short code."""
    return -width if width in (32, 16, 8, 4, 2, 1) else 1


def _table(lines: list[list[int]], width: int = 11) -> Int64s:
    return np.array(lines, dtype=np.int64).reshape(len(lines), width)


def _allocated(size_bytes: int, memory_from: Recycled | None) -> tuple[UInt8s, pa.Buffer]:
    """Memory to write to, and as a buffer of columns."""
    if memory_from is not None and size_bytes:
        return memory_from.buffer(size_bytes)
    buffer = pa.allocate_buffer(size_bytes)
    return _bytes(buffer), buffer


def _bytes(buffer: pa.Buffer) -> UInt8s:
    return np.frombuffer(memoryview(buffer), np.uint8)


def _presence(at: Int64s) -> pa.Buffer:
    return pa.py_buffer(np.packbits(at >= 0, bitorder="little").data)


def _bitmap(rows: UInt8s, at: Int64s, slot: Slot) -> tuple[int, pa.Buffer]:
    bitmap = pa.allocate_buffer(-(-len(at) // 8))
    nulls = column_kernels.get_validity(rows, at, slot.validity_place, slot.validity_bit, _bytes(bitmap))
    return nulls, bitmap


__all__ = ["Columns", "RowLayout"]
