"""Columns in fewer bytes than their types take: nothing is lost, and all rows of a store are packed alike.

```
Narrow  whole numbers, dates and times   as many bytes as the largest needs, with its sign
Coded   strings and binaries that repeat the number of the value in a dictionary, 0 for NULL
Framed  those that are equally long      what lies between the bytes with which all of them begin and end (`framing.py`)
Digits  framed ones of digits alone      half a byte a digit (`digits.py`)
Scaled  floats with few decimal places   the whole number that a power of ten divides (`scaling.py`)
```
A key that is its own code is narrow too, in four bytes or not at all, for whoever looks for codes reads them as they lie. And
where no column has a NULL, rows have no bits that say so.

Rows that are shorter by a third are swept in two thirds of the time, and half as many more are hot in the same memory.
Changes may bring values that do not fit (`Packing.holding`): a dictionary grows at its end, so rows keep their bytes;
a column whose numbers outgrow their bytes, or with a value outside its frame, goes back to its full width (digits to their
frame, if that will do), and with a first NULL all rows get their bits. For that all rows are written anew.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.master.digits import Digits
from tidemill.master.framing import MOST_VALUE_BYTES, Framed
from tidemill.master.index import read_batch, write_batch
from tidemill.master.plain import plain, plain_type
from tidemill.master.scaling import Scaled
from tidemill.master.short_numbers import DoesNotFitError, bytes_for, in_bytes, is_held

PACKED_FILE = "packed.arrow"
MOST_VALUES = 2**15 - 1
"""Of a dictionary, so that a number of two bytes with sign names any of them."""
MOST_DICTIONARY_BYTES = 2**20


@dataclass(frozen=True)
class Narrow:
    """Whole numbers in so many bytes.

    >>> Narrow.for_range(-3, 5_000_000, of_bytes=8), Narrow.for_range(0, 2**40, of_bytes=4)
    (Narrow(width=3), None)
    """

    width: int
    longest_bytes: ClassVar[int] = 0
    bytes_held: ClassVar[int] = 0

    @property
    def form(self) -> str:
        return f"narrow {self.width}"

    @classmethod
    def for_range(cls, low: int, high: int, *, of_bytes: int) -> "Narrow | None":
        """The shortest that holds these and a quarter more; None where that saves nothing."""
        width = bytes_for(low, high, fewer_than=of_bytes)
        return None if width is None else cls(width)

    def holding(self, column: "pa.Array[Any]") -> "Narrow | None":
        """One of the same width that holds the column too, or None."""
        return self if is_held(*numbers_range(column), self.width) else None

    def pack(self, column: "pa.Array[Any]") -> "pa.Array[Any]":
        """The column in bytes of this width."""
        if self.holding(column) is None:
            raise DoesNotFitError
        return in_bytes(_numbers(column), self.width, column)


@dataclass(frozen=True, eq=False)
class Coded:
    """Values by their number in a dictionary.

    >>> Coded(1, pa.array(["red", "blue"])).pack(pa.array(["blue", None])).to_pylist() == [bytes([2]), None]
    True
    """

    width: int
    values: "pa.Array[Any]" = field(repr=False)
    """Each once; the first has the number 1."""

    @property
    def form(self) -> str:
        return f"coded {self.width}"

    @property
    def longest_bytes(self) -> int:
        return int(np.diff(self.ends).max(initial=0))

    @cached_property
    def ends(self) -> "npt.NDArray[np.int32]":
        """Where the value of each number begins and, one further, ends; that of number 0 is empty."""
        values: Any = self.values
        sizes = pc.binary_length(values).to_numpy()
        return np.concatenate([[0, 0], np.cumsum(sizes)]).astype(np.int32)

    @cached_property
    def content(self) -> "npt.NDArray[np.uint8]":
        """The values one after the other."""
        offsets, content = self.values.buffers()[1:]
        if not content or not offsets:
            return np.zeros(1, dtype=np.uint8)
        first = int(np.frombuffer(memoryview(offsets), np.int32)[self.values.offset])
        return np.frombuffer(memoryview(content), np.uint8)[first : first + int(self.ends[-1])]

    @property
    def bytes_held(self) -> int:
        return self.ends.nbytes + self.values.nbytes

    def holding(self, column: "pa.Array[Any]") -> "Coded | None":
        """One that knows the values of the column too, at its end; None when they become too many or too long."""
        found = column.unique().drop_null()
        new = found.filter(pc.invert(pc.is_in(found, value_set=self.values)))
        if not len(new):
            return self
        grown = Coded(self.width, pa.concat_arrays([self.values, new]))
        return grown if grown.is_possible else None

    @property
    def is_possible(self) -> bool:
        fits = len(self.values) < 2 ** (8 * self.width - 1) and self.longest_bytes <= MOST_VALUE_BYTES
        return fits and len(self.content) <= MOST_DICTIONARY_BYTES

    def pack(self, column: "pa.Array[Any]") -> "pa.Array[Any]":
        """The column as numbers."""
        numbers = pc.index_in(column, value_set=self.values, skip_nulls=True)
        if numbers.null_count > column.null_count:
            raise DoesNotFitError
        return in_bytes(numbers.fill_null(-1).to_numpy().astype(np.int64) + 1, self.width, column)


Packed = Narrow | Scaled | Coded | Framed | Digits


@dataclass(frozen=True)
class Packing:
    """How the columns of a store are packed; those that are not named are as their types are."""

    columns: Mapping[str, Packed] = field(default_factory=dict)
    has_nulls: bool = True
    """Whether a column may have NULLs: rows then have a bit for each."""

    @property
    def is_plain(self) -> bool:
        """Whether rows are as their types are."""
        return not self.columns and self.has_nulls

    def lies_as(self, other: "Packing") -> bool:
        """Whether rows of both lie alike."""
        return self.form == other.form and self.has_nulls == other.has_nulls

    @property
    def form(self) -> dict[str, str]:
        """How each packed column lies in its bytes."""
        return {name: how.form for name, how in self.columns.items()}

    @property
    def bytes_held(self) -> int:
        return sum(how.bytes_held for how in self.columns.values())

    def holding(self, batch: pa.RecordBatch) -> "Packing":
        """One that holds these rows too: the same, with longer dictionaries, or without some columns."""
        if self.is_plain or not batch.num_rows:
            return self
        has_nulls = self.has_nulls or any(nulls_in(column) for column in batch.columns)
        grown = {name: how.holding(plain_column(batch.column(name))) for name, how in self.columns.items()}
        if has_nulls == self.has_nulls and all(grown[name] is how for name, how in self.columns.items()):
            return self
        return Packing({name: how for name, how in grown.items() if how is not None}, has_nulls)

    def write(self, folder: Path) -> tuple[int, int]:
        """Bytes and CRC-32C of the file with dictionaries and frames; 0 where there are none."""
        values = {
            name: how.values for name, how in self.columns.items() if not isinstance(how, Narrow | Scaled)
        }
        if not values:
            return 0, 0
        lists = [pa.ListArray.from_arrays([0, len(some)], some) for some in values.values()]
        batch = pa.RecordBatch.from_arrays(lists, list(values))
        return write_batch(folder / PACKED_FILE, batch)

    @classmethod
    def read(
        cls,
        folder: Path,
        form: Mapping[str, str | int],
        file_bytes: int,
        file_crc: int,
        *,
        has_nulls: bool = True,
    ) -> "Packing":
        """The one whose form a manifest tells, with its dictionaries and frames."""
        lists: dict[str, Any] = {}
        if file_bytes:
            batch: Any = read_batch(folder / PACKED_FILE, file_bytes, file_crc)
            lists = {name: batch.column(name).flatten() for name in batch.schema.names}
        return cls({name: _as_told(how, lists.get(name)) for name, how in form.items()}, has_nulls)


def _as_told(form: str | int, values: Any) -> Packed:
    if isinstance(form, int):  # of format 4: bytes of numbers, or minus those that name values
        return Coded(-form, values) if form < 0 else Narrow(form)
    kind, width, *more = form.split()
    if kind == "framed":
        return Framed.from_values(int(width), values)
    if kind == "digits":  # … as framed …
        return Digits(Framed.from_values(int(more[2]), values))
    if kind == "scaled":  # … of …
        return Scaled(int(width), int(more[1]))
    return Coded(int(width), values) if kind == "coded" else Narrow(int(width))


NOT_PACKED = Packing()


def may_be_narrow(kind: pa.DataType) -> bool:
    """Whether values of a type are whole numbers to a machine, of more than one byte."""
    stored = plain_type(kind)
    is_number = pa.types.is_integer(stored) or pa.types.is_temporal(stored)
    return is_number and not pa.types.is_interval(stored) and stored.bit_width > 8


def may_be_coded(kind: pa.DataType) -> bool:
    """Whether values of a type are of open length, without others inside."""
    stored = plain_type(kind)
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(is_such(stored) for is_such in tests)


def plain_column(column: "pa.Array[Any]") -> "pa.Array[Any]":
    """The column in its plain type, with short offsets."""
    found = column if column.type == plain_type(column.type) else plain(column)
    short = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(found.type)
    return found if short is None else found.cast(short)


def nulls_in(column: "pa.Array[Any]") -> int:
    """How many values of a column are NULL, those that a dictionary or a run has as well."""
    is_hidden = pa.types.is_dictionary(column.type) or pa.types.is_run_end_encoded(column.type)
    return (plain(column) if is_hidden else column).null_count


def numbers_range(column: "pa.Array[Any]") -> tuple[int, int]:
    """The smallest and the largest number of a plain column; 0 and 0 where there is none."""
    found: Any = pc.min_max(_viewed(column)).as_py()
    return (0, 0) if found["min"] is None else (found["min"], found["max"])


def _viewed(column: Any) -> Any:
    return column.view({16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[column.type.bit_width])


def _numbers(column: "pa.Array[Any]") -> "npt.NDArray[np.int64]":
    numbers: npt.NDArray[np.int64] = _viewed(column).fill_null(0).to_numpy().astype(np.int64)
    return numbers


__all__ = [
    "MOST_VALUES",
    "MOST_VALUE_BYTES",
    "NOT_PACKED",
    "PACKED_FILE",
    "Coded",
    "Digits",
    "DoesNotFitError",
    "Framed",
    "Narrow",
    "Packed",
    "Packing",
    "Scaled",
    "may_be_coded",
    "may_be_narrow",
    "nulls_in",
    "numbers_range",
    "plain_column",
]
