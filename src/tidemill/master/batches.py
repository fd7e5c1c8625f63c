"""Many record batches as one, since gathering from one chunk is ten times faster than from many."""

from collections.abc import Sequence
from typing import cast

import pyarrow as pa


def one_batch(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """All rows in one chunk; an empty batch of `schema` when there are none."""
    if len(batches) == 1:
        return batches[0]
    if not batches:
        return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
    whole = pa.concat_batches(batches)  # type: ignore[attr-defined]  # the stubs lack it
    return cast("pa.RecordBatch", whole)


__all__ = ["one_batch"]
