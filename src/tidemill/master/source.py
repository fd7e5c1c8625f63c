"""Whatever the user has as master data, as Arrow batches in the types that pages store, with checked keys."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from tidemill.core.errors import SpecError
from tidemill.core.units import format_count
from tidemill.master.keys import CODE_COLUMN, KeyForm
from tidemill.master.plain import has_no_plain_form, plain, plain_type

Source = pa.Table | pa.RecordBatchReader | str | Path | Sequence[str | Path]

_BATCH_ROWS = 65_536


@dataclass(frozen=True)
class SourceRows:
    """Rows as pages will store them, without codes; read once."""

    schema: pa.Schema
    form: KeyForm
    batches: Iterator[pa.RecordBatch]
    rows_in_all: int | None
    """None when only the end of the source tells."""


def open_source(source: Source, key_columns: Sequence[str]) -> SourceRows:
    """The rows of any source; a NULL key or a type that cannot be stored is a `SpecError`."""
    given, batches, rows_in_all = _opened(source)
    # An integer key is stored as int64, so that a page's key column is its codes.
    fields = [_stored_field(field, is_key=field.name in key_columns) for field in given]
    schema = pa.schema(fields)
    form = KeyForm.choose(schema, key_columns)
    if form.is_hashed and CODE_COLUMN in schema.names:
        raise SpecError(
            f"the source has a column {CODE_COLUMN!r}, the name under which pages keep the codes of keys",
            code="column_twice",
            next_move="rename it",
        )
    return SourceRows(schema, form, _without_null_keys(batches, schema, form), rows_in_all)


def _opened(source: Source) -> tuple[pa.Schema, Iterator[pa.RecordBatch], int | None]:
    if isinstance(source, pa.Table):
        return source.schema, iter(source.to_batches(max_chunksize=_BATCH_ROWS)), source.num_rows
    if isinstance(source, pa.RecordBatchReader):
        return source.schema, iter(source), None
    paths = [str(source)] if isinstance(source, str | Path) else [str(path) for path in source]
    try:
        files = ds.dataset(paths[0] if len(paths) == 1 else paths, format="parquet")
        # Two batches ahead in one file: the scanner's own defaults hold some hundred megabytes.
        scan = files.to_batches(batch_size=_BATCH_ROWS, batch_readahead=2, fragment_readahead=1)
        return files.schema, _readable(scan, paths), files.count_rows()
    except (OSError, pa.ArrowInvalid) as error:
        raise _unreadable(paths, error) from error


def _readable(batches: Iterator[pa.RecordBatch], paths: list[str]) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except (OSError, pa.ArrowInvalid) as error:
        raise _unreadable(paths, error) from error


def _unreadable(paths: list[str], error: Exception) -> SpecError:
    return SpecError(
        f"cannot read Parquet from {', '.join(paths)}: {error}",
        code="source_unreadable",
        next_move="give an existing Parquet file or folder, a pyarrow Table or a RecordBatchReader",
        paths=paths,
    )


def _stored_field(field: "pa.Field[Any]", *, is_key: bool) -> "pa.Field[Any]":
    """The field in a type whose pages stand alone: without dictionary, without shared view buffers."""
    kind = plain_type(field.type)
    if has_no_plain_form(kind):
        raise SpecError(
            f"column {field.name!r} has type {kind}, which a page cannot hold",
            code="column_type",
            next_move="cast it to a plain Arrow type",
            column=field.name,
        )
    becomes_int64 = is_key and pa.types.is_integer(kind) and kind != pa.uint64()
    return pa.field(field.name, pa.int64() if becomes_int64 else kind)


def _stored(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [_cast(column, field) for column, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: "pa.Array[Any]", field: "pa.Field[Any]") -> "pa.Array[Any]":
    column = plain(column)
    return column if column.type == field.type else column.cast(field.type)


def _without_null_keys(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, form: KeyForm
) -> Iterator[pa.RecordBatch]:
    """The batches; from the first NULL key on they are only counted, for the refusal at the end."""
    rows = null_keys = 0
    for given in batches:
        batch = _stored(given, schema)
        rows += batch.num_rows
        absent = np.zeros(batch.num_rows, dtype=np.bool_)
        for name in form.columns:
            if batch.column(name).null_count:
                absent |= batch.column(name).is_null().to_numpy(zero_copy_only=False)
        null_keys += int(absent.sum())
        if not null_keys:
            yield batch
    if null_keys:
        raise SpecError(
            f"{format_count(null_keys)} of {format_count(rows)} rows have NULL in key {_quoted(form.columns)}",
            code="null_keys",
            next_move="leave those rows out: a NULL key never matches",
            key=list(form.columns),
            null_keys=null_keys,
        )


def _quoted(columns: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in columns)


__all__ = ["Source", "SourceRows", "open_source"]
