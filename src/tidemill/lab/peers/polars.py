"""Polars joining each batch against the Parquet file."""

from collections.abc import Iterable, Iterator

import polars as pl
import pyarrow as pa

from tidemill.lab.join_data import JoinData
from tidemill.lab.rows import OUTPUT_SCHEMA


class PolarsJoin:
    """Scans the file for every batch with the streaming engine."""

    bytes_read = 0

    def __init__(self, data: JoinData) -> None:
        self._master = pl.scan_parquet(data.parquet)

    def join(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            stream = pl.from_arrow(batch)
            assert isinstance(stream, pl.DataFrame)
            joined = stream.lazy().join(self._master, on="key", how="left").collect(engine="streaming")
            yield from joined.select(OUTPUT_SCHEMA.names).to_arrow().cast(OUTPUT_SCHEMA).to_batches()


def open_contender(data: JoinData, memory_bytes: int) -> PolarsJoin:  # noqa: ARG001 - Polars has no budget to set
    return PolarsJoin(data)
