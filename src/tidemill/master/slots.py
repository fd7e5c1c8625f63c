"""Where a column lies in a row, and in which form: stored there, and given to whoever reads it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.core.errors import SpecError
from tidemill.master import row_kernels as kernels
from tidemill.master.nested import pack_nested, unpack_nested
from tidemill.master.packing import Coded, Digits, Framed, Narrow, Packed, Scaled, plain_column
from tidemill.master.plain import has_no_plain_form, plain, plain_type

if TYPE_CHECKING:
    from tidemill.master.rows import RowLayout

Kind = Literal["fixed", "bits", "open", "nothing", "narrow", "scaled", "coded", "framed", "digits"]
_READ_AS = {
    "fixed": kernels.FIXED,
    "bits": kernels.BITS,
    "open": kernels.OPEN,
    "nothing": kernels.FIXED,
    "narrow": kernels.NARROW,
    "scaled": kernels.SCALED,
    "coded": kernels.CODED,
    "framed": kernels.FRAMED,
    "digits": kernels.DIGITS,
}
_PACKED_KINDS: dict[type[Packed], Kind] = {
    Narrow: "narrow",
    Scaled: "scaled",
    Coded: "coded",
    Framed: "framed",
    Digits: "digits",
}
_OFFSET_BYTES = 4
CODE_BYTES = 8
NEVER_NULL = -1
"""The place of a column's bit in rows that have none."""


@dataclass(frozen=True)
class Slot:
    """Where a column lies in every row."""

    name: str
    kind: Kind
    width: int
    offset: int
    validity_place: int
    validity_bit: int
    stored_type: pa.DataType
    """Plain; binary where the column is nested."""
    given_type: pa.DataType
    open_before: int = 0
    """Of open length: where its value begins, if positive (bits always lie before); else minus the slot, 0 or later,
    that says where the one before it ends."""
    children: "RowLayout | None" = None
    """Of a nested column: the layout of the rows within its values."""
    packed: Packed | None = None
    """How values of `stored_type` are put into `width` bytes, where that is not their own width."""

    @property
    def has_values(self) -> bool:
        """Whether its columns have values of open length."""
        return self.kind in ("open", "coded", "framed", "digits")

    @property
    def column_width(self) -> int:
        """Bytes that a value takes in a column, those of open length left out."""
        if self.kind in ("narrow", "scaled"):
            return self.stored_type.bit_width // 8
        return _OFFSET_BYTES if self.has_values else self.width

    @property
    def grows_bytes(self) -> int:
        """Bytes that a value takes in a column beyond those in its row, at most."""
        return self.column_width - self.width + self.longest_bytes if self.packed is not None else 0

    @property
    def longest_bytes(self) -> int:
        """Of its value, if that is not stored in full."""
        return self.packed.longest_bytes if self.packed is not None else 0

    @property
    def is_as_given(self) -> bool:
        """Whether its values leave as compiled loops find them."""
        return self.given_type == self.stored_type and self.kind != "nothing" and self.children is None

    def stored(self, column: "pa.Array[Any]") -> "pa.Array[Any]":
        """The column in a form that the kernels read."""
        if self.packed is not None:
            return self.packed.pack(plain_column(column))
        if self.children is not None:
            return pack_nested(column if is_nested(column.type) else plain(column), self.children)
        return column if column.type == self.stored_type else plain(column)

    def given(self, column: "pa.Array[Any]") -> "pa.Array[Any]":
        """A stored column in the type that was given."""
        return (
            column if self.given_type is self.stored_type else _given(column, self.given_type, self.children)
        )

    def facts_to_put(self, column: "pa.Array[Any]") -> list[int]:
        """The line that tells `put_rows` of a stored column."""
        bitmap, *parts = column.buffers()
        values = parts[-1]
        is_large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
        return [
            kernels.FIXED if self.packed is not None else _READ_AS[self.kind],
            self.offset,
            self.width,
            self.validity_place,
            self.validity_bit,
            values.address if values else 0,
            values.address + values.size if values else 0,
            parts[0].address if parts[0] else 0,
            8 if is_large else _OFFSET_BYTES,
            column.offset,
            bitmap.address if bitmap and column.null_count else 0,
        ]

    def facts_to_get(self) -> list[int]:
        """The line that tells `get_columns` of the column."""
        facts = [
            _READ_AS[self.kind],
            self.offset,
            self.column_width,
            self.validity_place,
            self.validity_bit,
            self.open_before,
            self.width,
        ]
        if isinstance(self.packed, Framed | Digits):
            frame = self.packed.frame if isinstance(self.packed, Digits) else self.packed
            start = frame.template.ctypes.data
            facts[5] = frame.width  # `open_before` means nothing here: no value lies behind the slots
            return [*facts, frame.longest_bytes, len(frame.begins), start, start + len(frame.template)]
        if not isinstance(self.packed, Coded):
            return [*facts, self.packed.divisor if isinstance(self.packed, Scaled) else 0, 0, 0, 0]
        ends, content = self.packed.ends, self.packed.content
        start = content.ctypes.data
        return [*facts, len(ends) - 1, ends.ctypes.data, start, start + len(content)]


def stored_type(field: "pa.Field[Any]") -> pa.DataType:
    """In which values of a column are stored; a `SpecError` where a row cannot hold them."""
    kind = plain_type(field.type)
    # Behind a dictionary or run ends nested values are packed as a whole, in their plain type.
    is_hidden = is_nested(kind) and not is_nested(field.type) and cast("Any", field.type).value_type != kind
    if has_no_plain_form(kind) or is_hidden:
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


def is_nested(kind: pa.DataType) -> bool:
    return pa.types.is_nested(kind) and not pa.types.is_run_end_encoded(kind)


def kind_of(stored: pa.DataType, packed: Packed | None) -> Kind:
    if packed is not None:
        return _PACKED_KINDS[type(packed)]
    if pa.types.is_null(stored):
        return "nothing"
    if pa.types.is_boolean(stored):
        return "bits"
    return "open" if pa.types.is_string(stored) or stored == pa.binary() else "fixed"


def width_of(stored: pa.DataType, packed: Packed | None) -> int:
    """Bytes of the slot."""
    if packed is not None:
        return packed.width
    what = kind_of(stored, None)
    return (
        stored.bit_width // 8 if what == "fixed" else {"nothing": 0, "bits": 1, "open": _OFFSET_BYTES}[what]
    )


def _given(column: "pa.Array[Any]", kind: Any, children: "RowLayout | None") -> "pa.Array[Any]":
    if kind == column.type:
        return column
    if pa.types.is_dictionary(kind):
        found: Any = column.dictionary_encode()
        values = _given(found.dictionary, kind.value_type, children)
        return pa.DictionaryArray.from_arrays(
            found.indices.cast(kind.index_type), values, ordered=kind.ordered
        )
    if pa.types.is_run_end_encoded(kind):
        options = pc.RunEndEncodeOptions(kind.run_end_type)
        found = pc.call_function("run_end_encode", [column], options)
        values = _given(found.values, kind.value_type, children)
        return pa.RunEndEncodedArray.from_arrays(found.run_ends, values, kind)
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, column)
    return column.cast(kind) if children is None else unpack_nested(column, kind, children)


__all__ = ["CODE_BYTES", "NEVER_NULL", "Slot", "is_nested", "kind_of", "stored_type", "width_of"]
