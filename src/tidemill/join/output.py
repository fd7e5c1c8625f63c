"""What leaves a join: which columns, under which names, for which rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.core.errors import SpecError, unknown_choice
from tidemill.join.parts.keys import StreamKey
from tidemill.master.keys import CODE_COLUMN, KeyForm

How = Literal["inner", "left", "semi", "anti"]
Columns = Sequence[str] | Mapping[str, str]


@dataclass(frozen=True)
class OutputPlan:
    """Stream columns, then the chosen master columns, then the mark of a match if asked for.

    `master_columns` are those that a join carries until a row leaves: the chosen ones, and the real key
    where codes are hashes, since it is compared before anything leaves. `chosen_columns` leave.
    """

    how: How
    stream_schema: pa.Schema
    stream_key: StreamKey
    master_columns: tuple[str, ...]
    chosen_columns: tuple[str, ...]
    output_schema: pa.Schema
    matched_as: str | None

    @classmethod
    def of(
        cls,
        stream_schema: pa.Schema,
        master_schema: pa.Schema,
        *,
        stream_key: str | Sequence[str],
        master_key: str,
        how: How = "inner",
        columns: Columns | None = None,
        matched_as: str | None = None,
    ) -> "OutputPlan":
        """The checked plan.

        Args:
            stream_schema: Of the batches that will be offered.
            master_schema: Of the master data.
            stream_key: Column of the stream, or as many as the master key has; may hold NULLs.
            master_key: Code column of the master data. The key's columns are left out unless chosen.
            how: semi and anti give stream columns alone.
            columns: Master columns, or a mapping from their names to names in the output; all but
                the key when not given.
            matched_as: For left joins: a boolean column, true where a master row matched, since a
                matching row may itself hold NULLs.
        """
        if how not in get_args(How):
            raise unknown_choice("how", how, list(get_args(How)))
        form = KeyForm.of_schema(master_schema, master_key)
        key = StreamKey.of(stream_schema, stream_key, form)
        valid = [name for name in master_schema.names if name != CODE_COLUMN or not form.is_hashed]
        names = _chosen([name for name in valid if name not in form.columns], how, columns)
        for name in names:
            if name not in valid:
                raise unknown_choice("master column", name, valid)
        if matched_as is not None and how != "left":
            raise SpecError(
                f"matched_as={matched_as!r} with how={how!r}",
                code="matched_as",
                next_move='ask for it with how="left", or leave it out',
                how=how,
            )
        fields = list(stream_schema)
        for name, output_name in names.items():
            source = master_schema.field(name)
            fields.append(pa.field(output_name, source.type, nullable=how == "left" or source.nullable))
        if matched_as is not None:
            fields.append(pa.field(matched_as, pa.bool_(), nullable=False))
        _refuse_twice([field.name for field in fields])
        compared = [name for name in form.columns if name not in names] if form.is_hashed else []
        carried = (*names, *compared)
        return cls(how, stream_schema, key, carried, tuple(names), pa.schema(fields), matched_as)

    @property
    def stream_row_bytes(self) -> int:
        """Expected size of a stream row: what its types say, 32 bytes for those of open length."""
        return sum(_expected_bytes(field.type) for field in self.stream_schema)

    def refuse_other_schema(self, batch: pa.RecordBatch) -> None:
        if not batch.schema.equals(self.stream_schema):
            raise SpecError(
                f"a batch with columns {batch.schema.names} came where {self.stream_schema.names} were declared, "
                "or their types differ",
                code="stream_schema",
                next_move="cast the stream to the schema given at the start",
                found=str(batch.schema),
                declared=str(self.stream_schema),
            )

    def assemble(
        self,
        stream_rows: pa.RecordBatch,
        master_rows: pa.RecordBatch | None,
        matched: npt.NDArray[np.bool_] | None,
    ) -> pa.RecordBatch:
        """Rows side by side in the output schema; both sides already have the same length."""
        arrays = [*stream_rows.columns]
        if self.chosen_columns and master_rows is not None:
            arrays += [master_rows.column(name) for name in self.chosen_columns]
        if self.matched_as is not None:
            marks = np.ones(stream_rows.num_rows, dtype=np.bool_) if matched is None else matched
            arrays.append(pa.array(marks))
        return pa.RecordBatch.from_arrays(arrays, schema=self.output_schema)


def _expected_bytes(kind: pa.DataType) -> int:
    try:
        return -(-kind.bit_width // 8) + 1
    except ValueError:  # of open length
        return 32


def _chosen(default: list[str], how: How, columns: Columns | None) -> dict[str, str]:
    if how in ("semi", "anti"):
        if columns:
            raise SpecError(
                f"master columns {list(columns)} with how={how!r}",
                code="columns_of_semi",
                next_move="semi and anti joins give stream columns alone: leave columns out",
                how=how,
            )
        return {}
    if columns is None:
        return {name: name for name in default}
    return dict(columns) if isinstance(columns, Mapping) else {name: name for name in columns}


def _refuse_twice(names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SpecError(
            f"output columns {twice} would occur twice",
            code="column_twice",
            next_move='rename master columns, for example columns={"price": "list_price"}',
            columns=twice,
        )


__all__ = ["Columns", "How", "OutputPlan"]
