"""What others do about the same join: one peer a file, each measured in the same run on the same rows.

A peer takes the data, the bytes it may hold and gives finished rows: the stream's columns and all master columns,
NULL where no master row matched.
"""

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Protocol

import pyarrow as pa

from tidemill.lab.join_data import JoinData


class Contender(Protocol):
    """Anything that joins the benchmark's stream."""

    @property
    def bytes_read(self) -> int:
        """From disk, where it can be told; 0 elsewhere."""

    def join(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]: ...


PEERS = ("peer-sqlite-inl", "peer-lmdb-inl", "peer-batched-inl", "peer-lru", "peer-duckdb", "peer-polars")


def open_peer(name: str, data: JoinData, memory_bytes: int) -> Contender:
    """The peer of that name, ready for its first batch."""
    module = import_module(f"tidemill.lab.peers.{name.removeprefix('peer-').replace('-', '_')}")
    make: Callable[[JoinData, int], Contender] = module.open_contender
    return make(data, memory_bytes)


__all__ = ["PEERS", "Contender", "open_peer"]
