"""What others do about the same join: one peer a file, each measured in the same run on the same rows.

A peer takes the data, the bytes it may hold and gives finished rows: the stream's columns and all master columns,
NULL where no master row matched.
"""

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from types import ModuleType
from typing import Protocol

import pyarrow as pa

from tidemill.lab.join_data import JoinData

Outputs = tuple[pa.RecordBatch, ...]


class Contender(Protocol):
    """Anything that joins the benchmark's stream."""

    def join(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Outputs]:
        """Finished rows after each bounded piece of work, none perhaps: between pieces the clock is looked at."""


PEERS = {
    "peer-sqlite-inl": "sqlite",
    "peer-lmdb-inl": "lmdb",
    "peer-batched-inl": "store",
    "peer-lru": "store",
    "peer-duckdb": "parquet",
    "peer-polars": "parquet",
}
"""Each with the form of the master data that it reads."""
WITHOUT_BUDGET = ("peer-duckdb", "peer-polars")
"""Hold what they like, whatever the memory share; so they are measured once a skew."""


def peer_module(name: str) -> ModuleType:
    """The peer's file; importing it loads the library, which is not the contender's memory."""
    return import_module(f"tidemill.lab.peers.{name.removeprefix('peer-').replace('-', '_')}")


def open_peer(name: str, data: JoinData, memory_bytes: int) -> Contender:
    """The peer of that name, ready for its first batch."""
    make: Callable[[JoinData, int], Contender] = peer_module(name).open_contender
    return make(data, memory_bytes)


__all__ = ["PEERS", "WITHOUT_BUDGET", "Contender", "Outputs", "open_peer", "peer_module"]
