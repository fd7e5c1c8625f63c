"""Stream keys of any integer type as int64, with a mark for those that can never match."""

import numpy as np
import pyarrow as pa

from tidemill.join.parts.kernels import Bools, Int64s

_LARGEST = np.uint64(np.iinfo(np.int64).max)


def stream_keys(batch: pa.RecordBatch, key: str) -> tuple[Int64s, Bools]:
    """Keys, and where a key is present: NULLs, and numbers that no int64 holds, match nothing."""
    column = batch.column(key)
    values = (column.fill_null(0) if column.null_count else column).to_numpy()
    present = (
        np.asarray(column.is_valid().to_numpy(zero_copy_only=False))
        if column.null_count
        else np.ones(len(values), dtype=np.bool_)
    )
    if values.dtype == np.uint64:
        present = present & (values <= _LARGEST)
    return np.ascontiguousarray(values.astype(np.int64, copy=False)), present


__all__ = ["stream_keys"]
