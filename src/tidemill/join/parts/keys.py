"""Stream keys of any type as the int64 codes of the master data, with a mark for those that can never match."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidemill.core.errors import unknown_choice
from tidemill.join.parts.kernels import Bools, Int64s
from tidemill.master.keys import KeyForm


@dataclass(frozen=True)
class StreamKey:
    """The stream's columns that are compared with the master key, in its order."""

    columns: tuple[str, ...]
    form: KeyForm

    @classmethod
    def of(cls, schema: pa.Schema, columns: str | Sequence[str], form: KeyForm) -> "StreamKey":
        """The checked key: as many columns as the master key has, of types that can be equal to it."""
        names = (columns,) if isinstance(columns, str) else tuple(columns)
        for name in names:
            if name not in schema.names:
                raise unknown_choice("stream key column", name, schema.names)
        form.refuse_other_types(names, [schema.field(name).type for name in names])
        return cls(names, form)

    def is_met(self, stream_rows: pa.RecordBatch, master_rows: pa.RecordBatch) -> Bools:
        """Where the real keys of rows side by side are equal."""
        return self.form.same(
            [stream_rows.column(name) for name in self.columns],
            [master_rows.column(name) for name in self.form.columns],
        )

    def __str__(self) -> str:
        return ", ".join(self.columns)


def stream_keys(batch: pa.RecordBatch, key: StreamKey) -> tuple[Int64s, Bools]:
    """Codes, and where one is present: NULLs, and values that the master key's type cannot hold, match nothing."""
    return key.form.codes([batch.column(name) for name in key.columns])


__all__ = ["StreamKey", "stream_keys"]
