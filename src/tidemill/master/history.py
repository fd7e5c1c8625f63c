"""Master data with a history: all versions of a key in one row, so that joins see each key once.

```
flat                                         stored
product  valid_from  valid_to    price       product  _history
      7  2024-01-01  2024-06-01     10             7  ▤▤▤  ─▶  row of 2025 · row of June 2024 · row of January 2024
      7  2024-06-01  2025-01-01     12             8  ▤
      7  2025-01-01        NULL     11
      8  2024-03-01        NULL     99
```
A version is valid from `valid_from` to before `valid_to`, or still when that is NULL. The value of `_history` is the rows
of the versions (`master/rows.py`), the newest first, since most events are young: a join carries it as any other bytes,
and only the one version that is wanted, of it only the columns that are wanted, is ever decoded. As a list of structs
every version would be.
"""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import pyarrow as pa

from tidemill.core.errors import SpecError, StoreError, unknown_choice
from tidemill.master import row_kernels as kernels
from tidemill.master.hashing import Int64s
from tidemill.master.history_times import TimeScale, times_of
from tidemill.master.keys import KeyForm
from tidemill.master.layout import schema_as_text
from tidemill.master.rows import RowLayout, UInt8s

HISTORY_COLUMN = "_history"
FORMAT_VERSION = 1
_METADATA_KEY = b"tidemill.history"


@dataclass(frozen=True)
class History:
    """How the versions of a key lie in one value of `HISTORY_COLUMN`."""

    valid_from: str
    valid_to: str
    schema: pa.Schema
    """Of a version: all columns but the key, in the types that the user gave."""

    @classmethod
    def choose(cls, flat: pa.Schema, form: KeyForm, pair: Sequence[str]) -> "History":
        """The checked history for rows of `flat`, in which `pair` names the columns valid-from and valid-to."""
        names = [name for name in flat.names if name not in (*form.columns, form.code_column)]
        for name in pair:
            if name not in names:
                raise unknown_choice("history column", name, names)
        if len(pair) != 2 or pair[0] == pair[1]:
            raise SpecError(
                f"history={tuple(pair)!r} names {len(set(pair))} columns",
                code="history_columns",
                next_move='name two, such as history=("valid_from", "valid_to")',
            )
        scales = [TimeScale.of(flat.field(name).type, name) for name in pair]
        if scales[0] != scales[1]:
            types = [str(flat.field(name).type) for name in pair]
            raise SpecError(
                f"{pair[0]!r} has type {types[0]}, {pair[1]!r} has {types[1]}",
                code="history_types",
                next_move="cast one of them: both ends of a version need the same unit",
            )
        if HISTORY_COLUMN in form.columns:
            raise SpecError(
                f"the key has a column {HISTORY_COLUMN!r}, the name under which pages keep versions",
                code="column_twice",
                next_move="rename it",
            )
        return cls(pair[0], pair[1], pa.schema([flat.field(name) for name in names]))

    @classmethod
    def of_schema(cls, schema: pa.Schema) -> "History | None":
        """The history that the schema of a store's pages tells, if there is one."""
        told = (schema.metadata or {}).get(_METADATA_KEY)
        if told is None:
            return None
        facts = json.loads(told)
        if facts["format_version"] != FORMAT_VERSION:
            raise StoreError(
                f"the history has format version {facts['format_version']}, this Tidemill reads {FORMAT_VERSION}",
                code="format_version",
                next_move="upgrade Tidemill, or build the master data again",
                found=facts["format_version"],
            )
        version = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(facts["schema"])))
        return cls(facts["valid_from"], facts["valid_to"], version)

    def page_schema(self, form: KeyForm) -> pa.Schema:
        """Of the pages: key, versions, codes; it tells this history."""
        fields = [*_key_fields(form), pa.field(HISTORY_COLUMN, pa.binary())]
        schema = form.told_by(pa.schema(fields))
        facts = {
            "format_version": FORMAT_VERSION,
            "valid_from": self.valid_from,
            "valid_to": self.valid_to,
            "schema": schema_as_text(self.schema),
        }
        return schema.with_metadata({**(schema.metadata or {}), _METADATA_KEY: json.dumps(facts).encode()})

    def flat_schema(self, form: KeyForm) -> pa.Schema:
        """Of rows with one version each: key, columns of the version, codes."""
        return form.told_by(pa.schema([*_key_fields(form), *self.schema]))

    @property
    def scale(self) -> TimeScale:
        return TimeScale.of(self.schema.field(self.valid_from).type, self.valid_from)

    @cached_property
    def layout(self) -> RowLayout:
        """Of a version's row: its valid-from in the first eight bytes, both ends as whole numbers."""
        fields = [
            pa.field(field.name, pa.int64()) if field.name in (self.valid_from, self.valid_to) else field
            for field in self.schema
        ]
        return RowLayout.of(pa.schema(fields), first=self.valid_from)

    def decode(self, rows: UInt8s, at: Int64s, names: Sequence[str] | None = None) -> pa.RecordBatch:
        """Versions that begin at these places, in the types that were given; of NULLs where a place is negative."""
        stored = self.layout.decode(rows, at, names)
        fields = [self.schema.field(name) for name in stored.schema.names]
        ends = (self.valid_from, self.valid_to)
        columns = [
            times_of(column, field.type) if field.name in ends else column
            for field, column in zip(fields, stored.columns, strict=True)
        ]
        kind = pa.struct([field.with_nullable(True) for field in fields])
        whole = pa.Array.from_buffers(kind, len(at), [None], 0, children=columns)
        return pa.RecordBatch.from_struct_array(cast("pa.StructArray", whole))

    def unfold(self, histories: "pa.Array[Any]") -> tuple[Int64s, pa.RecordBatch]:
        """All versions of all values, the newest of each first, and for each the number of its value."""
        rows, starts = bytes_and_starts(histories)
        at = np.empty(len(rows) // self.layout.least_row_bytes, dtype=np.int64)
        ends = np.zeros(len(starts), dtype=np.int64)
        kernels.find_rows(rows, starts, self.layout.last_open_offset, self.layout.fixed_bytes, ends, at)
        value = np.repeat(np.arange(len(histories)), np.diff(ends))
        return value, self.decode(rows, at[: ends[-1]])

    def flat(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of the store, as `scan` and `lookup` give them, with one version each, the newest of a key first."""
        value, versions = self.unfold(rows.column(HISTORY_COLUMN))
        rest = rows.drop_columns([HISTORY_COLUMN]).take(value)
        return pa.RecordBatch.from_arrays(
            [*rest.columns, *versions.columns], names=[*rest.schema.names, *versions.schema.names]
        )


def bytes_and_starts(histories: "pa.Array[Any]") -> tuple[UInt8s, Int64s]:
    """The bytes of all values, and where each begins, with the end of the last one."""
    _, places, content = histories.buffers()
    rows = np.frombuffer(memoryview(content or b""), np.uint8)
    if not len(histories):
        return rows[:0], np.zeros(1, dtype=np.int64)
    stored = np.frombuffer(memoryview(cast("pa.Buffer", places)), np.int32)
    return rows, stored[histories.offset :][: len(histories) + 1].astype(np.int64)


def _key_fields(form: KeyForm) -> list["pa.Field[Any]"]:
    return [pa.field(name, kind) for name, kind in zip(form.columns, form.types, strict=True)]


__all__ = ["HISTORY_COLUMN", "History", "bytes_and_starts"]
