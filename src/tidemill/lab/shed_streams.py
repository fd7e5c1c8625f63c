"""Streams for the shedding experiments: how many matches each row has, and which of them are kept."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from tidemill.core.memory import MemoryBudget
from tidemill.join.shedding.shedding import Round, Shedding
from tidemill.join.shedding.strategy import Floats, Int64s, Strategy
from tidemill.testing.zipf import Zipf

_MEMORY_BYTES = 64_000_000


@dataclass(frozen=True, kw_only=True)
class ShedData:
    """Keys of a stream and master rows by key, both with Zipf frequencies.

    Aligned, the keys that come most often have most master rows, as in the MESHJOIN paper; shuffled, the two have nothing
    to do with each other.
    """

    master_rows: int
    master_zipf: float
    stream_zipf: float = 0.5
    aligned: bool
    seed: int

    def frequencies(self) -> Floats:
        """Master rows of each key as Zipf's law has them; as many keys as master rows, so one on average."""
        weights = np.arange(1, self.master_rows + 1, dtype=np.float64) ** -self.master_zipf
        shares: Floats = weights * (self.master_rows / weights.sum())
        return shares if self.aligned else np.random.default_rng(self.seed).permutation(shares)

    def drawn_counts(self) -> Floats:
        """The same drawn row by row, hence whole numbers, and none for 37 % of the keys at skew 0.1, 44 % at 0.5."""
        drawn = Zipf(self.master_rows, exponent=self.master_zipf, seed=self.seed, spread=not self.aligned)
        rows = np.bincount(drawn.draw(self.master_rows), minlength=self.master_rows)
        counts: Floats = rows.astype(np.float64)
        return counts

    def streams(self, rows: int, streams: int = 1) -> list[Int64s]:
        """Keys of each stream."""
        drawn = Zipf(self.master_rows, exponent=self.stream_zipf, seed=self.seed + 1000)
        return [drawn.draw(rows) for _ in range(streams)]


def rounds_of(
    strategy: Strategy, matches: Floats, *, room_rows: int, step_rows: int, seed: int = 0
) -> Iterator[Round]:
    """What becomes of rows that arrive one in a unit of time, for a join that takes `room_rows` every `step_rows`.

    Each row is its number. The join asks at time 0 and is served as soon as the room is full; from then on it
    asks every `step_rows`, which are more, so it never waits again.
    """
    shedding = Shedding(strategy, MemoryBudget(_MEMORY_BYTES), memory_bytes=_MEMORY_BYTES, seed=seed)
    edges = [0, *range(room_rows, len(matches), step_rows), len(matches)]
    numbers = pa.array(np.arange(len(matches)))
    for begin, end in pairwise(edges):
        shedding.open(room_rows)
        batch = pa.record_batch([numbers.slice(begin, end - begin)], names=["row"])
        at_once = shedding.arrive(batch, matches=matches[begin:end])
        done = shedding.hand_over()
        yield Round(done.kept, done.shares, done.matches, (*at_once, *done.shed), done.report)


def kept_matches(strategy: Strategy, matches: Floats, *, room_rows: int, step_rows: int) -> float:
    """Results that come now, of all rounds."""
    rounds = rounds_of(strategy, matches, room_rows=room_rows, step_rows=step_rows)
    return sum(done.report.kept_matches for done in rounds)


__all__ = ["ShedData", "kept_matches", "rounds_of"]
