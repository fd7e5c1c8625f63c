"""Rows as the application wrote them become Arrow; those that do not fit the schema are set apart."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tidemill.core.block import check_required_columns
from tidemill.core.errors import SourceError

Row = tuple[Any, ...]
_UNFIT = (pa.ArrowException, SourceError, TypeError, ValueError, OverflowError)


def to_batch(rows: Sequence[Row], schema: pa.Schema) -> tuple[pa.RecordBatch | None, list[tuple[Row, str]]]:
    """(batch of the rows that fit or None, the others with their reasons).

    The whole block is converted at once; only when that fails is each row tried alone.
    """
    try:
        return _convert(rows, schema), []
    except _UNFIT:
        pass
    unfit: list[tuple[Row, str]] = []
    fitting: list[Row] = []
    for row in rows:
        try:
            _convert([row], schema)
            fitting.append(row)
        except _UNFIT as error:
            unfit.append((row, str(error)))
    return (_convert(fitting, schema) if fitting else None), unfit


def _convert(rows: Sequence[Row], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(values, type=field.type) for values, field in zip(columns, schema, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    check_required_columns(batch)
    return batch


__all__ = ["Row", "to_batch"]
