"""Whatever the user has as master data becomes one plain Arrow table with checked keys."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from tidemill.core.errors import SpecError, unknown_choice
from tidemill.core.units import format_count
from tidemill.master.index import Int64s

Source = pa.Table | pa.RecordBatchReader | str | Path | Sequence[str | Path]

KEY_TYPES = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


def read_source(source: Source, key: str) -> tuple[pa.Table, Int64s]:
    """The table with its key stored as int64, and those keys."""
    table = _as_table(source)
    if key not in table.column_names:
        raise unknown_choice("key column", key, table.column_names)
    keys = _checked_keys(table.column(key), key)
    columns = [
        pa.chunked_array([keys]) if name == key else _plain(table.column(name), name)
        for name in table.column_names
    ]
    return pa.table(columns, names=table.column_names), keys.to_numpy()


def _as_table(source: Source) -> pa.Table:
    if isinstance(source, pa.Table):
        return source
    if isinstance(source, pa.RecordBatchReader):
        return source.read_all()
    paths = [str(source)] if isinstance(source, str | Path) else [str(path) for path in source]
    try:
        return ds.dataset(paths[0] if len(paths) == 1 else paths, format="parquet").to_table()
    except (OSError, pa.ArrowInvalid) as error:
        raise SpecError(
            f"cannot read Parquet from {', '.join(paths)}: {error}",
            code="source_unreadable",
            next_move="give an existing Parquet file or folder, a pyarrow Table or a RecordBatchReader",
            paths=paths,
        ) from error


def _checked_keys(column: "pa.ChunkedArray[Any]", key: str) -> "pa.Array[Any]":
    if not pa.types.is_integer(column.type):
        raise SpecError(
            f"key column {key!r} has type {column.type}",
            code="key_type",
            next_move=f"give a key of one of these types: {', '.join(KEY_TYPES)}",
            key=key,
            valid=KEY_TYPES,
        )
    if column.null_count:
        raise SpecError(
            f"{format_count(column.null_count)} of {format_count(len(column))} rows have NULL in key column {key!r}",
            code="null_keys",
            next_move="leave those rows out: a NULL key never matches",
            key=key,
            null_keys=column.null_count,
        )
    if column.type == pa.uint64():
        _refuse_beyond_int64(column, key)
    return pa.concat_arrays(column.cast(pa.int64()).chunks) if len(column) else pa.array([], pa.int64())


def _refuse_beyond_int64(column: "pa.ChunkedArray[Any]", key: str) -> None:
    beyond = int(np.count_nonzero(column.to_numpy() > np.uint64(np.iinfo(np.int64).max)))
    if beyond:
        raise SpecError(
            f"{format_count(beyond)} keys in {key!r} are larger than an int64 holds",
            code="key_out_of_range",
            next_move="use keys up to 9,223,372,036,854,775,807",
            key=key,
            keys=beyond,
        )


def _plain(column: "pa.ChunkedArray[Any]", name: str) -> "pa.ChunkedArray[Any]":
    """The column in a type whose pages stand alone: without dictionary, without shared view buffers."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return column.cast(kind.value_type)
    if pa.types.is_string_view(kind):
        return column.cast(pa.string())
    if pa.types.is_binary_view(kind):
        return column.cast(pa.binary())
    if pa.types.is_run_end_encoded(kind) or isinstance(kind, pa.BaseExtensionType):
        raise SpecError(
            f"column {name!r} has type {kind}, which a page cannot hold",
            code="column_type",
            next_move="cast it to a plain Arrow type",
            column=name,
        )
    return column


__all__ = ["KEY_TYPES", "Source", "read_source"]
