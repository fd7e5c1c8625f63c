"""Synthetic data of the papers: keys by Zipf's law on either side."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.lab.data.bursts import burst_counts
from tidemill.lab.data.data_set import filler, filler_bytes, schema_of, spans
from tidemill.model.workload import Workload
from tidemill.testing.zipf import Zipf

Int64s = npt.NDArray[np.int64]

BATCH_ROWS = 10_000
_BATCHES_A_DRAW = 256
_KEY_AND_EVENT_BYTES = 16


@dataclass(frozen=True, kw_only=True)
class ZipfData:
    """Keys without meaning; which of them are popular is drawn from the seed.

    >>> sales = ZipfData(master_rows=1000, exponent=1.0)
    >>> sales.workload.rows_per_key, next(sales.stream(Path())).num_rows
    (1.0, 10000)
    """

    master_rows: int
    exponent: float
    """Of the stream's keys."""
    keys: int | None = None
    """Values that both sides draw from; None for a master row each."""
    master_exponent: float = 0.0
    """Of the master rows among the keys, where these are not one each."""
    shuffled: bool = False
    """Whether keys that the stream asks for often have no more master rows than others."""
    order: Literal["key", "popularity"] = "key"
    bursty: bool = False
    """Whether batches of the stream are as uneven as what self-similar arrivals bring in equal spans of time."""
    unknown_share: float = 0.0
    """Stream rows whose key is in no master row."""
    master_row_bytes: int = 120
    stream_row_bytes: int = 20
    page_bytes: int = 16 * 1024
    seed: int = 7

    @property
    def name(self) -> str:
        drawn = f"-of-{self.keys}-zipf-{self.master_exponent:g}" if self.keys else ""
        shuffled = "-shuffled" if self.shuffled else ""
        size = f"{self.master_rows}-{self.master_row_bytes}b-pages-{self.page_bytes}"
        return f"zipf-{size}{drawn}{shuffled}-by-{self.order}-seed-{self.seed}"

    @property
    def key(self) -> str:
        return "key"

    @cached_property
    def workload(self) -> Workload:
        matched_share, rows_per_key = self._matches() if self.keys else (1.0, 1.0)
        return Workload(
            master_rows=self.master_rows,
            master_row_bytes=self.master_row_bytes,
            stream_row_bytes=self.stream_row_bytes,
            zipf_exponent=self.exponent,
            matched_share=matched_share * (1 - self.unknown_share),
            rows_per_key=rows_per_key,
            popular_first=self.order == "popularity",
            page_bytes=self.page_bytes,
        )

    @property
    def master_order(self) -> Int64s | None:
        if self.order == "key":
            return None
        rank_of_key = np.argsort(self._keys_by_rank)
        return np.argsort(rank_of_key[self._master_keys], kind="stable")

    @property
    def stream_schema(self) -> pa.Schema:
        rest = pa.binary(self.stream_row_bytes - _KEY_AND_EVENT_BYTES)
        return schema_of(key=pa.int64(), event=pa.int64(), rest=rest)

    def master(self, folder: Path) -> pa.RecordBatchReader:  # noqa: ARG002
        width = filler_bytes(self.master_row_bytes)
        schema = schema_of(key=pa.int64(), facts=pa.binary(width))
        random = np.random.default_rng([self.seed, 3])
        keys = self._master_keys

        def batches() -> Iterator[pa.RecordBatch]:
            for first, rows in spans(self.master_rows):
                columns = [pa.array(keys[first : first + rows]), filler(rows, width, random)]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)

        return pa.RecordBatchReader.from_batches(schema, batches())

    def stream(self, folder: Path) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        draw = Zipf(self._key_count, exponent=self.exponent, seed=self.seed)
        random = np.random.default_rng([self.seed, 4])
        width = self.stream_row_bytes - _KEY_AND_EVENT_BYTES
        first = 0
        for rows in self._batch_rows():
            keys = self._keys_by_rank[draw.draw(rows)]
            keys[random.random(rows) < self.unknown_share] += self._key_count
            columns = [pa.array(keys), pa.array(np.arange(first, first + rows)), filler(rows, width, random)]
            yield pa.RecordBatch.from_arrays(columns, schema=self.stream_schema)
            first += rows

    def _batch_rows(self) -> Iterator[int]:
        """Of each batch; bursts are drawn for some hundred batches at a time."""
        for part in count():
            if self.bursty:
                bursts = burst_counts(BATCH_ROWS * _BATCHES_A_DRAW, _BATCHES_A_DRAW, seed=self.seed + part)
                yield from bursts[bursts > 0].tolist()
            else:
                yield BATCH_ROWS

    @property
    def _key_count(self) -> int:
        return self.keys or self.master_rows

    @cached_property
    def _keys_by_rank(self) -> Int64s:
        """Keys, the one that the stream asks for most first."""
        return np.random.default_rng([self.seed, 1]).permutation(self._key_count).astype(np.int64)

    @cached_property
    def _master_keys(self) -> Int64s:
        if not self.keys:
            return np.arange(self.master_rows)
        by_rank = self._keys_by_rank
        if self.shuffled:
            by_rank = np.random.default_rng([self.seed, 2]).permutation(self.keys).astype(np.int64)
        drawn = Zipf(self.keys, exponent=self.master_exponent, seed=self.seed + 2)
        return by_rank[drawn.draw(self.master_rows)]

    def _matches(self) -> tuple[float, float]:
        """Stream rows that find a master row, and how many such a row finds."""
        rows_of_rank = np.bincount(self._master_keys, minlength=self._key_count)[self._keys_by_rank]
        shares = np.arange(1, self._key_count + 1, dtype=np.float64) ** -self.exponent
        shares /= shares.sum()
        matched = float(shares[rows_of_rank > 0].sum())
        return matched, float(np.dot(shares, rows_of_rank)) / matched


__all__ = ["BATCH_ROWS", "ZipfData"]
