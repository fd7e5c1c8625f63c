"""Strings that are equally long and begin and end alike: only what differs is stored.

```
article number 0000048271 of the season        SKU-000123        6fa459ea-ee8a-3ca4-894e-db77e160355e
└── alike ────┘ stored    └─ alike ────┘       alike stored      stored: equally long, so its end need not be told
```
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.master.short_numbers import DoesNotFitError

MOST_VALUE_BYTES = 256
"""Of a value that is not stored in full: whoever bounds the size of output must reckon with the longest."""
_SPILL_BYTES = 64  # behind a template, which is copied in pieces

UInt8s = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Framed:
    """What lies between the bytes with which all values begin and end.

    >>> codes = pa.array(["SKU-17", None, "SKU-42"])
    >>> Framed(2, b"SKU-", b"").pack(codes).to_pylist()
    [b'17', None, b'42']
    """

    width: int
    begins: bytes
    ends: bytes

    @classmethod
    def from_values(cls, width: int, values: Any) -> "Framed":
        begins, ends = values.cast(pa.binary()).to_pylist()
        return cls(width, begins, ends)

    @property
    def values(self) -> "pa.Array[Any]":
        """Beginning and end, as they are kept in a file."""
        return pa.array([self.begins, self.ends], pa.binary())

    @property
    def form(self) -> str:
        """With what tells its frame from others: rows of equal forms mean the same."""
        digest = google_crc32c.value(repr((self.begins, self.ends)).encode())
        return f"framed {self.width} of {self.longest_bytes} {digest:08x}"

    @property
    def longest_bytes(self) -> int:
        return len(self.begins) + self.width + len(self.ends)

    @property
    def bytes_held(self) -> int:
        return self.template.nbytes

    @cached_property
    def template(self) -> UInt8s:
        """A value without its middle, and room behind it."""
        whole = self.begins + bytes(self.width) + self.ends + bytes(_SPILL_BYTES)
        return np.frombuffer(whole, np.uint8)

    def holding(self, column: "pa.Array[Any]") -> "Framed | None":
        """Itself, if it holds the column too."""
        return None if self.middles(column) is None else self

    def pack(self, column: "pa.Array[Any]") -> "pa.Array[Any]":
        """The column in bytes of this width."""
        middles = self.middles(column)
        if middles is None:
            raise DoesNotFitError
        return in_bytes_of_rows(middles, column)

    def middles(self, column: "pa.Array[Any]") -> UInt8s | None:
        """What lies inside the frame, a line a value that is not NULL; None where one does not fit."""
        values = equally_long(column)
        if values is None or (len(values) and values.shape[1] != self.longest_bytes):
            return None
        if not len(values):
            return np.empty((0, self.width), dtype=np.uint8)
        frame, first, last = self.template, len(self.begins), len(self.begins) + self.width
        is_framed = (values[:, :first] == frame[:first]).all()
        is_framed &= (values[:, last:] == frame[last : self.longest_bytes]).all()
        return values[:, first:last] if is_framed else None


def in_bytes_of_rows(stored: UInt8s, column: "pa.Array[Any]") -> "pa.Array[Any]":
    """Lines of bytes, one a value that is not NULL, as a column that has NULL where the other has."""
    valid, width = None, stored.shape[1]
    if column.null_count:
        is_valid: Any = column.is_valid()
        valid = is_valid.buffers()[1]
        found, stored = stored, np.zeros((len(column), width), dtype=np.uint8)
        stored[is_valid.to_numpy(zero_copy_only=False)] = found
    buffers = [valid, pa.py_buffer(np.ascontiguousarray(stored).data)]
    return pa.Array.from_buffers(pa.binary(width), len(column), buffers, column.null_count)


def equally_long(column: "pa.Array[Any]") -> UInt8s | None:
    """The bytes of all values that are not NULL, a line a value; None where their lengths differ or are 0."""
    values: Any = column.drop_null()
    if not len(values):
        return np.empty((0, 0), dtype=np.uint8)
    sizes: Any = pc.min_max(pc.binary_length(values)).as_py()
    size = int(sizes["max"])
    if sizes["min"] != size or not size:
        return None
    content = np.frombuffer(memoryview(values.buffers()[2]), np.uint8)
    begin = int(np.frombuffer(memoryview(values.buffers()[1]), np.int32)[values.offset])
    return content[begin : begin + len(values) * size].reshape(len(values), size)


__all__ = ["MOST_VALUE_BYTES", "Framed", "UInt8s", "equally_long", "in_bytes_of_rows"]
