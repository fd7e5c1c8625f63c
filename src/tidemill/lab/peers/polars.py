"""Polars joining each batch of 100,000 rows against the Parquet file."""

from collections.abc import Iterable, Iterator

import polars as pl
import pyarrow as pa

from tidemill.lab.join_data import JoinData
from tidemill.lab.kernel_counts import drop_from_cache
from tidemill.lab.peers import Outputs
from tidemill.lab.rows import OUTPUT_SCHEMA


class PolarsJoin:
    """Scans the file for every batch with the streaming engine and two threads (`POLARS_MAX_THREADS`).

    It has no budget to set and keeps nothing between batches; the system's page cache forgets the file before each.
    """

    def __init__(self, data: JoinData) -> None:
        self._parquet = data.parquet
        self._master = pl.scan_parquet(data.parquet)

    def join(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Outputs]:
        for batch in batches:
            drop_from_cache(self._parquet)
            stream = pl.from_arrow(batch)
            assert isinstance(stream, pl.DataFrame)
            joined = stream.lazy().join(self._master, on="key", how="left").collect(engine="streaming")
            yield tuple(joined.select(OUTPUT_SCHEMA.names).to_arrow().cast(OUTPUT_SCHEMA).to_batches())


def open_contender(data: JoinData, memory_bytes: int) -> PolarsJoin:  # noqa: ARG001 - Polars has no budget to set
    return PolarsJoin(data)
