"""What tells shedding strategies apart: how a row ranks, and what may be said of the whole from what is kept."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]

Goal = Literal["most", "sample"]
"""MAX-SUBSET and RANDOM-SAMPLE of the MESHJOIN paper: most results now, or a sample that permits estimates."""

CONFIDENCE = 0.99
"""Of bounds where nobody asked for another: of 200 bounds two miss. At 0.95 half of all sets of 200 would miss more
than one in twenty."""


@dataclass(frozen=True, kw_only=True)
class ShedReport:
    """One round: rows that arrived while the join did its work, and what became of them.

    `arrived_rows` = `kept_rows` + `shed_rows`, always.
    """

    strategy: str
    room_rows: int
    arrived_rows: int
    kept_rows: int
    arrived_matches: float
    """Results that all rows would give, by the counts that were used; one a row where none were."""
    kept_matches: float
    stated_error: float
    """As the strategy's `error_means` says; 0 when nothing was shed."""
    error_means: str

    @property
    def shed_rows(self) -> int:
        return self.arrived_rows - self.kept_rows

    @property
    def kept_share(self) -> float:
        """The sampling rate."""
        return self.kept_rows / self.arrived_rows if self.arrived_rows else 1.0

    @property
    def kept_match_share(self) -> float:
        """Results of this round that come now."""
        return self.kept_matches / self.arrived_matches if self.arrived_matches else 1.0


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """What a strategy may look at once a round is over."""

    kept_matches: Floats
    """Of each kept row."""
    arrived_rows: int
    arrived_matches: float
    best_shed_rank: float
    """The highest rank of a row that was shed."""

    @property
    def kept_rows(self) -> int:
        return len(self.kept_matches)


class Strategy(Protocol):
    """Rows with the highest ranks are kept; equal ranks are told apart by their draws.

    A rank hangs on the row alone, never on its neighbours, so which rows are kept depends neither on how arrivals
    are cut into batches nor, but for `keep`, on their order.
    """

    name: ClassVar[str]
    goal: ClassVar[Goal]
    needs_matches: ClassVar[bool]
    error_means: ClassVar[str]

    def ranks(self, matches: Floats, draws: UInt64s, first_row: int) -> Floats:
        """Of rows that give so many results each, with random draws, the first of them this number in its round."""

    def shares(self, chosen: Chosen) -> Floats | None:
        """Chance that each kept row had to be kept; None where a strategy permits no estimate."""

    def stated_error(self, chosen: Chosen) -> float:
        """What `error_means` says, for a round that shed rows."""


def uniform(draws: UInt64s) -> Floats:
    """The draws as numbers above 0 and below 1."""
    numbers: Floats = ((draws >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return numbers


def top_rows(ranks: Floats, draws: UInt64s, rows: int) -> Bools:
    """Which rows are the first so many by rank, then by draw.

    >>> top_rows(np.array([1.0, 3.0, 1.0]), np.array([5, 0, 9], np.uint64), 2).tolist()
    [False, True, True]
    """
    beyond = len(ranks) - rows
    if beyond <= 0:
        return np.ones(len(ranks), np.bool_)
    if rows == 0:
        return np.zeros(len(ranks), np.bool_)
    last: float = np.partition(ranks, beyond)[beyond]
    kept: Bools = ranks > last
    tied = np.flatnonzero(ranks == last)
    wanted = rows - int(np.count_nonzero(kept))
    kept[tied[np.argsort(draws[tied], kind="stable")[len(tied) - wanted :]]] = True
    return kept


__all__ = [
    "CONFIDENCE",
    "Bools",
    "Chosen",
    "Floats",
    "Goal",
    "Int64s",
    "ShedReport",
    "Strategy",
    "UInt64s",
    "top_rows",
    "uniform",
]
